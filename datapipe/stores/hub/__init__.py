"""Datasets on the Hub of Hugging Face.

The Hub counts the requests of a user. So each is made by one process of a machine, and its answer is kept for all: the files of a
commit for good, as a commit never changes; the URL of a file's bytes until its signature expires; and a wait that the Hub asks
for, until it is over. Nothing here tries again or waits: failures are `FailedRequestError`, which those who ask repeat.
"""
