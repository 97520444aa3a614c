"""`prefetch`: put any loader's batches on the device, copying the next ones while the current one is used."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import torch

from datapipe.core.checks import whole_number
from datapipe.core.observe import Observer, null_observer
from datapipe.errors import LifecycleError, OptionError
from datapipe.kernel.accelerators import checked_device, runtime_of
from datapipe.kernel.device import Uploader
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.pytree import tensors_of
from datapipe.kernel.shown import refuse_position
from datapipe.kernel.static_batches import StaticBatches
from datapipe.kernel.torch_compat import added_attributes, names_of

_NONE_LEFT = object()


def prefetch(
    iterable: Iterable[Any], device: str | torch.device = "cuda", *, depth: int = 2, static: int = 0
) -> PrefetchedLoader:
    """Return a loader of the batches of `iterable`, their tensors on `device`; `depth` further ones are copied ahead.

    >>> for images, labels in datapipe.prefetch(loader, "cuda"):    # any loader's batches, copied while the GPU computes
    ...     train(images, labels)

    `iterable`: a torch DataLoader, a datapipe one, a list, a generator: anything that gives batches. `device`: "cuda" is
    the current device at the first `next()`, before which no CUDA context is made; on "cpu" batches come as they
    are, and nothing runs ahead. `static`: for CUDA graphs, the number of batches whose memory is used in turn; then a batch is
    valid until `next()` has been called that often again. 0: a batch is never overwritten. Raises OptionError for a device that
    does not exist and for arguments that cannot be honoured.
    """
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise OptionError(f"iterable is a {type(iterable).__qualname__}, which gives no batches; pass a loader or a generator")
    checked, depth, static = checked_device(device), whole_number(depth, "depth", least=1), whole_number(static, "static")
    if static and checked.type == "cpu":
        raise OptionError(f"static={static} is for batches on a device, and device is 'cpu'; leave it out")
    return PrefetchedLoader(iterable, checked, depth=depth, static=static)


class Transfer(Protocol):
    """A batch on its way."""

    def wait(self) -> None:
        """Wait until nothing is left to do on the host. May be interrupted, and called again."""

    def hand_over(self) -> Any:
        """Return the batch for the calling thread's current stream. May be called once. Raises what making it raised."""


class Mover(Protocol):
    """Moves batches, for one thread."""

    observer: Observer

    def upload(self, nest: Any, /, *, step: int, num_samples: int) -> Transfer:
        """Start to move a batch."""


# From the inner loader, the runtime of the device (None: the CPU), the observer, and the number of slabs to keep.
OpenMover = Callable[[Any, DeviceRuntime | None, Observer, int], Mover]


def _open_uploader(inner: Any, runtime: DeviceRuntime | None, observer: Observer, max_free: int) -> Mover:
    assert runtime is not None
    return Uploader(runtime, observer=observer, max_free=max_free)


class PrefetchedLoader:
    """The result of `prefetch`: a loader whose batches lie on the device.

    Each `iter()` is a new pass, which begins at its first `next()`. Other attributes (`dataset`, `sampler`,
    `set_epoch`, ...) are the inner loader's. `state_dict` and `load_state_dict`, if it has them, refer to
    the batch last delivered, not to those copied ahead. Do not share it between threads. Pickles as its arguments, with the
    attributes that were set on it. `static`: as for `prefetch`.
    `open_mover`: opens what makes the inner loader's batches complete on their way; None: they are only copied.
    """

    def __init__(
        self,
        inner: Iterable[Any],
        device: torch.device,
        *,
        depth: int,
        static: int = 0,
        open_runtime: Callable[[torch.device], DeviceRuntime] = runtime_of,
        open_mover: OpenMover | None = None,
    ) -> None:
        self.device = device
        self.depth = depth
        self._static = static
        self._inner = inner
        self._open_runtime = open_runtime
        self._open_mover = open_mover
        self._observer: Observer = null_observer
        self._mover: Mover | None = None
        self._runtime: DeviceRuntime | None = None  # of the mover
        self._ring: StaticBatches | None = None  # of all passes, as are graphs
        self._state: Any = None  # after the batch last delivered; None: ask the inner loader
        self._names = names_of(self)

    def __repr__(self) -> str:
        return f"<datapipe.prefetch onto {self.device}: {self._inner!r:.400}>"

    __getitem__ = refuse_position

    def __iter__(self) -> Iterator[Any]:
        is_copied = self.device.type != "cpu" or self._open_mover is not None
        return PrefetchIterator(self) if is_copied else iter(self._inner)

    def __len__(self) -> int:
        """Return the batches of a pass. Raises TypeError if the inner loader has no length."""
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'PrefetchedLoader' object has no attribute {name!r}")
        value = getattr(self._inner, name)
        if name == "state_dict":
            return self._state_dict
        if name == "load_state_dict":
            return self._load_state_dict
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute on the inner loader if it has it, as if set there."""
        inner = vars(self).get("_inner")
        if name.startswith("_") or name in ("device", "depth") or not hasattr(inner, name):
            super().__setattr__(name, value)
        else:
            setattr(inner, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_arguments, (self._inner, self.device, self.depth, self._static, self._open_mover), added_attributes(self)

    @property
    def observer(self) -> Observer:
        """The function to which copies are reported; `observe` and `observe_copies` set it."""
        return self._observer

    def observe(self, observer: Observer) -> None:
        """Report the host's part of each copy to `observer`, and all stages of the inner loader if it is datapipe's."""
        self.observe_copies(observer)
        inner = getattr(self._inner, "observe", None)
        if callable(inner):
            inner(observer)

    def observe_copies(self, observer: Observer) -> None:
        """Report the host's part of each copy alone: the inner loader goes on telling its own observer."""
        self._observer = observer
        if self._mover is not None:
            self._mover.observer = observer

    def _state_dict(self) -> Any:
        return self._inner.state_dict() if self._state is None else copy.deepcopy(self._state)  # type: ignore[attr-defined]

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = None


