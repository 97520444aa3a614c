"""How often a child process is found with Python's global lock held, looked at from outside.

The lock's flag is a number in the child's memory, which the parent reads through /proc: the child does not notice.
Where in `_PyRuntime` the flag lies differs between versions of CPython; it is found by letting the child hold the
lock and let go of it a few times, and keeping the one place that follows.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import LifecycleError

_RUNTIME_NBYTES = 1 << 17  # of `_PyRuntime`, searched for the flag; Python 3.13 has it behind the first 64 KiB
_ROUNDS = 3  # of holding the lock and letting go of it
_LOOKS = 15  # at memory, each time
_LIMIT_S = 60  # time for the child to carry out the instruction
_MAX_PAUSE_S = 20e-6  # between two samples


def offer() -> None:
    """Say, in the child and first of all, where the runtime lies; hold the lock when the parent says so, until it is satisfied.

    The child lets go of the lock while it waits for a line. It holds it until the parent clears the cell.
    """
    cell = ctypes.c_int(0)
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    _say(runtime=runtime, cell=ctypes.addressof(cell))
    while sys.stdin.readline() == "hold\n":
        cell.value = 1
        while cell.value:
            pass


def report_span(start_s: float, end_s: float, **known: float) -> None:
    """Report, in the child, a span of time (perf_counter) in which the lock is of interest, and what is known of it."""
    _say(start_s=start_s, end_s=end_s, **known)


def watch(command: list[str], env: dict[str, str], *, cwd: Path) -> list[dict[str, Any]]:
    """Run a child that calls `offer` and then `report_span`. Returns the spans, each with the share of samples `held`.

    Raises LifecycleError where the child fails, its memory cannot be read, or the flag is not found.
    """
    with subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        memory = _open_memory(child)
        try:
            flag = _find_flag(child, memory)
            child.stdin.write("begin\n")
            child.stdin.close()
            times, held = _sample(child, memory, flag)
        except BaseException:
            child.kill()
            raise
        finally:
            os.close(memory)
        spans = [json.loads(line) for line in child.stdout]
    if child.returncode:
        raise LifecycleError(f"{' '.join(command)} failed with exit code {child.returncode}")
    for span in spans:
        span["held"] = float(held[(times > span["start_s"]) & (times < span["end_s"])].mean())
    return spans


def _say(**what: float) -> None:
    print(json.dumps(what), flush=True)


def _hear(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise LifecycleError("the watched process ended before it began")
    heard: dict[str, Any] = json.loads(line)
    return heard


def _open_memory(child: subprocess.Popen[str]) -> int:
    try:
        return os.open(f"/proc/{child.pid}/mem", os.O_RDWR)
    except OSError as exc:
        child.kill()
        raise LifecycleError(
            f"the memory of a child process cannot be read here ({exc.strerror}); allow ptrace of children"
        ) from exc


def _find_flag(child: subprocess.Popen[str], memory: int) -> int:
    """Return the address of the number that is 1 while the child holds the lock, and 0 while it waits for a line."""
    assert child.stdin is not None
    heard = _hear(child)
    follows = np.ones(_RUNTIME_NBYTES // 4, np.bool_)
    for _ in range(_ROUNDS):
        _wait(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
        _look(memory, heard["runtime"], 0, follows)
        child.stdin.write("hold\n")
        child.stdin.flush()
        _wait(lambda: any(os.pread(memory, 4, heard["cell"])))
        _look(memory, heard["runtime"], 1, follows)
        os.pwrite(memory, bytes(4), heard["cell"])
    places = np.flatnonzero(follows)
    if len(places) != 1:
        raise LifecycleError(f"the global lock's flag was not found: {len(places)} places behave as it would")
    return int(heard["runtime"]) + 4 * int(places[0])


def _look(memory: int, runtime: int, expected: int, follows: NDArray[np.bool_]) -> None:
    """Strike out the places that do not hold `expected`."""
    for _ in range(_LOOKS):
        follows &= np.frombuffer(os.pread(memory, _RUNTIME_NBYTES, runtime), np.int32) == expected
        time.sleep(0.001)


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > until:
            raise LifecycleError(f"the watched process did not do as it was told within {_LIMIT_S} s")
        time.sleep(0.0005)


def _sample(child: subprocess.Popen[str], memory: int, flag: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return when it was looked, and whether the lock was held, until the child ends. Its few lines wait in the pipe."""
    times: list[float] = []
    held: list[bool] = []
    while child.poll() is None:
        for _ in range(1000):
            now = time.perf_counter()
            number = os.pread(memory, 4, flag)
            if not number:  # it has ended
                break
            times.append(now)
            held.append(number != b"\0\0\0\0")
            until = now + random.random() * _MAX_PAUSE_S  # or the samples might keep step with what they sample
            while time.perf_counter() < until:
                pass
    return np.array(times), np.array(held)
