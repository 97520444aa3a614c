"""JPEG -> RandomResizedCrop(224) -> flip -> normalise -> float32 on some cores, compared with other loaders.

python -m benchmarks.images --set photos --ffcv-python .venv-ffcv/bin/python
python -m benchmarks.images --set 256 --ffcv-python .venv-ffcv/bin/python
python -m benchmarks.images --set raw
python -m benchmarks.images --set from-torch
python -m benchmarks.images --set any-dataset
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, passes
from benchmarks.contenders import CONTENDERS
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, describe, prepare, warm
from benchmarks.environment import describe_environment
from benchmarks.plots import plot_rates

ANY_DATASET = "any-dataset"  # a set of Datasets, of which passes are compared
_PEERS = (
    "ours",
    "ours-again",
    "ours-folder",
    "ours-uint8",
    "torch",
    "webdataset",
    "dali-file",
    "dali-webdataset",
    "ffcv",
    "spdl",
)
_LINE_UPS = {
    "photos": (*_PEERS, "limit-stages", "limit-whole", "limit-region"),
    "256": (*_PEERS, "limit-stages", "limit-whole", "limit-region"),
    "dali": ("ours-dali", "ours-dali-again", "dali-file", "dali-webdataset"),
    "dali-uint8": ("ours-dali-uint8", "ours-dali-uint8-again", "dali-file-uint8", "dali-webdataset-uint8"),
    "from-torch": (
        "from-torch",
        "from-torch-again",
        "ours-folder",
        "torch",
        "from-torch-own-chain",
        "torch-own-chain",
        "from-torch-own-dataset",
        "torch-own-dataset",
    ),
    "raw": ("ours", "ours-again", "ours-uint8", "ours-raw", "ours-raw-uint8", "ffcv-raw"),
}
# The set's images, where they are another's.
_DATA = {
    "raw": "256",
    "dali": "photos",
    "dali-uint8": "photos",
    "from-torch": "photos",
}
_TITLES = {
    "photos": "Photographs of ImageNet's sizes",
    "256": "The same at 256 pixels, JPEG",
    "dali": "Photographs, by DALI on the CPU",
    "dali-uint8": "Photographs, by DALI on the CPU, uint8",
    "raw": "The same at 256 pixels, decoded in advance",
    "from-torch": "Photographs, by a torch loader taken over",
}


def main() -> None:
    arguments = _parse()
    if arguments.set == ANY_DATASET:
        measure_passes(arguments)
        return
    names = arguments.contenders.split(",") if arguments.contenders else list(_LINE_UPS[arguments.set])
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise SystemExit(f"--contenders: no {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    if arguments.ffcv_python is None:
        names = [name for name in names if CONTENDERS[name].interpreter != "ffcv"]
        print("without --ffcv-python FFCV and SPDL are left out; benchmarks/README.md says how to install them")
    image_set = ImageSet(
        name=_DATA.get(arguments.set, arguments.set),
        source=arguments.source,
        num_files=arguments.files,
        copies=arguments.copies,
    )
    parts = tuple(CONTENDERS[name].needs for name in names)
    root = prepare(Workshop(arguments.data, arguments.ffcv_python), image_set, parts)
    result = measure(root, names, arguments)
    path = harness.save(arguments.name or f"images-{arguments.set}", "benchmarks.images", result, results=arguments.results)
    cores = f"{arguments.threads} cores"
    plot_rates(result, path.with_suffix(".png"), title=f"{_TITLES[arguments.set]}: crop, flip, normalise on {cores}")
    show(result)


def measure_passes(arguments: argparse.Namespace) -> None:
    """Compare passes of torch's loader over Datasets as people write them with those of the same loader taken over."""
    kinds = arguments.contenders.split(",") if arguments.contenders else list(passes.TITLES)
    image_set = ImageSet("photos", arguments.source, arguments.files, arguments.copies)
    root = prepare(Workshop(arguments.data, None), image_set, ("folder",))
    warm([root / "folder"])
    settings = {"batch_size": passes.BATCH_SIZE, "num_workers": 2, "lengths": [one._asdict() for one in passes.LENGTHS]}
    about, name = {"dataset": describe(root), "settings": settings}, arguments.name or f"images-{ANY_DATASET}"
    others = {} if len(kinds) == len(passes.TITLES) else _kinds_of(arguments.results / f"{name}.json", about)
    date = describe_environment()["date"]
    found = others | {kind: one | {"date": date} for kind, one in passes.measure(root / "folder", kinds).items()}
    result = about | {"kinds": {kind: found[kind] for kind in passes.TITLES if kind in found}}
    harness.save(name, "benchmarks.images", result, results=arguments.results)


def _kinds_of(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of an earlier run, which stay beside those that are measured now: on the same data, and on such a CPU."""
    if not path.exists():
        return {}
    result = json.loads(path.read_text())
    is_like = all(result[name] == value for name, value in about.items())
    is_here = result["environment"]["cpu"] == describe_environment()["cpu"]
    return dict(result["kinds"]) if is_like and is_here else {}


def measure(root: Path, names: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Warm the page cache, run the rounds, sum up."""
    warm([root / part for part in dict.fromkeys(CONTENDERS[name].needs for name in names)])
    entries = [
        harness.Entry(name, harness.task_of(name, root, arguments), _interpreter(name, arguments.ffcv_python)) for name in names
    ]
    rounds = harness.run_rounds(entries, arguments.rounds)
    return {
        "dataset": describe(root),
        "settings": harness.settings_of(arguments),
        **harness.summarise(rounds, against=names[0]),
    }


def _interpreter(name: str, ffcv_python: str | None) -> str:
    return str(Path(ffcv_python).absolute()) if ffcv_python and CONTENDERS[name].interpreter == "ffcv" else sys.executable


def show(result: dict[str, Any]) -> None:
    """The medians, and the first contender's lead over each."""
    print()
    ratios = {name.split(" / ")[1]: ratio for name, ratio in result["ratios"].items()}
    for name, entry in result["contenders"].items():
        lead = f"{ratios[name]['ratio']:6.2f} [{ratios[name]['low']:.2f}, {ratios[name]['high']:.2f}]" if name in ratios else ""
        print(f"{entry['title']:<58} {entry['median']:8.0f} images/s  {lead}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--set", choices=[*_LINE_UPS, ANY_DATASET], required=True)
    parser.add_argument("--source", default="generated", help="image folder to take JPEGs from (default: generated photographs)")
    parser.add_argument("--files", type=int, default=3000, help="different images")
    parser.add_argument("--copies", type=int, default=4, help="links to each, so that an epoch outlasts a round")
    parser.add_argument(
        "--contenders", help="comma-separated; the first is what the others are compared with (of any-dataset: kinds)"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=8192, help="measured in each round")
    parser.add_argument("--warmup-images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2, help="decoding threads or workers, and cores")
    parser.add_argument("--ffcv-python", help="interpreter of the environment that has FFCV and SPDL")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--name", help="of the result file (default: images-SET)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
