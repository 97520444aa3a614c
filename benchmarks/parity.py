"""How far datapipe's transforms are from torchvision's, operation by operation.

    python -m benchmarks.parity --photos synthetic --out benchmarks/results/parity.json
    python -m benchmarks.parity --photos /data/imagenet/val --images 200

Differences are of 255, over all values of all photographs; a bound that is exceeded fails the run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.environment import command_of, describe_environment
from benchmarks.parity_cases import Case, cases
from datapipe.samples import make_image_folder

_BINS_PER_STEP = 1000  # of the histogram from which the 99.9th percentile is read


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        photos = list(_photos(arguments.photos, arguments.images, Path(scratch)))
    results = [measure(case, photos) for case in cases()]
    print(table(results))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "pillow", "numpy")}
    report = {
        "name": "parity",
        "command": command_of("benchmarks.parity"),
        "environment": describe_environment(),
        "versions": versions,
        "photos": "generated" if arguments.photos == "synthetic" else Path(arguments.photos).name,
        "num_photos": len(photos),
        "unit": "differences of 255",
        "operations": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {arguments.out}")
    if not all(result["within_bound"] for result in results):
        raise SystemExit("some differences exceed what is published")


def measure(case: Case, photos: list[NDArray[np.uint8]]) -> dict[str, Any]:
    """The differences of one case over all photographs, of 255."""
    counts = np.zeros(256 * _BINS_PER_STEP + 1, np.int64)
    largest, total = 0.0, 0.0
    for number, photo in enumerate(photos):
        ours, theirs = case.compare(photo, number)
        if ours.shape != theirs.shape:
            raise SystemExit(f"{case.name}: shapes differ, {tuple(ours.shape)} and {tuple(theirs.shape)}")
        difference = (ours - theirs).abs().double().numpy().ravel()
        largest = max(largest, float(difference.max()))
        total += float(difference.sum())
        # A difference counts in the first bin whose value is not less than it.
        places = np.minimum(np.ceil(difference * _BINS_PER_STEP), len(counts) - 1).astype(np.int64)
        counts += np.bincount(places, minlength=len(counts))
    p999 = float(np.searchsorted(np.cumsum(counts), 0.999 * counts.sum()) / _BINS_PER_STEP)
    mean = total / int(counts.sum())
    bound = case.bound
    return {
        "operation": case.name,
        "against": case.against,
        "max": round(largest, 6),
        "p99.9": min(p999, round(largest, 6)),
        "mean": round(mean, 6),
        "bound": {"max": bound.largest, "p99.9": bound.p999, "mean": bound.mean},
        "within_bound": largest <= bound.largest and min(p999, largest) <= bound.p999 and mean <= bound.mean,
    }


def table(results: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| operation | against torchvision on | max | p99.9 | mean | bounds of the three |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for r in results:
        bounds = " / ".join(f"{value:g}" for value in r["bound"].values())
        exceeded = "" if r["within_bound"] else " **exceeded**"
        lines.append(
            f"| {r['operation']} | {r['against']} | {r['max']:.2g} | {r['p99.9']:.2g} | {r['mean']:.2g} | {bounds}{exceeded} |"
        )
    return "\n".join(lines)


def _photos(source: str, num_images: int, scratch: Path) -> Iterator[NDArray[np.uint8]]:
    """Photographs of at least 224 x 224 pixels, from a folder or generated."""
    if source == "synthetic":
        source = str(make_image_folder(scratch / "photos", num_images=num_images, num_classes=8, seed=0))
    paths = sorted(path for path in Path(source).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise SystemExit(f"--photos {source}: no .jpg, .jpeg or .png there")
    opened = (np.asarray(Image.open(path).convert("RGB")).copy() for path in paths)
    yield from itertools.islice((photo for photo in opened if min(photo.shape[:2]) >= 224), num_images)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--photos", default="synthetic", help="a folder of images, or 'synthetic' for generated ones (default)")
    parser.add_argument("--images", type=int, default=64, help="how many at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "parity.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
