"""The random state that the user's code draws from: torch's default generator, Python's `random` and numpy's global state.

All three belong to the process. Code that draws from them in a thread besides the training's would take its numbers away, so
such code runs in a process of its own, or between the training's draws, which then find the state as they left it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from datapipe.order.draws import key64
from datapipe.order.plan import Rank

_COLLATION = 0xC011A7E  # separates these draws from those of samples and operations
ALL_STATES = frozenset(["torch", "python", "numpy"])
_HEAD = object.__basicsize__  # of an object in CPython's memory: the count of its references, and its type
_NUM_WORDS, _NUM_COMPARED = 624, 24  # of a MT19937, 32 bits each


def reseed(seed: int, states: frozenset[str] = ALL_STATES) -> None:
    """Seed torch's default CPU generator, `random` and numpy's global state, or some. `seed`: from 0 to 2^63 - 1."""
    if "torch" in states:
        torch.default_generator.manual_seed(seed)
    if "python" in states:
        random.seed(seed)
    if "numpy" in states:
        np.random.seed(seed & 0xFFFFFFFF)


class RandomMark(NamedTuple):
    """Bytes of the three states: two marks are equal if nothing was drawn, seeded or restored between them."""

    torch: bytes  # the whole state
    python: tuple[bytes, float | None]  # some words, and the normal number that it has in store
    numpy: tuple[bytes, bytes, bytes]  # the normal number, some words, the place among them

    def changed(self, after: RandomMark | None) -> frozenset[str]:
        """Return the names of the states that differ from those of a later mark, of `ALL_STATES`."""
        if self == after:
            return frozenset()
        return frozenset(name for name in ALL_STATES if after is None or getattr(self, name) != getattr(after, name))


def random_mark() -> RandomMark | None:
    """Return the mark of the states as they are now, in some microseconds; None if they do not lie in memory as expected.

    To copy the states of `random` and numpy by their own functions takes 20 and 120 us, more than many a batch.
    """
    memory = _memory()
    if memory is None or memory.numpy_state._bit_generator is not memory.bit_generator:
        return None
    state = torch.default_generator.get_state()
    of_torch = (ctypes.c_char * state.numel()).from_address(state.data_ptr()).raw
    return RandomMark(of_torch, memory.of_python(), memory.of_numpy())


class RandomStates:
    """The three states as they were when this was made, to be restored."""

    _latest: RandomStates | None = None  # states of numpy and Python are costly to copy, and seldom change between batches

    def __init__(self) -> None:
        self.mark = mark = random_mark()
        known: Any = RandomStates._latest
        old: RandomMark | None = None if known is None else known.mark
        is_python_known = mark is not None and old is not None and old.python == mark.python
        is_numpy_known = mark is not None and old is not None and old.numpy == mark.numpy
        self._torch: Any = None if mark is not None else torch.default_generator.get_state()
        self._python: Any = known._python if is_python_known else random.getstate()
        self._numpy: Any = known._numpy if is_numpy_known else np.random.get_state()
        RandomStates._latest = self

    def restore(self) -> None:
        """Restore what has changed since."""
        now, mark = random_mark(), self.mark
        if mark is not None and now == mark:
            return
        of_torch = torch.frombuffer(bytearray(mark.torch), dtype=torch.uint8) if mark is not None else self._torch
        torch.default_generator.set_state(of_torch)
        if now is None or mark is None or now.python != mark.python:
            random.setstate(self._python)
        if now is None or mark is None or now.numpy != mark.numpy:
            np.random.set_state(self._numpy)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the three states afterwards, for code of the user's that runs in the training process."""
    states = RandomStates()
    try:
        yield
    finally:
        states.restore()


def collation_seed(seed: int, epoch: int, step: int, rank: Rank) -> int:
    """Return the seed in whose random state the user's `collate_fn` is called for a batch: from 0 to 2^63 - 1."""
    return int(key64(seed, epoch, _COLLATION, step * rank.world_size + rank.rank)) >> 1


# -- the memory of generators --------------------------------------------------------------------------


class _Memory(NamedTuple):
    """The generators of `random` and numpy, and parts of the memory in which they keep their states, as ctypes arrays.

    Both are MT19937: a draw changes the place among 624 words, and once these are used up, all words. So some words tell.
    """

    python_state: Any  # random.Random
    python: Any
    numpy_state: Any  # numpy.random.RandomState
    numpy: Any  # all that it holds besides its bit generator, such as a normal number that is in store
    bit_generator: Any  # numpy.random.MT19937
    words: Any
    place: Any

    @classmethod
    def of(cls, python: Any, numpy: Any) -> _Memory:
        """Return the memory of two generators. Raises ValueError if numpy's is not a MT19937."""
        generator = numpy._bit_generator
        if type(generator) is not np.random.MT19937:
            raise ValueError(f"numpy draws from a {type(generator).__name__}")
        address = generator.ctypes.state_address
        return cls(
            python,
            _bytes_at(id(python) + _HEAD, _NUM_COMPARED * 4),
            numpy,
            _bytes_at(id(numpy) + _HEAD, np.random.RandomState.__basicsize__ - _HEAD),
            generator,
            _bytes_at(address, _NUM_COMPARED * 4),
            _bytes_at(address + _NUM_WORDS * 4, 4),
        )

    def of_python(self) -> tuple[bytes, float | None]:
        return self.python.raw, self.python_state.gauss_next

    def of_numpy(self) -> tuple[bytes, bytes, bytes]:
        return self.numpy.raw, self.words.raw, self.place.raw


def _bytes_at(address: int, num: int) -> Any:
    return (ctypes.c_char * num).from_address(address)


@functools.cache
def _memory() -> _Memory | None:
    """Return the memory of the process's generators; None unless any draw changes it, and nothing else.

    That is tried on generators of our own, as another implementation of Python or numpy may keep them elsewhere.
    """
    try:
        python, numpy = random.Random(1), np.random.RandomState(1)
        own = _Memory.of(python, numpy)
        in_python = (python.random, lambda: python.getrandbits(9), lambda: python.getrandbits(32 * _NUM_WORDS))
        of_normals = (lambda: python.gauss(0, 1), lambda: python.gauss(0, 1), numpy.randn, numpy.randn)
        in_numpy = (numpy.random_sample, lambda: numpy.permutation(9), lambda: numpy.bytes(4 * _NUM_WORDS))
        draws, seeds = (*in_python, *of_normals, *in_numpy), (lambda: python.seed(2), lambda: numpy.seed(2))
        is_known = all(_changes(own, call) for call in (*draws, *seeds))
        is_known = is_known and not any(_changes(own, call) for call in (python.getstate, numpy.get_state))
        return _Memory.of(random._inst, np.random.mtrand._rand) if is_known else None
    except Exception:  # they have no such attributes
        return None


def _changes(memory: _Memory, call: Callable[[], Any]) -> bool:
    before = memory.of_python(), memory.of_numpy()
    call()
    return (memory.of_python(), memory.of_numpy()) != before
