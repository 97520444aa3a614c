"""Remedies that need no edit of a script, carried out on loaders as they are made or iterated."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from datapipe.diagnostics.attach.complaints import complain
from datapipe.diagnostics.attach.ours import has_stepped_aside
from datapipe.diagnostics.attach.settings import Applied
from datapipe.diagnostics.attach.sites import site_of

_MARK = "_datapipe_applies"


def apply(dataloader: ModuleType, applied: Applied) -> None:
    """To the loaders of torch, whose module has just been imported. To be called before they are patched."""
    loader = dataloader.DataLoader
    if not hasattr(loader.__iter__, _MARK):
        loader.__iter__ = _iterating(loader.__iter__, applied)


def _iterating(iterate: Callable[[Any], Any], applied: Applied) -> Callable[[Any], Any]:
    """Before its first pass a loader is as the script made it, whatever that has set since."""
    instead: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # what is iterated; None: the loader itself

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if applied.site not in (None, site_of(self)):
            return iterate(self)
        if self not in instead:
            instead[self] = None
            try:
                instead[self] = _carry_out(self, applied)
            except Exception as exc:
                complain("a remedy could not be applied", exc)
        made = instead[self]
        return iterate(self) if made is None else iter(made)

    setattr(__iter__, _MARK, True)
    return __iter__


def _carry_out(loader: Any, applied: Applied) -> Any:
    """Change the loader; what is to be iterated in its place, if anything is."""
    if applied.num_workers is not None:
        loader.num_workers = applied.num_workers
        if loader.prefetch_factor is None:
            loader.prefetch_factor = 2
    if applied.prefetch_factor is not None:
        loader.prefetch_factor = applied.prefetch_factor
    if applied.in_order is not None:
        loader.in_order = applied.in_order
    if not applied.from_torch:
        return None
    if has_stepped_aside():
        raise RuntimeError("a package of yours is called 'datapipe' too")
    from datapipe.adapt import from_torch

    return from_torch(loader, device="cpu")
