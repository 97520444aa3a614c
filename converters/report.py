"""The output of a conversion: progress, report and preview."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from converters.options import SMALL_SHARD_NBYTES
from converters.planning.plan import ConversionPlan, Duplicates
from converters.samples.reading import PlannedSample
from converters.writers import sample_key
from datapipe.codecs.field_values import NO_LABEL, FieldKind
from datapipe.containers.field_names import is_audio, is_video
from datapipe.containers.listing import told_of_loops
from datapipe.core.printable import counted
from datapipe.index.listed import field_of_origin


class Phase(enum.Enum):
    """The phase of a conversion."""

    SCAN = "scan"  # listing the source; the total is unknown
    WRITE = "write"  # writing shards


@dataclass(frozen=True, slots=True)
class Overview:
    """The samples, classes and fields of a source, known before the first shard is written."""

    num_samples: int
    num_classes: int | None  # None if labels have no names, or there are none
    fields: tuple[tuple[str, str], ...]  # (name, kind) of each sample's fields
    nbytes: int  # of the source
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress since the previous one."""

    phase: Phase
    num_samples: int
    num_errors: int = 0
    total: int | None = None  # samples in this phase, where known
    overview: Overview | None = None  # once, before the first shard is written


OnProgress = Callable[[Advance], None]


def ignore_progress(advance: Advance, /) -> None:
    """Do nothing with the progress."""


