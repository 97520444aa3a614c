"""The same photographs in shards that other loaders wrote, read in place: against our tars, and against their own loaders.

    python -m benchmarks.foreign --peers .venv-peers/bin/python --ffcv-python .venv-ffcv/bin/python

JPEG -> RandomResizedCrop(224) -> flip -> normalise -> float32, shuffled in full, from MosaicML's, LitData's, FFCV's and
Lance's files as their own writers make them of the files' bytes. Tar is measured twice: how far its ratio to itself is from 1
is the noise. MosaicML's, LitData's and Lance's own loaders decode with Pillow in as many worker processes, as their
documentation shows. What no environment is given for is left out.
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
    "tar": "ours", "tar-again": "ours-again", "mds": "ours-mds", "litdata": "ours-litdata", "beton": "ours-beton",
    "lance": "ours-lance", "mosaicml": "mosaicml-local", "lightning": "litdata-local", "ffcv": "ffcv", "pylance": "lance-local",
}  # fmt: skip
AIMS = {"mds": 0.95, "litdata": 0.95, "beton": 0.95, "lance": 0.7}  # of tar's images per second, at least, in place
IN_PLACE = {"mds": "mosaicml", "litdata": "lightning", "beton": "ffcv", "lance": "pylance"}  # by form, its own loader


def main() -> None:
    arguments = _parse()
    environments = {"peers": arguments.peers, "ffcv": arguments.ffcv_python}
    names = [name for name in LINE_UP if _can_run(name, environments) and name not in arguments.without]
    if left_out := [name for name in LINE_UP if name not in names]:
        print(f"left out: {', '.join(left_out)}")
    image_set = ImageSet("photos", num_files=arguments.files, copies=arguments.copies)
    workshop = Workshop(arguments.data, ffcv_python=arguments.ffcv_python, peers_python=arguments.peers)
    parts = tuple(dict.fromkeys(CONTENDERS[LINE_UP[name]].needs for name in names))
    root = prepare(workshop, image_set, parts)
    warm([root / part for part in parts])
    rounds = harness.run_rounds([_entry(name, root, arguments, environments) for name in names], arguments.rounds)
    result = {"dataset": describe(root), "settings": harness.settings_of(arguments), **summarise(rounds)}
    harness.save("foreign", "benchmarks.foreign", result, results=arguments.results)
    print("\n".join(as_lines(result)))


def _can_run(name: str, environments: dict[str, str | None]) -> bool:
    """Return whether there is an environment for a contender, and for what writes its data."""
    contender = CONTENDERS[LINE_UP[name]]
    writer = {"mds": "peers", "litdata": "peers", "ffcv.beton": "ffcv"}.get(contender.needs, "here")
    return all(one == "here" or environments[one] is not None for one in (contender.interpreter, writer))


def _entry(name: str, root: Path, arguments: argparse.Namespace, environments: dict[str, str | None]) -> harness.Entry:
    task = harness.task_of(LINE_UP[name], root, arguments)
    python = environments.get(CONTENDERS[LINE_UP[name]].interpreter)
    return harness.Entry(name, task) if python is None else harness.Entry(name, task, python)


def summarise(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians; the ratio of each form to tar, and to its own loader; and whether the aims are met."""
    rates = {name: [measured["images_per_s"] for measured in of_one] for name, of_one in rounds.items()}
    pairs = [(name, "tar") for name in ("tar-again", *IN_PLACE)] + [*IN_PLACE.items()]
    ratios = {f"{one} / {other}": ratio_of(rates[one], rates[other]) for one, other in pairs if {one, other} <= rates.keys()}
    return {
        "contenders": {
            name: {
                "title": CONTENDERS[LINE_UP[name]].title,
                "median": round(statistics.median(values), 1),
                "rounds": [round(value, 1) for value in values],
                "versions": rounds[name][0]["versions"],
            }
            for name, values in rates.items()
        },
        "ratios": {name: dataclasses.asdict(ratio) for name, ratio in ratios.items()},
        "aims": {
            name: {"at_least": AIMS[name], "is_met": ratios[f"{name} / tar"].ratio >= AIMS[name]}
            for name in IN_PLACE
            if f"{name} / tar" in ratios
        },
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = [f"{name:<10} {entry['median']:8.0f} images/s" for name, entry in result["contenders"].items()]
    for name, ratio in result["ratios"].items():
        aim = result["aims"].get(name.removesuffix(" / tar"))
        aimed = f", aimed at {aim['at_least']}: {'met' if aim['is_met'] else 'NOT met'}" if aim and name.endswith("/ tar") else ""
        lines.append(f"{name:<20} {ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]{aimed}")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foreign", description="The shards of other loaders, in place.")
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment with litdata and mosaicml-streaming (none)")
    parser.add_argument("--ffcv-python", metavar="PYTHON", help="of an environment with FFCV (none)")
    parser.add_argument("--without", nargs="*", default=[], choices=LINE_UP, help="contenders to leave out")
    parser.add_argument("--files", type=int, default=3000, help="different images")
    parser.add_argument("--copies", type=int, default=4, help="links to each, so that an epoch outlasts a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=4096, help="measured in each round")
    parser.add_argument("--warmup-images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2, help="decoding threads, and cores")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
