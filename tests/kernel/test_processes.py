"""Worker processes: they answer, share memory, hand errors over, and are gone when those who ask them are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.errors import DecodeError
from datapipe.kernel import processes, shared_slabs
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess, wanted
from datapipe.kernel.shared_slabs import SharedSlabPool, slab_of

READY_S = 60.0


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    begun = Launcher(("torch",))
    assert begun.wait(READY_S)
    yield begun
    begun.end()


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def make_worker() -> Any:
    """The handler: doubles numbers, fills memory, raises, and says where it runs."""

    def handle(request: Any, mapped: Callable[[int, int], memoryview]) -> tuple[Any, Sequence[int]]:
        what, *values = request
        if what == "fill":
            number, nbytes, offset, value = values
            mapped(number, nbytes)[offset : offset + 4] = bytes([value]) * 4
            return None, ()
        if what == "raise":
            raise values[0]
        if what == "pid":
            return os.getpid(), ()
        return [2 * value for value in values], ()

    return handle


def broken_worker() -> Any:
    raise DecodeError("nothing is right")


def test_a_worker_answers_from_another_process(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    assert worker.ask(("double", 1, 2.5, "ab"))[0] == [2, 5.0, "abab"]
    assert worker.ask(("pid",))[0] not in (os.getpid(), WorkerProcess(launcher, make_worker).ask(("pid",))[0])
    large = "x" * 3_000_000
    assert worker.ask(("double", large))[0] == [2 * large]


def test_errors_come_with_their_type_and_the_worker_goes_on(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    with pytest.raises(DecodeError, match="of no use"):
        worker.ask(("raise", DecodeError("of no use")))
    with pytest.raises(OSError, match="gone") as caught:
        worker.ask(("raise", OSError(5, "gone")))
    assert caught.value.errno == 5
    assert worker.ask(("double", 4))[0] == [8]
    with pytest.raises(DecodeError, match="nothing is right"):
        WorkerProcess(launcher, broken_worker)


def test_memory_is_shared_until_nobody_holds_it(launcher: Launcher) -> None:
    worker, pool = WorkerProcess(launcher, make_worker), SharedSlabPool(4096, max_free=0)
    first, second = torch.from_numpy(pool.lease()), torch.from_numpy(pool.lease())
    for tensor, value in ((first, 3), (second, 4), (first, 5)):
        slab, offset = slab_of(tensor[100:])
        assert offset == 100
        worker.ask(("fill", slab.number, slab.nbytes, offset, value), [slab])
    assert first[98:106].tolist() == [0, 0, 5, 5, 5, 5, 0, 0]
    assert second[100:104].tolist() == [4] * 4
    number, descriptor = slab_of(first)[0].number, slab_of(first)[0].descriptor
    del first, tensor
    assert until(lambda: not shared_slabs.exists(number))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    worker.ask(("double", 1))
    assert number not in worker._known
    with pytest.raises(LookupError):
        slab_of(torch.zeros(3))


def test_page_locks_end_before_the_memory(launcher: Launcher) -> None:
    locked: list[tuple[int, int]] = []

    def page_lock(address: int, nbytes: int) -> Callable[[], None]:
        locked.append((address, nbytes))
        return lambda: locked.remove((address, nbytes))

    tensor = torch.from_numpy(SharedSlabPool(512, max_free=0, page_lock=page_lock).lease())
    assert locked == [(tensor.data_ptr(), 512)]
    del tensor
    assert not locked


def test_a_worker_that_is_killed_is_an_error(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    os.kill(worker.ask(("pid",))[0], signal.SIGKILL)
    with pytest.raises(WorkerEndedError, match="a worker process ended"):
        worker.ask(("double", 1))


def test_a_worker_ends_with_its_asker(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    process = worker.ask(("pid",))[0]
    assert is_there(process)
    del worker
    assert until(lambda: not is_there(process))


def test_a_launcher_that_ends_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    begun = Launcher(())
    begun._started.kill()
    assert not begun.wait(READY_S)
    assert not begun.is_ready
    assert caplog.text.count("threads make the batches") == 1
    with pytest.raises(WorkerEndedError):
        WorkerProcess(begun, make_worker)
    begun.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None])
def test_nothing_is_left_of_a_script(how: signal.Signals | None, tmp_path: Path) -> None:
    """Killed, interrupted, or at its end, without `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, time
        from datapipe.kernel.processes import WorkerProcess, launcher
        from test_processes import make_worker
        begun = launcher(("test_processes",))
        assert begun.wait(60)
        workers = [WorkerProcess(begun, make_worker) for _ in range(2)]
        print(begun._started.pid, *(worker.ask(("pid",))[0] for worker in workers), flush=True)
        if sys.argv[1] == "wait":
            time.sleep(60)
    """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, str(script), "end" if how is None else "wait"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        left = [int(word) for word in started.stdout.readline().split()]
        assert len(left) == 3
        if how is not None:
            started.send_signal(how)
        _, errors = started.communicate(timeout=60)
    assert how is signal.SIGINT or errors == ""
    assert until(lambda: not any(map(is_there, left)))


def test_users_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPIPE_WORKERS", raising=False)
    assert [wanted(num) for num in (0, 1, processes.FEWEST - 1, processes.FEWEST)] == [False, False, False, True]
    monkeypatch.setenv("DATAPIPE_WORKERS", "threads")
    assert not wanted(64)
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")
    assert [wanted(num) for num in (0, 1)] == [False, True]
