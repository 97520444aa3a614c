"""Measure around `next()` of loaders by patching their classes; the objects keep their identity.

`DataLoader.__iter__`, and that of each subclass with its own, tags the iterator that it returns. The iterator's class is
patched too, and measures `next()` if there is a tag. Other iterators, such as generators of a subclass, are wrapped in a
stand-in. Of nested loaders the outermost is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from datapipe.instruments.attach.ours import complain
from datapipe.instruments.attach.passes import OpenPass, StandIn, enter, leave, outermost
from datapipe.instruments.attach.session import Session
from datapipe.instruments.attach.sites import note_site
from datapipe.instruments.measure.watching import Watch
from datapipe.instruments.torch_stages.install import install, iterator_key, probing
from datapipe.instruments.torch_stages.patching import after_import, forget_us
from datapipe.instruments.torch_stages.probe import is_fetching

_TAG = "_datapipe_run"
_MARK = "_datapipe_watches"
_TORCH = "torch.utils.data.dataloader"
_LOADERS = {  # module -> its loaders, and their iterators
    _TORCH: (("DataLoader",), ("_BaseDataLoaderIter",)),
    "datapipe.kernel.loader": (("Loader",), ("BatchIterator",)),
    "datapipe.kernel.prefetching": (("PrefetchedLoader",), ("PrefetchIterator",)),
    "accelerate.data_loader": (("DataLoaderShard", "DataLoaderDispatcher"), ()),  # generators around a torch loader
}
_session: Session | None = None
_iterators: list[type] = []  # classes whose objects are tagged; others get a stand-in


def set_session(session: Session | None) -> None:
    """Set the session that loaders are measured for. Without one, the patches do nothing."""
    global _session
    _session = session


def current_session() -> Session | None:
    """Return the session that loaders are measured for."""
    return _session


def patch_all() -> None:
    """Patch torch's loaders, datapipe's and Accelerate's: now, or after their import."""
    for name in _LOADERS:
        after_import(name, patch)


def patch(module: ModuleType) -> None:
    """Patch the loaders of a module that has just been imported. May be called again."""
    loaders, iterators = _LOADERS[module.__name__]
    try:
        _iterators.extend(vars(module)[name] for name in iterators if vars(module).get(name) not in (None, *_iterators))
        for loader in filter(None, map(vars(module).get, loaders)):
            _adopt_heirs(loader)
        missing = install(module) if module.__name__ == _TORCH else []
    except Exception as exc:
        complain("loaders cannot be measured", exc)
        return
    if missing:
        complain(f"this version of torch is not supported, so loaders cannot be inspected ({'; '.join(missing)})")


def measured_pass(loader: Any, session: Session, watch: Watch, key: int) -> tuple[OpenPass, Any]:
    """Return a pass over any iterable, and its iterator; `run.next(next, iterator)` returns measured batches.

    Loaders inside it report their batches under `key`.
    """
    iterator = _iterated(iter, loader, key)
    run = OpenPass(watch, watch.meter.open_pass(loader=key), loader=key, pass_id=session.next_pass_id(), iterator=None)
    return run, iterator


def _adopt(loader: Any) -> None:
    """Patch what this class defines itself."""
    own = vars(loader)
    if "__init__" in own and not hasattr(own["__init__"], _MARK):
        loader.__init__ = _sited(own["__init__"])
    if "__iter__" in own and not hasattr(own["__iter__"], _MARK):
        loader.__iter__ = _handing_out(own["__iter__"])


def _adopt_heirs(loader: Any) -> None:
    """Patch the class and its subclasses, existing and future."""
    heirs = [loader]
    for heir in heirs:  # grows during the loop
        _adopt(heir)
        heirs += type.__subclasses__(heir)
    own = vars(loader).get("__init_subclass__")
    if own is not None and hasattr(own, _MARK):
        return

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:  # noqa: N807
        if own is None:
            super(loader, cls).__init_subclass__(**kwargs)
        else:
            own.__func__(cls, **kwargs)
        try:
            _adopt(cls)
        except Exception as exc:
            complain("a class of loaders cannot be measured", exc)

    loader.__init_subclass__ = _marked(classmethod(__init_subclass__))  # type: ignore[arg-type]


def _sited(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if _session is not None:
            try:
                note_site(self)
            except Exception as exc:
                complain("the place where a loader was made could not be recorded", exc)
        try:
            init(self, *args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise

    return _marked(__init__)


def _handing_out(iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807
        session = _session
        watch = None if session is None or is_fetching() else session.watch()
        if session is None or watch is None:
            return _without_trace(iterate, self)
        outer = outermost()
        try:
            key = session.key(self) if outer is None else outer
        except Exception as exc:
            session.fail("loaders cannot be measured", exc)
            return _without_trace(iterate, self)
        iterator = _iterated(iterate, self, key)
        try:
            return _tagged(iterator, session, watch, key, is_outermost=outer is None)
        except Exception as exc:
            session.fail("loaders cannot be measured", exc)
            return iterator

    return _marked(__iter__)


def _tagged(iterator: Any, session: Session, watch: Watch, loader: int, *, is_outermost: bool) -> Any:
    is_known = isinstance(iterator, tuple(_iterators)) and type(iterator) is not StandIn
    if not is_known and not is_outermost:
        return iterator
    run = OpenPass(
        watch,
        watch.meter.open_pass(loader=loader) if is_outermost else None,
        loader=loader,
        pass_id=session.next_pass_id(),
        iterator=iterator_key(iterator) if is_known else None,
    )
    if not is_known:
        return StandIn(iterator, run)
    _patch_next(type(iterator))
    iterator.__dict__[_TAG] = run
    return iterator


def _patch_next(iterator: type) -> None:
    """Patch the class that defines it, so that all that inherit it are patched at once."""
    for owner in iterator.__mro__:
        own = vars(owner).get("__next__")
        if own is not None:
            if not hasattr(own, _MARK):
                owner.__next__ = _bracketed(own)  # type: ignore[attr-defined]
            return


def _bracketed(advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        run = self.__dict__.get(_TAG)
        try:
            return advance(self) if run is None or _session is None else run.next(advance, self)
        except BaseException as exc:
            forget_us(exc)
            raise

    return _marked(__next__)


def _iterated(iterate: Callable[[Any], Any], loader: Any, key: int) -> Any:
    """Return a loader's iterator, with probes. Loaders inside it report their batches under `key`."""
    before, was_probing = enter(key), probing(True)
    try:
        return _without_trace(iterate, loader)
    finally:
        leave(before)
        probing(was_probing)


def _without_trace(iterate: Callable[[Any], Any], loader: Any) -> Any:
    try:
        return iterate(loader)
    except BaseException as exc:
        forget_us(exc)
        raise


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _MARK, True)
    return function
