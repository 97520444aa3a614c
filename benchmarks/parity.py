"""How far datapipe's transforms are from torchvision's, operation by operation; DALI's pixels from those of the others; and
what changes on other kinds of CPU.

    python -m benchmarks.parity --photos synthetic --out benchmarks/results/parity.json
    python -m benchmarks.parity --photos /data/imagenet/val --images 200

Differences are of 255, over all values of all photographs; a bound that is exceeded fails the run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.environment import command_of, describe_environment
from benchmarks.parity_backends import BackendCase, Photos, backend_cases
from benchmarks.parity_case import torchvision_resizes
from benchmarks.parity_cases import cases
from benchmarks.parity_differences import differences, measure
from benchmarks.parity_kinds import kinds_table, measure_kinds, own_table
from datapipe.kinds.images.dali.installation import installation
from datapipe.testing.synthetic_images import make_image_folder

_NUM_BY_KIND = 8  # photographs compared under each kind of CPU


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        paths = list(_photos(arguments.photos, arguments.images, Path(scratch)))
        photos = [np.asarray(Image.open(path).convert("RGB")).copy() for path in paths]
        results = [measure(case, photos) for case in cases()]
        print(table(results))
        copied = _copied(paths, Path(scratch) / "copied")
        by_kind = measure_kinds(sorted(copied.rglob("*.*"))[:_NUM_BY_KIND], Path(scratch) / "kinds")
        print(kinds_table(by_kind), own_table(by_kind), sep="\n\n")
        encoded = Photos.of(copied)
        by_backend = [measure_backend(case, encoded) for case in backend_cases()]
        print(backend_table(by_backend))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "pillow", "numpy")}
    versions["dali"] = installation().version
    report = {
        "name": "parity",
        "command": command_of("benchmarks.parity"),
        "environment": describe_environment(),
        "versions": versions,
        "photos": "generated" if arguments.photos == "synthetic" else Path(arguments.photos).name,
        "num_photos": len(photos),
        "unit": "differences of 255",
        "torchvision_resizes": torchvision_resizes(),
        "operations": results,
        "backends": by_backend,
        "kinds_of_cpu": by_kind,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {arguments.out}")
    measured_kinds = [kind for kind in by_kind if "skipped" not in kind]
    if not all(result["within_bound"] for result in [*results, *by_backend, *measured_kinds]):
        raise SystemExit("some differences exceed what is published")


def measure_backend(case: BackendCase, photos: Photos) -> dict[str, Any]:
    """The same of a backend's images, and the greatest difference away from their border."""
    pairs = list(case.pairs(photos))
    found = differences(iter(pairs), case.bound, case.recipe)
    inside = max(float((ours - theirs)[:, 1:-1, 1:-1].abs().max()) for ours, theirs in pairs)
    within = found.pop("within_bound") and inside <= case.inside
    names = {"recipe": case.recipe, "backend": case.backend, "device": case.device, "against": case.against}
    bound = {**found.pop("bound"), "max_inside": case.inside}
    return {**names, **found, "max_inside": round(inside, 6), "bound": bound, "within_bound": within}


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


def backend_table(results: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| recipe | by | against | max | max inside | p99.9 | mean | bounds of the four |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for r in results:
        bounds = " / ".join(f"{r['bound'][name]:.2g}" for name in ("max", "max_inside", "p99.9", "mean"))
        figures = " | ".join(f"{r[name]:.2g}" for name in ("max", "max_inside", "p99.9", "mean"))
        exceeded = "" if r["within_bound"] else " **exceeded**"
        lines.append(f"| {r['recipe']} | {r['backend']} on {r['device']} | {r['against']} | {figures} | {bounds}{exceeded} |")
    return "\n".join(lines)


def _photos(source: str, num_images: int, scratch: Path) -> Iterator[Path]:
    """Photographs of at least 224 x 224 pixels, from a folder or generated."""
    if source == "synthetic":
        source = str(make_image_folder(scratch / "photos", num_images=num_images, num_classes=8, seed=0))
    paths = sorted(path for path in Path(source).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise SystemExit(f"--photos {source}: no .jpg, .jpeg or .png there")
    yield from itertools.islice((path for path in paths if min(Image.open(path).size) >= 224), num_images)


def _copied(paths: list[Path], root: Path) -> Path:
    """An image folder of these files alone."""
    (root / "class").mkdir(parents=True)
    for number, path in enumerate(paths):
        shutil.copyfile(path, root / "class" / f"{number:06d}{path.suffix}")
    return root


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--photos", default="synthetic", help="a folder of images, or 'synthetic' for generated ones (default)")
    parser.add_argument("--images", type=int, default=64, help="how many at most")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "parity.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
