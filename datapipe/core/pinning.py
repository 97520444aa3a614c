"""The versions at which places are opened that change while they are read: branches of datasets, tables that grow.

A data object keeps what it was opened at, so that its copies in other processes, and a training that resumes, open the same.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Opening:
    chosen: Mapping[str, str]
    found: dict[str, str] = field(default_factory=dict)


_opening: contextvars.ContextVar[_Opening | None] = contextvars.ContextVar("opening", default=None)


@contextlib.contextmanager
def opened_at(chosen: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Open places within the block at the versions chosen, by place; others at their latest.

    Yields the versions at which they are opened, by place, which fills while the block runs. Blocks within another one belong
    to it: it chooses, and they yield the same.
    """
    outer = _opening.get()
    if outer is not None:
        yield outer.found
        return
    opening = _Opening(chosen)
    token = _opening.set(opening)
    try:
        yield opening.found
    finally:
        _opening.reset(token)


def version_of(place: str, resolve: Callable[[str], str]) -> str:
    """Return the version at which to open a place, and note it.

    `resolve`: returns the version that a chosen text names, such as a tag, and the latest one for "".
    """
    opening = _opening.get()
    if opening is None:
        return resolve("")
    if place not in opening.found:
        opening.found[place] = resolve(opening.chosen.get(place, ""))
    return opening.found[place]
