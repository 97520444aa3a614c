"""`datapipe convert`: repack small files into shards."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from datapipe.cli.convert_table import add_table_options, convert_table, wants_table
from datapipe.cli.progress import Progress
from datapipe.cli.say import say
from datapipe.core.errors import OptionError
from datapipe.stores.location import is_url, parse_location

if TYPE_CHECKING:
    from converters import Advance, ConvertOptions, Preview, Report
    from converters.report import Overview, SampleShown

_EPILOG = """\
example:
  datapipe convert photos shards --to webdataset --resize shorter:256 --encode jpeg:90

what SRC may be, with an example each (docs/convert.md has the details):
  image-folder: a folder per class; deeper or without classes on request
    datapipe convert photos/train shards/train --to webdataset
    datapipe convert scans shards/scans --to webdataset --class-from none
  manifest: a .csv, .tsv or .jsonl that lists files, labels and other values
    datapipe convert list.csv shards/list --to webdataset --root photos
  pairs: files of one name, as imgs/ and masks/, or a.jpg next to a.txt
    datapipe convert roads shards/roads --to webdataset --from pairs
  coco: COCO's annotation file, with the folder of its images
    datapipe convert instances.json shards/coco --to webdataset --root val2017
  tar: WebDataset tars, repacked with all their members
    datapipe convert old-shards shards/new --to hdf5
  archive: images in a zip, a tar (.tar.gz, .tar.zst, ...), a tar of tars, or class tars
    datapipe convert ILSVRC2012_img_train.tar shards/train --to webdataset
    datapipe convert photos.zip/train shards/train --to webdataset
  lmdb: a database whose values are images, as LSUN's
    datapipe convert bedroom_train_lmdb shards/bedroom --to webdataset
  parquet, hdf5, tfrecord, arrow: files of others that the loader can open
    datapipe convert 'hub/train-*.parquet' shards/train --to webdataset
  dataset: a set that convert made, to be stored otherwise
    datapipe convert shards/train small --to webdataset --resize shorter:256
  npy: .npy files
    datapipe convert arrays shards/arrays --to tfrecord --class-from none
  table: CSV, JSON lines, many Parquet files, a .npy matrix: rows of numbers
    datapipe convert clicks.csv tables/clicks --to parquet

