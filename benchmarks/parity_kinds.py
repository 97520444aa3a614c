"""What changes on other kinds of CPU: the distances from torchvision, and datapipe's own pixels.

`measure_kinds` runs this module once per kind, in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.cpu_kinds import CpuKind, cpu_kinds
from benchmarks.environment import ROOT, describe_environment
from benchmarks.parity_case import SIDE, Bound, Pixels, torchvision_resizes
from benchmarks.parity_cases import cases
from benchmarks.parity_differences import differences, measure
from datapipe import transforms as T
from datapipe.codecs.decode import DECODER_NAMES, open_decoder
from datapipe.codecs.probe import probe
from datapipe.errors import DependencyError
from datapipe.order.draws import Draws

OWN = Bound(
    2, 0.001, 0.001
)  # datapipe's pixels on one CPU against those on another: in a thousand values one may round otherwise
_FIGURES = ("max", "p99.9", "mean")
_NOTABLE = 0.001  # of 255: by how much a distance from torchvision must change to be shown


def measure_kinds(paths: list[Path], scratch: Path) -> list[dict[str, Any]]:
    """Return, for every kind but the first, what differs from the first: distances from torchvision, and datapipe's pixels."""
    here, *others = cpu_kinds()
    first = _measured(here, paths, scratch / "first")
    results: list[dict[str, Any]] = []
    for kind in others:
        result = {"kind": kind.name, "settings": kind.settings}
        if reason := kind.why_not():
            results.append({**result, "skipped": reason})
            continue
        found = _measured(kind, paths, scratch / "other")
        distances, names = found.pop("operations"), found.pop("names")
        own = [_own(name, scratch / "first", scratch / "other", number) for number, name in enumerate(names)]
        shutil.rmtree(scratch / "other")
        changed = [
            {**there, "as_it_is": {name: before[name] for name in _FIGURES}}
            for before, there in zip(first["operations"], distances, strict=True)
            if any(abs(before[name] - there[name]) > _NOTABLE for name in _FIGURES)
        ]
        moved = [row for row in own if row["max"]]
        within = all(row["within_bound"] for row in [*distances, *own])
        results.append({**result, **found, "within_bound": within, "operations": changed, "num_own": len(own), "own": moved})
    return results


def kinds_table(kinds: list[dict[str, Any]]) -> str:
    """As Markdown: distances from torchvision, where they are not those of the CPU as it is."""
    lines = [
        "| kind of CPU | operation | against torchvision on | max | p99.9 | mean | as it is | bounds of the three |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for kind in kinds:
        if "skipped" in kind:
            lines.append(f"| {kind['kind']} | not measured: {kind['skipped']} | | | | | | |")
        elif not kind["operations"]:
            lines.append(f"| {kind['kind']} | none | | | | | | |")
        else:
            for row in kind["operations"]:
                figures = " | ".join(f"{row[name]:.2g}" for name in _FIGURES)
                before = " / ".join(f"{value:.2g}" for value in row["as_it_is"].values())
                bounds = " / ".join(f"{value:g}" for value in row["bound"].values())
                lines.append(f"| {kind['kind']} | {row['operation']} | {row['against']} | {figures} | {before} | {bounds} |")
    return "\n".join(lines)


def own_table(kinds: list[dict[str, Any]]) -> str:
    """As Markdown: the greatest differences of datapipe's pixels from those of the CPU as it is, where there are any."""
    measured = [kind for kind in kinds if "skipped" not in kind]
    greatest = {(row["operation"], kind["kind"]): row["max"] for kind in measured for row in kind["own"]}
    names = list(dict.fromkeys(name for name, _ in greatest))
    lines = [
        f"| operation, on {measured[0]['cpu']} | " + " | ".join(kind["kind"] for kind in measured) + " |",
        "|---|" + "--:|" * len(measured),
    ]
    for name in names:
        cells = (f"{greatest.get((name, kind['kind']), 0):.2g}" for kind in measured)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    others = (str(kind["num_own"] - len(names)) + " at 0" for kind in measured)
    lines.append("| all others, and decoding | " + " | ".join(others) + " |")
    return "\n".join(lines)


def _measured(kind: CpuKind, paths: list[Path], out: Path) -> dict[str, Any]:
    """Measure in a process of that kind, which leaves datapipe's pixels in `out`."""
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.parity_kinds", str(out), *map(str, paths)]
    subprocess.run(command, cwd=ROOT, env=kind.environment(), check=True)
    found: dict[str, Any] = json.loads((out / "found.json").read_text())
    return found


def _own(name: str, first: Path, other: Path, number: int) -> dict[str, Any]:
    here, there = (torch.from_numpy(np.load(folder / f"{number}.npy")) for folder in (first, other))
    return {"operation": name, **differences(iter([(there, here)]), OWN, name)}


def main() -> None:
    torch.set_num_threads(1)
    out, paths = Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]
    photos = [np.asarray(Image.open(path).convert("RGB")).copy() for path in paths]
    results = [measure(case, photos) for case in cases()]
    names = _keep_own(out, paths, photos)
    found = {
        "cpu": describe_environment()["cpu"],
        "num_photos": len(photos),
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "torchvision_resizes": torchvision_resizes(),
        "operations": results,
        "names": names,
    }
    (out / "found.json").write_text(json.dumps(found))


def _keep_own(out: Path, paths: list[Path], photos: list[Pixels]) -> list[str]:
    """Write what datapipe makes by each operation, each decoder and as noise, and return their names."""
    names: list[str] = []
    for case in cases():
        if case.name not in names:
            made = [case.compare(photo, number)[0].flatten().float() for number, photo in enumerate(photos)]
            np.save(out / f"{len(names)}.npy", torch.cat(made).numpy())
            names.append(case.name)
    for decoder_name in DECODER_NAMES:
        try:
            decode = open_decoder(decoder_name)
        except DependencyError:
            continue
        encoded = [path.read_bytes() for path in paths]
        pixels = [decode(data, probe(data)).astype(np.float32).ravel() for data in encoded]
        np.save(out / f"{len(names)}.npy", np.concatenate(pixels))
        names.append(f"decoding by {decoder_name}")
    erase = T.RandomErasing(1.0, value="random")
    noise = erase.apply(torch.zeros(100, 3, SIDE, SIDE), erase.draw(Draws(0, 0, np.arange(100)), 0, (SIDE, SIDE)))
    np.save(out / f"{len(names)}.npy", noise.mul_(255 * 0.226).numpy())  # as of images normalised with ImageNet's deviation
    return [*names, repr(erase)]


if __name__ == "__main__":
    main()
