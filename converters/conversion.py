"""Run a whole conversion: make or resume the plan, write the missing shards, finish.

No state that another run would need is kept only in memory: the plan, the notes of finished shards and the list of last steps
are on disk, and each is there completely or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from converters.engines.local import Workers, run_shards
from converters.options import ConvertOptions, Part
from converters.planning.building import build_plan, list_source
from converters.planning.listing import first_difference
from converters.planning.plan import PLAN_NAME, SPOOL_NAME, ConversionPlan, PlannedShard, open_samples, read_plan
from converters.publishing import finalise, placing
from converters.publishing.delivery import StoreDelivery
from converters.publishing.destination import (
    FoundSet,
    already_ended,
    compare_finished,
    find_sets,
    free_nbytes,
    holds_dataset,
    needed_nbytes,
    refuse_changed_meaning,
    refuse_changed_options,
    refuse_unreadable,
)
from converters.report import (
    Advance,
    OnProgress,
    Phase,
    Preview,
    Report,
    SetPreview,
    SetReport,
    ignore_progress,
    overview_of,
    shown_sample,
    warnings_of,
)
from converters.runs import Fence, LockGoneError, begin_run, hold, is_held, translated
from converters.samples.examine import AudioTreatment, Treatment, VideoTreatment
from converters.shards import DONE_NAME, DoneShard, ShardJob, clear_leftovers, forget_done, read_done, shard_files
from converters.sources import open_source, resolved
from converters.writers import TARGETS, Target
from datapipe.containers.forms import AUDIO, VIDEOS
from datapipe.core.environment import num_usable_cores
from datapipe.errors import DatapipeError, DecodeError, IntegrityError, StorageError
from datapipe.index.listed import Source
from datapipe.index.manifest import BUILDING_NAME
from datapipe.stores.location import Location

_PLAN_LOCK = "plan.lock"
_NUM_SHOWN = 10  # samples in a preview
_SAMPLES_PER_WORKER = 4096  # listed, before one is started ahead of the plan


def convert(
    options: ConvertOptions, on_progress: OnProgress = ignore_progress, *, delivery: StoreDelivery | None = None
) -> Report:
    """Convert a source, or resume an interrupted conversion.

    The result depends only on the source and the options, not on workers, parts or interruptions. A finished dataset with
    the same options is left unchanged if its source still looks the same.

    Raises OptionError, MissingDataError, StorageError, DecodeError (a bad sample under "fail", or too many), IntegrityError
    (the source changed); whatever it raises, the same call resumes. `on_progress` is called in the caller's thread.
    `delivery`: takes each shard away once it is complete, and the rest at the end.
    """
    started = time.monotonic()
    destination = options.destination.absolute()
    options = resolved(options)
    source = open_source(options)
    building = destination / BUILDING_NAME
    sets = already_ended(destination, options)
    compared: str | None = None
    if sets is not None:
        with tempfile.TemporaryDirectory(prefix="datapipe-") as scratch:
            listing = list_source(Path(scratch) / PLAN_NAME, source, on_samples=_telling(on_progress))
        compared = compare_finished(sets, listing, destination, options.source)
    else:
        try:
            with translated(destination):
                (building / DONE_NAME).mkdir(parents=True, exist_ok=True)
                return _Conversion(options, destination, source, on_progress, started, delivery).run()
        except DatapipeError:
            if building.is_dir() or not holds_dataset(destination):
                raise  # else another part finished it in the meantime
        sets = find_sets(destination)
    return _report(destination, sets, (), (0, 0), started, compared)


def preview(options: ConvertOptions, on_progress: OnProgress = ignore_progress) -> Preview:
    """Return what `convert` would do; writes nothing to the destination."""
    options = resolved(options)
    source = open_source(options)
    with tempfile.TemporaryDirectory(prefix="datapipe-") as scratch:
        plan = _plan(Path(scratch), options, source, on_progress, spool=Path(scratch) / SPOOL_NAME)
        sets = []
        with open_samples(plan.path) as samples:
            for planned in plan.sets:
                shards = [shard for shard in plan.shards if shard.set_name == planned.name]
                first = tuple(shown_sample(plan, sample) for sample in itertools.islice(samples(shards[0]), _NUM_SHOWN))
                nbytes = sum(shard.nbytes for shard in shards)
                sets.append(SetPreview(planned.name, planned.num_slots, len(shards), nbytes, first))
        overview = overview_of(plan)
        return Preview(
            sets=tuple(sets),
            num_classes=overview.num_classes,
            fields=overview.fields,
            nbytes=overview.nbytes,
            needed_nbytes=None if options.transcodes else needed_nbytes(plan.shards, num_fields=len(plan.fields)),
            free_nbytes=free_nbytes(options.destination),
            problems=plan.problems,
            num_unreadable=plan.unreadable.num,
            unreadable=plan.unreadable.first,
            warnings=overview.warnings,
        )


@dataclass(slots=True)
class _Conversion:
    """One run in an open building directory."""

    options: ConvertOptions
    destination: Path
    source: Source  # not listed yet
    on_progress: OnProgress
    started: float
    delivery: StoreDelivery | None
    building: Path = field(init=False)
    target: Target = field(init=False)
    part: Part = field(init=False)
    workers: Workers = field(init=False)
    num_listed: int = 0

    def __post_init__(self) -> None:
        tokens = self.options.tokens
        self.building = self.destination / BUILDING_NAME
        self.target = TARGETS[self.options.to]
        self.part = self.options.part or Part()
        self.workers = Workers(None if tokens is None or tokens.template or tokens.images else tokens)

    def run(self) -> Report:
        with contextlib.closing(self.workers), hold(self._part_lock(self.part), wait=False) as is_mine:
            if not is_mine:
                raise StorageError(
                    f"{self.destination}: another process is converting part {self.part} into it; wait for it, or stop it first"
                )
            plan = self._take_up_plan()
            if self.delivery is not None:
                self.delivery.begin(plan)
            if not (self.building / placing.FINAL_NAME).exists():
                num_written, num_resumed = self._write_shards(plan)
            else:
                num_written, num_resumed = 0, len(plan.shards)
            return self._finish_if_complete(plan, num_written, num_resumed)

    def _part_lock(self, part: Part) -> Path:
        return self.building / f"part-{part.index}-of-{part.count}.lock"

    def _take_up_plan(self) -> ConversionPlan:
        """Return the plan of this destination: made now, or found and checked."""
        path = self.building / PLAN_NAME
        with hold(self.building / _PLAN_LOCK, wait=True):
            self._refuse_other_division()
            if not path.exists():
                if holds_dataset(self.destination) and not self.options.overwrite:  # finished since this run began
                    shutil.rmtree(self.building)
                    raise LockGoneError
                return self._make_plan()
        plan = read_plan(path)
        refuse_changed_options(plan, self.options, self.destination)
        if not (self.building / placing.FINAL_NAME).exists():
            self._refuse_changed_source(plan)
        return plan

    def _make_plan(self) -> ConversionPlan:
        """Make a new plan; if that fails, leave the destination as it was found."""
        try:
            plan = _plan(self.building, self.options, self.source, self._on_listed, spool=self.building / SPOOL_NAME)
            refuse_unreadable(plan, self.options)
        except BaseException:
            shutil.rmtree(self.building, ignore_errors=True)
            with contextlib.suppress(OSError):  # it stays if it held something before
                self.destination.rmdir()
            raise
        return plan

    def _on_listed(self, advance: Advance) -> None:
        """Report what was listed, and start workers while more is: opening a tokenizer takes as long as listing 10,000 lines."""
        self.on_progress(advance)
        self.num_listed += advance.num_samples
        if self.options.engine == "local" and self._num_workers > 1:
            self.workers.start(min(self._num_workers, self.num_listed // _SAMPLES_PER_WORKER))

    def _refuse_other_division(self) -> None:
        """Raise StorageError while runs that divide the shards differently are in progress."""
        for path in sorted(self.building.glob("part-*.lock")):
            if not path.name.endswith(f"-of-{self.part.count}.lock") and is_held(path):
                raise StorageError(
                    f"{self.destination}: a run that divides the work differently is in progress ({path.stem});"
                    " wait for it, or give every run the same N in --part I/N"
                )

    def _refuse_changed_source(self, plan: ConversionPlan) -> None:
        with tempfile.TemporaryDirectory(dir=self.building, prefix="rescan-") as scratch:
            spool = self.building / SPOOL_NAME
            listed = dataclasses.replace(self.options, dedupe=False)  # the same listing has the same duplicates
            fresh = _plan(Path(scratch), listed, self.source, self.on_progress, spool=spool)
            difference = first_difference(plan.path, fresh.path)
            if difference is None and fresh.problems != plan.problems:
                difference = "the parts of it that cannot be read are not the same as before"
            if difference is None:
                refuse_changed_meaning(plan, fresh, self.destination)
        if difference is not None:
            raise IntegrityError(
                f"{self.options.source}: changed since the conversion began: {difference};"
                f" restore it, or delete {self.building} to start over"
            )

    def _write_shards(self, plan: ConversionPlan) -> tuple[int, int]:
        """Write this part's missing shards; return the numbers of written and of existing ones."""
        refuse_unreadable(plan, self.options)
        fence = begin_run(self.building, self.part)
        missing: list[PlannedShard] = []
        undelivered: list[PlannedShard] = []
        num_errors = len(plan.problems)
        for shard in filter(self._owns, plan.shards):
            done = read_done(self.building, shard)
            if done is not None and not self._is_still_valid(shard, done):
                forget_done(self.building, shard)
                done = None
            if done is None:
                clear_leftovers(self.building, shard)
                missing.append(shard)
            else:
                num_errors += done.num_bad
                undelivered.append(shard)
        self._refuse_full_disk(plan, missing)
        self._refuse_too_many(plan, num_errors)
        self.on_progress(Advance(Phase.SCAN, 0, overview=overview_of(plan)))
        total = sum(shard.num_slots for shard in missing)
        self.on_progress(Advance(Phase.WRITE, 0, num_errors, total))

        def on_samples(num_samples: int, num_bad: int) -> None:
            nonlocal num_errors
            num_errors += num_bad
            self.on_progress(Advance(Phase.WRITE, num_samples, num_bad, total))
            if num_bad:
                self._refuse_too_many(plan, num_errors)

        for shard in undelivered:
            self._deliver(shard)
        job = self._job(plan, fence)
        run_shards(job, missing, options=self.options, on_samples=on_samples, on_shard=self._deliver, workers=self.workers)
        if self.delivery is not None:
            self.delivery.settle(plan)
        return len(missing), sum(map(self._owns, plan.shards)) - len(missing)

    @property
    def _num_workers(self) -> int:
        return self.options.num_workers or num_usable_cores()

    def _deliver(self, shard: PlannedShard) -> None:
        if self.delivery is not None:
            self.delivery.take(shard)

    def _is_still_valid(self, shard: PlannedShard, done: DoneShard) -> bool:
        """Return False if bad samples were treated by another policy, or if the shard's files were deleted."""
        is_same_policy = not done.num_bad or done.on_error is self.options.on_error
        if is_same_policy and self.delivery is not None and self.delivery.has(shard, done):
            return True
        return is_same_policy and all((self.building / name).exists() for name in shard_files(shard.stem, self.target))

    def _owns(self, shard: PlannedShard) -> bool:
        return self.part.owns(shard.number)

    def _job(self, plan: ConversionPlan, fence: Fence) -> ShardJob:
        options = self.options
        video = None
        if options.is_of(VIDEOS) or options.encodes_videos:
            video = VideoTreatment(options.video_size, options.video_keyframes)
        audio = None
        if options.is_of(AUDIO):
            audio = AudioTreatment(options.audio_rate, options.audio_channels, options.audio_format, options.audio_silence)
        treatment = Treatment(options.check, options.resize, options.encode, options.strip_exif, options.tokens, video, audio)
        root = self.source.root
        root = root if isinstance(root, Location) else root.absolute()
        return ShardJob(self.building, str(root), options.to, treatment, options.on_error, plan.fields, plan.classes, fence)

    def _refuse_full_disk(self, plan: ConversionPlan, missing: list[PlannedShard]) -> None:
        if self.delivery is not None:  # so many are on the disk at once
            at_once = min(self._num_workers, len(missing)) + self.delivery.most_waiting
            missing = sorted(missing, key=lambda shard: shard.nbytes)[-at_once:]
        needed, free = needed_nbytes(missing, num_fields=len(plan.fields)), free_nbytes(self.destination)
        if not self.options.transcodes and needed > free:
            raise StorageError(
                f"{self.destination}: needs {needed / 1e9:.2f} GB more and has {free / 1e9:.2f} GB free;"
                " free space and run the same command again"
            )

    def _refuse_too_many(self, plan: ConversionPlan, num_errors: int) -> None:
        limit = self.options.max_errors
        if limit is not None and num_errors > limit.accepted_of(plan.num_samples):
            raise DecodeError(
                f"{self.options.source}: {num_errors} bad samples exceed --max-errors {limit} of {plan.num_samples};"
                " check the source, or run again with a higher limit"
            )

    def _refuse_nothing_left(self, plan: ConversionPlan, done: dict[int, DoneShard]) -> None:
        """Raise DecodeError if no sample is left: an empty dataset would fail where it is trained on, and not say why."""
        errors = [error for shard in done.values() for error in shard.errors]
        if errors and not any(shard.info.num_samples for shard in done.values()):
            first = min(errors, key=lambda error: error.id or 0)
            raise DecodeError(
                f"{self.options.source}: all {plan.num_samples:,} samples are left out, the first of them {first.source}:"
                f" {first.reason}; change the source or the options, and delete {self.building} to start over"
            )

    def _finish_if_complete(self, plan: ConversionPlan, num_written: int, num_resumed: int) -> Report:
        """Finish the dataset if every shard is done; the lock lets only one run do so."""
        with hold(self.building / _PLAN_LOCK, wait=True):
            done: dict[int, DoneShard] = {}
            for shard in plan.shards:
                noted = read_done(self.building, shard)
                if noted is not None:
                    done[shard.number] = noted
            num_waiting = len(plan.shards) - len(done)
            if num_waiting:
                elapsed_s = time.monotonic() - self.started
                num_classes = None if plan.classes is None else len(plan.classes)
                counts = (num_written, num_resumed, num_waiting)
                return Report(self.destination, (), num_classes, *counts, warnings_of(plan), elapsed_s)
            if not (self.building / placing.FINAL_NAME).exists():
                self._refuse_too_many(plan, len(plan.problems) + sum(shard.num_bad for shard in done.values()))
                self._refuse_nothing_left(plan, done)
                finalise.prepare(self.destination, plan, done, target=self.target, options=self.options.as_typed())
            if self.delivery is None:
                placing.place(self.destination)
                sets = find_sets(self.destination)
            else:
                sets = self.delivery.finish(plan)
        return _report(self.destination, sets, warnings_of(plan), (num_written, num_resumed), self.started)


