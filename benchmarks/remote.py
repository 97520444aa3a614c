"""The cost of reading from an object store compared with reading the same shards from a disk.

    python -m benchmarks.remote
    python -m benchmarks.remote --peers .venv-peers/bin/python     # LitData and MosaicML Streaming beside it
    python -m benchmarks.remote --dry-run      # tiny images, one round: does it run?

The store is a server on the loopback interface, in a process of its own on the same cores, that answers after 50 ms. On a machine
of its own it would take nothing from the loader, so rates are told twice: by the clock, and apart from the server, that is with
its CPU time, spread over the cores, taken off the clock. Every variant runs once per round in
a fresh process; the order rotates. What begins with nothing cached is measured within its first epoch. `local-again` is the
local set once more: how far its ratio is from 1 is the noise.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.environment import ROOT
from benchmarks.ratios import ratio_of, rotated
from benchmarks.server_time import SERVER, Span
from datapipe.diagnostics.ceilings.lock_watch import offer, report_span, watch

PEERS = ("litdata", "mds")
_BUCKET, _SET, _MANY = "bench", "photos", "many"
_BATCH = 128
_WARMUP_BATCHES = 4
_READY_BATCHES = 16  # left at an epoch's end: it would be measured too fast while batches made ahead run out
_HELD = ("local", "ranges", "windows, cold", "warm cache")


def main() -> None:
    arguments = _parse()
    if arguments.once:
        print(json.dumps(measure(**json.loads(arguments.once))))
        return
    if arguments.held:
        offer()
        found = measure(**json.loads(arguments.held))
        report_span(**{name: found[name] for name in ("start_s", "end_s", "num_images")})
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        scratch = Path(name)
        make_sets(scratch, arguments)
        with serve(scratch / "served", arguments.latency) as server:
            result = compare(scratch, arguments)
            first = [first_batch(scratch, number) for number in range(arguments.rounds)]
        cpu_s, num_answers = server()
    result["server"] = {"cpu_s": cpu_s, "num_answers": num_answers, "cpu_us_per_answer": round(cpu_s / max(1, num_answers) * 1e6)}
    result["first_batch_of_many_shards_s"] = {"median": round(statistics.median(first), 2), "highest": round(max(first), 2)}
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("remote", "benchmarks.remote", result, results=arguments.results)


def make_sets(scratch: Path, arguments: argparse.Namespace) -> None:
    """Photographs in a few shards, and tiny images in very many."""
    from converters import ConvertOptions, convert
    from datapipe.testing.synthetic_images import make_image_folder

    served = scratch / "served" / _BUCKET
    served.mkdir(parents=True)
    scale = "small" if arguments.dry_run else "imagenet"
    folder = make_image_folder(scratch / "folder", num_images=arguments.images, scale=scale)
    convert(ConvertOptions(folder, served / _SET, shard_nbytes=100_000 if arguments.dry_run else 32 << 20))
    tiny = make_image_folder(scratch / "tiny", num_images=4 * arguments.shards, scale="small")
    convert(ConvertOptions(tiny, served / _MANY, shard_nbytes=10_000))
    if arguments.peers:
        for peer in PEERS:
            command = [arguments.peers, "-m", "benchmarks.contenders.streaming_peers", "write", peer, folder, served / peer]
            done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=1800)
            if done.returncode != 0:
                raise SystemExit(f"{peer} failed to write:\n{done.stderr[-3000:]}")


def compare(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Images/s of each variant, round by round, and how long each holds Python's lock."""
    cache = scratch / "shards"
    run = {"num_images": arguments.count, "num_threads": arguments.threads}
    epoch = arguments.images // _BATCH
    first_epoch = (epoch - _WARMUP_BATCHES - min(_READY_BATCHES, epoch // 4)) * _BATCH
    if first_epoch <= 0:
        raise SystemExit(f"--images {arguments.images}: an epoch must have more than {_BATCH * (_WARMUP_BATCHES + 2)}")
    tasks: dict[str, dict[str, Any]] = {
        "local": {"source": str(scratch / "served" / _BUCKET / _SET), **run},
        "local-again": {"source": str(scratch / "served" / _BUCKET / _SET), **run},
        "ranges": {"source": f"s3://{_BUCKET}/{_SET}", **run},
        "windows, cold": {"source": f"s3://{_BUCKET}/{_SET}", "shuffle": "windows", **run, "num_images": first_epoch},
        "warm cache": {"source": f"s3://{_BUCKET}/{_SET}", "cache_dir": str(cache), **run},
    }
    peers = {
        f"{peer}, cold": {
            "source": f"s3://{_BUCKET}/{peer}", "num_images": first_epoch, "num_workers": arguments.threads,
            "batch_size": _BATCH, "warmup": _WARMUP_BATCHES,
        }
        for peer in (PEERS if arguments.peers else ())
    }  # fmt: skip
    _fill(tasks["warm cache"], cache)
    rounds: dict[str, list[dict[str, float] | None]] = {name: [] for name in (*tasks, *peers)}
    for number in range(arguments.rounds):
        for name in rotated([*tasks, *peers], number):
            if name in peers:
                cache_dir = scratch / f"{name.partition(',')[0]}-{number}"
                found = _run_peer(arguments.peers, name.partition(",")[0], peers[name], cache_dir)
            else:
                found = _run("--once", tasks[name], scratch / "empty")
            rounds[name].append(found)
            rate = "failed" if found is None else f"{found['images_per_s']:8.0f} images/s"
            print(f"round {number + 1}/{arguments.rounds}  {name:<13} {rate}", flush=True)
    held = {name: [_held(tasks[name], scratch / "empty") for _ in range(min(3, arguments.rounds))] for name in _HELD}
    return {
        "settings": {
            "num_images": arguments.count,
            "dataset_images": arguments.images,
            "many_shards": arguments.shards,
            "latency_ms": round(1000 * arguments.latency),
            "num_threads": arguments.threads,
            "batch_size": _BATCH,
            "num_rounds": arguments.rounds,
        },
        **summarise(rounds, held),
    }


def measure(
    source: str, num_images: int, num_threads: int, cache_dir: str | None = None, shuffle: bool | str = True
) -> dict[str, Any]:
    """Images/s in this process after a few batches, with the CPU that it takes per image."""
    import datapipe as dp

    loader = _loader(source, num_threads, cache_dir, shuffle)
    batches = _endless(loader)
    for _ in range(_WARMUP_BATCHES):
        next(batches)
    done, cpu_s, span = 0, time.process_time(), Span()
    while done < num_images:
        done += len(next(batches)[0])
    rates, end_s, cpu_s = span.rates(done), time.perf_counter(), time.process_time() - cpu_s
    batches.close()
    del batches
    assert isinstance(loader, dp.DataLoader)
    return {
        **rates,
        "cpu_us_per_image": cpu_s / done * 1e6,
        "num_images": done,
        "start_s": span.start_s,
        "end_s": end_s,
    }


def _loader(source: str, num_threads: int, cache_dir: str | None, shuffle: bool | str) -> Any:
    import torch

    import datapipe as dp
    from datapipe import transforms as T

    return dp.DataLoader(
        dp.Images(source, remote=dp.Remote(cache_dir=cache_dir)),
        batch_size=_BATCH,
        shuffle=shuffle,  # type: ignore[arg-type]
        seed=0,
        drop_last=True,
        num_workers=num_threads,
        device="cpu",
        transform=[
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ],
    )


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def first_batch(scratch: Path, number: int) -> float:
    """Seconds from the URL of a set of many shards to its first shuffled batch, in a fresh process with an empty cache."""
    code = (
        "import sys, time, torch, datapipe as dp, datapipe.kinds.loader, obstore\n"
        "start = time.perf_counter()\n"
        "loader = dp.DataLoader(sys.argv[1], batch_size=128, shuffle=True, seed=0, device='cpu', "
        "transform=[dp.transforms.RandomResizedCrop(32)])\n"
        "next(iter(loader))\n"
        "print(time.perf_counter() - start)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(scratch / f"home-{number}")}
    command = [sys.executable, "-c", code, f"s3://{_BUCKET}/{_MANY}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


def _fill(task: dict[str, Any], cache: Path) -> None:
    """Let a loader run until its cache has all shards."""
    from datapipe.opening.samples import open_index

    num_shards, end_s = len(open_index(task["source"]).manifest.shards), time.monotonic() + 300
    while time.monotonic() < end_s:
        _run("--once", task)
        if cache.is_dir() and sum(len(path.name) == 64 for path in cache.iterdir()) == num_shards:
            return
    raise SystemExit("the cache was not filled within 300 s")


def _held(task: dict[str, Any], empty: Path) -> float:
    """Microseconds per image for which Python's lock was found held."""
    command = [sys.executable, "-m", "benchmarks.remote", "--held", json.dumps(_with_empty_cache(task, empty))]
    (span,) = watch(command, {**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT)
    return float(span["held"] * (span["end_s"] - span["start_s"]) / span["num_images"] * 1e6)


def _run(mode: str, task: dict[str, Any], empty: Path | None = None) -> dict[str, Any]:
    task = task if empty is None else _with_empty_cache(task, empty)
    return _answer([sys.executable, "-m", "benchmarks.remote", mode, json.dumps(task)])


def _run_peer(python: str, peer: str, task: dict[str, Any], cache_dir: Path) -> dict[str, Any] | None:
    """Run a library of others; None, with its last words printed, where it fails."""
    task = {**task, "cache_dir": str(cache_dir)}
    try:
        return _answer([python, "-m", "benchmarks.contenders.streaming_peers", "read", peer, json.dumps(task)])
    except SystemExit as exc:
        print("\n".join(str(exc).strip().splitlines()[-3:]), flush=True)
        return None
    finally:
        shutil.rmtree(cache_dir, ignore_errors=True)


def _with_empty_cache(task: dict[str, Any], empty: Path) -> dict[str, Any]:
    """Give windows, which fetch whole shards, a cache in which nothing is."""
    if task.get("shuffle") != "windows":
        return task
    shutil.rmtree(empty, ignore_errors=True)
    return {**task, "cache_dir": str(empty)}


def _answer(command: list[str]) -> dict[str, Any]:
    os.sync()  # what the run before left to be written to the disk is not this one's
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@contextlib.contextmanager
def serve(root: Path, latency_s: float) -> Iterator[Any]:
    """Serve a directory of buckets as s3:// in this process and its children; gives what tells, afterwards, CPU and answers."""
    command = [sys.executable, "-m", "benchmarks.object_server", str(root), "--latency", str(latency_s)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        told: list[str] = []
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(root.parent / "home"),
            SERVER: str(server.pid),
        }
        try:
            yield lambda: (float(told[0].split()[0]), int(told[0].split()[1]))
        finally:
            server.stdin.close()
            told.append(server.stdout.read())


def summarise(rounds: dict[str, list[dict[str, float] | None]], held: dict[str, list[float]]) -> dict[str, Any]:
    """Medians by variant, and ratios to the local set: of images/s, by the clock and apart from the server, and of CPU time."""
    variants: dict[str, dict[str, Any]] = {}
    for name, of_one in rounds.items():
        pairs = [
            (one, local) for one, local in zip(of_one, rounds["local"], strict=True) if one is not None and local is not None
        ]
        if not pairs:
            continue
        ours, local = [one for one, _ in pairs], [one for _, one in pairs]

        def to_local(key: str, ours: list[Any] = ours, local: list[Any] = local) -> dict[str, float]:
            return dataclasses.asdict(ratio_of([one[key] for one in ours], [one[key] for one in local]))

        variants[name] = {
            "images_per_s": round(statistics.median(one["images_per_s"] for one in ours), 1),
            "to_local": to_local("images_per_s"),
            "to_local_apart": to_local("images_per_s_apart"),
            "rounds": [round(one["images_per_s"], 1) for one in ours],
            "num_failed": len(of_one) - len(ours),
        }
        if "cpu_us_per_image" in ours[0]:  # of peers it is spent in their workers
            cpu = ratio_of([one["cpu_us_per_image"] for one in local], [one["cpu_us_per_image"] for one in ours])
            variants[name] |= {
                "cpu_us_per_image": round(statistics.median(one["cpu_us_per_image"] for one in ours)),
                "to_local_by_cpu": dataclasses.asdict(cpu),
            }
    return {"variants": variants, "held_us_per_image": {name: round(statistics.median(found), 1) for name, found in held.items()}}


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = [f"{'':<13} {'images/s':>9} {'to local':>22} {'apart':>22} {'CPU us/image':>13} {'by CPU':>16} {'lock us':>8}"]
    for name, found in result["variants"].items():
        wall, apart = ("{ratio:.2f}x [{low:.2f}, {high:.2f}]".format(**found[key]) for key in ("to_local", "to_local_apart"))
        lock = result["held_us_per_image"].get(name)
        line = f"{name:<13} {found['images_per_s']:>9,.0f} {wall:>22} {apart:>22}"
        if "cpu_us_per_image" in found:
            line += f" {found['cpu_us_per_image']:>13,} {found['to_local_by_cpu']['ratio']:>15.2f}x"
        lines.append(line + (f" {lock:>8.0f}" if lock is not None else ""))
    server, first = result["server"], result["first_batch_of_many_shards_s"]
    lines.append(f"the server took {server['cpu_us_per_answer']} us of CPU per answer, on the same cores")
    shards, latency = result["settings"]["many_shards"], result["settings"]["latency_ms"]
    lines.append(f"first batch from {shards:,} shards at {latency} ms: {first['median']:.2f} s ({first['highest']:.2f} at most)")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description="Object stores against a disk.")
    parser.add_argument("--images", type=int, help="photographs in the dataset (default: 8000; 1000 with --dry-run)")
    parser.add_argument("--count", type=int, help="images per measurement (default: 4096; 64 with --dry-run)")
    parser.add_argument("--shards", type=int, help="of the set whose first batch is timed (default: 2500; 8 with --dry-run)")
    parser.add_argument("--rounds", type=int, help="default: 7; 1 with --dry-run")
    parser.add_argument("--threads", type=int, default=2, help="decoding threads")
    parser.add_argument("--latency", type=float, default=0.05, help="of the server, in seconds")
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment with litdata and mosaicml-streaming (none)")
    parser.add_argument("--scratch", type=Path, help="directory for images, shards and caches (3 GB); default: the system's")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="tiny images, one round, nothing saved")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--held", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name, usual, dry in (("images", 8000, 1000), ("count", 4096, 64), ("shards", 2500, 8), ("rounds", 7, 1)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, dry if arguments.dry_run else usual)
    return arguments


if __name__ == "__main__":
    main()
