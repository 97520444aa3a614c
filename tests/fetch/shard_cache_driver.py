"""Fetches, evicts and reads in a shard cache until it is killed: `python shard_cache_driver.py DIR NBYTES SEED`.

Contents are made, not downloaded, slowly, so that a signal hits every stage.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from pathlib import Path

from datapipe.fetch.shard_cache.directory import CacheDirectory

BLOCK = 4096
SIZES = [30_000, 50_000, 70_000, 20_000, 90_000, 40_000]


def contents(number: int) -> bytes:
    """The bytes of shard `number`."""
    return random.Random(number).randbytes(SIZES[number])


def name_of(number: int) -> str:
    return hashlib.sha256(contents(number)).hexdigest()


def main() -> None:
    directory = CacheDirectory(Path(sys.argv[1]), int(sys.argv[2]))
    chance = random.Random(int(sys.argv[3]))
    print("ready", flush=True)
    while True:
        number = chance.randrange(len(SIZES))
        data = contents(number)
        part = directory.reserve(name_of(number), len(data), keep=lambda name: False)
        if part is not None:
            for start in range(0, len(data), 10_000):
                part.write(data[start : start + 10_000], start)
                time.sleep(chance.random() * 0.002)
            assert part.commit(name_of(number))
        else:
            time.sleep(0.001)  # others wait for the lock, which goes to whoever asks first
        held = directory.held()
        if held.nbytes > directory.capacity + BLOCK:  # what is allocated is whole blocks
            print(f"{held.nbytes} bytes held", flush=True)


if __name__ == "__main__":
    main()
