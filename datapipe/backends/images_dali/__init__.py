"""Images by DALI: one graph for GPUs and CPUs, fed with what the host has drawn.

`gate` decides which samples DALI may see, `graph` describes what is done with them, `pipeline` runs it,
`installation` says which DALI this machine has. A sample that DALI must not see is represented by a
placeholder; the loader overwrites its row.
"""
