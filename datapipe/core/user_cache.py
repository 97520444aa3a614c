"""Locate and use what is kept for the user between runs. Losing it costs the time to make it again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from datapipe.core import atomic
from datapipe.core.locks import one_at_a_time
from datapipe.core.printable import get_logger
from datapipe.core.private_files import private_directory
from datapipe.core.regular_files import read_bytes

T = TypeVar("T")

# Indexes of data that others wrote; decoded images; rates of backends on this machine; whether a GPU decodes regions.
INDEXES, IMAGES, RATES, TRIALS = "index", "decoded", "calibration", "trials"
# Of datasets in object stores: their indexes, cached shards, and conversions before their upload.
REMOTE_INDEXES, REMOTE_SHARDS, STAGED = "remote-index", "remote-shards", "staged"

TABLES = "tables"  # finished rows of tables

logger = get_logger(__name__)


def user_cache(name: str) -> Path:
    """Return the directory of one kind, which need not exist."""
    return Path(platformdirs.user_cache_dir("datapipe")) / name


def remembered(kind: str, circumstances: Mapping[str, Any], *, make: Callable[[], Any], parse: Callable[[Any], T]) -> T:
    """Return the earlier result of `make` under the same circumstances, or call it now and keep the result.

    `circumstances` and the result of `make` are JSON-safe. `parse` turns the latter into the returned value; if it raises
    ValueError, KeyError or TypeError on a kept result, the result is made again. One of several processes calls `make`, and the
    others wait. If nothing can be kept, a warning is logged and `make` is called each time.
    """
    name = hashlib.sha256(json.dumps(dict(circumstances), sort_keys=True).encode()).hexdigest()[:16]
    path = user_cache(kind) / f"{name}.json"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(private_directory(path.parent))
            stack.enter_context(one_at_a_time(path.with_suffix(".lock")))
        except OSError as exc:
            logger.warning("%s cannot be kept in %s (%s); every process makes it again", kind, path.parent, exc)
            return parse(make())
        try:
            return parse(json.loads(read_bytes(path))["found"])
        except (OSError, ValueError, KeyError, TypeError):
            found = make()
        try:
            atomic.write_json(path, {"circumstances": dict(circumstances), "found": found}, mode=0o600)
        except OSError as exc:
            logger.warning("%s cannot be kept in %s (%s)", kind, path.parent, exc)
        return parse(found)
