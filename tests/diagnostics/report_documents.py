"""Diagnosis documents as runs of several kinds would leave them, for tests of reports.

Verdicts and remedies are those that the real functions make of made-up steps, so that a report is tested on what it
will get.
"""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import msgspec
import numpy as np

from datapipe.analysis.judge.verdict import figures_of, judge
from datapipe.analysis.predict.candidates import Candidates
from datapipe.analysis.predict.instructions import Instruction, Snippet, python_call
from datapipe.analysis.predict.remedies import Remedy, rank_remedies
from datapipe.analysis.predict.replay import Setup
from datapipe.analysis.predict.workload import Change, Workload
from datapipe.diagnostics.diagnosis import remedies_of as chosen_remedies
from datapipe.diagnostics.document import as_json, guide_of, read_document
from datapipe.instruments.attach.settings import Applied
from datapipe.instruments.measure.timeline import STEP, Steps

HOSTILE = "<script>alert('x')</script>&\"\x1b[31m\ud800"
KINDS = ("data-bound", "no remedy", "compute-bound", "host clock", "two ranks", "nothing", "large", "hostile")


def document(kind: str) -> dict[str, Any]:
    """One of KINDS; the caller may change it."""
    return copy.deepcopy(as_json(read_document(_document(kind))))


@functools.cache
def _document(kind: str) -> dict[str, Any]:
    match kind:
        case "data-bound":
            return starved(gap_s=0.026)
        case "no remedy":
            return no_remedy()
        case "compute-bound":
            return compute_bound()
        case "host clock":
            return starved(gap_s=0.026, on_device=False)
        case "two ranks":
            return two_ranks()
        case "large":
            return starved(gap_s=0.026, num_steps=2000, num_spans=5000, num_workers=8)
        case "hostile":
            return hostile()
    return nothing()


def steps_of(num: int, gap_s: float, *, on_device: bool = True, seed: int = 0) -> Steps:
    """One pass: a slow start, then steps of 42 ms of work and a gap that varies."""
    rng = np.random.default_rng(seed)
    steps = np.zeros(num, STEP)
    gaps = gap_s * rng.gamma(4, 1 / 4, num)
    waits = gaps + rng.uniform(0.001, 0.004, num)
    steps["work_s"] = 0.042 * rng.normal(1, 0.03, num)
    steps["work_s"][:8] *= np.linspace(6, 1.5, min(8, num))
    steps["host_wait_s"], steps["host_work_s"] = waits, gaps + steps["work_s"] - waits
    steps["gap_s"] = gaps if on_device else np.nan
    steps["work_s"] = steps["work_s"] if on_device else np.nan
    steps["copy_s"] = 0.0 if on_device else np.nan
    steps["sync_s"] = 0.0 if on_device else np.nan
    steps["num_ready"], steps["num_updates"], steps["is_ahead"] = 0, 1, 1 if on_device else -1
    total_ns = (1e9 * (steps["host_wait_s"] + steps["host_work_s"])).astype(np.int64)
    steps["start_ns"] = 5_000_000_000 + np.concatenate([[0], np.cumsum(total_ns)[:-1]])
    steps["is_first"][:1] = True
    return steps


def columns_of(steps: Steps) -> dict[str, list[Any]]:
    step_s = steps["host_wait_s"] + steps["host_work_s"]
    gaps = [None if np.isnan(value) else float(value) for value in steps["gap_s"]]
    phases = ["edge", *["warm-up"] * 7, *["steady"] * (len(steps) - 8)]
    return {
        "start_s": [float(value) / 1e9 for value in steps["start_ns"]],
        "step_s": step_s.tolist(),
        "gap_s": gaps,
        "host_wait_s": steps["host_wait_s"].tolist(),
        "phase": phases,
        "loader": [0] * len(steps),
    }


