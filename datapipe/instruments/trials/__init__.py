"""Try remedies on what a training script reads.

`sample` runs in the script's process and notes files; after the script has ended, `running` starts a process of its own
(`process`) that tries datapipe's loader on them. That process knows nothing about the script, and runs none of the user's code.
A Dataset of the script's own can be tried only where its code is: in forks of the script's process, when its measurement ends
(`dataset`, with `scaling`).
"""
