"""Deferred decoding: run the user's Dataset unchanged, and make its images together when the worker's fetch ends."""
