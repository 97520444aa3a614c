"""Lance datasets, read by pylance: rows are taken by their numbers, at one version of the dataset.

A version is a file in the dataset's folder, its manifest, which never changes; it stands for the dataset as one shard.
"""
