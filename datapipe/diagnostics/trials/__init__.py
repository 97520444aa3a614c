"""Tries remedies out: datapipe's loader on some of the files that a training script read, after the script has ended.

`sample` and `shards` run in the script's process and note which files; `timing` runs in one of its own, and knows nothing of the
script. No code of the user's is run, and nothing of a loader is started that was not started before.
"""
