"""The GPU check: what a CPU cannot prove, in stages, for a machine that one has for half an hour.

`python -m benchmarks.gpu STAGE` runs there, and on any machine with `--dry-run`. Start with README.md in this
directory.
"""
