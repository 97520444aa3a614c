"""Is the rank that the others wait for found, and why it is late?

    python -m benchmarks.diagnostics.late_ranks       # about 100 runs: a quarter of an hour on 2 cores

A script trains with 1 to 4 ranks (gloo, on the CPU) under `datapipe diagnose -- torchrun`. In one of its ranks a part takes
longer by FAULT_S in each step: reading, decoding or collating its data, forward, backward, or the loop between them; or in none.
Half of the scripts have batch normalisation, whose statistics are sent from rank 0 in each forward pass, so that the others wait
there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.environment import ROOT
from datapipe.analysis.judge.breakdown import OWN
from datapipe.diagnostics.document import Document, read_document

FAULT_S = 0.010
NUM_STEPS = 240
DATA = ("read", "decode", "collate")
FAULTS = (*DATA, "forward", "backward", "loop")
_LIMIT_S = 300  # of a run
_BATCH_SIZE = 8

TRAINING = f"""
import gc, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

fault, late_rank, has_statistics = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "statistics"
torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
late = fault if torch.distributed.get_rank() == late_rank else ""


def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Numbers(Dataset):
    def __len__(self):
        return {NUM_STEPS * _BATCH_SIZE}

    def __getitem__(self, number):
        time.sleep(0.0005 + (late == "read") * {FAULT_S / _BATCH_SIZE})
        compute(0.0002 + (late == "decode") * {FAULT_S / _BATCH_SIZE})
        return torch.randn(256)


def collate(samples):
    time.sleep((late == "collate") * {FAULT_S})
    return torch.stack(samples)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 256)
        self.between = nn.BatchNorm1d(256) if has_statistics else nn.ReLU()

    def forward(self, inputs):
        time.sleep(0.004 + (late == "forward") * {FAULT_S})
        found = self.last(self.between(self.first(inputs)))
        if late == "backward":
            found.register_hook(lambda gradient: (time.sleep({FAULT_S}), gradient)[1])
        return found


model = nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for inputs in DataLoader(Numbers(), batch_size={_BATCH_SIZE}, collate_fn=collate):
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep((late == "loop") * {FAULT_S})
del model, optimizer
gc.collect()  # gloo's threads must end before the interpreter does
torch.distributed.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """A run, and what is planted in it."""

    num_ranks: int
    fault: str | None
    rank: int | None  # the late one
    has_statistics: bool

    @property
    def is_late(self) -> bool:
        """Whether a rank is late: with one rank there is nobody to wait for it."""
        return self.fault is not None and self.num_ranks > 1


@dataclass(frozen=True, slots=True)
class Found:
    """What the diagnosis of a run says."""

    planted: Planted
    rank: int | None  # that the others wait for; None: there is none
    part: str | None  # in which it is late
    stage: str | None  # if that is its data; without other ranks, the stage at fault
    excess_ms: float | None

    @property
    def is_rank_right(self) -> bool:
        return self.rank == (self.planted.rank if self.planted.is_late else None)

    @property
    def is_stage_right(self) -> bool:
        """Whether the part is right, and the stage of its data."""
        fault, stage = self.planted.fault, "decode" if self.stage == OWN else self.stage  # for which its own code stands here
        if not self.planted.is_late:
            return self.part is None and (fault not in DATA or stage == fault)
        return (self.part, stage) == (("data", fault) if fault in DATA else (fault, None))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnostics.late_ranks")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th run")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    found = []
    for planted in itertools.islice(runs(), 0, None, arguments.every):
        one = run(planted)
        found.append(one)
        wrong = "" if one.is_rank_right and one.is_stage_right else "   WRONG"
        print(f"{planted} -> {one.rank} {one.part} {one.stage} {one.excess_ms} ms{wrong}", flush=True)
    result = sum_up(found) | {"fault_ms": FAULT_S * 1e3, "minutes": round((time.perf_counter() - started_s) / 60, 1)}
    print(json.dumps({name: value for name, value in result.items() if name != "runs"}, indent=1))
    harness.save("diagnostics-ranks", "benchmarks.diagnostics.late_ranks", result, results=arguments.results)


def runs() -> Iterator[Planted]:
    """Yield each fault on the first and on the last of 1 to 4 ranks, with both models, and as many runs without a fault."""
    for num_ranks, has_statistics in itertools.product(range(1, 5), (False, True)):
        for fault, rank in itertools.product(FAULTS, sorted({0, num_ranks - 1})):
            if num_ranks > 1 or fault in DATA:
                yield Planted(num_ranks, fault, rank, has_statistics)
        for _ in range(3):
            yield Planted(num_ranks, None, None, has_statistics)


def run(planted: Planted) -> Found:
    """Diagnose one run. Raises SystemExit with the end of its output if it fails."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "train.py").write_text(TRAINING)
        rank = -1 if planted.rank is None else planted.rank
        script = [planted.fault or "none", str(rank), "statistics" if planted.has_statistics else "none"]
        return found_in(diagnosed(scratch, script, launcher=torchrun(planted.num_ranks)), planted)


def torchrun(num_ranks: int) -> list[str]:
    """Return what starts a script with that many ranks on this machine."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]


def diagnosed(scratch: Path, script: list[str], *, launcher: list[str] | None = None) -> Document:
    """Diagnose `train.py` of a directory with arguments, without trials. Raises SystemExit as `execute` does."""
    out = scratch / "diagnosis"
    options = ["--no-html", "--trials", "0", "--out", str(out)]
    launched = ["--", *launcher] if launcher else []
    execute([sys.executable, "-m", "datapipe", "diagnose", *options, *launched, "train.py", *script], scratch)
    return read_document(json.loads((out / "diagnosis.json").read_text()))


def execute(command: list[str], scratch: Path) -> None:
    """Run a command there, which may write its own times. Raises SystemExit with the end of its output if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TRUTH": str(scratch / "truth")}
    done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def found_in(document: Document, planted: Planted) -> Found:
    """Return what a document says about the ranks."""
    late, blamed = document.straggler, document.attribution
    if late is None:
        return Found(planted, None, None, None if blamed is None or planted.is_late else blamed.fault, None)
    return Found(planted, late.rank, late.part, late.stage, round(late.excess_s * 1e3, 2))


def sum_up(found: list[Found]) -> dict[str, Any]:
    """Return the totals, and each run."""
    late = [one for one in found if one.planted.is_late]
    rest = [one for one in found if not one.planted.is_late]
    return {
        "num_late": len(late),
        "num_rank_right": sum(one.is_rank_right for one in late),
        "num_stage_right": sum(one.is_rank_right and one.is_stage_right for one in late),
        "num_even": len(rest),
        "num_false": sum(not one.is_rank_right for one in rest),
        "runs": [asdict(one) | {"is_right": one.is_rank_right and one.is_stage_right} for one in found],
    }


if __name__ == "__main__":
    main()
