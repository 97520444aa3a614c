"""The same photographs in every container, read by datapipe's loader: what the choice of a format costs.

    python -m benchmarks.containers

JPEG -> RandomResizedCrop(224) -> flip -> normalise -> float32, shuffled in full, from tar, HDF5, TFRecord and Parquet as
`datapipe convert` writes them, and from the folder. Tar is measured twice: how far its ratio to itself is from 1 is the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.contenders import CONTENDERS
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, describe, prepare, warm
from benchmarks.ratios import ratio_of

LINE_UP = {
    "tar": "ours", "tar-again": "ours-again", "hdf5": "ours-hdf5", "tfrecord": "ours-tfrecord", "parquet": "ours-parquet",
    "folder": "ours-folder",
}  # fmt: skip
BARS = {"hdf5": 0.97, "tfrecord": 0.97, "parquet": 0.90}  # of tar's images per second, at least


def main() -> None:
    arguments = _parse()
    names = ["tar", "tar-again", *(name for name in arguments.containers.split(",") if name not in ("tar", "tar-again"))]
    unknown = [name for name in names if name not in LINE_UP]
    if unknown:
        raise SystemExit(f"--containers: no {', '.join(unknown)}; there are {', '.join(LINE_UP)}")
    image_set = ImageSet("photos", source=arguments.source, num_files=arguments.files, copies=arguments.copies)
    parts = tuple(dict.fromkeys(CONTENDERS[LINE_UP[name]].needs for name in names))
    root = prepare(Workshop(arguments.data), image_set, parts)
    warm([root / part for part in parts])
    rounds = harness.run_rounds(
        [harness.Entry(name, harness.task_of(LINE_UP[name], root, arguments)) for name in names], arguments.rounds
    )
    result = {
        "dataset": describe(root),
        "settings": harness.settings_of(arguments),
        **summarise(rounds),
    }
    harness.save("containers", "benchmarks.containers", result, results=arguments.results)
    print("\n".join(as_lines(result)))


def summarise(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, the ratio of each container to tar, and whether the aims are met."""
    rates = {name: [measured["images_per_s"] for measured in of_one] for name, of_one in rounds.items()}
    ratios = {name: ratio_of(values, rates["tar"]) for name, values in rates.items() if name != "tar"}
    return {
        "contenders": {
            name: {
                "title": CONTENDERS[LINE_UP[name]].title,
                "median": round(statistics.median(values), 1),
                "rounds": [round(value, 1) for value in values],
                "own_cpu_s_per_1000": round(statistics.median(m["own_cpu_s"] / m["num_images"] for m in rounds[name]) * 1000, 3),
                "first_batch_s": round(statistics.median(m["first_batch_s"] for m in rounds[name]), 3),
                "peak_rss_mb": round(statistics.median(m["peak_rss_mb"] for m in rounds[name])),
                "versions": rounds[name][0]["versions"],
            }
            for name, values in rates.items()
        },
        "ratios": {f"{name} / tar": dataclasses.asdict(ratio) for name, ratio in ratios.items()},
        "aims": {name: {"at_least": aim, "is_met": ratios[name].ratio >= aim} for name, aim in BARS.items() if name in ratios},
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, entry in result["contenders"].items():
        ratio, aim = result["ratios"].get(f"{name} / tar"), result["aims"].get(name)
        of_tar = f"  {ratio['ratio']:.3f} of tar [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else ""
        aimed = f", aimed at {aim['at_least']}: {'met' if aim['is_met'] else 'NOT met'}" if aim else ""
        lines.append(f"{name:<10} {entry['median']:8.0f} images/s{of_tar}{aimed}")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.containers", description="The loader from every container.")
    parser.add_argument("--source", default="generated", help="image folder to take JPEGs from (default: generated photographs)")
    parser.add_argument("--files", type=int, default=3000, help="different images")
    parser.add_argument("--copies", type=int, default=4, help="links to each, so that an epoch outlasts a round")
    parser.add_argument("--containers", default=",".join(LINE_UP), help="comma-separated; tar is always there, twice")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=8192, help="measured in each round")
    parser.add_argument("--warmup-images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2, help="decoding threads, and cores")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
