"""Try remedies: datapipe's loader on some of the files that a training script read, after the script has ended.

`sample` and `shards` run in the script's process and note the files; `trying` starts a process of its own (`process`, with
`timing`), which knows nothing about the script. None of the user's code is run, and nothing of a loader is started.
"""
