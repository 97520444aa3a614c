"""Attach measurements to unmodified training: in a process started for that, or in this one.

`launching.run_script` and `run_command` start a script or a launcher; every Python process below it finds `boot/`. A
process that iterates a loader opens a `watching.Watch` and passes it the observations of `loaders` and `cuda_hooks`. A
script runs as it would alone, even if the measurement fails.
"""
