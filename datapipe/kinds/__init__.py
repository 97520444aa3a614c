"""Kinds of data: one folder each, with the half of a loader that knows what a sample is."""