def spans_of(num: int, num_workers: int, start_s: float) -> list[dict[str, Any]]:
    """Workers that read, decode, transform, collate and send one batch after the other; pinning in the main process."""
    rng = np.random.default_rng(1)
    now = [start_s + 0.01 * worker for worker in range(num_workers)]
    spans: list[dict[str, Any]] = []
    batch = 0
    while len(spans) < num:
        worker = batch % num_workers
        for stage, typical_s in (("read", 0.012), ("decode", 0.06), ("transform", 0.04), ("collate", 0.006), ("transfer", 0.003)):
            duration_s = typical_s * float(rng.gamma(6, 1 / 6))
            span = {"batch": batch, "worker": worker, "stage": stage, "start_s": now[worker], "duration_s": duration_s}
            spans.append(span)
            now[worker] += duration_s
        spans.append({"batch": batch, "worker": None, "stage": "pin", "start_s": now[worker], "duration_s": 0.002})
        batch += 1
    return spans[:num]


def python(text: str, note: str = "") -> Instruction:
    return Instruction((Snippet("python", text),), "train.py:31", note)


def json_of(value: Any) -> Any:
    """As it is written and read again."""
    return json.loads(msgspec.json.encode(value))


def remedies_of(gap_s: float) -> dict[str, Any]:
    """The real ranking of two workers that take 136 ms for a batch, while a step takes 42 ms of work."""
    rng = np.random.default_rng(2)
    setup = Setup(2, 4, num_cores=8)
    workload = Workload(
        production_s=2 * (0.042 + gap_s) * rng.gamma(40, 1 / 40, 300),
        production_cpu_s=None,
        delivery_s=np.full(300, 0.0005),
        host_s=np.full(300, 0.003),
        work_s=0.042 * rng.normal(1, 0.03, 300),
        is_synced=np.zeros(300, bool),
        setup=setup,
    )
    folder, shards = "/data/imagenet/train", '"/data/imagenet-shards/train"'
    command = f"datapipe convert {folder} /data/imagenet-shards/train --to webdataset --resize shorter:256 --shard-size 256MB"
    converted = python_call(
        "loader = dp.DataLoader", shards, "batch_size=64", "shuffle=True", "num_workers=2", "transform=recipe"
    )
    remedies = [
        Remedy("4 workers", Change(Setup(4, 8, num_cores=8)), python("num_workers=4", "in DataLoader(...); now 2")),
        Remedy("prefetch 8 batches", Change(Setup(2, 16, num_cores=8)), python("prefetch_factor=8")),
        Remedy(
            "converted to WebDataset shards",
            Change(production_factor=0.45, production_spread=0.05),
            Instruction((Snippet("shell", command), converted), "train.py:31", "pixels differ"),
            changes_results=True,
        ),
        Remedy("datapipe's loader", Change(production_factor=0.4), python("loader = dp.from_torch(loader)")),
        Remedy("cached epoch", Change(production_factor=0.2), python('loader = dp.from_torch(loader, data="DST")')),
        Remedy("batches of 128", Change(batch_factor=2.0), python("batch_size=128")),
        Remedy("1 worker", Change(Setup(1, 2, num_cores=8)), python("num_workers=1")),
    ]
    ranking = rank_remedies(workload, remedies, measured_step_s=0.042 + gap_s)
    applied = {one.name: Applied(None) for one in remedies if "Loader(" not in one.how.sentence()}
    found: dict[str, Any] = json_of(chosen_remedies(ranking, Candidates(applied=applied), starved=True))
    return found


