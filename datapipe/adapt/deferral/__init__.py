"""Deferred decoding: a Dataset of the user's runs unchanged, its images are made together when the worker's fetch ends."""
