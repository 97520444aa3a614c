"""Children that end while a daemon thread of theirs iterates a loader: `python exit_runs.py FOLDER NUM KIND ...`.

Forked, so that torch is imported once. The parent prints the exit status of each, a line for each kind.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import torch

import datapipe as dp
from datapipe import transforms as T


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        return torch.full((3, 24, 24), float(number)), number


def make(folder: str, kind: str) -> Any:
    if kind == "from_torch":
        return dp.from_torch(torch.utils.data.DataLoader(Numbers(), 4), device="cpu")
    crop = [T.RandomResizedCrop(24), T.ToDtype(torch.float32, scale=True)]
    return dp.DataLoader(folder, 4, True, num_workers=int(kind), transform=crop, device="cpu", backend="images_cpu")


def iterate_for_ever(loader: Any, begun: threading.Event) -> None:
    while True:
        for _ in loader:
            begun.set()


def main() -> None:
    folder, num, *kinds = sys.argv[1:]
    _ = dp.DataLoader, dp.from_torch  # imported here, not by each child
    for kind in kinds:
        statuses = []
        for number in range(int(num)):
            child = os.fork()
            if child == 0:
                begun = threading.Event()
                threading.Thread(target=iterate_for_ever, args=(make(folder, kind), begun), daemon=True).start()
                begun.wait()
                time.sleep(number % 10 / 200)
                return
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(*statuses, flush=True)


if __name__ == "__main__":
    main()
