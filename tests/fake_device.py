"""A device that is as late, and as forgetful, as a GPU is allowed to be.

Streams are queues whose operations run at random moments, or not until `drain`. A tensor on the device holds
rubbish until the operations that fill it have run. Memory that is freed is overwritten by its home stream at
once, and lent again, unless it was told of other streams; then only after those have come past. Pinned memory
is overwritten when its lease ends. So a wait left out, a slab released early or a stream not recorded shows as
wrong bytes, under some seed. Asking the device for a value, waiting for it, and copying from pageable memory are
noted in `forbidden`.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from fake_tensors import META, DeviceTensor, FactoriesHere
from numpy.typing import NDArray

from datapipe.kernel.device_runtime import KeepAlive
from datapipe.kernel.pools import SlabPool

POISON = 0xDB


def pretend_gpus(patch: pytest.MonkeyPatch, num: int = 4, *, current: int = 0, kind: str = "cuda") -> None:
    """Let torch say that it has that many devices of an accelerator."""
    own = torch.get_device_module(kind)
    patch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device(kind))
    patch.setattr(own, "is_available", lambda: True)
    patch.setattr(own, "device_count", lambda: num)
    patch.setattr(own, "current_device", lambda: current, raising=False)


def assert_released_at_the_end(
    fake: FakeDevice, loader: Any, num_batches: int, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    """A pass of `num_batches` keeps no memory that the device is done with: at its end, or closed after two."""
    monkeypatch.setattr(fake, "is_done", lambda event: False)
    iterator = iter(loader)
    for _ in range(2 if is_closed else num_batches):
        next(iterator)
    assert len(fake.pending) > 0
    monkeypatch.setattr(fake, "is_done", lambda event: True)
    if is_closed:
        iterator.close()
    else:
        assert next(iterator, None) is None
    assert len(fake.pending) == 0


class Event:
    """Happens when its place in a queue is passed."""

    def __init__(self, fake: FakeDevice) -> None:
        self.is_done = False
        self._fake = fake

    def synchronize(self) -> None:
        self._fake.forbid("event.synchronize")


class Stream:
    """A queue. `pace`: how likely it is to be the one that runs."""

    def __init__(self, fake: FakeDevice, pace: float) -> None:
        self.cuda_stream = id(self)  # its address
        self.operations: deque[Callable[[], object] | Event] = deque()  # an event is waited for
        self.pace = pace
        self._fake = fake

    def can_run(self) -> bool:
        head = self.operations[0] if self.operations else None
        return head is not None and (not isinstance(head, Event) or head.is_done)

    def synchronize(self) -> None:
        self._fake.forbid("stream.synchronize")


class _Memory:
    """A piece of device memory, for as long as a tensor refers to it."""

    def __init__(self, fake: FakeDevice, raw: torch.Tensor, home: Stream) -> None:
        self.fake, self.raw, self.home = fake, raw, home
        self.others: set[Stream] = set()

    def __del__(self) -> None:
        self.fake._freed(self.raw, self.home, self.others)


class FakeDevice:
    """`DeviceRuntime` without a device. `is_lazy`: nothing runs before `drain`. Thread-safe."""

    def __init__(self, seed: int = 0, *, is_lazy: bool = False, is_fair: bool = False) -> None:
        self.device = META
        self.pending = KeepAlive(self)
        self.forbidden: list[str] = []
        self.entered: list[str] = []  # names of the threads that said that they work on this device
        self.num_slabs = 0  # allocated so far
        self.is_current = False  # within `on_device`
        self._random = random.Random(seed)
        self._is_lazy, self._is_fair = is_lazy, is_fair
        self.lock = threading.RLock()
        self._thread = threading.local()
        self._streams: list[Stream] = []
        self._free: dict[tuple[Stream, int], list[torch.Tensor]] = {}
        self._limbo: list[tuple[torch.Tensor, Stream, list[Event]]] = []
        self._pinned: list[NDArray[np.uint8]] = []
        self.default_stream = self.new_stream()

    # -- DeviceRuntime ----------------------------------------------------------------------------

    def new_stream(self) -> Stream:
        with self.lock:
            self._streams.append(Stream(self, 1.0 if self._is_fair else self._random.choice((0.02, 0.3, 1.0))))
            return self._streams[-1]

    def current_stream(self) -> Stream:
        return getattr(self._thread, "stream", self.default_stream)

    def enter_thread(self) -> None:
        self.entered.append(threading.current_thread().name)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        self.is_current = True
        try:
            yield
        finally:
            self.is_current = False

    @contextmanager
    def under(self, stream: Stream) -> Iterator[None]:
        before, self._thread.stream = self.current_stream(), stream
        try:
            with FactoriesHere(self):
                yield
        finally:
            self._thread.stream = before

    def record_event(self, stream: Stream) -> Event:
        event = Event(self)
        with self.lock:
            stream.operations.append(lambda: setattr(event, "is_done", True))
            self.tick()
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        with self.lock:
            stream.operations.append(event)
            self.tick()

    def is_done(self, event: Event) -> bool:
        self.tick()
        return event.is_done

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        with self.lock:
            made = self.allocate(host.size(), host.stride(), host.dtype)
            if host.numel():
                assert host.data_ptr() % host.element_size() == 0, "not aligned"
                source, target = self.as_read(host), made.content
                self.launch(lambda: target.copy_(source))
            self.tick()
            return made

    def adopt(self, memory: Any) -> torch.Tensor:
        assert isinstance(memory.placed, DeviceTensor)
        return memory.placed

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        assert isinstance(tensor, DeviceTensor)
        tensor.memory.others.add(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._pinned_range(tensor) is not None

    def free_nbytes(self) -> int:
        return 1 << 20

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        return _PoisonedPool(self, nbytes, max_free)

    # -- for tests --------------------------------------------------------------------------------

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in pinned memory of its own, which is overwritten when the last view of it dies."""
        dense = torch.empty_like(tensor)
        raw = self.pinned_slabs(max(dense.nbytes, 1), max_free=0).lease()
        return torch.from_numpy(raw[: dense.nbytes]).view(dense.dtype).as_strided(dense.size(), dense.stride()).copy_(tensor)

    def put(self, values: torch.Tensor) -> DeviceTensor:
        """A tensor made on the current stream by somebody else."""
        with self.lock:
            made = self.allocate(values.size(), values.stride(), values.dtype)
            source, target = values.clone(), made.content
            self.launch(lambda: target.copy_(source))
            return made

    def place(self, values: NDArray[np.uint8], stream: int) -> DeviceTensor:
        """Memory of another library, which fills it on the stream with this address."""
        (home,) = (one for one in self._streams if one.cuda_stream == stream)
        with self.under(home):
            return self.put(torch.from_numpy(values))

    def read(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Let the current stream read a tensor; the result can be called for after `drain`."""
        assert isinstance(tensor, DeviceTensor)
        content, seen = tensor.content, []
        with self.lock:
            self.launch(lambda: seen.append(content.clone()))
            self.tick()
        return lambda: seen[0]

    def advance(self) -> None:
        """Run all that can run."""
        with self.lock:
            while self._step():
                pass

    def drain(self) -> None:
        """Run all there is to run. AssertionError where streams wait for each other."""
        self.advance()
        assert not any(stream.operations for stream in self._streams), "streams wait for each other"

    def block(self, stream: Stream) -> Callable[[], object]:
        """Keep a stream busy until the result is called."""
        event = Event(self)
        stream.operations.append(event)
        return lambda: setattr(event, "is_done", True)

    def tick(self) -> None:
        """Let some time pass on the device."""
        with self.lock:
            if not self._is_lazy:
                for _ in range(self._random.randrange(8 if self._is_fair else 4)):
                    self._step()

    def launch(self, operation: Callable[[], object]) -> None:
        """Give the current stream something to do."""
        with self.lock:
            self.current_stream().operations.append(operation)

    def as_read(self, host: torch.Tensor) -> torch.Tensor:
        """Host memory as a copy sees it: pinned memory when the copy runs, pageable memory, which is forbidden, at once."""
        raw = self._pinned_range(host)
        if raw is None:
            if host.numel():
                self.forbid("copy from pageable memory")
            return host.clone()
        first = host.data_ptr() - raw.ctypes.data
        return torch.from_numpy(raw[first : first + host.nbytes]).view(host.dtype).as_strided(host.size(), host.stride())

    def forbid(self, what: str) -> None:
        self.forbidden.append(what)

    def allocate(self, size: Any, strides: Any, dtype: torch.dtype) -> DeviceTensor:
        """Device memory of the current stream, with rubbish in it."""
        empty = torch.empty_strided(size, strides, dtype=dtype)
        nbytes = empty.untyped_storage().nbytes()
        with self.lock:
            home = self.current_stream()
            used_before = self._free.get((home, nbytes))
            raw = used_before.pop() if used_before else torch.full((nbytes,), POISON, dtype=torch.uint8)
            return DeviceTensor(_Memory(self, raw, home), raw.view(dtype).as_strided(size, strides))

    def _step(self) -> bool:
        """Run the next operation of one stream that can."""
        able = [stream for stream in self._streams if stream.can_run()]
        if not able:
            return False
        stream = self._random.choices(able, [stream.pace for stream in able])[0]
        operation = stream.operations.popleft()
        if not isinstance(operation, Event):
            with torch._C._DisableTorchDispatch():
                operation()
        self._end_limbo()
        return True

    def _freed(self, raw: torch.Tensor, home: Stream, others: set[Stream]) -> None:
        with self.lock:
            events = []
            for stream in others - {home}:
                event = Event(self)
                stream.operations.append(lambda event=event: setattr(event, "is_done", True))
                events.append(event)
            self._limbo.append((raw, home, events))
            self._end_limbo()

    def _end_limbo(self) -> None:
        """Lend freed memory again, and let its home stream write into it, as the next user of the memory will."""
        limbo, self._limbo = self._limbo, []
        for raw, home, events in limbo:
            if all(event.is_done for event in events):
                home.operations.append(lambda raw=raw: raw.fill_(POISON))
                self._free.setdefault((home, len(raw)), []).append(raw)
            else:
                self._limbo.append((raw, home, events))

    def _pinned_range(self, tensor: torch.Tensor) -> NDArray[np.uint8] | None:
        place = tensor.data_ptr()
        return next((raw for raw in self._pinned if raw.ctypes.data <= place < raw.ctypes.data + len(raw)), None)


class _PoisonedPool(SlabPool):
    """Pinned slabs that are overwritten when they are returned."""

    def __init__(self, fake: FakeDevice, nbytes: int, max_free: int) -> None:
        super().__init__(nbytes, max_free=max_free)
        self._free = _PoisonedFree(maxlen=max_free)
        self._fake = fake

    def _allocate(self) -> NDArray[np.uint8]:
        raw = np.full(self.nbytes, POISON, np.uint8)
        with self._fake.lock:
            self._fake._pinned.append(raw)
            self._fake.num_slabs += 1
        return raw


class _PoisonedFree(deque):  # type: ignore[type-arg]
    def append(self, returned: Any) -> None:
        returned.held[:] = POISON
        super().append(returned)
