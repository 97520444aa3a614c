"""The folder of 37 samples that these tests share."""

from fixtures import folder

__all__ = ["folder"]
