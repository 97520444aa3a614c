"""What is kept for the user between runs, and where. Losing it costs the time to make it again."""

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

# Of datasets of others; decoded images; of backends on this machine; whether a GPU decodes regions.
INDEXES, IMAGES, RATES, TRIALS = "index", "decoded", "calibration", "trials"
# Of datasets in object stores: indexes, where shards are kept, and what is on its way there.
REMOTE_INDEXES, REMOTE_SHARDS, STAGED = "remote-index", "remote-shards", "staged"

TABLES = "tables"  # finished rows of tables

logger = get_logger(__name__)


def user_cache(name: str) -> Path:
    """Return the directory of one kind, which need not exist."""
    return Path(platformdirs.user_cache_dir("datapipe")) / name


def remembered(kind: str, circumstances: Mapping[str, Any], *, make: Callable[[], Any], parse: Callable[[Any], T]) -> T:
    """Return what `make` found out under the same circumstances before, or let it find out now.

    `circumstances` and what `make` returns are JSON-safe. `parse` turns the latter into what is returned; where it raises
    ValueError, KeyError or TypeError on what was kept, that is made again. Of several processes one makes it, and the
    others wait. Where nothing can be kept, a warning is logged and it is made each time.
    """
    name = hashlib.sha256(json.dumps(dict(circumstances), sort_keys=True).encode()).hexdigest()[:16]
    path = user_cache(kind) / f"{name}.json"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(private_directory(path.parent))
            stack.enter_context(one_at_a_time(path.with_suffix(".lock")))
        except OSError as exc:
            logger.warning("%s cannot be kept in %s (%s); every process finds it out again", kind, path.parent, exc)
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
