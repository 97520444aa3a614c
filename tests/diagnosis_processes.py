"""Recordings made by hand, on a device and a host in virtual time: what is wrong with them is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.diagnostics.devices import VirtualWorld
from datapipe.diagnostics.diagnosis import Command
from datapipe.instruments.attach.recording import Recording
from datapipe.instruments.measure.bracket import ThreadBracket
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.watching import Hooks, LoaderFacts
from datapipe.instruments.torch_stages.profile import BatchProfile, Counters, Making, Passage

FACTS = LoaderFacts(
    key=0,
    kind="torch.utils.data.dataloader.DataLoader",
    site="/somewhere/train.py:31",
    dataset="train.Photos",
    batch_size=8,
    num_workers=1,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    in_order=True,
    is_iterable=False,
)
COMMAND = Command(("train.py", "--epochs", "1"), 0, "2026-11-20T12:00:00+00:00", 12.5)


def process(
    *,
    make_s: float,
    work_s: float,
    open_s: float = 0.0,
    num_steps: int = 60,
    rank: int = 0,
    cpu: float = 1.0,
    syncs: bool = False,
    **facts: Any,
) -> Process:
    """One pass over a loader with one worker, to which a batch takes `make_s`, `cpu` of it on a core; a step `work_s`.

    `open_s`: what the training process takes to open a batch.
    """
    world = VirtualWorld()
    bracket = ThreadBracket(world, hooks=Hooks(syncs=True, copies=True, updates=True))
    recording = Recording(bracket)
    recording.note_loader(replace(FACTS, **facts), loader=None)
    has_no_workers = facts.get("num_workers") == 0  # then it is made within next()
    one, done_s = bracket.open_pass(), 0.0
    handed_s = [0.0, 0.0]  # when a batch may be begun: two are in the making
    for step in range(num_steps):
        begun_s = world.now if has_no_workers else max(done_s, handed_s[step])
        done_s = begun_s + make_s
        asked_ns = world.now_ns()
        one.begin(None if has_no_workers else int(done_s <= world.now))
        world.now = max(world.now, done_s) + open_s + 0.0002
        one.end()
        made = _profile(step, begun_s, done_s, asked_ns, world.now_ns(), None if has_no_workers else 0, cpu)
        if open_s and made.moved is not None:
            opened_ns = made.taken_ns - 200_000
            made = replace(made, moved=replace(made.moved, open_start_ns=opened_ns - round(open_s * 1e9), open_end_ns=opened_ns))
        recording.note_profile(made)
        handed_s.append(world.now)
        world.launch(work_s)
        world.spend(0.001)
        if syncs:
            bracket.note_sync("Tensor.item", world.synchronize())
        bracket.note_update()
    one.stop()
    bracket.finish()
    return replace(recording.process(), rank=rank, environment={"cores": 2})


def _profile(
    step: int, begun_s: float, done_s: float, asked_ns: int, taken_ns: int, worker: int | None, cpu: float
) -> BatchProfile:
    start_ns, ready_ns = round(begun_s * 1e9), round(done_s * 1e9)
    collate_ns = start_ns + (ready_ns - start_ns) * 9 // 10
    made = Making(
        iterator=(1, 0),
        pid=100,
        worker=worker,
        num_samples=8,
        nbytes=1000,
        start_ns=start_ns,
        collate_start_ns=collate_ns,
        ready_ns=ready_ns,
        dataset_cpu_ns=round((collate_ns - start_ns) * cpu),
        collate_cpu_ns=ready_ns - collate_ns,
        process_cpu_ns=None,
        transforms=None,
        transform_ns=None,
        counters=Counters(None, None, None),
    )
    moved = None if worker is None else Passage(ready_ns, ready_ns, ready_ns, ready_ns)
    return BatchProfile(0, 0, step, asked_ns, taken_ns, made, moved, None)
