"""`datapipe convert`: repack small files into shards."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import converters
from converters import Advance, Check, ConvertOptions, OnError, Phase, Preview, Report, recognise
from converters.report import Overview, SampleShown
from converters.to_store import convert_to_store
from converters.tokenizer import Tokenizing
from datapipe.cli.convert_table import convert_table, has_table_options
from datapipe.cli.progress import Progress
from datapipe.containers.foreign import INDEX_DIRECTORY_NAME
from datapipe.containers.form import ClassFrom
from datapipe.containers.forms import AUTO, FORMS, TABLE
from datapipe.core.printable import counted, say
from datapipe.core.remembering import remembered
from datapipe.errors import OptionError
from datapipe.index.manifest import read_manifest
from datapipe.opening.tokens.opening import open_tokens, token_fields
from datapipe.packing.kept_plans import open_plan
from datapipe.packing.settings import PackSettings, default_packs
from datapipe.sources.file_tree import SeveralSetsError
from datapipe.stores.location import is_url
from datapipe.stores.places import parse_location, parse_place


@remembered()
def run(args: argparse.Namespace) -> int:
    """Convert, or show a preview. Returns 0, 1 if all samples of a preview are bad, 130 if interrupted.

    Raises what `converters.convert` raises.
    """
    options = _recognised(args)
    is_table = options is None
    try:
        with _terminable(), _Display("rows" if is_table else "samples") as display:
            if options is None:
                tell = convert_table(args, display)
            elif args.dry_run:
                preview = converters.preview(options, display)
            else:
                report = _convert(options, args.destination, display)
    except SeveralSetsError as exc:
        raise _with_commands(exc, args.to) from exc
    except KeyboardInterrupt:
        say("datapipe convert: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    if options is None:
        tell()
    elif args.dry_run:
        _print_preview(preview, options, as_json=args.json)
        return _refuse_only_bad(preview, options)
    else:
        shown_as = str(args.destination) if is_url(str(args.destination)) else ""
        _print_report(report, as_json=args.json, shown_as=shown_as, has_warned=display.has_warned)
        if args.pack is not None:
            _pack(report, args.pack)
    return 0


def _with_commands(exc: SeveralSetsError, to: str) -> SeveralSetsError:
    """Return the error with the commands to run instead."""
    commands = " and ".join(f"`datapipe convert {exc.place / name} DST/{name} --to {to}`" for name in exc.names)
    return SeveralSetsError(exc.place, exc.names, f"run {commands}")


def _convert(options: ConvertOptions, destination: str, display: _Display) -> Report:
    if is_url(destination):
        return convert_to_store(options, parse_location(destination), display)
    return converters.convert(options, display)


def _pack(report: Report, length: int) -> None:
    """Plan rows of so many tokens for each set, as the loader does on first use."""
    for one in report.sets:
        for name in token_fields(read_manifest(one.directory)):
            index = open_tokens(one.directory, field=name)
            plan = open_plan(index, default_packs(index.facts, length), [one.directory / INDEX_DIRECTORY_NAME])
            say(f"{one.directory}: {counted(len(plan), 'row')} of {length} {name} planned", file=sys.stderr)


def _options(args: argparse.Namespace) -> ConvertOptions:
    as_given = {name: value for name, value in vars(args).items() if name in ConvertOptions.__dataclass_fields__}
    others = {
        "source": parse_place(args.source),
        "destination": Path(args.destination),
        "fields": tuple(args.field),
        "class_from": None if args.class_from is None else ClassFrom(args.class_from),
        "shard_nbytes": args.shard_size,
        "num_workers": args.workers,
        "seed": None if args.no_shuffle else args.seed,
        "check": Check(args.check),
        "on_error": OnError(args.on_error),
        "tokens": _tokenizing(args),
    }
    return ConvertOptions(**{**as_given, **others})


def _tokenizing(args: argparse.Namespace) -> Tokenizing | None:
    """Return how texts become ids. Raises OptionError for options without a tokenizer."""
    if args.pack is not None and is_url(args.destination):
        raise OptionError("--pack: the plan of rows is kept beside shards on a disk; leave it out, and loaders make it")
    if args.pack is not None:
        PackSettings(args.pack)  # refuses what is no length
    if args.tokenizer is not None:
        return Tokenizing.of(args.tokenizer, bos=args.bos, eos=args.eos, chat_template=args.chat_template)
    given = next((name for name in ("bos", "eos", "chat_template", "pack") if getattr(args, name) not in ("auto", None)), None)
    if given is not None:
        raise OptionError(f"--{given.replace('_', '-')} is for --to tokens; pass --tokenizer as well, or leave it out")
    return None


def _recognised(args: argparse.Namespace) -> ConvertOptions | None:
    """Return the options with the form of the source, None for a table. Recognises it, and says so, unless the user named it."""
    if _is_table(args.form) or (args.form == AUTO and has_table_options(args) and args.to in ("parquet", "hdf5")):
        return None
    options = _options(args)
    if options.form != AUTO:
        return options
    found = recognise(options)
    say(f"{options.source}: recognised as {found}", file=sys.stderr)
    return None if _is_table(found.form) else dataclasses.replace(options, form=found.form)


def _is_table(form: str) -> bool:
    return form != AUTO and FORMS[form].kind == FORMS[TABLE].kind


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
        self.has_warned = False  # the warnings about the source have been said
        self._unit = unit
        self._phase: Phase | None = None
        self._progress = Progress(None, unit, "")  # of the phase
        self._shown = contextlib.ExitStack()  # closed, it is no longer shown

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *unused: object) -> None:
        self._shown.close()

    def __call__(self, advance: Advance, /) -> None:
        if advance.overview is not None:
            self._shown.close()
            self._phase = None
            _say_overview(advance.overview)
            self.has_warned = True
            return
        if advance.phase is not self._phase:
            self._shown.close()
            self._phase = advance.phase
            unit = "files" if advance.total is None and self._unit == "samples" else self._unit
            self._progress = self._shown.enter_context(Progress(advance.total, unit, advance.phase.value))
        self._progress.update(advance.num_samples, errors=advance.num_errors)


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
            f"{report.destination}: this part is done ({counted(report.num_written, 'shard')} written, {report.num_resumed} there"
            f" before); {counted(report.num_waiting, 'shard')} of other parts missing; the last part to end finishes the dataset"
        )
        return
    if report.compared is not None:
        where, num = shown(report.destination), report.num_samples
        say(f"{where}: already converted: {counted(num, 'sample')}, {report.compared}; nothing was written")
        return
    for one in report.sets:
        bad = (
            f", {counted(one.num_errors, 'sample')} left out (see {shown(one.directory / 'errors.jsonl')})"
            if one.num_errors
            else ""
        )
        say(
            f"{shown(one.directory)}: {counted(one.num_samples, 'sample')}{_of_classes(report.num_classes)}"
            f" in {counted(one.num_shards, 'shard')}, {one.nbytes / 1e6:.1f} MB{bad}"
        )
    rate = report.num_samples / max(report.elapsed_s, 1e-9)
    resumed = f", {counted(report.num_resumed, 'shard')} existed already" if report.num_resumed else f", {rate:.0f} samples/s"
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
        say(f"warning: {counted(preview.num_unreadable, 'sample')} cannot be read: {shown}", file=sys.stderr)
    for one in preview.sets:
        say(
            f"{options.destination / one.name}: would hold {counted(one.num_samples, 'sample')}"
            f"{_of_classes(preview.num_classes)}, {one.nbytes / 1e6:.1f} MB of source files,"
            f" in {counted(one.num_shards, 'shard')}"
        )
        for sample in one.first:
            say(f"  {_shown(sample)}")
    say(f"fields: {_listed(preview.fields)}")
    needed = "unknown, as they are encoded again" if preview.needed_nbytes is None else f"{preview.needed_nbytes / 1e6:.1f} MB"
    say(f"disk: needed {needed}; free {preview.free_nbytes / 1e6:.1f} MB")


def _refuse_only_bad(preview: Preview, options: ConvertOptions) -> int:
    """Return the exit status of a preview: 1, and say so, if every sample is bad."""
    num_samples = sum(one.num_samples for one in preview.sets)
    if preview.num_unreadable < num_samples:
        return 0
    say(f"datapipe: {options.source}: nothing to convert: all {counted(num_samples, 'sample')} cannot be read", file=sys.stderr)
    return 1


def _say_overview(overview: Overview) -> None:
    """Say what the source was taken for, before anything is written."""
    say(
        f"{counted(overview.num_samples, 'sample')}{_of_classes(overview.num_classes)}, {overview.nbytes / 1e6:.1f} MB;"
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
    if num_classes is None:
        return ""
    return f" of {counted(num_classes, 'class')}"
