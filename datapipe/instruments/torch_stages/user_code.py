"""Tell the user's code from that of libraries, by its file."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

_LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))
OURS = os.path.join(str(Path(__file__).resolve().parents[2]), "")


def is_of_user(file: str) -> bool:
    """Return True for the file of code that belongs to no library."""
    return not file.startswith((OURS, "<", *_LIBRARIES)) and "site-packages" not in file
