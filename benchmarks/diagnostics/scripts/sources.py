"""The scripts: what each does wrong, and what a diagnosis of it must say."""

from __future__ import annotations

from dataclasses import dataclass

# Imported by every script: a training loop with a plain timer of its own, which knows nothing of datapipe.
TRAINING = '''
import json
import os
import time

import torch


def train(batches_of, *, work_s=0.01, batch_size=8, passes=1, validate=None):
    """Train on `batches_of()`, `passes` times; tell the mean step, the share of waiting, and the time of everything.

    `work_s`: for `batch_size` samples. Ranks add up their gradients, so each waits for the slowest.
    """
    weight = torch.zeros(1, requires_grad=True)
    if torch.distributed.is_initialized():
        weight.register_hook(lambda gradient: torch.distributed.all_reduce(gradient))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    waits, steps, began = [], [], time.perf_counter()
    for number in range(passes):
        waits_of_pass, steps_of_pass, before = [], [], time.perf_counter()
        for batch in batches_of():
            got = time.perf_counter()
            samples = batch[0] if isinstance(batch, (tuple, list)) else batch
            time.sleep(work_s * len(samples) / batch_size)
            (weight * 1.0).sum().backward()
            optimizer.step()
            after = time.perf_counter()
            waits_of_pass.append(got - before)
            steps_of_pass.append(after - before)
            before = after
        skipped = len(steps_of_pass) // 3 if passes == 1 else 1  # the first batches, while buffers fill
        waits.append(waits_of_pass[skipped:])
        steps.append(steps_of_pass[skipped:])
        if validate is not None:
            with torch.no_grad():
                validate()
    told = {"wall_s": time.perf_counter() - began}
    latest = slice(-(passes // 2) or None, None) if passes > 1 else slice(None)
    told["step_s"] = sum(map(sum, steps[latest])) / sum(map(len, steps[latest]))
    told["waiting"] = sum(map(sum, waits[latest])) / sum(map(sum, steps[latest]))
    told["first_waiting"] = sum(waits[0]) / sum(steps[0])
    with open(f"{os.environ['TRUTH']}-{os.environ.get('RANK', 0)}.json", "w") as file:
        json.dump(told, file)
'''

_HEAD = """
import multiprocessing
import threading
import time
from queue import Queue

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from training import train


class Slow(Dataset):
    def __init__(self, num=1200, sample_s=0.002):
        self.num, self.sample_s = num, sample_s

    def __len__(self):
        return self.num

    def __getitem__(self, number):
        time.sleep(self.sample_s)
        return torch.full((4,), float(number))
"""
_MAIN = """

if __name__ == "__main__":
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script and what is known of it."""

    name: str
    code: str  # after the common head
    main: str  # the lines of its main block
    faults: tuple[str, ...]  # stages of which one is at fault; empty: none needs to be named
    kind: str = "data-bound"  # the verdict
    says: str = ""  # what the screen must say besides
    num_ranks: int = 1  # more: under torchrun
    needs_photos: bool = False

    @property
    def source(self) -> str:
        indented = "\n".join(f"    {line}" if line else "" for line in self.main.strip().splitlines())
        return f"{_HEAD}{self.code}{_MAIN}{indented}\n"


_LOOP = "train(lambda: loader)"

