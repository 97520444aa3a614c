"""Functions run in fresh processes, alone or as ranks: what torchrun does, without importing everything for each.

A function is named, as in "lightning_runs:fit", so that this process need not import the framework.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from typing import Any

import pytest
from fixtures import meeting_point

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["host_imports"])


def _run_server() -> None:
    """Begin the server of processes, or another in place of one that other tests began, which has not imported what these need.

    Python 3.11's server looks for what it is to import in PYTHONPATH only.
    """
    global _own
    server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None and server._forkserver_pid != _own:
        server._stop()
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        multiprocessing.forkserver.ensure_running()
        _own = server._forkserver_pid
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


_own: int | None = None  # the server that was begun here


def needs(package: str) -> None:
    """Skip what follows where a host is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[dev]'", allow_module_level=True)


def in_a_process(function: str, *arguments: Any, within_s: float = 200, **settings: str) -> Any:
    """What `function(*arguments)` returns, called in a process of its own; `settings`: of its environment."""
    return _results([_start(function, arguments, settings)], within_s)[0]


def exit_code_of(function: str, *arguments: Any, within_s: float = 200) -> int | None:
    """How a process ends that is not expected to return anything."""
    process, _ = _start(function, arguments, {})
    process.join(within_s)
    if process.is_alive():
        process.kill()
    code: int | None = process.exitcode
    return code


def on_ranks(function: str, world_size: int, *arguments: Any, within_s: float = 200, **settings: str) -> list[Any]:
    """What it returns on each rank, in an environment as torchrun makes it; the function inits the process group."""
    _store, meeting = meeting_point()
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        **meeting,
        **settings,
    }
    started = [_start(function, arguments, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world_size)]
    return _results(started, within_s)


def _start(function: str, arguments: tuple[Any, ...], settings: dict[str, str]) -> tuple[Any, Connection]:
    _run_server()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    environment = {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""), **settings}
    process = _server.Process(target=_call, args=(theirs, function, arguments, environment))
    process.start()
    theirs.close()
    return process, ours


def _call(sink: Connection, function: str, arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ |= environment
    importlib.import_module("host_imports")
    import torch

    multiprocessing.set_start_method("fork", force=True)  # for workers of torch's loaders
    torch.set_num_threads(1)
    try:
        module, _, name = function.partition(":")
        sink.send((getattr(importlib.import_module(module), name)(*arguments), None))
    except BaseException:
        sink.send((None, traceback.format_exc()))


def _results(started: list[tuple[Any, Connection]], within_s: float) -> list[Any]:
    """Of all, or the first failure: the other ranks may be waiting for the one that failed."""
    found: dict[Any, Any] = {}
    failure: str | None = None
    try:
        while len(found) < len(started) and failure is None:
            ready = wait_for_any([source for _, source in started if source not in found], within_s)
            failure = None if ready else f"no answer within {within_s} s"
            for source in ready:
                try:
                    found[source], failure = source.recv()  # type: ignore[union-attr]
                except EOFError:
                    failure = "the process ended without an answer"
                if failure is not None:
                    break
    finally:
        for process, _ in started:
            process.join(0 if failure else 20)
            if process.is_alive():
                process.kill()
    assert failure is None, failure
    return [found[source] for _, source in started]
