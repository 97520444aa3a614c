"""One DALI pipeline, run a batch at a time."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import os
import re
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from datapipe.errors import BackendError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.transforms.protocols import Cuts

T = TypeVar("T")

_LEGACY_STREAM = 1  # CUDA's handle of the default stream, which torch calls 0; DALI would take 0 for no stream


class RunError(Exception):
    """A run without pixels: DALI's message, and the first row that did not decode, if the message names one."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        named = _NAMED.search(reason)
        self.row = int(named[1]) if named else None


_NAMED = re.compile(r"[Ff]ailed to decode sample #(\d+)")


class DaliPipeline:
    """Decodes, crops, resizes and flips batches. For one thread at a time.

    It is built at the first run, and again for a batch larger than all before and in a forked child. A run that fails does not
    prevent the next one; if that fails too and `forgive` was not called, the pipeline is rebuilt for the one after it.
    """

    def __init__(self, options: GraphOptions) -> None:
        self.options = options
        self._pipeline: Any = None
        self.decoder_device: str | None = None  # of the last graph built: "gpu" or "cpu"
        self._num_failures = 0  # in a row
        self._running = threading.Lock()
        self._is_closed = False
        _all.append(weakref.ref(self, _all.remove))

    def run(self, encoded: Sequence[bytes], cuts: Cuts, stream: torch.cuda.Stream | None) -> tuple[torch.Tensor, object]:
        """Return (b, height, width, 3) uint8 of b samples, and an object to keep while it is computed.

        On a GPU the tensor is in torch's memory and is complete for work queued on `stream`; keep it and the second value until
        that work has finished. On the CPU `stream` is None and the tensor is complete. `gate.can_decode` must hold for every
        sample, and its region must lie within it: an error before the decoding can crash DALI's process. Raises RunError if a
        sample does not decode or anything else fails, BackendError if no pipeline can be built.
        """
        inputs = _arguments(cuts, is_windowed=self.options.form.is_windowed)
        inputs["encoded"] = [np.frombuffer(data, np.uint8) for data in encoded]
        with self._running:
            self._build(len(encoded))
            with self._engines(stream):
                pixels, outputs = self._run(inputs, stream)
                return pixels, [inputs, outputs]

    def build(self) -> str:
        """Build the graph unless it is built; return where it decodes: "gpu" or "cpu". Raises BackendError as `run` does."""
        with self._running:
            self._build(0)
            assert self.decoder_device is not None
            return self.decoder_device

    @contextlib.contextmanager
    def _engines(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Give a run exclusive use of the GPU's JPEG engines, and end it when the GPU has finished all of its work.

        The engines of an H100 write without regard to the order of streams (pytorch/torchcodec#1634, pytorch/vision#9606): they
        would overwrite memory that DALI reuses while earlier queued work still reads it.
        """
        if stream is None or not self.options.hw_decoder_load:
            yield
            return
        with _engine_locks[self.options.device_id]:
            try:
                yield
            except BaseException:
                torch.cuda.synchronize(self.options.device_id)  # any part of the run may still be in progress
                raise
            stream.synchronize()

    def _run(self, inputs: dict[str, Any], stream: torch.cuda.Stream | None) -> tuple[torch.Tensor, object]:
        is_fed = False
        try:
            for name, values in inputs.items():
                self._pipeline.feed_input(name, values)
            is_fed = True
            self._pipeline.schedule_run()
            (images,) = self._pipeline.outputs(cuda_stream=stream)
            pixels = from_dlpack(images.as_tensor().__dlpack__()) if stream is None else _copied(images.as_tensor(), stream)
        except Exception as exc:  # DALI's operators raise RuntimeError, TypeError, ValueError, StopIteration, ...
            self._num_failures += 1
            if self._num_failures > 1 or not is_fed:
                self._pipeline = None
            raise RunError(_reason(exc)) from exc
        except BaseException:  # Ctrl-C between two calls: the next run would return what is fed or in progress
            self._pipeline = None
            raise
        self._num_failures = 0
        return pixels, images

    def _build(self, num_samples: int) -> None:
        """Ensure that there is a pipeline for `num_samples` samples."""
        if self._is_closed:
            raise BackendError("DALI has shut down with the interpreter; close iterators before the script's end")
        if num_samples > self.options.max_batch_size:
            self.options = dataclasses.replace(self.options, max_batch_size=num_samples)
            self._pipeline = None
        if self._pipeline is None:
            try:
                self._pipeline, self.decoder_device = _graph_builder()(self.options)
            except (RuntimeError, ImportError, OSError) as exc:
                raise BackendError(f"DALI's pipeline cannot be built: {_reason(exc)}; see `datapipe doctor`") from exc
            _built.append(weakref.ref(self._pipeline, _built.remove))

    def forgive(self) -> None:
        """Note that the last run failed because of its samples, so the pipeline need not be rebuilt."""
        self._num_failures = 0

    def leave_to_parent(self) -> None:
        """Start over in a forked child: the built pipeline's threads, and the holder of the lock, belong to the parent."""
        self._pipeline = None
        self._running = threading.Lock()

    def close(self) -> None:
        """Wait for the current run, and allow no other."""
        with self._running:
            self._is_closed = True


# Any thread appends to these and copies them; both operations are atomic.
_all: list[weakref.ref[DaliPipeline]] = []
_built: list[weakref.ref[Any]] = []  # DALI's pipelines, including those not yet collected


_engine_locks: defaultdict[int | None, threading.Lock] = defaultdict(threading.Lock)  # by GPU index

_LONGEST_WAIT_S = 5.0  # of a fork for one run
_forking = threading.local()


def _copied(images: Any, stream: torch.cuda.Stream) -> torch.Tensor:
    """Return a copy of DALI's uint8 tensor in torch's memory, complete for work queued on `stream`. Does not wait.

    A tensor shared by DLPack would save the copy. But DALI calls cudaDeviceSynchronize before it takes such memory back: that
    holds up every stream, and is refused while a CUDA graph is captured (NVIDIA/DALI#6259).
    """
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):  # torch reuses the memory in this stream's order
        pixels = torch.empty(images.shape(), dtype=torch.uint8, device=stream.device)
    handle = ctypes.c_void_p(stream.cuda_stream or _LEGACY_STREAM)
    images.copy_to_external(ctypes.c_void_p(pixels.data_ptr()), handle, non_blocking=True)
    return pixels


def _living(references: list[weakref.ref[T]]) -> list[T]:
    return [thing for reference in list(references) if (thing := reference()) is not None]


def _before_fork() -> None:
    """Let current runs end, and hold up others: DALI's threads enter the interpreter while they run.

    A child that is forked at such a moment hangs in CPython before 3.12: it inherits a held lock of the interpreter
    (python/cpython#112275).
    """
    running = [pipeline._running for pipeline in _living(_all)]
    _forking.held = [lock for lock in running if lock.acquire(timeout=_LONGEST_WAIT_S)]


def _after_fork() -> None:
    """In the parent: let runs go on."""
    for lock in getattr(_forking, "held", ()):  # nothing if this module was imported since
        lock.release()


def _after_fork_in_child() -> None:
    """Keep everything that was built from being destroyed in a child: DALI would wait for threads that only the parent has."""
    for built in _living(_built):
        inner = getattr(built, "_pipe", None)  # DALI ends what it finds here, at the latest when the interpreter exits
        if inner is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))
            built._pipe = None
    _engine_locks.clear()
    for pipeline in _living(_all):
        pipeline.leave_to_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@functools.cache
