"""Attach a process: this one, or one started under an attachment, with the remedy to try."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from datapipe.errors import LifecycleError
from datapipe.instruments.attach import loaders, ours
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.attach.session import Session
from datapipe.instruments.attach.settings import WATCH, Applied, settings_from
from datapipe.instruments.attach.sites import site_of
from datapipe.instruments.measure.watching import Hooks, OpenWatch, Watch


@contextlib.contextmanager
def attach_here(open_watch: OpenWatch) -> Iterator[Session]:
    """Measure the loaders that this process iterates within the block; the watch is finished at its end.

    Passes that started before are not measured. Raises LifecycleError if the process is already attached.
    """
    if loaders.current_session() is not None:
        raise LifecycleError("this process is already measured; leave the other block first, or do not run it under `diagnose`")
    session = Session(open_watch)
    loaders.set_session(session)
    try:
        loaders.patch_all()
        yield session
    finally:
        session.finish()
        loaders.set_session(None)


def begin(module: ModuleType, environment: Mapping[str, str]) -> None:
    """Measure the loaders of `module`, which has just been imported, as the environment in which the process began says.

    torch itself may still be partly imported: nothing of it is used here.
    """
    if loaders.current_session() is None:
        if ours.is_name_taken(sys.path):
            complain(ours.NAME_TAKEN)
            ours.leave()
            return
        loaders.set_session(Session(_named(environment)))
        if PathFinder.find_spec("datapipe", sys.path) is None:
            sys.path.append(str(ours.ROOT))  # workers that are not forked import this package by name
    applied = settings_from(environment).applied
    if applied is not None and module.__name__ == "torch.utils.data.dataloader":
        apply(module, applied)
    loaders.patch(module)


def _named(environment: Mapping[str, str]) -> OpenWatch:
    """Return the module:function that the environment names, imported when it is needed."""
    module, _, function = environment[WATCH].partition(":")

    def open_watch(hooks: Hooks) -> Watch:
        opened: Watch = getattr(importlib.import_module(module), function)(hooks, environment)
        return opened

    return open_watch


_MARK = "_datapipe_applies"


def apply(dataloader: ModuleType, applied: Applied) -> None:
    """Apply the remedy to torch's loaders, whose module has just been imported. Call it before they are patched."""
    loader = dataloader.DataLoader
    if not hasattr(loader.__iter__, _MARK):
        loader.__iter__ = _iterating(loader.__iter__, applied)


def _iterating(iterate: Callable[[Any], Any], applied: Applied) -> Callable[[Any], Any]:
    """Wrap `__iter__` to apply the remedy at a loader's first pass, after everything that the script has set."""
    instead: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # replacement to iterate; None: the loader itself

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
    """Change the loader; return its replacement, if any."""
    if applied.num_workers is not None:
        loader.num_workers = applied.num_workers
        if loader.prefetch_factor is None:
            loader.prefetch_factor = 2
    if applied.prefetch_factor is not None:
        loader.prefetch_factor = applied.prefetch_factor
    if applied.in_order is not None:
        loader.in_order = applied.in_order
    if applied.batch_size is not None:
        _resize(loader, applied.batch_size)
    if not applied.from_torch:
        return None
    from datapipe.adapt import from_torch

    return from_torch(loader, device="cpu")


def _resize(loader: Any, batch_size: int) -> None:
    """Set the size of a loader's batches, if torch's own code makes them."""
    from torch.utils.data import BatchSampler

    if type(loader.batch_sampler) is BatchSampler:
        loader.batch_sampler.batch_size = batch_size
        loader.__dict__["batch_size"] = batch_size  # its own `__setattr__` refuses that