class PrefetchIterator(Iterator[Any]):
    """One pass. Only the thread that calls `next()` calls the inner loader.

    An error of the inner loader is raised after the batches before it, and the next `next()` calls it again: a datapipe
    loader then continues after the batch that failed, as torch's does.
    """

    def __init__(self, loader: PrefetchedLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._ahead: deque[tuple[Transfer, Any]] = deque()
        self._num_asked = 0
        self._is_exhausted = False  # the inner loader has no more batches
        # Raised once the batches before it are delivered, with the state after it; until then nothing more is requested.
        self._failed: tuple[Exception, Any] | None = None
        self._is_over = False
        self._process = os.getpid()

    def __iter__(self) -> PrefetchIterator:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        loader = self._loader
        if self._batches is None:
            try:
                self._begin()
            except Exception:
                self.close()
                raise
        self._top_up()
        if self._ahead:
            self._ahead[0][0].wait()  # Ctrl-C in here loses no batch
            arrival, loader._state = self._ahead.popleft()
            batch = arrival.hand_over()
            return batch if loader._ring is None else loader._ring.place(batch)
        if self._failed is not None:
            (error, loader._state), self._failed = self._failed, None
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        loader._state = None  # all is delivered, so the inner loader's state is exact
        self.close()
        raise StopIteration

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an iterator over prefetched batches cannot be copied or pickled, as it holds batches on their way to a device; "
            "copy the loader itself"
        )

    def close(self) -> None:
        """End the pass, drop what was copied ahead, release what the device has finished with. May be called again."""
        self._is_over = True
        self._ahead.clear()
        self._failed = None
        batches, self._batches = self._batches, None
        if batches is not self._loader._inner:  # an iterator that was passed in is the caller's
            close = getattr(batches, "close", None)
            if callable(close):
                close()
        runtime = self._loader._runtime
        if runtime is not None and self._process == os.getpid():  # CUDA answers nothing in a forked child
            runtime.pending.reap()

    def _begin(self) -> None:
        loader = self._loader
        if loader._mover is None:
            loader._runtime = None if loader.device.type == "cpu" else loader._open_runtime(loader.device)
            open_mover = loader._open_mover or _open_uploader
            if loader._static and loader._runtime is not None:
                loader._ring = StaticBatches(loader._runtime, loader._static)
            loader._mover = open_mover(loader._inner, loader._runtime, loader._observer, loader.depth + 2)
        if loader._state is None:
            loader._state = _state_of(loader._inner)  # later its state is ahead of what was delivered
        self._batches = iter(loader._inner)

    def _top_up(self) -> None:
        """Have the next batch and `depth` more in transfer, if there are so many."""
        loader = self._loader
        assert self._batches is not None
        assert loader._mover is not None
        while len(self._ahead) <= loader.depth and not self._is_exhausted and self._failed is None:
            try:
                batch = next(self._batches, _NONE_LEFT)
                if batch is _NONE_LEFT:
                    self._is_exhausted = True
                    return
                state = _state_of(loader._inner)
                arrival = loader._mover.upload(batch, step=self._num_asked, num_samples=_num_samples(batch))
            except Exception as exc:
                self._failed = exc, _state_of(loader._inner)
                return
            self._num_asked += 1
            self._ahead.append((arrival, state))


def _state_of(inner: Any) -> Any:
    """Return a copy of an inner loader's state, which does not change with the loader; None if it has none."""
    state_dict = getattr(inner, "state_dict", None)
    return copy.deepcopy(state_dict()) if callable(state_dict) else None


def _num_samples(batch: Any) -> int:
    """Return the rows of the batch's first tensor; 0 if it has none."""
    return next((len(tensor) for tensor in tensors_of(batch) if tensor.dim()), 0)


def _from_arguments(
    inner: Iterable[Any], device: torch.device, depth: int, static: int, open_mover: OpenMover | None
) -> PrefetchedLoader:
    return PrefetchedLoader(inner, checked_device(device), depth=depth, static=static, open_mover=open_mover)