def starved(
    *,
    gap_s: float,
    on_device: bool = True,
    num_steps: int = 480,
    num_spans: int = 600,
    num_workers: int = 2,
) -> dict[str, Any]:
    steps = steps_of(num_steps, gap_s, on_device=on_device)
    verdict = json_of(judge(figures_of(steps, num_workers=num_workers)))
    columns = columns_of(steps)
    stages = [
        {"name": name, "detail": detail, "wait_s": 11.0 * share, "share": share, "work_share": None}
        for name, detail, share in (
            ("transform", "transform RandomResizedCrop", 0.47),
            ("decode", None, 0.30),
            ("read", None, 0.10),
            ("transform", "transform ColorJitter", 0.08),
            ("collate", None, 0.04),
            ("cores", None, 0.01),
        )
    ]
    return {
        "version": 1,
        "command": ["train.py", "--epochs", "1", "--data", "/data/imagenet"],
        "exit_code": 0,
        "started_at": "2026-11-20T14:03:11Z",
        "duration_s": 41.7,
        "clock": "cuda" if on_device else "host",
        "verdict": {**verdict, "rank": 0},
        "ranks": [{"rank": 0, "pid": 4711, "verdict": verdict, "num_steps": num_steps}],
        "loaders": [
            {
                "id": 0,
                "where": "train.py:31",
                "kind": "torch.utils.data.DataLoader",
                "dataset": "ImageFolder",
                "num_workers": num_workers,
                "prefetch_factor": 2,
                "batch_size": 64,
                "pin_memory": on_device,
                "is_evaluation": False,
                "is_judged": True,
                "num_steps": num_steps,
            }
        ],
        "attribution": {
            "stages": stages,
            "fault": "transform",
            "detail": "RandomResizedCrop",
            "reason": "55% of the waiting is transforms, most of it RandomResizedCrop.",
            "worker": None,
            "wait_s": 11.0,
            "head_of_line_s": 0.12,
        },
        "why_no_attribution": None,
        "remedies": remedies_of(gap_s),
        "why_no_remedies": None,
        "left_out": [],
        "steps": columns,
        "spans": spans_of(num_spans, num_workers, columns["start_s"][20]),
        "syncs": {},
        "run": None,
        "regimes": [],
        "applied": None,
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "cores": 8,
            "gpu": "NVIDIA H200" if on_device else None,
            "host": "node-17",
        },
        "troubles": [],
    }


def no_remedy() -> dict[str, Any]:
    """A slow `__getitem__` of the script's own, for which nothing is known."""
    found = starved(gap_s=0.026)
    remedies = found["remedies"]
    needs = [
        {"stage": "decode", "name": None, "where": "train.py:12 (Photos.__getitem__)", "step_s": 0.043, "times_faster": 3.25}
        | {"gain": 0.36, "advice": "store images at about the size that is trained on (datapipe convert --resize)"},
        {
            "stage": "transform",
            "name": "Slow",
            "where": None,
            "step_s": 0.061,
            "times_faster": None,
            "gain": 0.09,
            "advice": "run it on the device over the whole batch",
        },
    ]
    rest = [one for one in remedies["within_noise"] if one["name"] in ("prefetch 8 batches", "1 worker")]
    found["remedies"] = {**remedies, "best": "no remedy known", "predictions": [], "within_noise": rest, "needs": needs}
    found["left_out"] = [{"name": "datapipe's loader", "reason": "datapipe sees no files in Photos"}]
    parts = {"start-up": 2.0, "first batches": 12.0, "waiting for data": 6.0, "training steps": 8.0, "validation": 9.0}
    times = {"num_passes": 8, "first_wait_s": 12.0, "wait_s": 6.0, "work_s": 8.0}
    validation = {"num_passes": 8, "first_wait_s": 1.0, "wait_s": 6.2, "work_s": 1.8}
    how = json_of(guide_of(python("persistent_workers=True", "in DataLoader(...)")))
    level = {"num_steps": 100, "step_s": 0.09}
    found["regimes"] = [
        {"first_pass": 0, "last_pass": 0, "waiting": 0.9, **level},
        {"first_pass": 1, "last_pass": 7, "waiting": 0.37, **level},
    ]
    found["run"] = {
        "wall_s": 40.0,
        "parts": {**parts, "between passes": 3.0},
        "loaders": [{"id": 0, "is_evaluation": False, **times}, {"id": 1, "is_evaluation": True, **validation}],
        "savings": [{"name": "persistent_workers=True", "saved_s": 10.0, "gain": 0.25, **how}],
    }
    return found


def compute_bound() -> dict[str, Any]:
    """Nothing to be done; the loop waits for the device every ten steps."""
    found = starved(gap_s=0.0004)
    nothing_helps = found["remedies"]
    nothing_helps |= {"best": "change nothing", "within_noise": nothing_helps["within_noise"][:1], "predictions": []}
    found["left_out"] = [{"name": "another format", "reason": "the training does not wait for data, so nothing was tried"}]
    found["syncs"] = {"Tensor.item": {"num": 48, "host_s": 1.9}, "print of a tensor": {"num": 1, "host_s": 0.04}}
    return found


