"""Opening a dataset of ten million samples and planning its first batch.

    python -m benchmarks.open_large

The manifest and the sidecar indexes are real, in datapipe's own format; the shards they describe are not
there, as nothing reads them. Measured in fresh processes: the time from the path to the extents of a
shuffled batch, and the anonymous memory that this adds to the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.data import DEFAULT_DATA
from benchmarks.environment import ROOT
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.index.manifest import Manifest, ShardInfo, read_manifest, write_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldExtent, SidecarRows, write_sidecar
from datapipe.order.plan import Plan
from datapipe.order.sample_order import Permutation, ShuffledOrder

_IMAGE_NBYTES = 110_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_large")
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=2_500)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(open_once(arguments.once, arguments.batch_size)))
        return
    directory = make_dataset(arguments.data / f"open-{arguments.samples}-{arguments.shards}", arguments.samples, arguments.shards)
    command = [sys.executable, "-m", "benchmarks.open_large", "--once", str(directory), "--batch-size", str(arguments.batch_size)]
    rounds: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        rounds.append(json.loads(done.stdout))
        print({name: round(value, 4) for name, value in rounds[-1].items()}, flush=True)
    result = {
        "dataset": {"num_samples": arguments.samples, "num_shards": arguments.shards},
        "settings": {"batch_size": arguments.batch_size, "num_rounds": arguments.rounds},
        "median": {name: round(statistics.median(one[name] for one in rounds), 4) for name in rounds[0]},
        "highest": {name: round(max(one[name] for one in rounds), 4) for name in rounds[0]},
    }
    harness.save("open-large", "benchmarks.open_large", result, results=arguments.results)


def open_once(directory: Path, batch_size: int) -> dict[str, float]:
    """Open, shuffle, take the first batch and look up where it lies."""
    before = _anonymous_mb()
    started = time.perf_counter()
    index = SampleIndex(read_manifest(directory), data_directory=directory, sidecar_directory=directory)
    opened = time.perf_counter()
    plan = Plan(ShuffledOrder(len(index), seed=0), batch_size)
    picks = plan.picks_of(plan.span(epoch=0, step=0))
    ordered = time.perf_counter()
    entries = index.look_up(index.ids(picks.positions), "image")
    ended = time.perf_counter()
    if len(entries) != batch_size or len(set(entries.extents.paths)) < min(batch_size, len(index.manifest.shards)) // 4:
        raise SystemExit("the batch is not a shuffled one of the asked size")
    return {
        "open_s": opened - started,
        "order_s": ordered - opened,
        "extents_s": ended - ordered,
        "total_s": ended - started,
        "anonymous_mb": _anonymous_mb() - before,
        "num_shards_touched": len(set(entries.extents.paths)),
    }


def _anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024 / 1e6


# -- the dataset ---------------------------------------------------------------------------------


def make_dataset(directory: Path, num_samples: int, num_shards: int) -> Path:
    """Manifest and sidecars of a shuffled conversion; made once."""
    if directory.exists():
        return directory
    print(f"making {directory} ...", flush=True)
    unfinished = directory.with_name(f"unfinished-{directory.name}")
    unfinished.mkdir(parents=True, exist_ok=True)
    bounds = [num_samples * number // num_shards for number in range(num_shards + 1)]
    jobs = [(unfinished, number, bounds[number], bounds[number + 1], num_samples) for number in range(num_shards)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        shards = tuple(pool.map(_write_shard_index, jobs, chunksize=16))
    fields = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))
    write_manifest(unfinished, Manifest("tar", fields, shards, permutation_key=1))
    os.replace(unfinished, directory)
    return directory


def _write_shard_index(job: tuple[Path, int, int, int, int]) -> ShardInfo:
    directory, number, first, end, num_samples = job
    name = f"shard-{number:06d}.tar"
    rows = SidecarRows(("image", "label"))
    offset = 0
    for sample in Permutation(num_samples, key=1)(np.arange(first, end)).tolist():
        image = FieldExtent("jpeg", offset + 512, _IMAGE_NBYTES, sample & 0xFFFFFFFF)
        label = FieldExtent("", offset + 512 + _IMAGE_NBYTES + 512, 3, sample & 0xFFFFFFFF)
        source = b"class_%04d/image_%08d.jpg" % (sample % 1000, sample)
        extents = {"image": image, "label": label}
        rows.append(id=sample, key=b"%09d" % sample, source=source, label=sample % 1000, size=(375, 500), extents=extents)
        offset += 512 + _IMAGE_NBYTES + 1024
    index_sha256 = write_sidecar(directory / (name + SIDECAR_SUFFIX), rows, name)
    return ShardInfo(name, end - first, offset, first, end - first, sha256="0" * 64, index_sha256=index_sha256)


if __name__ == "__main__":
    main()
