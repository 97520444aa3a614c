"""Runs a conversion again and again, killed before one change to the file system after the other.

    python kill_driver.py SOURCE SCRATCH REFERENCE FORMAT FIRST STEP [OPTION ...]

It is killed before change FIRST, FIRST + STEP, and so on, counted from 1.

Each attempt runs in a fork whose file system calls are counted; at the chosen one the process kills
itself with SIGKILL (a write first writes half of its bytes). What it leaves must not look complete.
A second fork then runs the same conversion undisturbed, and its result must equal REFERENCE, byte for
byte, with nothing beside.
Options: `split`, `overwrite` (an older dataset lies in the destination), `twice` (the second run is
killed as well, a few calls in, before the third), `pairs`, `hub` and `videos` (other forms of
sources). Prints the number of kills; exits 1 at a difference.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from trees import contents

from converters import ConvertOptions, Split, convert
from converters.writers import TARGETS

pa.set_cpu_count(1)  # no threads before a fork
os.fsync = lambda descriptor: None  # a killed process loses nothing that the kernel has; syncing only takes time
COUNTED = ("replace", "unlink", "rmdir", "mkdir", "fsync", "open", "rename")


def die_before(call: int) -> None:
    """Replace the calls that change files by ones that count, and die at number `call`."""
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return count == call

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            is_reading = function is os_open and not args[1] & os.O_CREAT
            if not is_reading and tick():
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return replacement

    write, os_open = os.write, os.open

    def half_written(descriptor: int, data: Any) -> int:
        if tick():
            write(descriptor, memoryview(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    for name in COUNTED:
        setattr(os, name, counted(getattr(os, name)))
    os.write = half_written


def attempt(options: ConvertOptions, *, dies_before: int | None) -> int:
    """Convert in a fork; the signal that ended it, 0 for none."""
    child = os.fork()
    if child == 0:
        try:
            if dies_before is not None:
                die_before(dies_before)
            convert(options)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a run failed that should have been killed before call {dies_before} or have finished")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def looks_complete_too_early(destination: Path, complete: list[dict[str, str]]) -> str | None:
    """A directory with shards and without the marker that is not one of the complete sets, if there is one."""
    for directory in (destination, *(path for path in destination.glob("[!.]*") if path.is_dir())):
        if list(directory.glob("*-000000.*")) and not (directory / ".building").is_dir():
            found = {name: digest for name, digest in contents(directory).items() if not name.startswith(".finished")}
            if found not in complete:
                return str(directory)
    return None


def main(source: Path, scratch: Path, reference: Path, to: str, first: str, step: str, *flags: str) -> None:
    split = Split.parse_all("train=0.7,val=0.3") if "split" in flags else ()
    destination = scratch / "out"
    options = ConvertOptions(
        source, destination, to=to, shard_nbytes=12_000, num_workers=1, split=split, overwrite="overwrite" in flags
    )
    importlib.import_module(TARGETS[to].module)  # once, and not in every fork
    expected = contents(reference)
    complete = [expected, *(contents(path) for path in reference.iterdir() if path.is_dir())]
    num_kills = 0
    for call in range(int(first), 10_000, int(step)):
        shutil.rmtree(destination, ignore_errors=True)
        if "overwrite" in flags:
            convert(ConvertOptions(source, destination, to=to, shard_nbytes=20_000, num_workers=1, seed=9))
            complete = [expected, contents(destination)]
        if attempt(options, dies_before=call) != signal.SIGKILL:
            break
        num_kills += 1
        if early := looks_complete_too_early(destination, complete):
            sys.exit(f"killed before call {call}, and {early} looks complete")
        if "twice" in flags:
            num_kills += attempt(options, dies_before=1 + call % 17) == signal.SIGKILL
        attempt(options, dies_before=None)
        found = contents(destination)
        if found != expected:
            differing = sorted(set(found.items()) ^ set(expected.items()))
            sys.exit(f"killed before call {call}, resumed, and differs: {differing[:6]}")
    print(num_kills)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
