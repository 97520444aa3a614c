"""Images by DALI: one graph for GPUs and CPUs, fed with parameters drawn on the host.

`gate` decides which samples DALI may see, and which cuts its graph executes; `graph` describes the operations, `pipeline` runs
it, `installation` reports which DALI is installed. A sample that DALI must not see is replaced by a placeholder; the loader
overwrites its row.
"""
