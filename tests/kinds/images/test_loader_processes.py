"""Loaders of images in other processes: spawned, interrupted, at their end, and as ranks under torchrun."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures import NUM_SAMPLES
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, same
from datapipe.testing.loaders.processes import in_forked_child

TESTS = Path(__file__).parent


def write_script(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source))
    return path


def environment() -> dict[str, str]:
    """So that a script finds the package and this directory's recipes, and hears no warning when it forks beside threads."""
    roots = (str(TESTS.parents[2]), str(TESTS), str(TESTS.parents[1]))
    # Python 3.12 and newer warn: "This process (pid=1) is multi-threaded, use of fork() may ...".
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:This process"}


# -- fork --------------------------------------------------------------------------------------------


def test_dropping_the_parents_iterator_in_a_child_does_not_hang(folder: Path) -> None:
    """Even if a thread held the work queue's lock at the moment of the fork: in the child no thread will release it."""
    iterators = [iter(dp.DataLoader(folder, batch_size=5, transform=CROP, num_workers=2))]
    next(iterators[0])
    assert iterators[0]._threads is not None
    work_queue, held, release = iterators[0]._threads.work_queue, threading.Event(), threading.Event()

    def hold() -> None:
        with work_queue._filling:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)

    def child() -> None:
        iterators.clear()
        gc.collect()

    exit_code = in_forked_child(child)
    release.set()
    thread.join()
    assert exit_code == 0


# -- spawn -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_spawned_process_gets_the_same_batches(folder: Path, tmp_path: Path) -> None:
    import torch

    arguments: dict[str, Any] = {"batch_size": 5, "shuffle": True, "transform": TRAIN, "num_workers": 2, "seed": 4}
    loaders = [dp.DataLoader(folder, device="cpu", backend=backend, **arguments) for backend in ("images_cpu", "dali")]
    (tmp_path / "loaders.pickle").write_bytes(pickle.dumps(loaders))
    script = write_script(
        tmp_path / "child.py",
        """
        import pickle, sys, torch
        loaders = pickle.loads(open(sys.argv[1], "rb").read())
        torch.save([[tuple(batch) for batch in loader] for loader in loaders], sys.argv[2])
        """,
    )
    subprocess.run(
        [sys.executable, script, tmp_path / "loaders.pickle", tmp_path / "batches.pt"], env=environment(), check=True, timeout=60
    )
    for found, loader in zip(torch.load(tmp_path / "batches.pt"), loaders, strict=True):
        assert same(found, copies(loader)), loader.choice


# -- interrupts --------------------------------------------------------------------------------------

