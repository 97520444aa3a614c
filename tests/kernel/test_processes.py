"""Worker processes: they answer, share memory, hand errors over, and are gone when those who ask them are."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import until

from datapipe.errors import DecodeError, OptionError
from datapipe.kernel import processes
from datapipe.kernel.process_main import Scratch
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess, wanted

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
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two
        return False


def make_worker() -> Any:
    """The handler: doubles numbers, fills memory, raises, and says where it runs."""

    def handle(request: Any, scratch: Scratch) -> Any:
        what, *values = request
        if what == "fill":
            nbytes, value = values
            scratch.take(nbytes)[:] = bytes([value]) * nbytes
            return None
        if what == "raise":
            raise values[0]
        if what in ("pid", "cwd"):
            return os.getpid() if what == "pid" else os.getcwd()
        if what == "gpus":
            return os.environ["CUDA_VISIBLE_DEVICES"]
        return [2 * value for value in values]

    return handle


def broken_worker() -> Any:
    raise DecodeError("nothing is right")


@pytest.mark.nightly
def test_a_worker_answers_from_another_process(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    assert worker.ask(("double", 1, 2.5, "ab"))[0] == [2, 5.0, "abab"]
    assert worker.ask(("pid",))[0] not in (os.getpid(), WorkerProcess(launcher, make_worker).ask(("pid",))[0])
    large = "x" * 3_000_000
    assert worker.ask(("double", large))[0] == [2 * large]


def test_a_worker_sees_no_gpu(launcher: Launcher) -> None:
    assert WorkerProcess(launcher, make_worker).ask(("gpus",))[0] == ""


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


def test_what_is_large_comes_in_scratch_memory(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    for nbytes, value in ((10, 3), (5000, 4), (20, 5), (9_000_000, 6)):
        answer, memory = worker.ask(("fill", nbytes, value))
        assert answer is None
        assert memory[:nbytes] == bytes([value]) * nbytes
    num = len(os.listdir("/proc/self/fd"))
    for nbytes in range(10_000_000, 20_000_000, 1_000_000):
        worker.ask(("fill", nbytes, 1))
    del memory
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= num, "the mappings before are gone"


def test_a_worker_is_where_its_asker_is(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess(launcher, make_worker)
    assert worker.ask(("cwd",))[0] == os.getcwd()
    monkeypatch.chdir(tmp_path)
    assert worker.ask(("cwd",))[0] == str(tmp_path)


def test_after_half_an_answer_nothing_is_asked_any_more(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess(launcher, make_worker)

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(processes, "receive", fail)
        with pytest.raises(KeyboardInterrupt):
            worker.ask(("double", 1))
    with pytest.raises(WorkerEndedError):
        worker.ask(("double", 2))


def test_without_descriptors_a_worker_counts_as_ended(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, limits[1]))
        with pytest.raises(WorkerEndedError):
            worker.ask(("fill", 100, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


def test_a_launcher_that_was_told_to_end_is_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    """A thread may ask for it while the interpreter ends."""
    begun = Launcher(("torch",))
    begun.end()
    assert not begun.is_ready
    assert not begun.wait(0.1)
    assert not caplog.text


def test_descriptors_beyond_1024_are_as_good_as_others() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("a process may open too few files here")
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        held += [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]  # select() knows the first 1,024 alone
        begun = Launcher(())
        assert begun.wait(READY_S)
        assert WorkerProcess(begun, make_worker).ask(("double", 4))[0] == [8]
        begun.end()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_child_does_not_keep_workers(launcher: Launcher) -> None:
    worker = WorkerProcess(launcher, make_worker)
    process = worker.ask(("pid",))[0]
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        del worker
        assert until(lambda: not is_there(process))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_launcher_takes_nothing_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    begun = Launcher(("queue",))
    assert begun.wait(READY_S)
    begun.end()


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


def test_a_launcher_that_ends_is_noticed(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_imported.py").write_text("import time; time.sleep(600)")  # so that it cannot be ready before it ends
    monkeypatch.syspath_prepend(tmp_path)
    begun = Launcher(("never_imported",))
    begun._started.kill()
    assert not begun.wait(READY_S)
    assert not begun.is_ready
    assert caplog.text.count("threads make the batches") == 1
    with pytest.raises(WorkerEndedError):
        WorkerProcess(begun, make_worker)
    begun.end()


@pytest.mark.nightly
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
    monkeypatch.setenv("DATAPIPE_WORKERS", "process")
    with pytest.raises(OptionError, match="DATAPIPE_WORKERS is 'process' in the environment; set it to"):
        wanted(64)