def _plan(directory: Path, options: ConvertOptions, source: Source, on_progress: OnProgress, *, spool: Path) -> ConversionPlan:
    return build_plan(directory / PLAN_NAME, options, source, spool=spool, on_samples=_telling(on_progress))


def _telling(on_progress: OnProgress) -> Callable[[int], None]:
    """Return a function that takes the number of samples listed so far and reports the increase."""
    num_told = 0

    def on_samples(num_samples: int) -> None:
        nonlocal num_told
        on_progress(Advance(Phase.SCAN, num_samples - num_told))
        num_told = num_samples

    return on_samples


def _report(
    destination: Path,
    sets: list[FoundSet],
    warnings: tuple[str, ...],
    num_shards: tuple[int, int],
    started: float,
    compared: str | None = None,
) -> Report:
    reports = tuple(
        SetReport(
            name=found.name,
            directory=found.directory,
            num_samples=found.manifest.num_samples,
            num_shards=len(found.manifest.shards),
            nbytes=sum(shard.nbytes for shard in found.manifest.shards),
            num_errors=found.manifest.num_slots - found.manifest.num_samples,
        )
        for found in sets
    )
    classes = sets[0].manifest.classes
    num_classes = None if classes is None else len(classes)
    elapsed_s = time.monotonic() - started
    return Report(destination, reports, num_classes, *num_shards, 0, warnings, elapsed_s, compared)
