"""Slabs: lent, returned when the last view dies, never lent twice."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import OptionError
from datapipe.kernel.pools import SlabPool


@pytest.mark.parametrize("nbytes", [1 << 62, 1 << 70])
def test_memory_that_there_is_not(nbytes: int) -> None:
    with pytest.raises(OptionError, match=r"a batch takes .*, and there is no such memory; make batches smaller"):
        SlabPool(nbytes, max_free=1).lease()


def test_a_slab_returns_when_the_last_view_dies() -> None:
    pool = SlabPool(1024, max_free=4)
    tensor = torch.from_numpy(pool.lease()).view(torch.float32).view(4, 64)
    row, transposed = tensor[1], tensor.t()
    del tensor
    gc.collect()
    assert pool.num_free == 0
    del row
    assert pool.num_free == 0
    del transposed
    assert pool.num_free == 1


def test_numpy_views_keep_it_too() -> None:
    pool = SlabPool(64, max_free=4)
    view = torch.from_numpy(pool.lease()).numpy()[3:5]
    gc.collect()
    assert pool.num_free == 0
    del view
    assert pool.num_free == 1


def test_a_returned_slab_is_lent_again() -> None:
    pool = SlabPool(64, max_free=4)
    address = pool.lease().ctypes.data
    assert pool.lease().ctypes.data == address


def test_few_unused_slabs_are_kept() -> None:
    pool = SlabPool(64, max_free=2)
    held = [pool.lease() for _ in range(5)]
    assert len({slab.ctypes.data for slab in held}) == 5
    held.clear()
    assert pool.num_free == 2


@quick
@given(st.lists(st.integers(0, 5), max_size=60))
def test_no_two_leases_share_memory(actions: list[int]) -> None:
    """Take a slab, or give back one of those held, in any order: what is held keeps what was written."""
    pool = SlabPool(16, max_free=3)
    held: list[tuple[np.ndarray, int]] = []
    for number, action in enumerate(actions):
        if action < 3 or not held:
            slab = pool.lease()
            slab[:] = number
            held.append((slab, number))
        else:
            held.pop(action % len(held))
        assert all((slab == value).all() for slab, value in held)


def test_threads_share_a_pool() -> None:
    pool, wrong = SlabPool(256, max_free=8), []

    def use(value: int) -> None:
        for _ in range(2000):
            slab = pool.lease()
            slab[:] = value
            if not (slab == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=use, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= pool.num_free <= 8


def test_a_slab_outlives_its_pool() -> None:
    slab = SlabPool(64, max_free=2).lease()
    gc.collect()
    slab[:] = 5
    assert slab.sum() == 320


_DIES_LATE = """
import ctypes, sys, torch
import numpy as np
from torch.utils.dlpack import to_dlpack
from datapipe.kernel.pools import SlabPool

tensor = torch.from_numpy(SlabPool(64, max_free=4).lease())
capsule = to_dlpack(tensor)
address = ctypes.pythonapi.PyCapsule_GetPointer
address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
managed = address(capsule, b"dltensor")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(capsule))
release = ctypes.cast(managed + 56, ctypes.POINTER(ctypes.c_void_p))[0]  # DLManagedTensor.deleter
del tensor

class SigEvent(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int), ("function", ctypes.c_void_p)]
    _fields_ += [("attributes", ctypes.c_void_p), ("_padding", ctypes.c_char * 64)]

libc, timer, sigev_thread = ctypes.CDLL(None), ctypes.c_void_p(), 2
event = SigEvent(managed, 0, sigev_thread, release, None)
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
in_1_s = (ctypes.c_long * 4)(0, 0, 1, 0)
assert libc.timer_settime(timer, 0, ctypes.byref(in_1_s), None) == 0  # `release(managed)` in a thread of C's own
libc.__cxa_atexit(ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(2), None)  # which finds Python ended
"""


@pytest.mark.promise("loader: The script's end")
@pytest.mark.nightly
def test_the_last_view_may_die_after_the_interpreter() -> None:
    """As where a thread of C++ code holds it: what frees the memory must not wait for Python's lock."""
    done = subprocess.run([sys.executable, "-c", _DIES_LATE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
