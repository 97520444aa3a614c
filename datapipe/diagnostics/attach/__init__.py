"""Attaches to training that knows nothing of it: in a process started for that, or in this one.

`command.run_script` and `command.run_command` start a script or a launcher; `boot/` is found by every Python process
below; a process in which a loader is iterated opens a `watching.Watch` and hands it what `loaders` and `cuda_hooks`
see. A script runs as it would alone, whatever goes wrong here.
"""
