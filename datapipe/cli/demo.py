"""`datapipe demo`: everything in a minute or two, from loose files to a trained network.

Generated photographs are converted and verified; then a small network trains for an epoch with torch's
DataLoader on the files and again, from the same weights, with datapipe's on the shards. Finally, `datapipe diagnose`
examines a training script before and after its loader is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from converters import Advance, ConvertOptions, Phase, convert
from converters.verify import verify
from datapipe.cli.demo_diagnosis import Diagnosed, diagnose_script
from datapipe.cli.demo_picture import draw
from datapipe.cli.demo_training import TITLES, Comparison, DemoResult, make_loaders, rates_alone, train
from datapipe.cli.progress import Progress
from datapipe.core.atomic import write_json
from datapipe.core.errors import IntegrityError, OptionError
from datapipe.core.printable import counted, say_text
from datapipe.diagnostics.document import Document
from datapipe.diagnostics.report.compare import compare
from datapipe.diagnostics.report.screen import screen
from datapipe.loader.parsing import default_num_workers
from datapipe.testing.synthetic_images import make_image_folder

DEFAULT_IMAGES = 2000
NUM_CLASSES = 10


def run(args: argparse.Namespace) -> int:
    """Run the demo. Raises OptionError for arguments that exclude each other, and what its steps raise."""
    if args.data is not None and (args.images is not None or args.photos is not None):
        raise OptionError("--images and --photos are about generated photographs and --data brings its own; give one of them")
    num_images = DEFAULT_IMAGES if args.images is None else args.images
    if num_images < 10 * NUM_CLASSES:
        raise OptionError(f"--images is {num_images}; an epoch needs at least {10 * NUM_CLASSES}")
    if args.workers is not None and args.workers < 1:
        raise OptionError(f"--workers is {args.workers}; it must be at least 1")
    tell = Teller(to_stderr=args.json)
    if args.photos is not None:
        _generated(args.photos, num_images, tell)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    photos = _generated(args.out / "photos", num_images, tell) if args.data is None else args.data
    _convert(photos, args.out / "shards", tell)
    _verify(args.out / "shards", tell)
    comparison = _compare(photos, args.out / "shards", args.workers, tell)
    result = as_result(comparison)
    write_json(args.out / "result.json", result)
    picture = args.out / "result.png"
    _draw(comparison, picture)
    tell.line("")
    tell.line(as_table(comparison))
    tell.line("")
    before, after = _diagnose(photos, args.out, comparison.num_workers, tell)
    if args.json:
        print(json.dumps(result, indent=1))
    tell.line(f"\n{compared(before.document, after.document)}")
    tell.line(f"\nwrote {picture} and {args.out / 'result.json'}; the shards are in {args.out / 'shards'}")
    tell.line(f"the script is {args.out / 'train.py'}; its diagnosis before: {before.page}, and after: {after.page}")
    return 0


class Teller:
    """Prints one line per step: its name, its outcome, and how long it took."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout

    def line(self, text: str) -> None:
        """Print a text."""
        say_text(text, file=self._stream)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Time the block, which appends its outcome, in words, to the list."""
        words: list[str] = []
        started = time.perf_counter()
        yield words
        self.line(f"{name:<9}{' '.join(words):<76}{time.perf_counter() - started:>6.1f} s")


def _generated(photos: Path, num_images: int, tell: Teller) -> Path:
    """Return the folder of generated photographs; reuses those of an earlier run."""
    with tell.step("photos") as words:
        if photos.exists():
            found = sum(1 for _ in photos.glob("*/*.jpg"))
            if found != num_images:
                raise OptionError(f"{photos}: holds {found} photographs, not {num_images}; delete it or choose another place")
        else:
            unfinished = photos.with_name(photos.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            with Progress(num_images, "photos", "photos") as progress:
                make_image_folder(unfinished, num_images=num_images, num_classes=NUM_CLASSES, on_progress=progress.update)
            os.replace(unfinished, photos)
        nbytes = sum(path.stat().st_size for path in photos.glob("*/*.jpg"))
        words.append(f"{num_images:,} generated JPEGs of {NUM_CLASSES} classes, {nbytes / 1e6:,.0f} MB")
    return photos


def _convert(photos: Path, shards: Path, tell: Teller) -> None:
    with tell.step("convert") as words:
        with Progress(None, "samples", "convert") as progress:

            def on_progress(advance: Advance) -> None:
                if advance.phase is Phase.WRITE:
                    progress.update(advance.num_samples, errors=advance.num_errors)

            report = convert(ConvertOptions(photos, shards, shard_nbytes=32_000_000, overwrite=True), on_progress)
        num_shards = sum(one.num_shards for one in report.sets)
        words.append(
            f"{report.num_samples:,} samples into {counted(num_shards, 'WebDataset shard')}, {report.nbytes / 1e6:,.0f} MB"
        )


def _verify(shards: Path, tell: Teller) -> None:
    with tell.step("verify") as words:
        report = verify(shards)
        if report.problems:
            raise IntegrityError(f"{report.problems[0]} ({len(report.problems)} problems in all); run the demo again")
        words.append("every byte of the shards is as written")


def _compare(photos: Path, shards: Path, workers: int | None, tell: Teller) -> Comparison:
    # Idle compute threads must not spin: on a CPU that trains and decodes they would take the decoders' cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    loaders = make_loaders(photos, shards, num_workers=default_num_workers() if workers is None else workers)
    with tell.step("load") as words:
        alone = rates_alone(loaders)
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in alone.items())
        words.append(f"each loader alone, in turns: {rates} images/s")
    outcomes: dict[str, DemoResult] = {}
    for name, title in TITLES.items():
        with tell.step("train") as words:
            outcomes[name] = train(loaders, name, alone[name])
            words.append(f"an epoch with {title}, {outcomes[name].images_per_s:,.0f} images/s")
    return Comparison(outcomes, loaders.batch_size, loaders.num_workers, loaders.num_classes)


def _diagnose(photos: Path, out: Path, num_workers: int, tell: Teller) -> tuple[Diagnosed, Diagnosed]:
    found = []
    for name, shards in (("before", None), ("after", out / "shards")):
        with tell.step("diagnose") as words:
            found.append(diagnose_script(photos, shards, out / f"diagnosis-{name}", num_workers=num_workers))
            words.append(f"train.py {name} its loader is replaced")
    before, after = found
    return before, after


def compared(before: Document, after: Document) -> str:
    """Return both diagnoses as text for people."""
    return f"{screen(before)}\n\n{compare(before, after)}"


def _draw(comparison: Comparison, picture: Path) -> None:
    draw(comparison, picture)


def as_result(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON-safe values."""
    return {
        "num_workers": comparison.num_workers,
        "batch_size": comparison.batch_size,
        "contenders": {
            name: {
                "loader_images_per_s": round(one.alone, 1),
                "training_images_per_s": round(one.images_per_s, 1),
                "share_waiting_for_data": round(one.waiting, 4),
                "loss_first": round(one.first_loss, 4),
                "loss_last": round(one.last_loss, 4),
                "losses": [round(loss, 4) for loss in one.losses],
            }
            for name, one in comparison.outcomes.items()
        },
    }


