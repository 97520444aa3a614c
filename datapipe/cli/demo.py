"""`datapipe demo`: everything in a minute, from loose files to the diagnosis of a training script.

Generated photographs are converted and verified; torch's DataLoader on the files and datapipe's on the shards load them in
turns; `datapipe diagnose` examines a training script before and after its loader is replaced. With `--all`, a little data of each
other kind whose packages are installed is made, converted where a loader needs that, and measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from converters import ConvertOptions, convert
from converters.verify import verify
from datapipe.cli import demo_script
from datapipe.cli.demo_script import BATCH_SIZE, SIZE, loader_of_shards
from datapipe.cli.main import main
from datapipe.cli.progress import Progress
from datapipe.containers.forms import IMAGES
from datapipe.core.atomic import atomic_writer, write_json
from datapipe.core.checks import whole_number
from datapipe.core.printable import counted, say_text
from datapipe.core.waiting import reported_wait
from datapipe.diagnostics.command import write_reports
from datapipe.diagnostics.document import Document
from datapipe.diagnostics.report.compare import compare, differences
from datapipe.diagnostics.report.screen import screen
from datapipe.diagnostics.runs import diagnose_command
from datapipe.errors import DatapipeError, DependencyError, IntegrityError, OptionError
from datapipe.kernel.calibration import in_turns, rate_of
from datapipe.kernel.options import default_num_workers
from datapipe.kinds.images.bench import torch_loader
from datapipe.kinds.registry import KINDS, part
from datapipe.opening.samples import open_index
from datapipe.testing.synthetic_images import make_image_folder

NUM_CLASSES = 10
_DEFAULT_IMAGES = 320
_ROUNDS = 3  # of each loader, after one to warm up
_OTHER_KINDS = [kind for kind in reversed(KINDS) if kind != IMAGES]
_TRIALS_S = 6.0  # for trials of remedies
_BENCH = ("--images", "200", "--rounds", "1", "--size", "112", "--table-batch-size", "4096")


class FailedScriptError(DatapipeError, RuntimeError):
    """The demo's own script failed."""


