"""A million tiny files: listing and converting them, time and memory per file, beside `tar cf`; and the work divided.

    python -m benchmarks.million
    python -m benchmarks.million --num 10000 --rounds 1     # a look
    python -m benchmarks.million --num 10000000 --rounds 1  # 70 GB of disk; fewer are extrapolated

The files are JPEGs of 16 x 16 pixels in folders of a thousand, so what is measured is the cost of a file, not of its bytes:
listing and planning (`convert --dry-run`), resuming (a part that is done is begun again: the source is listed and compared with
the plan, and nothing is written), the whole conversion, and tar. Anonymous memory is that of all processes together at their
peak, at a hundredth, a tenth and all of the files: it should not grow. The times of listing and resuming are extrapolated to
10 million files from those at a tenth and at all of them: the time per file is assumed to grow on by the same factor for each
tenfold. At a tenth, `--part 1/2` and
`--part 2/2` run at the same time, then the command without `--part`, and every byte must be what one run wrote.

Files are hard links to a few hundred masters (no disk, and inodes that are all in memory: what is measured is the work of
the programs), or with `--files real` files of their own. tar is told to store links as files. What was made is deleted in
the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import math
import os
import shlex
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import harness
from benchmarks.convert import convert_command, run_once
from benchmarks.data import DEFAULT_DATA, warm
from benchmarks.environment import ROOT
from benchmarks.ratios import ratio_of, rotated

_PER_FOLDER = 1000
_NUM_MASTERS = 400  # ext4 lets a file have 65,000 links
_NBYTES_PER_FILE = {"links": 7_000, "real": 12_000}  # on disk, with what is made of it: directories, a tar, shards twice
_EXTRAPOLATED = 10_000_000  # files
_SHARDS_OF_PARTS = 6  # so that each part has several to write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description="A million tiny files.")
    parser.add_argument("--num", type=int, default=1_000_000, help="files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", choices=("links", "real"), default="links")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    data = arguments.data.absolute() / "million"
    data.mkdir(parents=True)  # of its own: it is deleted in the end
    try:
        refuse_full_disk(data, arguments.num, arguments.files)
        result = measure(data, arguments)
    finally:
        shutil.rmtree(data)
    harness.save("million", "benchmarks.million", result, results=arguments.results)
    print("\n".join(as_lines(result)))


def refuse_full_disk(data: Path, num: int, files: str) -> None:
    """Raise SystemExit where there is no room for so many files and what is made of them."""
    free, needed = shutil.disk_usage(data).free, num * _NBYTES_PER_FILE[files]
    inodes = os.statvfs(data).f_favail
    if needed > free:
        raise SystemExit(f"{data}: needs {needed / 1e9:.1f} GB and has {free / 1e9:.1f} GB free; pass --data, or a smaller --num")
    if files == "real" and 0 < inodes < 1.2 * num:
        raise SystemExit(f"{data}: has {inodes} inodes left for {num} files; pass --files links, or a smaller --num")


def measure(data: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the trees, run the rounds, the smaller sizes and the parts; the result."""
    sizes = sorted({max(1, arguments.num // 100), max(1, arguments.num // 10), arguments.num})
    trees = {num: data / f"files-{num}" for num in sizes}
    made = {make_tree(tree, num, masters=data / "masters", files=arguments.files) for num, tree in trees.items()}
    out, source = data / "out", trees[arguments.num]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in commands(source, out, arguments.workers)}
    for number in range(arguments.rounds):
        warm([source])
        for name in rotated(list(rounds), number):
            rounds[name].append(run_once(commands(source, out, arguments.workers)[name], None, out))
            print(f"round {number + 1}/{arguments.rounds}  {name:<14} {rounds[name][-1]['wall_s']:8.2f} s", flush=True)
    memory: dict[str, dict[int, float]] = {"list": {}, "convert": {}, "resume": {}}
    seconds: dict[str, dict[int, float]] = {"list": {}, "resume": {}}
    for num, tree in trees.items():
        resumed = resume(tree, out, arguments.workers)
        memory["resume"][num], seconds["resume"][num] = resumed["peak_anonymous_mb"], resumed["wall_s"]
        for name in ("list", "convert"):
            if num == arguments.num:
                peak, wall_s = (statistics.median(one[key] for one in rounds[name]) for key in ("peak_anonymous_mb", "wall_s"))
            else:
                once = run_once(commands(tree, out, arguments.workers)[name], None, out)
                peak, wall_s = once["peak_anonymous_mb"], once["wall_s"]
            memory[name][num] = peak
            if name in seconds:
                seconds[name][num] = wall_s
    shutil.rmtree(out)
    num_divided = sizes[-2] if len(sizes) > 1 else sizes[0]
    divided = divide(trees[num_divided], data / "divided", num_divided)
    return {
        **summarise(rounds, memory, arguments.num),
        "scans": {name: scan_times(of_one) for name, of_one in seconds.items()},
        "dataset": {
            "num_files": arguments.num,
            "files": "links" if made == {"links"} else "real",
            "mean_nbytes": round(statistics.mean(map(len, map(master, range(_NUM_MASTERS))))),
            "num_folders": -(-arguments.num // _PER_FOLDER),
        },
        "settings": {"workers": arguments.workers, "num_rounds": arguments.rounds, "check": "header", "encode": "keep"},
        "parts": divided,
    }


def commands(source: Path, out: Path, workers: int) -> dict[str, list[str]]:
    """What is run in every round, by name."""
    convert = [*convert_command(source, out / "shards"), "--workers", str(workers)]
    tar = f"tar cf {shlex.quote(str(out / 'all.tar'))} --hard-dereference -C {shlex.quote(str(source))} ."
    return {
        "list": [*convert_command(source, out / "shards"), "--dry-run"],
        "convert": convert,
        "convert-again": convert,
        "tar": ["sh", "-c", tar],
    }


def resume(source: Path, out: Path, workers: int) -> dict[str, float]:
    """Seconds and memory of a run that finds its part of an unfinished conversion done."""
    command = [*convert_command(source, out / "shards"), "--workers", str(workers), "--shard-size", "1MB", "--part", "1/1000"]
    run_once(command, None, out)  # a thousandth is written, and the other parts never run
    return run_once(command, None, out, empties=False)


# -- the tree --------------------------------------------------------------------------------------


def make_tree(target: Path, num: int, *, masters: Path, files: str) -> str:
    """So many small JPEGs, a thousand per folder; "links" or "real", whichever they became: not every file system has links."""
    print(f"making {target} ...", flush=True)
    if not masters.exists():
        masters.mkdir()
        for number in range(_NUM_MASTERS):
            (masters / f"{number}.jpg").write_bytes(master(number))
    contents = [(masters / f"{number}.jpg").read_bytes() for number in range(_NUM_MASTERS)]
    for number in range(num):
        folder = target / f"class_{number // _PER_FOLDER:05d}"
        if number % _PER_FOLDER == 0:
            folder.mkdir(parents=True)
        path, which = f"{folder}/{number:08d}.jpg", number % _NUM_MASTERS
        if files == "links":
            try:
                os.link(masters / f"{which}.jpg", path)
                continue
            except OSError as exc:
                print(f"{path}: cannot be a link ({exc.strerror}); files of their own from here on")
                files = "real"
        with open(path, "wb") as file:
            file.write(contents[which])
    return files


def master(number: int) -> bytes:
    """A JPEG of 16 x 16 pixels, another one for each number."""
    sink = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(sink, "JPEG", quality=30)
    return sink.getvalue()


# -- parts -----------------------------------------------------------------------------------------


def divide(source: Path, out: Path, num: int) -> dict[str, Any]:
    """One run, and two parts at the same time with the command that joins them; raises SystemExit unless the bytes agree."""
    nbytes = sum(path.stat().st_size for path in source.glob("*/*"))
    options = ("--workers", "1", "--shard-size", str(max(1, nbytes // _SHARDS_OF_PARTS)))
    out.mkdir()
    _run([convert_command(source, out / "one", *options)])
    _run([convert_command(source, out / "parts", *options, "--part", f"{part}/2") for part in (1, 2)])
    (joined,) = _run([convert_command(source, out / "parts", *options)])
    one, parts = digests(out / "one"), digests(out / "parts")
    if one != parts:
        differing = sorted(name for name in one.keys() | parts.keys() if one.get(name) != parts.get(name))
        raise SystemExit(f"two parts wrote other bytes than one run: {', '.join(differing[:5])}")
    return {
        "num_files": num,
        "num_shards": sum(name.endswith(".tar") for name in one),
        "same_bytes": True,
        "joining": joined.strip(),
    }


def _run(lines: list[list[str]]) -> list[str]:
    """Run commands at the same time; what they print. Raises SystemExit with the words of one that fails."""
    processes = [subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for line in lines]
    printed = []
    for process in processes:
        output, errors = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"{shlex.join(process.args)} failed:\n{errors[-3000:]}")  # type: ignore[arg-type]
        printed.append(output)
    return printed


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file, by name."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[str(path.relative_to(directory))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# -- the result ------------------------------------------------------------------------------------


def summarise(rounds: dict[str, list[dict[str, float]]], memory: dict[str, dict[int, float]], num: int) -> dict[str, Any]:
    """Medians, times per file, ratios of the conversion, and how peaks of memory grow with the number of files."""
    times = {name: [one["wall_s"] for one in of_one] for name, of_one in rounds.items()}
    contenders = {
        name: {
            "median_s": round(statistics.median(values), 3),
            "rounds_s": [round(value, 3) for value in values],
            "us_per_file": round(statistics.median(values) / num * 1e6, 2),
            "files_per_s": round(num / statistics.median(values)),
            "peak_anonymous_mb": round(max(one["peak_anonymous_mb"] for one in rounds[name]), 1),
        }
        for name, values in times.items()
    }
    return {
        "contenders": contenders,
        "ratios": {
            f"convert / {name}": dataclasses.asdict(ratio_of(times["convert"], times[name])) for name in ("convert-again", "tar")
        },
        "memory": {
            name: {
                "peaks": [{"num_files": of, "peak_anonymous_mb": round(peak, 1)} for of, peak in sorted(peaks.items())],
                "growth": round(peaks[max(peaks)] / max(peaks[min(peaks)], 1e-9), 3),
            }
            for name, peaks in memory.items()
        },
    }


def scan_times(seconds: dict[int, float]) -> dict[str, Any]:
    """Seconds by number of files, and what they become for 10 million, openly extrapolated."""
    sizes = sorted(seconds)
    per_file = [seconds[num] / num for num in sizes]
    # start-up is a part of small runs, so that the time per file seems to fall; it is not assumed to fall further
    growth = max(1.0, per_file[-1] / per_file[-2]) ** (1 / math.log10(sizes[-1] / sizes[-2])) if len(sizes) > 1 else 1.0
    extrapolated_s = per_file[-1] * _EXTRAPOLATED * growth ** max(0.0, math.log10(_EXTRAPOLATED / sizes[-1]))
    return {
        "measured": [{"num_files": num, "seconds": round(seconds[num], 3)} for num in sizes],
        "growth_per_tenfold": round(growth, 3),
        "extrapolated": {"num_files": _EXTRAPOLATED, "seconds": round(extrapolated_s, 1)},
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    num, files = result["dataset"]["num_files"], result["dataset"]["files"]
    lines = [f"{num:,} files ({'hard links' if files == 'links' else 'files of their own'})"]
    for name, one in result["contenders"].items():
        lines.append(
            f"{name:<14} {one['median_s']:9.2f} s  {one['us_per_file']:8.2f} us per file  {one['files_per_s']:9,d} files/s"
        )
    for name, ratio in result["ratios"].items():
        lines.append(f"{name}: {ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]")
    for name, memory in result["memory"].items():
        peaks = ", ".join(f"{one['peak_anonymous_mb']:.0f} MB at {one['num_files']:,}" for one in memory["peaks"])
        lines.append(f"memory of {name}: {peaks}; growth {memory['growth']:.2f}x")
    for name, scan in result["scans"].items():
        of, extrapolated = scan["measured"][-1], scan["extrapolated"]
        lines.append(
            f"{name}: {of['seconds']:.2f} s at {of['num_files']:,} files; extrapolated to {extrapolated['num_files']:,}:"
            f" {extrapolated['seconds']:.0f} s, at {scan['growth_per_tenfold']:.2f}x per file for each tenfold"
        )
    parts = result["parts"]
    lines.append(f"two parts of {parts['num_files']:,} files in {parts['num_shards']} shards: the same bytes as one run")
    return lines


if __name__ == "__main__":
    main()
