"""Datasets of the same 37 samples in every container; made once."""

from fixtures import folder

__all__ = ["folder"]
