"""Run the script's own code in a fork of its process, for a limited time: that code lives in no other process."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_GRACE_S = 15.0  # beyond the time that is given: for imports, and for what is under way
_DIED = {"reason": "the process in which it was tried died"}


def told_by_fork(measure: Callable[[], dict[str, Any]], *, seconds: float) -> dict[str, Any]:
    """Return what `measure()` returns in a fork, or {"reason": why it is not known}.

    Waits for at most `seconds` and some more, then kills the fork and the processes that it started. Their output is dropped.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiving)
        _run_child(measure, sending)
    with suppress(OSError):  # the child does so too: whoever comes first
        os.setpgid(child, child)
    os.close(sending)
    try:
        told = _read(receiving, until_s=time.monotonic() + seconds + _GRACE_S)
    finally:
        os.close(receiving)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if told is None:
        return {"reason": "there was no time left to try it"}
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:
        found = _DIED
    return found


def _run_child(measure: Callable[[], dict[str, Any]], sending: int) -> None:
    found: dict[str, Any] = _DIED
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what the script's code prints was printed by the script
            os.dup2(null, descriptor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measure()
    except BaseException as exc:
        found = {"reason": f"its code failed when it was tried ({type(exc).__name__}: {exc})"[:300]}
    finally:
        os.write(sending, json.dumps(found).encode())
        os._exit(0)


def _read(receiving: int, *, until_s: float) -> bytes | None:
    told = b""
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([receiving], [], [], left_s)[0]:
            part = os.read(receiving, 1 << 16)
            if not part:
                return told
            told += part
    return None
