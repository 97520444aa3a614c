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

from datapipe.backends.images_dali.settings import GraphOptions
from datapipe.errors import BackendError
from datapipe.transforms.protocols import Cuts

T = TypeVar("T")

_LEGACY_STREAM = 1  # as DLPack counts; torch and CUDA call it 0


class RunError(Exception):
    """A run gave no pixels: DALI's words, and the first row that did not decode, where they name one."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        named = _NAMED.search(reason)
        self.row = int(named[1]) if named else None


_NAMED = re.compile(r"[Ff]ailed to decode sample #(\d+)")


class DaliPipeline:
    """Decodes, crops, resizes and flips batches. For one thread at a time.

    Built at the first run, again for a batch larger than all before, and in a forked child. After a run that fails the
    next one goes on; if that fails too, and nobody forgave, the pipeline is built anew for the one after it.
    """

    def __init__(self, options: GraphOptions) -> None:
        self.options = options
        self._pipeline: Any = None
        self.decoder_device: str | None = None  # of the graph built last: "gpu" or "cpu"
        self._num_failures = 0  # in a row
        self._running = threading.Lock()
        self._is_closed = False
        _all.append(weakref.ref(self, _all.remove))

    def run(self, encoded: Sequence[bytes], cuts: Cuts, stream: torch.cuda.Stream | None) -> tuple[torch.Tensor, object]:
        """(b, height, width, 3) uint8 of b samples, and what must be kept while it is made.

        On a GPU the tensor lies in DALI's memory and is complete for work queued on `stream`; it and the second
        value are to be kept until that work is done. On the CPU `stream` is None and the tensor is complete. Every
        sample must be one that `gate.can_decode`, and its region must lie within it: an error in what comes before
        the decoding can take DALI's process down. Raises RunError if a sample does not decode or anything else goes
        wrong, BackendError if there cannot be a pipeline at all.
        """
        inputs = _arguments(cuts, is_windowed=self.options.form.is_windowed)
        inputs["encoded"] = [np.frombuffer(data, np.uint8) for data in encoded]
        with self._running:
            self._build(len(encoded))
            with self._engines(stream):
                return self._run(inputs, stream), inputs

    def build(self) -> str:
        """Build the graph unless it is built; return where it decodes: "gpu" or "cpu". Raises BackendError as `run` does."""
        with self._running:
            self._build(0)
            assert self.decoder_device is not None
            return self.decoder_device

    @contextlib.contextmanager
    def _engines(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Let a run use the GPU's JPEG engines alone, and end when the GPU has done all of its work.

        The engines of an H100 write without regard to the order of streams (pytorch/torchcodec#1634, pytorch/vision#9606):
        memory that DALI lends again while work queued before still reads it would be overwritten.
        """
        if stream is None or not self.options.hw_decoder_load:
            yield
            return
        with _engine_locks[self.options.device_id]:
            try:
                yield
            except BaseException:
                torch.cuda.synchronize(self.options.device_id)  # nobody knows what of the run is on its way
                raise
            stream.synchronize()

    def _run(self, inputs: dict[str, Any], stream: torch.cuda.Stream | None) -> torch.Tensor:
        is_fed = False
        try:
            for name, values in inputs.items():
                self._pipeline.feed_input(name, values)
            is_fed = True
            self._pipeline.schedule_run()
            (images,) = self._pipeline.outputs(cuda_stream=stream)
            pixels: torch.Tensor = from_dlpack(_capsule(images.as_tensor(), stream))
        except Exception as exc:  # DALI raises as its operators do: RuntimeError, TypeError, ValueError, StopIteration, ...
            self._num_failures += 1
            if self._num_failures > 1 or not is_fed:
                self._pipeline = None
            raise RunError(_reason(exc)) from exc
        except BaseException:  # Ctrl-C between two calls: what is fed or under way would come out of the next run
            self._pipeline = None
            raise
        self._num_failures = 0
        return pixels

    def _build(self, num_samples: int) -> None:
        """Have a pipeline that takes so many samples."""
        if self._is_closed:
            raise BackendError("DALI has ended with the interpreter; close iterators before the script's end")
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
        """The last run failed because of its samples: the pipeline is as good as it was."""
        self._num_failures = 0

    def leave_to_parent(self) -> None:
        """In a forked child: begin anew. The threads of what was built, and whoever held the lock, are the parent's."""
        self._pipeline = None
        self._running = threading.Lock()

    def close(self) -> None:
        """Let the run under way end, and no other begin."""
        with self._running:
            self._is_closed = True


# Appended to and copied by any thread, in one step each.
_all: list[weakref.ref[DaliPipeline]] = []
_built: list[weakref.ref[Any]] = []  # DALI's pipelines, those that wait to be collected too


_engine_locks: defaultdict[int | None, threading.Lock] = defaultdict(threading.Lock)  # by index of the GPU


def _capsule(images: Any, stream: torch.cuda.Stream | None) -> object:
    """DALI's tensor as DLPack hands it on, complete for work queued on `stream`.

    torch, given the tensor itself, compares DALI's name for the device with its own. pybind11 lets a Ctrl-C that arrives
    in the middle of that get lost.
    """
    if stream is None:
        return images.__dlpack__()
    return images.__dlpack__(stream=stream.cuda_stream or _LEGACY_STREAM)


def _living(references: list[weakref.ref[T]]) -> list[T]:
    return [thing for reference in list(references) if (thing := reference()) is not None]


def _after_fork() -> None:
    """Let nothing that was built be destroyed in a child: DALI would wait for threads that are the parent's alone."""
    for built in _living(_built):
        inner = getattr(built, "_pipe", None)  # DALI ends what it finds here, at the latest with the interpreter
        if inner is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))
            built._pipe = None
    _engine_locks.clear()
    for pipeline in _living(_all):
        pipeline.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _graph_builder() -> Callable[[GraphOptions], tuple[Any, str]]:
    """Return what builds a graph and says where it decodes. DALI is imported where it is used first."""
    from datapipe.backends.images_dali.graph import build_graph, decoder_device

    def build(options: GraphOptions) -> tuple[Any, str]:
        pipeline = build_graph(options)
        return pipeline, decoder_device(pipeline)

    atexit.register(_close_all)  # once DALI has registered its own end, so as to come before it
    return build


def _close_all() -> None:
    """DALI takes its pipelines away when the interpreter ends, also from under threads that use them."""
    for pipeline in _living(_all):
        pipeline.close()


def _arguments(cuts: Cuts, *, is_windowed: bool) -> dict[str, Any]:
    """What to feed beside the encoded bytes, in the layout that DALI takes over without a copy."""
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
    """What DALI says, less the graph's definition before it and the stack trace after it."""
    text = str(exc).rpartition("encountered:")[2].split("Stacktrace", 1)[0].split("C++ context:", 1)[0]
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and line != "Current pipeline object is no longer valid.")[:500]