--dry-run shows which form SRC was recognised as, its fields and its first samples. The
same command resumes a killed or interrupted run; after a finished one it
finds nothing to do. Several machines share the work with --part 1/4,
--part 2/4, ... into one destination. Sizes take MB, GB, MiB, GiB. With --resize,
images that need resizing are stored as JPEG of quality 90 (PNG if they were PNG)
unless --encode says otherwise; shorter:N and longer:N also enlarge, as
torchvision's Resize does; masks and boxes follow. EXIF orientation is not applied.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "convert",
        help="repack small files into shards",
        description="Repack images, and what belongs to them, into shards: atomically, resumably, checked.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="a folder, a file, or the URL of either; see below")
    parser.add_argument("destination", metavar="DST", help="directory to create, or the URL of a place in an object store")
    parser.add_argument(
        "--to",
        required=True,
        choices=("webdataset", "hdf5", "parquet", "tfrecord"),
        help="format of the shards (docs/formats.md)",
    )
    _add_source_options(parser)
    add_table_options(parser)
    parser.add_argument(
        "--shard-size", default="256MB", type=_nbytes, metavar="SIZE", help="source bytes per shard, a target (256MB)"
    )
    parser.add_argument("--resize", type=_resize, metavar="HOW", help="shorter:256, longer:N or exact:HxW, in pixels")
    parser.add_argument(
        "--encode",
        default="keep",
        type=_encode,
        metavar="FORM",
        help="keep (default), jpeg:90, webp:80, webp:lossless, png or raw",
    )
    parser.add_argument(
        "--strip-exif", action="store_true", help="take EXIF, XMP and comments out of images that keep their bytes"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (all cores this process may use)")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--seed", type=int, default=0, help="seed of the order in which samples are written (0)")
    order.add_argument("--no-shuffle", action="store_true", help="write samples in the order of the listing")
    parser.add_argument(
        "--split", type=_split, default=(), metavar="train=0.9,val=0.1", help="divide into datasets DST/train, DST/val"
    )
    parser.add_argument(
        "--check", default="header", choices=("header", "decode"), help="check headers and ends, or decode everything"
    )
    parser.add_argument("--on-error", default="fail", choices=("fail", "skip", "quarantine"), help="how to treat a bad sample")
    parser.add_argument("--max-errors", type=_limit, metavar="LIMIT", help="give up at more bad samples: a count or 0.1%%")
    parser.add_argument("--part", type=_part, metavar="I/N", help="write only every N-th shard; other processes write the others")
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    parser.add_argument("--overwrite", action="store_true", help="replace a finished dataset in DST")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    parser.set_defaults(run=run)


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe SRC and what is read from it."""
    group = parser.add_argument_group("what SRC is")
    forms = (
        "auto", "image-folder", "manifest", "pairs", "coco", "tar", "npy", "table", "archive", "dataset", "hdf5", "parquet",
        "tfrecord", "arrow", "lmdb",
    )  # fmt: skip
    group.add_argument(
        "--from", dest="form", default="auto", choices=forms, help="auto (default) recognises the form, and prints it"
    )
    group.add_argument(
        "--root", type=Path, metavar="DIR", help="where the file names in a manifest or COCO file start (its folder)"
    )
    group.add_argument(
        "--field", action="append", default=[], type=_field, metavar="NAME=KIND",
        help="the kind of a column, suffix or annotation: image, mask, boxes, text, json, array, bytes, label, int, float,"
        " text-file, json-file (a column that names such files), or none to leave it out; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--class-from", choices=("folder", "parent", "path", "none"),
        help="the class of a file: the folder of SRC in which it lies (default), its own folder, the path of that, or none",
    )  # fmt: skip
    group.add_argument("--class-map", type=Path, metavar="FILE", help='labels: JSON {"class": index} or lines `class index`')


def run(args: argparse.Namespace) -> int:
    """Convert, or show a preview. Returns 0, or 130 if interrupted. Raises what `converters.convert` raises."""
    import converters

    is_table = wants_table(args)
    options = None if is_table else _recognised(_options(args))
    try:
        with _terminable(), _Display("rows" if is_table else "samples") as display:
            if options is None:
                tell = convert_table(args, display)
            elif args.dry_run:
                preview = converters.preview(options, display)
            else:
                report = _convert(options, args.destination, display)
    except KeyboardInterrupt:
        say("datapipe convert: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    if options is None:
        tell()
    elif args.dry_run:
        _print_preview(preview, options, as_json=args.json)
    else:
        shown_as = str(args.destination) if is_url(str(args.destination)) else ""
        _print_report(report, as_json=args.json, shown_as=shown_as, has_warned=display.has_warned)
    return 0


def _convert(options: ConvertOptions, destination: str, display: _Display) -> Report:
    import converters
    from converters.to_store import convert_to_store

    if is_url(destination):
        return convert_to_store(options, parse_location(destination), display)
    return converters.convert(options, display)


def _options(args: argparse.Namespace) -> ConvertOptions:
    from converters import Check, ClassFrom, ConvertOptions, OnError, parse_place

    return ConvertOptions(
        source=parse_place(args.source),
        destination=Path(args.destination),
        to=args.to,
        form=args.form,
        fields=tuple(args.field),
        class_from=None if args.class_from is None else ClassFrom(args.class_from),
        root=args.root,
        shard_nbytes=args.shard_size,
        resize=args.resize,
        encode=args.encode,
        strip_exif=args.strip_exif,
        num_workers=args.workers,
        seed=None if args.no_shuffle else args.seed,
        split=args.split,
        class_map=args.class_map,
        check=Check(args.check),
        on_error=OnError(args.on_error),
        max_errors=args.max_errors,
        part=args.part,
        overwrite=args.overwrite,
    )


def _recognised(options: ConvertOptions) -> ConvertOptions:
    """Recognise the form of the source, and print it, unless the user gave one."""
    from converters import recognise

    if options.form != "auto":
        return options
    taken = recognise(options)
    say(f"{options.source}: recognised as {taken}", file=sys.stderr)
    return dataclasses.replace(options, form=taken.form)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does, so that workers are stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Display:
    """Shows a conversion's progress: one bar per phase."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._phase: Any = None
        self.has_warned = False  # the warnings about the source have been said
        self._progress: Progress | None = None

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *unused: object) -> None:
        self._close()

    def __call__(self, advance: Advance, /) -> None:
        if advance.overview is not None:
            self._close()
            self._phase = None
            _say_overview(advance.overview)
            self.has_warned = True
            return
        if advance.phase is not self._phase:
            self._close()
            self._phase = advance.phase
            unit = "files" if advance.total is None and self._unit == "samples" else self._unit
            self._progress = Progress(advance.total, unit, advance.phase.value).__enter__()
        if self._progress is not None:
            self._progress.update(advance.num_samples, errors=advance.num_errors)

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def _print_report(report: Report, *, as_json: bool, shown_as: str, has_warned: bool) -> None:
    """Print the outcome; `shown_as`: the URL to print in place of the report's directory, if there is one."""

    def shown(path: Path) -> str:
        return str(path).replace(str(report.destination), shown_as, 1) if shown_as else str(path)

    if as_json:
        value = {**dataclasses.asdict(report), "is_finished": report.is_finished, "num_samples": report.num_samples}
        text = json.dumps({**value, "num_errors": report.num_errors}, indent=1, default=str)
        print(text.replace(str(report.destination), shown_as) if shown_as else text)
        return
    for warning in () if has_warned else report.warnings:
        say(f"warning: {warning}", file=sys.stderr)
    if not report.is_finished:
        say(
            f"{report.destination}: this part is done ({report.num_written} shards written, {report.num_resumed} there before);"
            f" {report.num_waiting} shards of other parts are missing; the last part to end finishes the dataset"
        )
        return
    if report.compared is not None:
        where, num = shown(report.destination), report.num_samples
        say(f"{where}: already converted: {num} samples, {report.compared}; nothing was written")
        return
    for one in report.sets:
        bad = f", {one.num_errors} bad samples left out (see {shown(one.directory / 'errors.jsonl')})" if one.num_errors else ""
        say(
            f"{shown(one.directory)}: {one.num_samples} samples{_of_classes(report.num_classes)}"
            f" in {one.num_shards} {_shards(one.num_shards)}, {one.nbytes / 1e6:.1f} MB{bad}"
        )
    rate = report.num_samples / max(report.elapsed_s, 1e-9)
    resumed = f", {report.num_resumed} shards existed already" if report.num_resumed else f", {rate:.0f} samples/s"
    say(f"done in {report.elapsed_s:.1f} s{resumed}")


