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

from converters import Advance, ConvertOptions, Phase, convert
from converters.verify import verify
from datapipe.cli.demo_training import TITLES, Comparison, as_result, as_table, draw_comparison, make_loaders, rates_alone, train
from datapipe.cli.progress import Progress
from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.checks import whole_number
from datapipe.core.errors import DatapipeError, IntegrityError, OptionError
from datapipe.core.printable import counted, say_text
from datapipe.core.waiting import reported_wait
from datapipe.diagnostics.command import diagnose_command, write_reports
from datapipe.diagnostics.document import Document
from datapipe.diagnostics.report.compare import compare
from datapipe.diagnostics.report.screen import screen
from datapipe.loader.options import default_num_workers
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
    if args.workers is not None:
        whole_number(args.workers, "--workers", least=1)
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
    draw_comparison(comparison, picture)
    tell.line(f"\n{as_table(comparison)}\n")
    diagnoses = {}
    for name, shards in (("before", None), ("after", args.out / "shards")):
        with tell.step("diagnose", "the script runs, and remedies are tried") as words:
            out = args.out / f"diagnosis-{name}"
            diagnoses[name] = diagnose_script(photos, shards, out, num_workers=comparison.num_workers)
            words.append(f"train.py {name} its loader is replaced")
    (before, page_before), (after, page_after) = diagnoses.values()
    if args.json:
        print(json.dumps(result, indent=1))
    tell.line(f"\n{screen(before)}\n\n{compare(before, after)}")
    tell.line(f"\nwrote {picture} and {args.out / 'result.json'}; the shards are in {args.out / 'shards'}")
    tell.line(f"the script is {args.out / 'train.py'}; its diagnosis before: {page_before}, and after: {page_after}")
    return 0


class FailedScriptError(DatapipeError, RuntimeError):
    """The demo's own script failed."""


class Teller:
    """Prints one line per step: its name, its outcome, and how long it took."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout

    def line(self, text: str) -> None:
        """Print a text."""
        say_text(text, file=self._stream)

    @contextlib.contextmanager
    def step(self, name: str, doing: str = "") -> Iterator[list[str]]:
        """Time the block, which appends its outcome, in words, to the list. `doing`: what it does; "" if it shows progress."""
        words: list[str] = []
        started = time.perf_counter()
        with reported_wait(f"the step {name}", doing) if doing else contextlib.nullcontext():
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
    with tell.step("verify", "every byte is read") as words:
        report = verify(shards)
        if report.problems:
            raise IntegrityError(f"{report.problems[0]} ({len(report.problems)} problems in all); run the demo again")
        words.append("every byte of the shards is as written")


def _compare(photos: Path, shards: Path, workers: int | None, tell: Teller) -> Comparison:
    # Idle compute threads must not spin: on a CPU that trains and decodes they would take the decoders' cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    loaders = make_loaders(photos, shards, num_workers=default_num_workers() if workers is None else workers)
    with tell.step("load", "two loaders are measured in turns") as words:
        alone = rates_alone(loaders)
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in alone.items())
        words.append(f"each loader alone, in turns: {rates} images/s")
    outcomes = {}
    for name, title in TITLES.items():
        with tell.step("train", "a network is trained for an epoch") as words:
            outcomes[name] = train(loaders, name, alone[name])
            words.append(f"an epoch with {title}, {outcomes[name].images_per_s:,.0f} images/s")
    return Comparison(outcomes, loaders.num_workers, loaders.num_classes)


def diagnose_script(photos: Path, shards: Path | None, out: Path, *, num_workers: int) -> tuple[Document, Path]:
    """Write `train.py` next to `out`, run it on the photographs, or on the shards if given, and write the reports to `out`.

    Returns the diagnosis and its page. Raises FailedScriptError if the script fails.
    """
    script = out.parent / "train.py"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with atomic_writer(script) as file:
        file.write(Path(__file__).with_name("demo_script.py").read_bytes())
    command = [str(script), str(photos), "--workers", str(num_workers)]
    if shards is not None:
        command += ["--shards", str(shards)]
    diagnosis, outcome = diagnose_command(command, out, trials_s=10.0, quiet=True)
    if outcome.exit_code:
        raise FailedScriptError(f"{script}: ended with status {outcome.exit_code}; its output is above")
    page = write_reports(diagnosis.document, out, html=True, trace=False)
    assert page is not None
    return diagnosis.document, page