_ENDLESS = """
    import sys, datapipe as dp
    loader = dp.DataLoader(sys.argv[1], batch_size=3, shuffle=True, transform=dp.transforms.RandomResizedCrop(24), device="cpu",
                           num_workers=int(sys.argv[2]), backend=sys.argv[3])
    kept = iter(loader)  # one more pass left open
    next(kept)
    while True:
        for batch in loader:
            print("running", flush=True)
    """


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("num_workers", "backend"),
    [(0, "images_cpu"), (2, "images_cpu"), (2, "dali")],
)
def test_ctrl_c_ends_a_run_with_one_traceback(folder: Path, tmp_path: Path, num_workers: int, backend: str) -> None:
    """One KeyboardInterrupt, in the main thread; no thread complains, nothing hangs."""
    script = write_script(tmp_path / "endless.py", _ENDLESS)
    process = subprocess.Popen(
        [sys.executable, script, folder, str(num_workers), backend],
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "running\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert "Exception" not in err
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.promise("loader: The script's end")
@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_a_script_may_end_in_mid_pass(folder: Path, tmp_path: Path, backend: str) -> None:
    """With iterators open, by sys.exit; and so may a child that was forked before."""
    script = write_script(
        tmp_path / "ends.py",
        """
        import os, sys, datapipe as dp
        crop = dp.transforms.RandomResizedCrop(24)
        loader = dp.DataLoader(sys.argv[1], batch_size=1, transform=crop, num_workers=3, device="cpu", backend=sys.argv[2])
        list(loader)
        child = os.fork()
        if child == 0:
            sys.exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        iterator = iter(loader)
        kept = next(iterator)
        sys.exit(5)
        """,
    )
    command = [sys.executable, script, folder, backend]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")


@pytest.mark.promise("loader: The script's end")
@pytest.mark.nightly
def test_a_script_may_end_while_a_daemon_thread_iterates(folder: Path) -> None:
    """torch aborts where a thread is taken off its stack while a tensor of its dies; `exit_runs.py` runs more."""
    command = [sys.executable, TESTS / "exit_runs.py", folder, "2", "0", "2", "from_torch"]  # two of each kind
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert (done.stdout.splitlines(), done.stderr) == (["0 0"] * 3, "")


@pytest.mark.nightly
def test_a_daemon_thread_goes_on_while_others_are_waited_for(folder: Path, tmp_path: Path) -> None:
    """The main thread has ended, and a thread that is no daemon is still fed."""
    script = write_script(
        tmp_path / "fed.py",
        """
        import queue, sys, threading, datapipe as dp
        transform = dp.transforms.RandomResizedCrop(24)
        loader = dp.DataLoader(sys.argv[1], batch_size=1, transform=transform, num_workers=2, device="cpu")
        batches = queue.Queue(2)

        def feed():
            while True:
                for batch in loader:
                    batches.put(batch)

        def train():
            threading.main_thread().join()
            print(len([batches.get() for _ in range(100)]))

        threading.Thread(target=feed, daemon=True).start()
        threading.Thread(target=train).start()
        """,
    )
    done = subprocess.run([sys.executable, script, folder], env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "100\n", "")


# -- ranks -------------------------------------------------------------------------------------------

_RANK = """
    import json, multiprocessing, os, sys
    import torch
    import torch.distributed as dist
    import datapipe as dp
    from datapipe import transforms as T

    path, state_path, out, stop_after, rendezvous = sys.argv[1:]

    def run(*ranks):
        dist.init_process_group("gloo", **(dict(zip(("rank", "world_size", "init_method"), ranks)) if ranks else {}))
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for name in ("RANK", "WORLD_SIZE"):
            os.environ[name] = "0"  # torch.distributed is asked before the environment
        torch.manual_seed(6 + rank if world_size == 2 else 7)  # rank 0's counts, and is in the state
        loader = dp.DataLoader(path, batch_size=8 // world_size, shuffle=True, output="dict", num_workers=1,
                               transform=dp.transforms.RandomResizedCrop(24))
        if os.path.exists(state_path):
            loader.load_state_dict(json.load(open(state_path)))
        seen = []
        for step, batch in enumerate(loader, 1):
            seen.append([batch["id"].tolist(), batch["image"].sum((1, 2, 3)).tolist()])
            if step == int(stop_after):
                break
        states, parts = [None] * world_size, [None] * world_size
        dist.all_gather_object(states, loader.state_dict())
        dist.all_gather_object(parts, {"length": len(loader), "seen": seen})
        assert all(state == states[0] for state in states), states
        if rank == 0:
            json.dump(states[0], open(state_path, "w"))
            json.dump(parts, open(out, "w"))
        dist.destroy_process_group()

    if "RANK" in os.environ:  # under torchrun
        run()
    else:  # as four processes, which share one import of torch
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=run, args=(rank, 4, f"file://{rendezvous}")) for rank in range(4)]
        [rank.start() for rank in ranks]
        [rank.join() for rank in ranks]
        sys.exit(any(rank.exitcode for rank in ranks))
    """


@pytest.mark.nightly
def test_two_ranks_under_torchrun_resume_as_four(converted: Path, tmp_path: Path) -> None:
    """Every sample once, with the crop it would have had anyway."""
    script, state = write_script(tmp_path / "rank.py", _RANK), tmp_path / "state.json"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    seen: dict[int, int] = {}
    repeats = 0
    for launcher, world_size, stop_after, num_steps in ((torchrun, 2, 2, 2), ([], 4, 0, 3)):
        out = tmp_path / f"{world_size}.json"
        command = [sys.executable, *launcher, script, converted, state, out, str(stop_after), tmp_path / "rendezvous"]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        parts: list[dict[str, Any]] = json.loads(out.read_text())
        assert [(part["length"], len(part["seen"])) for part in parts] == [(5, num_steps)] * world_size
        for part in parts:
            for ids, sums in part["seen"]:
                repeats += sum(sample in seen for sample in ids)
                seen.update(zip(ids, sums, strict=True))
    assert sorted(seen) == list(range(NUM_SAMPLES))
    assert repeats == -(NUM_SAMPLES % 8) % 4, "only the padding of the last step"
    crop = T.RandomResizedCrop(24)
    alone = dp.DataLoader(converted, batch_size=37, shuffle=True, seed=6, output="dict", num_workers=0, transform=crop)
    (batch,) = list(alone)
    assert seen == dict(zip(batch["id"].tolist(), batch["image"].sum((1, 2, 3)).tolist(), strict=True))


def test_opening_data_needs_no_torch(converted: Path, folder: Path) -> None:
    code = (
        "import sys, numpy as np\nfrom datapipe.opening.samples import open_index\n"
        "from datapipe.codecs.decode import open_decoder\n"
        "for path in sys.argv[1:]: assert len(open_index(path).look_up(np.arange(37), 'image')) == 37\n"
        "open_decoder()\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, converted, folder], env=environment(), check=True, timeout=60)
