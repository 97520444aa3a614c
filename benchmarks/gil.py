"""How long the loader holds Python's global lock per image: what bounds it on many cores.

    python -m benchmarks.gil --set 256

A second process reads, at random moments, the word of the interpreter that names the thread holding the
lock (CPython 3.11 keeps one; later versions do not). The share of samples in which somebody holds it,
times the wall time per image, is the time held; looking costs the loader nothing. Each round also
samples a process that holds the lock for a known share of the time, which shows how far the method is to
be trusted. A lock whose holder the system has suspended counts as held: close other programs, and prefer a
machine with three cores or more.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.contenders import CONTENDERS
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, describe, prepare, warm
from benchmarks.environment import ROOT
from benchmarks.task import Task

_KNOWN_S = 4.0  # of the calibration
_RUNTIME_NBYTES = 1 << 16  # of the interpreter's state that is searched for the lock's word


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gil")
    parser.add_argument("--set", choices=("photos", "256"), default="256")
    parser.add_argument("--contender", choices=("ours", "ours-folder", "ours-uint8", "ours-raw"), default="ours")
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--child", choices=("load", "known"), help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments.child, Task.from_json(arguments.task))
    else:
        run_all(arguments)


def run_all(arguments: argparse.Namespace) -> None:
    part = CONTENDERS[arguments.contender].needs
    image_set = ImageSet(arguments.set, num_files=arguments.files, copies=arguments.copies)
    root = prepare(Workshop(arguments.data), image_set, (part,))
    warm([root / part])
    task = Task(arguments.contender, str(root.resolve()), num_threads=1, num_images=arguments.images)
    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        known = _sampled("known", task)
        rounds.append({**_sampled("load", task), "calibration_error": known["share"] - known["true_share"]})
        print(
            f"round {number + 1}/{arguments.rounds}  {rounds[-1]['held_us_per_image']:6.1f} us per image"
            f"   (calibration: {known['share']:.1%} seen, {known['true_share']:.1%} true)",
            flush=True,
        )
    result: dict[str, Any] = {
        "dataset": describe(root),
        "settings": {"contender": arguments.contender, "num_threads": 1, "num_images": arguments.images},
        "median": {name: round(statistics.median(one[name] for one in rounds), 4) for name in rounds[0]},
        "rounds": [{name: round(value, 4) for name, value in one.items()} for one in rounds],
    }
    harness.save(f"gil-{arguments.set}", "benchmarks.gil", result, results=arguments.results)


def _start(kind: str, task: Task) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.gil", "--child", kind, "--task", task.to_json()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"the measured process ended with status {process.wait()}; its own words are above")
    answer: dict[str, Any] = json.loads(line)
    return answer


# -- sampling from outside -----------------------------------------------------------------------


def _sampled(kind: str, task: Task) -> dict[str, float]:
    """Look at the lock from this process while the other works.

    The other needs two cores: on one, a thread that decodes would suspend a thread that holds the lock.
    Given a third, this process stays awake on it; without one it sleeps between looks, which is as good
    while nothing else runs, and wrong otherwise, as sleepers are woken when others pause.
    """
    cores = sorted(os.sched_getaffinity(0))
    has_own_core = len(cores) > 2
    task = dataclasses.replace(task, cores=tuple(cores[:-1] if has_own_core else cores))
    os.sched_setaffinity(0, cores[-1:] if has_own_core else cores)
    with _start(kind, task) as process:
        address = _answer(process)["address"]
        assert process.stdin is not None
        memory = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
        answers: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: answers.append(_answer(process)))
        process.stdin.write("go\n")
        process.stdin.flush()
        reader.start()
        num_samples = num_held = 0
        while reader.is_alive():
            pause_s = random.uniform(1e-4, 3e-4)
            until = time.perf_counter() + pause_s
            if not has_own_core:
                time.sleep(pause_s)
            while time.perf_counter() < until:
                pass
            num_samples += 1
            num_held += os.pread(memory, 8, address) != bytes(8)
        os.close(memory)
        process.kill()
    os.sched_setaffinity(0, cores)
    measured = answers[0]
    share = num_held / num_samples
    held = {} if kind == "known" else {
        "held_us_per_image": share * measured["wall_s"] / measured["num_images"] * 1e6,
        "images_per_s": measured["num_images"] / measured["wall_s"],
    }  # fmt: skip
    known = {"true_share": measured["held_s"] / measured["wall_s"]} if kind == "known" else {}
    return {"share": share, "num_samples": num_samples, **held, **known}


def address_of_holder() -> int:
    """Where this interpreter keeps the thread state that holds the lock; null while nobody does.

    Found by its behaviour: the word of `_PyRuntime` that names this thread while it holds the lock, and
    is null while it has given it up, as it does during a system call. Raises SystemExit where there
    is none.
    """
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
    own = ctypes.pythonapi.PyThreadState_Get()
    holding = ctypes.string_at(runtime, _RUNTIME_NBYTES)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    released = os.pread(memory, _RUNTIME_NBYTES, runtime)
    os.close(memory)
    found = [
        offset
        for offset in range(0, len(released), 8)
        if int.from_bytes(holding[offset : offset + 8], "little") == own and released[offset : offset + 8] == bytes(8)
    ]
    if len(found) != 1:
        raise SystemExit(f"{len(found)} words of this interpreter look like the lock's holder; sampling needs CPython 3.11")
    return runtime + found[0]


# -- the measured processes ----------------------------------------------------------------------


def run_child(kind: str, task: Task) -> None:
    os.sched_setaffinity(0, task.cores)
    address = address_of_holder()
    work = _loading(task) if kind == "load" else _holding_a_known_share
    print(json.dumps({"address": address}), flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    measured = work()
    print(json.dumps({"wall_s": time.perf_counter() - began, **measured}), flush=True)
    sys.stdin.readline()  # until the other side has looked for the last time
    os._exit(0)


def _loading(task: Task) -> Callable[[], dict[str, float]]:
    """The loader, warmed up."""
    batches = CONTENDERS[task.contender].make(task)

    def consume(num_images: int) -> dict[str, float]:
        done = 0
        while done < num_images:
            done += len(next(batches))
        return {"num_images": done}

    consume(task.warmup_images)
    return lambda: consume(task.num_images)


def _holding_a_known_share() -> dict[str, float]:
    """Hold the lock for about 50 us, sleep, and so on; the sum of what was held."""
    held_s, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < _KNOWN_S:
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < 5e-5:
            pass
        held_s += now - started
        time.sleep(0.001)
    return {"held_s": held_s}


if __name__ == "__main__":
    main()
