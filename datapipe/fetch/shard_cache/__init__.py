"""Whole shards of object stores, kept on a local disk and shared by the processes of a node."""