def _graph_builder() -> Callable[[GraphOptions], tuple[Any, str]]:
    """Return a function that builds a graph and reports where it decodes. DALI is imported at first use."""
    from datapipe.kinds.images.dali.graph import build_graph, decoder_device

    def build(options: GraphOptions) -> tuple[Any, str]:
        pipeline = build_graph(options)
        return pipeline, decoder_device(pipeline)

    atexit.register(_close_all)  # after DALI has registered its own shutdown, so that this runs before it
    return build


def _close_all() -> None:
    """Close all pipelines: at exit DALI destroys its pipelines even while threads use them."""
    for pipeline in _living(_all):
        pipeline.close()


def _arguments(cuts: Cuts, *, is_windowed: bool) -> dict[str, Any]:
    """Return the graph's inputs besides the encoded bytes, in the layout that DALI accepts without a copy."""
    arguments = {
        "region_at": np.ascontiguousarray(cuts.region[:, :2], np.int32),
        "region_size": np.ascontiguousarray(cuts.region[:, 2:], np.int32),
        "flip_vertical": cuts.flip[:, 0].astype(np.int32),
        "flip_horizontal": cuts.flip[:, 1].astype(np.int32),
    }
    if is_windowed:
        arguments["size"] = cuts.size.astype(np.float32)
        arguments["window_at"] = np.ascontiguousarray(cuts.window[:, :2], np.int32)
    return arguments


def _reason(exc: Exception) -> str:
    """Return DALI's message without the graph's definition before it and the stack trace after it."""
    text = str(exc).rpartition("encountered:")[2].split("Stacktrace", 1)[0].split("C++ context:", 1)[0]
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and line != "Current pipeline object is no longer valid.")[:500]