@dataclass(frozen=True, slots=True)
class SetReport:
    """One dataset that was written."""

    name: str  # of the split; "" for the whole
    directory: Path
    num_samples: int
    num_shards: int
    nbytes: int  # of the shards
    num_errors: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a conversion."""

    destination: Path
    sets: tuple[SetReport, ...]  # empty while other parts are still writing
    num_classes: int | None  # None if labels have no names, or there are none
    num_written: int  # shards that this run wrote
    num_resumed: int  # shards that an earlier run, or another part, had written
    num_waiting: int  # shards that other parts still have to write; 0 when the dataset is complete
    warnings: tuple[str, ...]
    elapsed_s: float
    compared: str | None = None  # for a dataset that was already finished: what was found unchanged

    @property
    def is_finished(self) -> bool:
        return not self.num_waiting

    @property
    def num_samples(self) -> int:
        return sum(one.num_samples for one in self.sets)

    @property
    def num_errors(self) -> int:
        return sum(one.num_errors for one in self.sets)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.sets)


@dataclass(frozen=True, slots=True)
class SampleShown:
    """One sample of a preview."""

    key: str
    source: str
    label: int | None
    class_name: str | None
    fields: tuple[tuple[str, int], ...]  # (name, bytes in the source), without the label
    problem: str | None  # why it is bad, if the listing shows that


@dataclass(frozen=True, slots=True)
class SetPreview:
    """One dataset that would be written."""

    name: str
    num_samples: int
    num_shards: int
    nbytes: int  # of the source files
    first: tuple[SampleShown, ...]  # the first samples of the first shard


@dataclass(frozen=True, slots=True)
class Preview:
    """The expected result of a conversion."""

    sets: tuple[SetPreview, ...]
    num_classes: int | None  # None if labels have no names, or there are none
    fields: tuple[tuple[str, str], ...]  # (name, kind) of each sample's fields
    nbytes: int  # of the source files
    needed_nbytes: int | None  # on disk; None if images are encoded again
    free_nbytes: int
    problems: tuple[tuple[str, str], ...]  # (source, reason) of directories that could not be listed
    num_unreadable: int  # samples that are bad by the listing alone; reading may find more
    unreadable: tuple[tuple[str, str], ...]  # (source, reason) of the first of them
    warnings: tuple[str, ...]


def overview_of(plan: ConversionPlan) -> Overview:
    """Return what a source was taken for."""
    num_classes = None if plan.classes is None else len(plan.classes)
    fields = tuple((field.name, field.kind.value) for field in plan.fields)
    return Overview(plan.num_samples, num_classes, fields, plan.nbytes, warnings_of(plan))


def shown_sample(plan: ConversionPlan, sample: PlannedSample) -> SampleShown:
    """Return what a preview shows of a sample."""
    nbytes = {name: len(value.encode(errors="replace")) for name, value in sample.values.items()}
    for name, origin in sample.origins.items():
        field = field_of_origin(name)
        nbytes[field] = nbytes.get(field, 0) + origin.nbytes
    has_class = plan.classes is not None and 0 <= sample.label < len(plan.classes)
    return SampleShown(
        key=sample_key(sample.id),
        source=os.fsdecode(sample.source),
        label=None if sample.label == NO_LABEL else sample.label,
        class_name=plan.classes[sample.label] if has_class and plan.classes is not None else None,
        fields=tuple((field.name, nbytes[field.name]) for field in plan.fields if field.name in nbytes),
        problem=sample.problem,
    )


def warnings_of(plan: ConversionPlan) -> tuple[str, ...]:
    """Return what is unusual about a source, though not wrong, each with the option that changes it where there is one."""
    warnings = [*plan.warnings, *suspicions(plan)]
    if plan.empty_classes:
        shown = ", ".join(plan.empty_classes[:5]) + (", ..." if len(plan.empty_classes) > 5 else "")
        warnings.append(f"{counted(len(plan.empty_classes), 'class folder')} without images (kept in the class list): {shown}")
    if plan.duplicates.num:
        warnings.append(_told_of_duplicates(plan.duplicates))
    size = plan.options.get("shard_size")
    if isinstance(size, int) and size < SMALL_SHARD_NBYTES and len(plan.shards) > len(plan.sets):
        warnings.append(
            f"--shard-size of {size:,} bytes makes {len(plan.shards):,} shards of about"
            f" {counted(round(plan.num_samples / len(plan.shards)), 'sample')}: below 1 MB, opening files costs more than reading"
            " them; 256MB is the default"
        )
    if plan.num_ignored:
        much = ", more than there are samples; --from says what SRC is" if plan.num_ignored > plan.num_samples else ""
        warnings.append(f"{counted(plan.num_ignored, 'file')} ignored: names that do not end like those of samples{much}")
    if plan.num_junk:
        warnings.append(f"{counted(plan.num_junk, 'hidden or system file')} ignored")
    if plan.loops:
        warnings.append(told_of_loops(plan.loops))
    return tuple(warnings)


def _told_of_duplicates(duplicates: Duplicates) -> str:
    shown = ", ".join(f"{name} (as {original})" for name, original in duplicates.first)
    more = ", ..." if duplicates.num > len(duplicates.first) else ""
    labels = f", {duplicates.num_relabelled} of them with another label than the one kept" if duplicates.num_relabelled else ""
    return f"{counted(duplicates.num, 'duplicate')} left out{labels} (errors.jsonl names them all): {shown}{more}"


_LARGE_NBYTES = 1_000_000  # of a field of kind bytes, on average: an archive, or an image that was not recognised
_LABELS_COME_FROM = {
    "image-folder": "--class-from folder, parent or path takes it from the folders",
    "npy": "--class-from folder, parent or path takes it from the folders",
    "pairs": "--class-from folder, parent or path takes it from the folders",
    "manifest": "--field COLUMN=label says which column it is",
    "videos": "a column label of a list, or --class-from, says which",
    "audio": "a column label of a list, or --class-from, says which",
    "tar": "--field SUFFIX=label says which members hold it, --from archive that each tar is a class",
}


def suspicions(plan: ConversionPlan) -> list[str]:
    """Return one line for each, with the option that changes it."""
    found = []
    form, kinds = plan.options.get("from"), [field.kind for field in plan.fields]
    may_be_labelled = not (form == "audio" and FieldKind.TEXT in kinds)  # what is said is as good
    may_be_labelled &= form != "documents" and plan.options.get("to") != "tokens" and plan.options.get("class_from") != "none"
    if FieldKind.LABEL not in kinds and FieldKind.BOXES not in kinds and may_be_labelled:
        remedy = _LABELS_COME_FROM.get(str(form), "--field NAME=label says which field it is")
        found.append(f"samples have no label; if they should have one, {remedy}")
    if plan.num_samples == 1:
        found.append("there is only 1 sample; if SRC holds more, --from says what it is")
    elif FieldKind.LABEL in kinds and plan.classes is not None:
        found += _of_classes(plan, str(form))
    for field in plan.fields:
        average = plan.field_nbytes.get(field.name, 0) / max(1, plan.num_samples)
        if field.kind is FieldKind.BYTES and average > _LARGE_NBYTES and not (is_video(field) or is_audio(field)):
            found.append(
                f"field {field.name!r} is kept as bytes, {average / 1e6:.1f} MB a sample;"
                f" --field {field.name}=KIND says what it is, =none leaves it out"
            )
    return found


def _of_classes(plan: ConversionPlan, form: str) -> list[str]:
    is_folder = form in ("image-folder", "npy", "pairs", "videos", "audio")
    elsewhere = "; --class-from parent or path takes deeper folders, none gives no labels" if is_folder else ""
    if plan.num_labels == 1:
        return [f"all {plan.num_samples} samples are of one class, {plan.first_class!r}{elsewhere}"]
    if plan.num_labels == plan.num_samples > 2:
        return [f"each of the {plan.num_samples} samples is of a class of its own, such as {plan.first_class!r}{elsewhere}"]
    return []
