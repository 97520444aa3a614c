"""Listing and converting very many small files, beside `tar cf` of them.

    python -m benchmarks.list_million --files 1000000

The files are tiny JPEGs in folders of a thousand, so what is measured is the cost of a file, not of its bytes: the
listing and the plan (`convert --dry-run`), the whole conversion, and tar. Anonymous memory is that of all processes at
their peak, also at an eighth of the files, to show whether it grows. The page cache is warm. A million files take 4 GB.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import shlex
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import harness
from benchmarks.convert import run_once
from benchmarks.data import DEFAULT_DATA
from benchmarks.ratios import ratio_of, rotated

_DATAPIPE = "import sys; from datapipe.cli.main import main; sys.exit(main())"
_PER_FOLDER = 1000
_NUM_IMAGES = 32  # different ones


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.list_million")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    source = make_files(arguments.data / f"many-{arguments.files}", arguments.files)
    part = make_files(arguments.data / f"many-{arguments.files // 8}", arguments.files // 8)
    out = arguments.data / "many-out"
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in commands(source, out, arguments.workers)}
    for number in range(arguments.rounds):
        for name in rotated(list(rounds), number):
            rounds[name].append(run_once(commands(source, out, arguments.workers)[name], source, out))
            print(f"round {number + 1}/{arguments.rounds}  {name:<10} {rounds[name][-1]['wall_s']:7.2f} s", flush=True)
    small = {
        name: run_once(commands(part, out, arguments.workers)[name], part, out)["peak_anonymous_mb"]
        for name in ("list", "convert")
    }
    shutil.rmtree(out)
    result = summarise(rounds, small, arguments.files, source)
    result["settings"] = {"workers": arguments.workers, "num_rounds": arguments.rounds, "check": "header", "encode": "keep"}
    harness.save("list-million", "benchmarks.list_million", result, results=arguments.results)


def commands(source: Path, out: Path, workers: int) -> dict[str, list[str]]:
    """What is run, by name."""
    convert = [sys.executable, "-c", _DATAPIPE, "convert", str(source), str(out / "shards"), "--to", "webdataset"]
    tar = f"tar cf {shlex.quote(str(out / 'all.tar'))} -C {shlex.quote(str(source))} ."
    return {
        "list": [*convert, "--dry-run"],
        "convert": [*convert, "--workers", str(workers)],
        "convert-again": [*convert, "--workers", str(workers)],
        "tar": ["sh", "-c", tar],
    }


def make_files(target: Path, num_files: int) -> Path:
    """So many small JPEGs, a thousand per folder; made once."""
    if target.exists():
        return target
    print(f"making {target} ...", flush=True)
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    images = [_image(number) for number in range(_NUM_IMAGES)]
    for number in range(num_files):
        folder = unfinished / f"class_{number // _PER_FOLDER:05d}"
        if number % _PER_FOLDER == 0:
            folder.mkdir(parents=True)
        with open(folder / f"{number:08d}.jpg", "wb") as file:
            file.write(images[number % _NUM_IMAGES])
    os.replace(unfinished, target)
    return target


def _image(number: int) -> bytes:
    sink = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(sink, "JPEG", quality=50)
    return sink.getvalue()


def summarise(rounds: dict[str, list[dict[str, float]]], small: dict[str, float], num_files: int, source: Path) -> dict[str, Any]:
    """Medians, times per file, ratios of the conversion, and peaks of memory at two numbers of files."""
    times = {name: [one["wall_s"] for one in of_one] for name, of_one in rounds.items()}
    first = next(path for path in source.glob("*/*"))
    contenders = {
        name: {
            "median_s": round(statistics.median(values), 3),
            "rounds_s": [round(value, 3) for value in values],
            "us_per_file": round(statistics.median(values) / num_files * 1e6, 2),
            "files_per_s": round(num_files / statistics.median(values)),
            "peak_anonymous_mb": round(max(one["peak_anonymous_mb"] for one in rounds[name]), 1),
        }
        for name, values in times.items()
    }
    return {
        "dataset": {"num_files": num_files, "nbytes_of_one": first.stat().st_size, "num_folders": -(-num_files // _PER_FOLDER)},
        "contenders": contenders,
        "ratios": {
            f"convert / {name}": dataclasses.asdict(ratio_of(times["convert"], times[name])) for name in ("convert-again", "tar")
        },
        "memory": {
            name: [
                {"num_files": num_files // 8, "peak_anonymous_mb": round(small[name], 1)},
                {"num_files": num_files, "peak_anonymous_mb": contenders[name]["peak_anonymous_mb"]},
            ]
            for name in small
        },
    }


if __name__ == "__main__":
    main()
