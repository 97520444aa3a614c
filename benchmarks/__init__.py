"""Measurements of datapipe against other loaders. Start with README.md in this directory.

`measure.py` and `contenders/` run in other interpreters too, so they import nothing of datapipe at
their head.
"""
