"""Other processes: forked, spawned, killed and interrupted."""

from __future__ import annotations

import copy
import faulthandler
import gc
import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datapipe.core.environment import importing_as_here
from datapipe.errors import LifecycleError
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, copies, flat, same

# Trains on a pickled loader: logs each batch with the state after it, from the last state that is in the log.
_TRAIN = """
    import json, os, pickle, sys, time
    loader, ids = pickle.load(open(sys.argv[1], "rb"))
    log, pause_s = sys.argv[2], float(sys.argv[3])
    if os.path.exists(log):
        loader.load_state_dict(json.loads(open(log).read().splitlines()[-1])["state"])
    batches = iter(loader)
    with open(log, "a") as out:
        while (batch := next(batches, None)) is not None:
            out.write(json.dumps({"ids": ids(batch), "state": loader.state_dict()}) + "\\n")
            try:
                out.flush()
                time.sleep(pause_s)
            except KeyboardInterrupt:
                print("interrupted")
                pause_s = 0
    kept = iter(loader)
    next(kept)
    sys.exit(3)  # while a pass is open
    """


def in_forked_child(function: Callable[[], None], *, within_s: float = 20) -> int | None:
    """Return the exit code of a forked child that calls the function; None if it hangs, after it has said where."""

    def child() -> None:
        faulthandler.dump_traceback_later(0.8 * within_s)
        function()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(within_s)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


class ProcessSuite(Promises):
    """A loader goes to other processes as its arguments, and survives those that end."""

    @pytest.mark.promise("loader: Processes")
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_an_iterator_that_is_open_at_a_fork_raises_in_the_child(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        iterator = iter(kind.open(path, batch_size=5, num_workers=num_workers))
        next(iterator)

        def child() -> None:
            with pytest.raises(LifecycleError, match=r"made in another process .* iter\(loader\)"):
                next(iterator)
            iterator.close()

        assert in_forked_child(child) == 0
        assert sum(1 for _ in iterator) == 7, "the parent's goes on"

    def test_a_child_iterates_by_itself_and_may_drop_its_parents_passes(self, kind: LoaderOf, path: Path) -> None:
        """With workers of its own where the parent's have threads, which are not there."""
        loader = kind.open(path, batch_size=5, shuffle=True, seed=0, num_workers=2)
        expected = copies(loader)
        loader.set_epoch(0)
        iterators = [iter(loader)]
        next(iterators[0])
        loader.set_epoch(0)

        def child() -> None:
            assert same(copies(loader), expected)
            iterators.clear()
            gc.collect()

        assert in_forked_child(child) == 0
        assert same(copies(iterators[0]), expected[1:])

    @pytest.mark.promise("loader: Processes")
    @pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_iterators_are_not_copied(self, kind: LoaderOf, path: Path, copied: Callable[[object], object]) -> None:
        iterator = iter(kind.open(path, batch_size=5, num_workers=2))
        for _ in range(2):
            with pytest.raises(LifecycleError, match=r"cannot be copied or pickled.*copy the loader itself, or take"):
                copied(iterator)
            next(iterator)
        assert sum(1 for _ in iterator) == 6

    @pytest.mark.promise("loader: State")
    @pytest.mark.nightly
    def test_a_run_that_is_killed_and_then_interrupted_goes_on_exactly(self, kind: LoaderOf, path: Path, tmp_path: Path) -> None:
        """In spawned processes, the second of which ends while a pass is open."""
        options = {"batch_size": 2, "shuffle": True, "seed": 1}
        log, pickled, script = tmp_path / "log.jsonl", tmp_path / "loader.pickle", tmp_path / "train.py"
        pickled.write_bytes(pickle.dumps((kind.open(path, num_workers=2, **options), kind.ids)))
        script.write_text(textwrap.dedent(_TRAIN))

        def start(pause_s: float) -> subprocess.Popen[str]:
            environment = importing_as_here() | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(script), str(pickled), str(log), str(pause_s)]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def wait_for_lines(num: int) -> None:
            deadline = time.monotonic() + 120
            while not log.exists() or log.read_text().count("\n") < num:
                assert time.monotonic() < deadline, "the script gives no batches"
                time.sleep(0.01)

        def seen() -> list[list[int]]:
            return [json.loads(line)["ids"] for line in log.read_text().splitlines()]

        expected = [kind.ids(batch) for batch in kind.open(path, num_workers=0, **options)]
        killed = start(0.1)
        wait_for_lines(4)
        killed.kill()
        killed.communicate(timeout=60)
        log.write_text(log.read_text().rpartition("\n")[0] + "\n")
        assert seen() == expected[: len(seen())]
        interrupted = start(0.5)
        wait_for_lines(len(seen()) + 3)
        interrupted.send_signal(signal.SIGINT)
        out, errors = interrupted.communicate(timeout=60)
        assert (interrupted.returncode, out, errors) == (3, "interrupted\n", "")
        assert seen() == expected
        assert sorted(flat(seen())) == list(range(NUM_SAMPLES))
