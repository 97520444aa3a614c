"""What is kept for the user between runs, and where: losing it costs the time to make it anew."""

from __future__ import annotations

from pathlib import Path

import platformdirs

INDEXES, IMAGES, RATES = "index", "decoded", "calibration"  # of datasets of others; decoded; of backends on this machine


def user_cache(name: str) -> Path:
    """The directory of one kind, which need not exist."""
    return Path(platformdirs.user_cache_dir("datapipe")) / name
