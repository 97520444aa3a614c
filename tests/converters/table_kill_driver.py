"""Runs a conversion of a table again and again, killed before its first, second, third, ... change to the file system.

    python table_kill_driver.py SOURCE SCRATCH REFERENCE FORMAT

As kill_driver.py does for files of samples; every second attempt is killed twice. Prints the number of kills.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

from kill_driver import die_before
from trees import contents

from converters.tables.conversion import TABLE_NAME, convert_table
from converters.tables.options import TableConversion


def attempt(options: TableConversion, *, dies_before: int | None) -> int:
    """Convert in a child. This process has no threads of its own, some of which may hold locks where it forks."""
    child = os.fork()
    if child == 0:
        try:
            if dies_before is not None:
                die_before(dies_before)
            convert_table(options)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a run failed that should have been killed before call {dies_before} or have finished")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main(source: Path, scratch: Path, reference: Path, to: str) -> None:
    destination, expected, num_kills = scratch / "out", contents(reference), 0
    options = TableConversion(source, destination, to=to, group_rows=100, shard_nbytes=4000, num_workers=1, overwrite=True)
    for call in range(1, 10_000, 2):  # a step of one takes twice the time and has found nothing more
        shutil.rmtree(destination, ignore_errors=True)
        if call % 3 == 0:
            attempt(TableConversion(source, destination, seed=7, num_workers=1), dies_before=None)  # what is replaced
        if attempt(options, dies_before=call) != signal.SIGKILL:
            break
        num_kills += 1
        is_old = call % 3 == 0 and not (destination / ".building" / "final.json").exists()
        if (destination / TABLE_NAME).exists() and not (destination / ".building").exists() and not is_old:
            found = {name: digest for name, digest in contents(destination).items() if not name.startswith(".finished")}
            if found != expected:
                sys.exit(f"killed before call {call}, and it looks complete")
        if call % 4 == 1:
            num_kills += attempt(options, dies_before=1 + call % 11) == signal.SIGKILL
        attempt(options, dies_before=None)
        if contents(destination) != expected:
            sys.exit(f"killed before call {call}, resumed, and differs: {sorted(set(contents(destination)) ^ set(expected))}")
    print(num_kills)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4])
