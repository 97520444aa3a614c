"""The kinds of data: `inspect` and `bench` tell by this which kind a path is of, and find the modules that each kind has.

A kind is a folder beside this module. For the commands it has `inspection` (`claim(path)`: the index of the data there, None if
that is not of this kind; `describe(index, args)`: facts, JSON-safe; `as_text(path, facts)`) and `bench` (`measure(index, args)`:
rates, JSON-safe; `as_text(result)`).
"""

from __future__ import annotations

import importlib
from typing import Any

from datapipe.core.errors import FormatError
from datapipe.stores.location import is_url

# Where each kind is. Asked in this order whether a local path is theirs: images last, as they keep an index next to shards that
# others wrote. What lies in a store is asked for in reverse, since no index is kept there.
KINDS = {"tables": "datapipe.kinds.tables", "images": "datapipe.kinds.images"}


def part(kind: str, name: str) -> Any:
    """Return a module of a kind, such as its `bench`. It is imported when it is needed."""
    return importlib.import_module(f"{KINDS[kind]}.{name}")


def recognise(path: str) -> tuple[str, Any]:
    """Return the kind of the data at a path or URL, and its index. Raises what the kinds' `claim` raise if it is of none."""
    problem: FormatError | None = None
    for kind in reversed(KINDS) if is_url(path) else KINDS:
        try:
            index = part(kind, "inspection").claim(path)
        except FormatError as exc:
            if not is_url(path):
                raise
            problem = problem or exc
            continue
        if index is not None:
            return kind, index
    raise problem or FormatError(f"{path}: no data of the kinds that datapipe knows: {', '.join(KINDS)}")
