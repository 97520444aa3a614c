"""Write one shard from plan to disk: its bytes, its index, and a note that it is done.

Everything is in the building directory. The shard is written under a name that no other process uses, flushed and renamed;
then its sidecar, its companions, and last the note in `done/`. A shard without a note is written again, so a process may die
at any point.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.options import OnError
from converters.planning.plan import SPOOL_NAME, PlannedShard
from converters.runs import Fence, read_record, to_json, translated
from converters.samples.examine import Treatment
from converters.samples.reading import LeftOutSample, PlannedSample, Roots, made_samples, read_samples
from converters.samples.tokenising import EncodersDifferError, stored_fields, tokenised_samples
from converters.writers import StoredSample, Target
from datapipe import errors
from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.field_names import is_audio, is_video
from datapipe.core import atomic
from datapipe.errors import DatapipeError, DecodeError
from datapipe.index.manifest import ShardInfo
from datapipe.index.sidecar import SIDECAR_SUFFIX, write_sidecar

DONE_NAME = "done"
QUARANTINE_NAME = "quarantine"
_REPORT_EVERY = 64  # samples
_REPORT_EVERY_VIDEO = 1  # each may take seconds


@dataclass(frozen=True, slots=True)
class SampleError:
    """A line of errors.jsonl."""

    source: str  # relative to the source's root; bytes that are not UTF-8 as surrogate escapes
    id: int | None  # None for a directory that could not be listed
    reason: str
    is_unwanted: bool = False  # good, and left out as the options ask


@dataclass(frozen=True, slots=True)
class DoneShard:
    """The note of a finished shard."""

    info: ShardInfo
    errors: tuple[SampleError, ...]
    on_error: OnError  # the policy that left the bad samples out
    image_sizes: tuple[tuple[int, int], ...]  # (height, width) of its images: two if they differ, else one or none

    @property
    def num_bad(self) -> int:
        """The number of bad samples, without those that the options leave out."""
        return sum(not error.is_unwanted for error in self.errors)


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The settings shared by all shards of a run."""

    building: Path
    root: str  # of the source: a directory, or the URL of a prefix
    target: str  # a key of converters.writers.TARGETS
    treatment: Treatment
    on_error: OnError
    fields: tuple[FieldSpec, ...]  # of every sample of the source
    classes: tuple[str, ...] | None  # names by label, if labels are classes
    fence: Fence  # of this run


def build_shard(
    job: ShardJob, target: Target, shard: PlannedShard, samples: Callable[[PlannedShard], Iterator[PlannedSample]]
) -> Generator[tuple[int, int], None, None]:
    """Write `shard` and note it as done; yield (samples, errors) since the last time, now and then.

    `samples`: lists those of a shard. Nothing is published unless the iterator is exhausted. The counts are negative where it
    begins again. Raises DecodeError for a bad sample under the policy "fail", IntegrityError for a source that changed,
    StorageError if the operating system refuses or another run has begun.
    """
    num_samples = num_bad = 0
    try:
        for more, more_bad in _build(job, target, shard, samples(shard), is_reference=False):
            num_samples, num_bad = num_samples + more, num_bad + more_bad
            yield more, more_bad
        return
    except EncodersDifferError:
        yield -num_samples, -num_bad
    yield from _build(job, target, shard, samples(shard), is_reference=True)


def _build(
    job: ShardJob, target: Target, shard: PlannedShard, samples: Iterator[PlannedSample], *, is_reference: bool
) -> Generator[tuple[int, int], None, None]:
    """Do what `build_shard` does. `is_reference`: documents are encoded by the reference alone."""
    fields = job.fields if job.treatment.tokenizing is None else stored_fields(job.fields)
    name = shard.stem + target.suffix
    temporary = job.building / job.fence.temporary(name)
    root = os.fsencode(job.root)
    roots = Roots(root, os.fsencode(job.building / SPOOL_NAME))
    errors: list[SampleError] = []
    skipped: list[int] = []
    sizes: set[tuple[int, int]] = set()
    with translated(job.building.parent), _removed_on_failure(temporary):
        job.fence.check()
        writer = target.open_shard(temporary, fields=fields, classes=job.classes)
        try:
            since = bad_since = 0
            report_every = _REPORT_EVERY if job.treatment.video is None else _REPORT_EVERY_VIDEO
            for planned, result in _made(job, roots, samples, writer.check, is_reference=is_reference):
                if isinstance(result, LeftOutSample):
                    errors.append(_set_aside(job, shard, root, result))
                    skipped.append(planned.slot)
                    bad_since += not result.is_unwanted
                else:
                    writer.append(result)
                    if len(sizes) < 2:
                        sizes.add(result.size)
                since += 1
                if since == report_every:
                    yield since, bad_since
                    since = bad_since = 0
            written = writer.finish()
        except BaseException:
            with contextlib.suppress(OSError):
                writer.abandon()
            raise
        with job.fence.passed():
            os.replace(temporary, job.building / name)
            index_sha256 = write_sidecar(job.building / (name + SIDECAR_SUFFIX), written.rows, name)
            for suffix, data in written.companions.items():
                with atomic.atomic_writer(job.building / (shard.stem + suffix)) as file:
                    file.write(data)
            info = ShardInfo(
                name=name,
                num_samples=shard.num_slots - len(skipped),
                nbytes=written.nbytes,
                first_slot=shard.first_slot,
                num_slots=shard.num_slots,
                sha256=written.sha256,
                index_sha256=index_sha256,
                skipped=tuple(skipped),
            )
            done = DoneShard(info, tuple(errors), job.on_error, tuple(sorted(sizes)))
            atomic.write_json(_note_path(job.building, shard), to_json(done))
    yield since, bad_since


