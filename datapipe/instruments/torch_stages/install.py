"""Install the probes in torch's own classes, once per process. This alone measures nothing.

Four names of torch are needed, all with these arguments, as in torch 2.6 to 2.15: `_BaseDataLoaderIter.__init__(self,
loader)`, after which `_collate_fn` is what the fetcher will get, the two fetchers' `fetch(self, index)`, and the function
`pin_memory(data, device)`. If one is missing or has other arguments, `install` reports that and changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from datapipe.instruments.torch_stages.patching import after_import, forget_us
from datapipe.instruments.torch_stages.probe import CollateProbe, new_iterator_key, probed
from datapipe.instruments.torch_stages.profile import ARRIVALS, Pinning
from datapipe.instruments.torch_stages.ranges import open_recorder, recorder, set_recorder
from datapipe.instruments.torch_stages.transform_patching import add_compose

_COMPOSES = {"torchvision.transforms.transforms": "__call__", "torchvision.transforms.v2._container": "forward"}
_local = threading.local()


def install(dataloader: ModuleType) -> list[str]:
    """Patch torch around `torch.utils.data.dataloader`; return what is not as expected, in which case nothing is patched."""
    missing = _missing(dataloader)
    if not missing:
        iterator = dataloader._BaseDataLoaderIter
        if not hasattr(iterator.__init__, "_datapipe_probes"):
            iterator.__init__ = _probing(iterator.__init__)
            pinning = dataloader._utils.pin_memory
            pinning.pin_memory = _timed_pinning(pinning.pin_memory)
        _install_fetchers(dataloader._utils.fetch)
    return missing


def restore_probe(function: Callable[[Any], Any], iterator: tuple[int, int], has_ranges: bool) -> CollateProbe:
    """Unpickle a probe; in a worker that was not forked, first install what a forked one inherits."""
    with contextlib.suppress(Exception):  # otherwise nothing is measured in this worker
        import torch.utils.data._utils.fetch as fetch

        if not _wrong_fetchers(fetch):
            _install_fetchers(fetch)
        if has_ranges and recorder() is None:
            set_recorder(open_recorder())
    return CollateProbe(function, iterator, restore_probe)


def probing(is_wanted: bool) -> bool:
    """Set whether iterators that this thread creates from now on get probes; return the previous setting."""
    before: bool = getattr(_local, "is_probing", False)
    _local.is_probing = is_wanted
    return before


def iterator_key(iterator: object) -> tuple[int, int] | None:
    """Return the key of an iterator that has a probe."""
    probe = getattr(iterator, "_collate_fn", None)
    return probe.iterator if type(probe) is CollateProbe else None


def _install_fetchers(fetch: ModuleType) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(fetch, name)
        if not hasattr(fetcher.fetch, "_datapipe_probes"):
            fetcher.fetch = _marked(probed(fetcher.fetch))
    for module, method in _COMPOSES.items():
        after_import(module, functools.partial(_add_compose, method=method))


def _add_compose(module: ModuleType, method: str) -> None:
    compose = getattr(module, "Compose", None)
    if isinstance(compose, type) and method in vars(compose):
        add_compose(compose, method)


def _probing(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            init(self, *args, **kwargs)
        except BaseException as exc:
            forget_us(exc)
            raise
        if getattr(_local, "is_probing", False) and callable(getattr(self, "_collate_fn", None)):
            self._collate_fn = CollateProbe(self._collate_fn, new_iterator_key(), restore_probe)

    return _marked(__init__)


def _timed_pinning(pin_memory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(pin_memory)
    def timed(data: Any, device: Any = None) -> Any:
        if getattr(_local, "is_pinning", False) or not ARRIVALS.is_known(data):
            return pin_memory(data, device)
        _local.is_pinning = True
        start_ns = time.perf_counter_ns()
        try:
            pinned = pin_memory(data, device)
        except BaseException as exc:
            forget_us(exc)
            raise
        finally:
            _local.is_pinning = False
        ARRIVALS.pinned(data, pinned, Pinning(start_ns, time.perf_counter_ns()))
        return pinned

    return _marked(timed)


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    function._datapipe_probes = True  # type: ignore[attr-defined]
    return function


def _missing(dataloader: ModuleType) -> list[str]:
    missing = _wrong(dataloader, "_BaseDataLoaderIter.__init__", ["self", "loader"])
    missing += _wrong(dataloader, "_utils.pin_memory.pin_memory", ["data", "device"])
    fetch = getattr(getattr(dataloader, "_utils", None), "fetch", None)
    missing += ["_utils.fetch"] if fetch is None else _wrong_fetchers(fetch)
    if missing and hasattr(sys.modules.get("torch"), "__version__"):
        missing.append(f"torch {sys.modules['torch'].__version__}")
    return missing


def _wrong_fetchers(fetch: ModuleType) -> list[str]:
    expected = ["self", "possibly_batched_index"]
    return _wrong(fetch, "_MapDatasetFetcher.fetch", expected) + _wrong(fetch, "_IterableDatasetFetcher.fetch", expected)


def _wrong(module: ModuleType, path: str, parameters: list[str]) -> list[str]:
    """Return [] if there is such a function with such parameters, else what was found."""
    found: Any = module
    try:
        for name in path.split("."):
            found = getattr(found, name)
        own = list(inspect.signature(found).parameters)
    except (AttributeError, TypeError, ValueError) as exc:
        return [f"{module.__name__}.{path}: {exc}"]
    return [] if own == parameters else [f"{module.__name__}.{path} takes {own}"]