SCRIPTS = (
    Script("alone", "", f"loader = DataLoader(Slow(), batch_size=8, num_workers=1)\n{_LOOP}", ("read",)),
    Script(
        "lock",
        """

LOCK = multiprocessing.Lock()


class Locked(Slow):
    def __getitem__(self, number):
        with LOCK:
            return super().__getitem__(number)
""",
        f"loader = DataLoader(Locked(), batch_size=8, num_workers=2)\n{_LOOP}",
        ("read",),
        says="Workers wait for each other",
    ),
    Script(
        "bandwidth",
        """

FREE_AT = multiprocessing.Value("d", 0.0)


class Limited(Slow):
    def __getitem__(self, number):
        with FREE_AT.get_lock():  # a store that hands out so many bytes per second, to whoever asks
            FREE_AT.value = until = max(FREE_AT.value, time.monotonic()) + self.sample_s
        time.sleep(max(0.0, until - time.monotonic()))
        return torch.full((4,), float(number))
""",
        f"loader = DataLoader(Limited(), batch_size=8, num_workers=2)\n{_LOOP}",
        ("read",),
        says="Workers wait for each other",
    ),
    Script(
        "rare stalls",
        """

class Stalling(Slow):
    def __getitem__(self, number):
        time.sleep(0.4 if number % 160 == 7 else 0.001)
        return torch.full((4,), float(number))
""",
        f"loader = DataLoader(Stalling(2400), batch_size=8, num_workers=2)\n{_LOOP}",
        ("read",),
    ),
    Script(
        "slow worker",
        """

class Uneven(Slow):
    def __getitem__(self, number):
        info = torch.utils.data.get_worker_info()
        time.sleep(0.008 if info is not None and info.id == 0 else 0.001)
        return torch.full((4,), float(number))
""",
        f"loader = DataLoader(Uneven(1600), batch_size=8, num_workers=2)\n{_LOOP}",
        ("read",),
    ),
    Script(
        "own Dataset",
        """

class Photos(Dataset):
    def __init__(self, root):
        from pathlib import Path

        self.paths = sorted(Path(root).rglob("*.jpg")) * 3

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        import numpy as np
        from PIL import Image

        image = Image.open(self.paths[number]).convert("RGB").resize((96, 96), Image.BILINEAR)
        return torch.from_numpy(np.array(image))
""",
        f'loader = DataLoader(Photos("photos"), batch_size=8, num_workers=1)\n{_LOOP}',
        ("decode", "dataset", "cores"),
        needs_photos=True,
    ),
    Script(
        "two levels",
        """

SEEN = multiprocessing.Array("b", 800, lock=False)


class Caching(Slow):
    def __getitem__(self, number):
        time.sleep(0.0002 if SEEN[number] else 0.012)
        SEEN[number] = 1
        return torch.full((4,), float(number))
""",
        "loader = DataLoader(Caching(480), batch_size=8, num_workers=1, persistent_workers=True)\n"
        "train(lambda: loader, work_s=0.04, passes=4)",  # handing a batch out takes 1 ms: less than 5% of a step
        (),
        kind="compute-bound",
        says="Epochs differ",
    ),
    Script(
        "start-up",
        """

def opening(worker):
    time.sleep(1.0)
""",
        "loader = DataLoader(Slow(200, 0.0005), batch_size=8, num_workers=1, worker_init_fn=opening)\n"
        "train(lambda: loader, passes=8)",
        (),
        kind="",
        says="persistent_workers=True",
    ),
    Script(
        "zipped",
        "",
        "loader = DataLoader(Slow(1200, 0.006), batch_size=8, num_workers=2)\n"
        "other = DataLoader(Slow(1200, 0.002), batch_size=8, num_workers=1)\n"
        "train(lambda: zip(loader, other))",
        ("read",),
    ),
    Script(
        "validation",
        """

def validate():
    for batch in others:
        time.sleep(0.002)
""",
        "loader = DataLoader(Slow(400, 0.0003), batch_size=8, num_workers=1)\n"
        "others = DataLoader(Slow(800, 0.005), batch_size=8, num_workers=1)\n"
        "train(lambda: loader, work_s=0.04, passes=3, validate=validate)",
        (),
        kind="compute-bound",
        says="The validation loader",
    ),
    Script(
        "large batches",
        """

class Large(Slow):
    def __getitem__(self, number):
        return torch.full((1024, 768), float(number))
""",
        "loader = DataLoader(Large(1600), batch_size=16, num_workers=1)\ntrain(lambda: loader, batch_size=16)",
        ("transfer", "dataset", "collate", "cores"),
    ),
    Script(
        "slow sampler",
        """

class Careful(Sampler):
    def __iter__(self):
        for number in range(2800):  # the last batches of a pass, as many as are prefetched, wait for no sampler
            time.sleep(0.003)
            yield number

    def __len__(self):
        return 2800
""",
        f"loader = DataLoader(Slow(2800, 0.0002), batch_size=8, num_workers=1, sampler=Careful())\n{_LOOP}",
        ("sampler",),
        says="draw the order of an epoch",
    ),
    Script(
        "heavy collate",
        """

def collated(samples):
    until = time.thread_time() + 0.03 * len(samples) / 8
    while time.thread_time() < until:
        pass
    return torch.stack(samples)
""",
        f"loader = DataLoader(Slow(1200, 0.0002), batch_size=8, collate_fn=collated)\n{_LOOP}",
        ("collate",),
    ),
    Script(
        "feeder",
        """

def fed():
    queue = Queue(2)

    def feed():
        for batch in loader:
            queue.put(batch)
        queue.put(None)

    threading.Thread(target=feed, name="feeder", daemon=True).start()
    yield from iter(queue.get, None)
""",
        "loader = DataLoader(Slow(1200), batch_size=8)\ntrain(fed)",
        (),
        kind="not measured",
        says="",
    ),
    Script(
        "slow rank",
        "",
        'torch.distributed.init_process_group("gloo")\n'
        "rank = torch.distributed.get_rank()\n"
        "loader = DataLoader(Slow(1200, 0.003 if rank else 0.0002), batch_size=8, num_workers=1)\n"
        f"{_LOOP}",
        ("read",),
        says="rank 1",
        num_ranks=2,
    ),
)