def _made(
    job: ShardJob,
    roots: Roots,
    samples: Iterator[PlannedSample],
    check: Callable[[StoredSample], None],
    *,
    is_reference: bool,
) -> Iterator[tuple[PlannedSample, StoredSample | LeftOutSample]]:
    """Yield the samples of a shard, in order, each with its plan."""
    treatment = job.treatment
    if treatment.tokenizing is not None:
        return tokenised_samples(roots, samples, job.fields, treatment, is_reference=is_reference)
    if treatment.video is not None:
        from converters.samples.videos import VideoMaker  # only here: it needs much that images do not

        make, is_made = VideoMaker(treatment.video, treatment.check).made, is_video
    elif treatment.audio is not None:
        from converters.samples.sounds import SoundMaker

        make, is_made = SoundMaker(treatment.audio, treatment.check).made, is_audio
    else:
        return read_samples(roots, samples, job.fields, treatment, check=check)
    return made_samples(roots, samples, job.fields, treatment, check=check, is_made=is_made, make=make)


def read_done(building: Path, shard: PlannedShard) -> DoneShard | None:
    """Return the note of a finished shard, or None. Raises FormatError for a file that no conversion wrote."""
    path = _note_path(building, shard)
    with contextlib.suppress(FileNotFoundError):
        return read_record(path, DoneShard, "the note of a shard", "delete it, and the shard is written again")
    return None


def forget_done(building: Path, shard: PlannedShard) -> None:
    """Delete the note, so that the shard is written again."""
    _note_path(building, shard).unlink(missing_ok=True)


def clear_leftovers(building: Path, shard: PlannedShard) -> None:
    """Delete what killed processes left of an unfinished shard."""
    for path in building.glob(f"*{shard.stem}*{atomic.TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


def shard_files(stem: str, target: Target) -> tuple[str, ...]:
    """Return the names of all files that belong to a shard."""
    name = stem + target.suffix
    return (name, name + SIDECAR_SUFFIX, *(stem + suffix for suffix in target.companion_suffixes))


def _note_path(building: Path, shard: PlannedShard) -> Path:
    return building / DONE_NAME / f"{shard.stem}.json"


def _set_aside(job: ShardJob, shard: PlannedShard, root: bytes, bad: LeftOutSample) -> SampleError:
    """Apply the policy to a bad sample, or name one that is not wanted. Raises DecodeError under "fail"."""
    source = os.fsdecode(bad.planned.source)
    if bad.is_unwanted:
        return SampleError(source, bad.planned.id, bad.reason, is_unwanted=True)
    if job.on_error is OnError.FAIL:
        raise DecodeError(
            f"{os.fsdecode(root)}/{source}: bad sample: {bad.reason};"
            f" run again with --on-error skip or quarantine; or repair it, delete {job.building} and start over"
        )
    if job.on_error is OnError.QUARANTINE:
        for name, data in bad.contents.items():
            origin = bad.planned.origins[name]
            path = origin.path if origin.is_whole else bad.planned.source + b"." + name.encode()
            copy = job.building / QUARANTINE_NAME / shard.set_name / os.fsdecode(_confined(path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            with job.fence.passed(), atomic.atomic_writer(copy) as file:
                file.write(data)
    return SampleError(source, bad.planned.id, bad.reason)


def _confined(path: bytes) -> bytes:
    """Return `path` without parts that would lead out of its folder, as keys in a tar may have."""
    return b"/".join(b"_" if part in (b"", b".", b"..") else part for part in path.split(b"/"))


@contextlib.contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


OnSamples = Callable[[int, int], None]  # (samples, errors) since the last call
OnShard = Callable[[PlannedShard], None]


def error_to_json(exc: BaseException) -> dict[str, Any]:
    """Return an exception in the form that a worker reports."""
    if isinstance(exc, DatapipeError):
        return {"error": type(exc).__name__, "message": str(exc)}
    return {"error": "", "message": "".join(traceback.format_exception(exc))}


def error_from_json(answer: dict[str, Any]) -> Exception:
    """Return the exception that a worker reported; one that is not ours is a bug and keeps its traceback as text."""
    if answer["error"]:
        kind: type[Exception] = getattr(errors, answer["error"])
        return kind(answer["message"])
    return RuntimeError(f"a worker failed:\n{answer['message']}")
