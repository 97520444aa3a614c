"""Look up versions of installed distributions."""

from __future__ import annotations

import importlib.metadata


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