def run(args: argparse.Namespace) -> int:
    """Run the demo. Raises OptionError for arguments that exclude each other, and what its steps raise."""
    if args.data is not None and (args.images is not None or args.photos is not None):
        raise OptionError("--images and --photos are about generated photographs and --data brings its own; give one of them")
    if args.make is not None and args.make[0] not in _OTHER_KINDS:
        raise OptionError(f"--make {args.make[0]}: choose one of {', '.join(_OTHER_KINDS)}; photographs are made by --photos DIR")
    num_images = _DEFAULT_IMAGES if args.images is None else args.images
    if num_images < 10 * NUM_CLASSES:
        raise OptionError(f"--images is {num_images}; an epoch needs at least {10 * NUM_CLASSES}")
    num_workers = default_num_workers() if args.workers is None else whole_number(args.workers, "--workers", least=1)
    tell = functools.partial(say_text, file=sys.stderr if args.json else sys.stdout)
    if args.photos is not None:
        with _timed("photos", tell) as words:
            words.append(f"{num_images:,} in {generate(args.photos, num_images)}")
        return 0
    if args.make is not None:
        kind, path = args.make
        with _timed(kind, tell, "data is made") as words:
            words.append(f"in {_made(kind, Path(path))}")
        return 0
    # Idle compute threads must not spin: on a CPU that trains and decodes they would take the decoders' cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args.out.mkdir(parents=True, exist_ok=True)
    shards = args.out / "shards"
    with _timed("photos", tell) as words:
        photos = generate(args.out / "photos", num_images) if args.data is None else args.data
        words.append(f"in {photos}")
    with _timed("convert", tell, "the photographs are packed") as words:
        report = convert(ConvertOptions(photos, shards, shard_nbytes=32_000_000, overwrite=True))
        words.append(f"{report.num_samples:,} samples into WebDataset shards of {report.nbytes / 1e6:,.0f} MB")
    with _timed("verify", tell, "every byte is read") as words:
        if problems := verify(shards).problems:
            raise IntegrityError(f"{problems[0]} ({len(problems)} problems in all); run the demo again")
        words.append("every byte of the shards is as written")
    with _timed("load", tell) as words:
        rates = _rates(photos, shards, num_workers)
        words.append("images/s in turns: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))
    found = {}
    for name, read in (("before", []), ("after", ["--shards", str(shards)])):
        with _timed("diagnose", tell, "the script runs, and remedies are tried") as words:
            arguments = [str(photos), "--workers", str(num_workers), *read]
            found[name] = diagnose_script(args.out / "train.py", arguments, args.out / f"diagnosis-{name}")
            words.append(f"train.py {name} its loader is replaced")
    if args.all:
        for kind in _OTHER_KINDS:
            _show(kind, args.out, tell)
    (before, page_before), (after, page_after) = found.values()
    result = {
        "num_workers": num_workers,
        "images_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "diagnoses": {name: str(page) for name, (_, page) in found.items()},
    }
    write_json(args.out / "result.json", result)
    if args.json:
        print(json.dumps(result, indent=1))
    tell(f"\n{screen(before)}\n\n{compare(before, after)}\n\nthe diagnosis before: {page_before}\nand after: {page_after}\n")
    tell("\n".join(_in_short(rates, differences(before, after), num_workers)))
    return 0


def _in_short(rates: dict[str, float], found: dict[str, Any], num_workers: int) -> list[str]:
    """Return the last lines: how the loaders compare, how the trainings do, and what to type next."""
    factor = rates["datapipe"] / rates["torch"]
    loading = (
        f"Loading:  datapipe {rates['datapipe']:,.0f} images/s from shards, torch {rates['torch']:,.0f} from files: "
        f"{factor:.1f} times as fast ({counted(num_workers, 'worker')} each)"
    )
    step, waiting = found["step_s"], found["starvation"]
    if None in (step["before"], step["after"], waiting["before"], waiting["after"]):
        training = "Training: too few steps to compare; pass more --images"
    else:
        training = (
            f"Training: a step takes {step['after'] * 1e3:.1f} ms, before {step['before'] * 1e3:.1f} ms; "
            f"it waits for data {waiting['after']:.0%} of the time, before {waiting['before']:.0%}"
        )
    return [
        loading,
        training,
        "Next:     datapipe diagnose YOUR_SCRIPT.py   (tables, sound, videos and texts: datapipe demo --all)",
    ]


def generate(photos: Path, num_images: int) -> Path:
    """Return the folder of generated photographs; reuses those of an earlier run. Raises OptionError for another number."""
    if photos.exists():
        found = sum(1 for _ in photos.glob("*/*.jpg"))
        if found != num_images:
            remedy = f"pass --images {found}, or name a new directory" if found else "name a new directory"
            raise OptionError(f"{photos}: exists, and holds {found} photographs (*/*.jpg), not {num_images}; {remedy}")
        return photos
    with Progress(num_images, "photos", "photos") as progress:
        make = functools.partial(make_image_folder, num_images=num_images, num_classes=NUM_CLASSES, on_progress=progress.update)
        return _built(photos, make)


def diagnose_script(script: Path, arguments: list[str], out: Path) -> tuple[Document, Path]:
    """Write the demo's script, run it, and write the reports to `out`. Returns the diagnosis and its page.

    Raises FailedScriptError if the script fails.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with atomic_writer(script) as file:
        file.write(Path(demo_script.__file__).read_bytes())
    diagnosis, outcome = diagnose_command([str(script), *arguments], out, trials_s=_TRIALS_S, quiet=True)
    if outcome.exit_code:
        raise FailedScriptError(f"{script}: ended with status {outcome.exit_code}; its output is above")
    page = write_reports(diagnosis.document, out, html=True, trace=False)
    assert page is not None
    return diagnosis.document, page


def _show(kind: str, out: Path, tell: Any) -> None:
    """Make data of a kind, convert it where a loader needs that, and say how fast it is loaded; or what is not installed."""
    with _timed(kind, tell, "data is made, and loaded") as words:
        data = part(kind, "trial_data")
        path = out / data.TITLE
        try:
            _made(kind, path)
        except DependencyError as exc:
            words.append(f"left out: {exc}")
            return
        if options := data.convert_options(path):
            path = out / kind
            _said(["convert", str(out / data.TITLE), str(path), "--overwrite", *options])
        of_kind = data.bench_options(out / data.TITLE) if hasattr(data, "bench_options") else []
        about, *rates = _said(["bench", str(path), *_BENCH, *of_kind]).splitlines()
        words += [about.partition(", ")[0], *(f"\n{'':<9}{rate.strip()}" for rate in rates)]


def _made(kind: str, path: Path) -> Path:
    """Return the path of generated data of a kind; reuses that of an earlier run. Raises DependencyError."""
    return path if path.exists() else _built(path, part(kind, "trial_data").make)


def _built(path: Path, make: Callable[[Path], object]) -> Path:
    """Make something at a new path, completely or not at all, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    make(unfinished)
    os.replace(unfinished, path)
    return path


def _said(arguments: list[str]) -> str:
    """Return what a command of ours prints. Raises FailedScriptError if it fails; it has said why."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if main(arguments):
            raise FailedScriptError(f"datapipe {shlex.join(arguments)}: failed; the reason is above")
    return said.getvalue()


def _rates(photos: Path, shards: Path, num_workers: int) -> dict[str, float]:
    """Return the images/s of torch's loader on the files and of datapipe's on the shards: medians of rounds in turns."""
    # Torch's worker processes must be forked before our threads start, so its loader is first; the processes stay.
    loaders: dict[str, Any] = {
        "torch": torch_loader(open_index(photos), size=SIZE, batch_size=BATCH_SIZE, num_workers=num_workers),
        "datapipe": loader_of_shards(str(shards), num_workers),
    }
    num_images, device = len(loaders["datapipe"]) * BATCH_SIZE, loaders["datapipe"].device
    if not num_images:
        raise OptionError(f"{photos}: has fewer images than one batch of {BATCH_SIZE}; add more")
    measured = {name: functools.partial(rate_of, loader, num_images, device=device) for name, loader in loaders.items()}
    return {name: statistics.median(values) for name, values in in_turns(measured, rounds=_ROUNDS).items()}


@contextlib.contextmanager
def _timed(name: str, tell: Any, doing: str = "") -> Iterator[list[str]]:
    """Print the name of a step, its outcome in words, which the block appends to the list, and how long it took.

    `doing`: what it does, said if it takes long; "" if it shows its progress.
    """
    words: list[str] = []
    started = time.perf_counter()
    with reported_wait(f"the step {name}", doing) if doing else contextlib.nullcontext():
        yield words
    first, line_end, more = "".join(words).partition("\n")
    tell(f"{name:<9}{first:<76}{time.perf_counter() - started:>6.1f} s{line_end}{more}")