def _print_preview(preview: Preview, options: ConvertOptions, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(preview), indent=1))
        return
    for warning in preview.warnings:
        say(f"warning: {warning}", file=sys.stderr)
    for source, reason in preview.problems:
        say(f"warning: {source}: {reason}", file=sys.stderr)
    if preview.num_unreadable:
        shown = "; ".join(f"{source}: {reason}" for source, reason in preview.unreadable)
        say(f"warning: {preview.num_unreadable} samples cannot be read: {shown}", file=sys.stderr)
    for one in preview.sets:
        say(
            f"{options.destination / one.name}: would hold {one.num_samples} samples{_of_classes(preview.num_classes)},"
            f" {one.nbytes / 1e6:.1f} MB of source files, in {one.num_shards} {_shards(one.num_shards)}"
        )
        for sample in one.first:
            say(f"  {_shown(sample)}")
    say(f"fields: {_listed(preview.fields)}")
    needed = "unknown, as images are encoded again" if preview.needed_nbytes is None else f"{preview.needed_nbytes / 1e6:.1f} MB"
    say(f"disk: needed {needed}; free {preview.free_nbytes / 1e6:.1f} MB")


def _say_overview(overview: Overview) -> None:
    """Say what the source was taken for, before anything is written."""
    say(
        f"{overview.num_samples} samples{_of_classes(overview.num_classes)}, {overview.nbytes / 1e6:.1f} MB;"
        f" fields: {_listed(overview.fields)}",
        file=sys.stderr,
    )
    for warning in overview.warnings:
        say(f"warning: {warning}", file=sys.stderr)


def _listed(fields: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(name if name == kind else f"{name} ({kind})" for name, kind in fields)


def _shown(sample: SampleShown) -> str:
    name = "" if sample.class_name is None else f" ({sample.class_name})"
    label = "" if sample.label is None else f"  label {sample.label}{name}"
    fields = ", ".join(f"{field} {nbytes} B" for field, nbytes in sample.fields)
    bad = "" if sample.problem is None else f"  bad: {sample.problem}"
    return f"{sample.key}  {sample.source}{label}  {fields}{bad}"


def _of_classes(num_classes: int | None) -> str:
    return "" if num_classes is None else f" of {num_classes} classes"


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Parse an option's text, turning OptionError into a usage error of argparse."""
    try:
        return parse(text)
    except OptionError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _field(text: str) -> Any:
    from converters.options import FieldChoice

    return _parsed(FieldChoice.parse, text)


def _nbytes(text: str) -> Any:
    from converters.options import parse_nbytes

    return _parsed(parse_nbytes, text)


def _resize(text: str) -> Any:
    from converters.options import Resize

    return _parsed(Resize.parse, text)


def _encode(text: str) -> Any:
    from converters.options import Encode

    return _parsed(Encode.parse, text)


def _split(text: str) -> Any:
    from converters.options import Split

    return _parsed(Split.parse_all, text)


def _limit(text: str) -> Any:
    from converters.options import Limit

    return _parsed(Limit.parse, text)


def _part(text: str) -> Any:
    from converters.options import Part

    return _parsed(Part.parse, text)


def _shards(num: int) -> str:
    return "shard" if num == 1 else "shards"