def as_table(comparison: Comparison) -> str:
    """Return the comparison as text for people."""
    torch, ours = comparison.outcomes["torch"], comparison.outcomes["datapipe"]
    rows = [
        ("", "torch DataLoader", "datapipe", ""),
        ("", "on the files", "on the shards", ""),
        ("loader alone, images/s", f"{torch.alone:,.0f}", f"{ours.alone:,.0f}", f"{ours.alone / torch.alone:.1f} x"),
        (
            "training, images/s",
            f"{torch.images_per_s:,.0f}",
            f"{ours.images_per_s:,.0f}",
            f"{ours.images_per_s / torch.images_per_s:.1f} x",
        ),
        ("of that waiting for data", f"{torch.waiting:.0%}", f"{ours.waiting:.0%}", ""),
        ("loss at the start", f"{torch.first_loss:.2f}", f"{ours.first_loss:.2f}", f"chance {comparison.chance_loss:.2f}"),
        ("loss at the end", f"{torch.last_loss:.2f}", f"{ours.last_loss:.2f}", ""),
    ]
    lines = [f"{label:<26}{left:>18}{middle:>16}   {right}".rstrip() for label, left, middle, right in rows]
    note = f"one epoch, batches of {comparison.batch_size}, {comparison.num_workers} workers, the same initial weights"
    return "\n".join([*lines, "", note])
