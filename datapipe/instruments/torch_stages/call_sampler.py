"""Look now and then at what a thread computes while it makes a batch: which call, in which function of the user's code.

A second thread looks. It needs Python's lock for that, which a thread that is asked for it gives up when the call returns that it
makes, while its frame still stands at that call: so the call that took the time is named, not what comes after it. It must be
asked at once, rather than after the usual 5 ms, or calls that give up the lock by themselves would seem to take others' time.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import random
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from datapipe.instruments.torch_stages import timing
from datapipe.instruments.torch_stages.profile import SampledCall
from datapipe.instruments.torch_stages.user_code import is_of_user

_PERIOD_S = 0.025  # from one look to the next, on average
_MOST_LATER_S = 0.008  # after which a thread is looked at, from when the looking one has had the lock, at most
_LOOK_S = 0.0002  # how long it is watched then, to know whether it computes
_ASKED_S = 1e-5  # after which the thread is asked for the lock
_MOST_CALLS = 64  # that are kept of a batch
_DECODES = re.compile(  # names of functions that read and decode files
    r"(imread|imdecode|open|read|loads?|decode|decompress|frombuffer|fromfile|unpackb?|get_frames?|get_batch|grab|retrieve)(_\w+)?$"
)
# Libraries, or modules of them, that read and decode files.
_DECODERS = re.compile(
    r"/(PIL/(ImageFile|\w+ImagePlugin)\.py|torchvision/io/|imageio/|tifffile/|av/|decord/|torchcodec/|soundfile\.py|torchaudio/"
    r"|librosa/core/audio\.py|h5py/|zarr/|numcodecs/|zipfile|gzip\.py|lzma\.py|bz2\.py|json/|pickle\.py|numpy/lib/\w*(npyio|format)"
    r"|pyarrow/|lmdb/|torch/serialization\.py|rasterio/|pydicom/|nibabel/|pandas/io/|csv\.py)"
)
_TRANSFORMS, _FETCH = str(Path(timing.__file__)), str(Path(__file__).with_name("probe.py"))


class CallSampler:
    """Looks at the threads of this process that make batches."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: dict[int, list[SampledCall]] = {}  # by thread, while it makes a batch
        threading.Thread(target=self._run, name="datapipe-calls", daemon=True).start()

    def begin(self) -> None:
        """Look at the calling thread from now on."""
        self._calls[threading.get_ident()] = []

    def end(self) -> tuple[SampledCall, ...]:
        """Return what the calling thread was seen doing since `begin`, and look at it no more."""
        return tuple(self._calls.pop(threading.get_ident(), ()))

    def _run(self) -> None:
        draw = random.Random().random  # leaves the script's own generator unchanged
        while True:
            time.sleep(_PERIOD_S * (0.5 + draw()))
            for thread, calls in list(self._calls.items()):
                with suppress(Exception):
                    self._look(thread, calls, draw())

    def _look(self, thread: int, calls: list[SampledCall], drawn: float) -> None:
        """Note what a thread does, if it computes, at a moment that has nothing to do with when the lock was free before."""
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_ASKED_S)
        try:
            time.sleep(_MOST_LATER_S * drawn)
            frame = sys._current_frames().get(thread)  # held for microseconds alone: what lives in it cannot be freed meanwhile
            call = None if frame is None else call_of(frame)
            del frame
            if call is None or self._calls.get(thread) is not calls or len(calls) >= _MOST_CALLS:
                return
            clock = time.pthread_getcpuclockid(thread)
            before_s = time.clock_gettime(clock)
            time.sleep(_LOOK_S)
            if time.clock_gettime(clock) - before_s > _LOOK_S / 2:
                calls.append(call)
        finally:
            sys.setswitchinterval(interval_s)


_sampler: CallSampler | None = None


def call_sampler() -> CallSampler:
    """Return the sampler of this process."""
    global _sampler
    if _sampler is None or _sampler.pid != os.getpid():  # a forked child has no threads but its own
        _sampler = CallSampler()
    return _sampler


def call_of(innermost: FrameType) -> SampledCall | None:
    """Return what a thread does that fetches a batch, by its frames; None in a timed transform or outside of the Dataset."""
    frame: FrameType | None = innermost
    user, is_decoder = None, False
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _TRANSFORMS:
            return None
        if code.co_filename == _FETCH:
            break
        if _is_user_code(code):
            user = user or (code, frame.f_lasti)
        elif user is None and not is_decoder:
            is_decoder = _is_decoder(code)
        frame = frame.f_back
    if frame is None or frame is innermost:
        return None
    if user is None or is_decoder:
        return SampledCall(decodes=True)
    code, place = user
    name, line = _called(code, place)
    decodes = _DECODES.match((name or code.co_name).rpartition(".")[2].lstrip("_")) is not None
    return SampledCall(decodes, name, code.co_qualname, f"{code.co_filename}:{line}")


@functools.cache
def _is_user_code(code: CodeType) -> bool:
    return is_of_user(code.co_filename)


@functools.cache
def _is_decoder(code: CodeType) -> bool:
    return _DECODERS.search(code.co_filename) is not None


@functools.lru_cache(4096)
def _called(code: CodeType, place: int) -> tuple[str | None, int]:
    """Return the function that is called at an instruction, as the source names it, and the line; None: it calls none there."""
    line, end_line, column, end_column = list(code.co_positions())[place // 2]
    line = line or code.co_firstlineno
    if end_line is None or column is None or end_column is None:
        return None, line
    lines = [text.encode() for text in linecache.getlines(code.co_filename)[line - 1 : end_line]]
    if not lines:
        return None, line
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    with suppress(SyntaxError, ValueError):
        source = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
        if isinstance(source, ast.Call):
            return _name(source.func), line
    return None, line


def _name(function: ast.expr) -> str | None:
    """Return a function's name with its module's or object's, as far as these are names themselves."""
    if isinstance(function, ast.Name):
        return function.id
    if not isinstance(function, ast.Attribute):
        return None
    before = _name(function.value)
    return function.attr if before in (None, "self") else f"{before}.{function.attr}"
