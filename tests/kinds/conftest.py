"""The datasets that the loaders' tests read."""

from __future__ import annotations

from loader_fixtures import _no_iterator_of_others, backend, converted, folder, shards, uneven

__all__ = ["_no_iterator_of_others", "backend", "converted", "folder", "shards", "uneven"]
