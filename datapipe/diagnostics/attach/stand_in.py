"""An iterator that stands in for one whose class cannot be patched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datapipe.diagnostics.attach.passes import Run


class StandIn:
    """Is `iterator` in all but `type()`: the same attributes, also to set, and the same class to `isinstance`."""

    __slots__ = ("_datapipe_iterator", "_datapipe_run")

    def __init__(self, iterator: Any, run: Run) -> None:
        object.__setattr__(self, "_datapipe_iterator", iterator)
        object.__setattr__(self, "_datapipe_run", run)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._datapipe_iterator.__class__

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._datapipe_run.next(next, self._datapipe_iterator)

    def __len__(self) -> int:
        return len(self._datapipe_iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._datapipe_iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._datapipe_iterator, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._datapipe_iterator, name)

    def __repr__(self) -> str:
        return repr(self._datapipe_iterator)
