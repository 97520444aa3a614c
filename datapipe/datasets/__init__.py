"""Datasets that are Python objects of others: what they read, so that it can be read without them."""

from __future__ import annotations

from datapipe.datasets.seen import Seen, Unseen, see_through

__all__ = ["Seen", "Unseen", "see_through"]