def two_ranks() -> dict[str, Any]:
    found = starved(gap_s=0.026)
    verdicts = [judge(figures_of(steps_of(480, gap_s), num_workers=2)) for gap_s in (0.0008, 0.026)]
    found["verdict"] = json_of(verdicts[1]) | {"rank": 1}
    parts = {"forward_s": 0.004, "backward_s": 0.009, "loop_s": 0.0006, "step_s": 0.0404}
    found["ranks"] = [
        {
            "rank": rank,
            "pid": 4711 + rank,
            "verdict": json_of(verdict),
            "num_steps": 480,
            "parts": parts | {"data_s": data_s, "others_s": 0.0268 - data_s},
        }
        for rank, (verdict, data_s) in enumerate(zip(verdicts, (0.0008, 0.026), strict=True))
    ]
    found["straggler"] = {
        "rank": 1,
        "part": "data",
        "excess_s": 0.0252,
        "share": 0.62,
        "stage": "read",
        "stage_s": 0.066,
        "usual_stage_s": 0.019,
        "host": "node-7",
    }
    found["attribution"]["worker"] = 1
    found["loaders"].append(
        found["loaders"][0]
        | {"id": 1, "where": "train.py:44", "prefetch_factor": None, "is_evaluation": True, "is_judged": False, "num_steps": 20}
    )
    found["steps"]["phase"][-20:] = ["evaluation"] * 20
    found["steps"]["loader"][-20:] = [1] * 20
    found["applied"] = {
        "remedy": "4 workers",
        "predicted_step_s": 0.0431,
        "low_s": 0.0425,
        "high_s": 0.0439,
        "measured_step_s": 0.0447,
        "starvation": {"value": 0.012, "low": 0.010, "high": 0.015},
        "reason": None,
    }
    found["command"] = ["torchrun", "--nproc-per-node", "2", "train.py"]
    found["troubles"] = ["rank 1: 3 batches came from a worker that left no profile", "rank 1: NVML could not be read"]
    return found


def nothing() -> dict[str, Any]:
    """A script that ended before anything could be measured."""
    verdict = json_of(judge(figures_of(np.zeros(0, STEP))))
    return {
        "version": 1,
        "command": ["train.py"],
        "exit_code": 1,
        "started_at": "2026-11-20T14:03:11+00:00",
        "duration_s": 0.8,
        "clock": "host",
        "verdict": {**verdict, "rank": 0},
        "ranks": [],
        "loaders": [],
        "attribution": None,
        "why_no_attribution": "no loader was iterated",
        "remedies": None,
        "why_no_remedies": "no loader was iterated",
        "left_out": [],
        "steps": None,
        "spans": [],
        "syncs": {},
        "applied": None,
        "environment": {},
        "troubles": [],
    }


def hostile() -> dict[str, Any]:
    """Names that would be markup, escape sequences or no text at all, and far too long, wherever a name can stand."""
    found = two_ranks()
    long = HOSTILE + "x" * 400
    found["command"] = ["train.py", long]
    found["loaders"][0] |= {"where": long, "kind": HOSTILE, "dataset": long}
    found["attribution"]["stages"][0] |= {"detail": long}
    found["attribution"]["stages"][1] |= {"name": HOSTILE}
    found["attribution"]["reason"] = long
    code = [{"language": "shell", "text": f"{long}\n{long}"}, {"language": "python", "text": long}]
    found["remedies"]["predictions"][0] |= {"name": long, "how": long, "code": code, "where": long, "note": long}
    found["spans"][0] |= {"stage": HOSTILE}
    found["left_out"] = [{"name": HOSTILE, "reason": long}]
    found["syncs"] = {HOSTILE: {"num": 3, "host_s": 0.1}}
    found["environment"] |= {HOSTILE: long}
    found["troubles"] = [long]
    found["applied"]["remedy"] = long
    found["verdict"]["reason"] = long
    return found
