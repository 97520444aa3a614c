"""A process of its own that works on a store: what `test_cache_store` starts, and kills.

    python cache_driver.py ACTION PLACE ...

PLACE is a directory, or `ram`. Prints a line when it is ready, another when it is done.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.images.cache.locations import open_store
from datapipe.kinds.images.cache.store import Gap, Kept, Store

NUM_IDS = 200
STAMP = 5
AMPLE = 1 << 40


def value_of(number: int) -> bytes:
    """Another one for each id, of lengths that differ."""
    return np.random.default_rng(number).bytes(500 + number * 37 % 4000)


def store_at(place: str, *, capacity: int = AMPLE, about: str = "a test") -> Store:
    return open_store(Cache(place if place == "ram" else Path(place), capacity), about={"what": about})


def fill(store: Store, ids: Any) -> None:
    for number in ids:
        found = store.find(number, STAMP)
        if isinstance(found, Gap):
            store.keep(found, value_of(number), (number + 1, number + 2))


def num_right(store: Store) -> int:
    """How many values are there; exits where one is not what was kept."""
    num = 0
    for number in range(NUM_IDS):
        found = store.find(number, STAMP)
        if isinstance(found, Kept):
            if found != (value_of(number), (number + 1, number + 2)):
                sys.exit(f"value {number} is wrong")
            num += 1
    return num


def die_at_write(call: int) -> None:
    """Let this process kill itself half-way through its write number `call`."""
    write, count = os.pwrite, 0

    def counted(descriptor: int, data: Any, offset: int) -> int:
        nonlocal count
        count += 1
        if count == call:
            write(descriptor, memoryview(data)[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, offset)

    os.pwrite = counted


def main(action: str, place: str, *arguments: str) -> None:
    if action == "fill":  # SEED ABOUT: all ids, in an order of its own, after a line on stdin
        store = store_at(place, about=arguments[1])
        print("ready", flush=True)
        sys.stdin.readline()
        fill(store, np.random.default_rng(int(arguments[0])).permutation(NUM_IDS).tolist())
        print(num_right(store), flush=True)
    elif action == "hold":  # ABOUT: fills and stays
        store = store_at(place, about=arguments[0])
        fill(store, range(NUM_IDS))
        print(num_right(store), flush=True)
        time.sleep(60)
    elif action == "die":  # CALLS...: in forks, each killed in one of its writes; then what is there must be right
        for call in map(int, arguments):
            child = os.fork()
            if child == 0:
                store = store_at(place)
                die_at_write(call)
                fill(store, range(call, call + 3))
                os._exit(0)
            os.waitpid(child, 0)
            num_right(store_at(place))
        store = store_at(place)
        fill(store, range(NUM_IDS))
        print(num_right(store), flush=True)
    elif action == "overflow":  # ids are kept until the file system has no room
        store = store_at(place)
        fill(store, range(NUM_IDS))
        print(num_right(store), store.is_open, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
