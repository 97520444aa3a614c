"""The contents of a destination: datasets, their files, files that belong to none; and whether a conversion may write there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from converters.options import ConvertOptions, OnError, changed_options
from converters.planning.listing import ListingSummary
from converters.planning.plan import ConversionPlan, PlannedShard
from converters.publishing import placing
from converters.publishing.placing import FINISHED_NAME
from converters.shards import QUARANTINE_NAME, shard_files
from converters.writers import TARGETS, Target
from datapipe.containers.foreign import INDEX_DIRECTORY_NAME
from datapipe.core.regular_files import path_inside
from datapipe.errors import DecodeError, FormatError, IntegrityError, OptionError, StorageError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, Manifest, read_document
from datapipe.stores.location import Place

ERRORS_NAME = "errors.jsonl"
_IGNORED = frozenset((INDEX_DIRECTORY_NAME, BUILDING_NAME, FINISHED_NAME))


@dataclass(frozen=True, slots=True)
class FoundSet:
    """A finished dataset: the destination itself, or one split in it."""

    name: str  # "" for the destination itself
    directory: Path
    manifest: Manifest

    def files(self) -> list[str]:
        """Return the names that its directory may contain; `verify` checks which exist."""
        target = target_of(self.manifest)
        names = [name for shard in self.manifest.shards for name in shard_files(stem_of(shard.name, target), target)]
        return [*names, ERRORS_NAME, MANIFEST_NAME]


def target_of(manifest: Manifest) -> Target:
    """Return the format of a converted dataset. Raises FormatError for one that this program does not write."""
    for target in TARGETS.values():
        if target.container == manifest.container:
            return target
    known = ", ".join(target.container for target in TARGETS.values())
    raise FormatError(f"dataset of kind {manifest.container!r}; verify and convert know {known}")


def stem_of(shard_name: str, target: Target) -> str:
    """Return a shard's file name without its suffix."""
    return shard_name.removesuffix(target.suffix)


def holds_dataset(directory: Path) -> bool:
    """Return True if `directory` is or contains a finished dataset; reads no manifest."""
    return any((place / MANIFEST_NAME).exists() for place in (directory, *_folders(directory)))


def find_sets(directory: Path) -> list[FoundSet]:
    """Return the datasets in `directory`: itself, or its splits; also next to the marker of a running conversion.

    Raises FormatError for a manifest that does not parse, and for a split that is a link to another place.
    """
    if (directory / MANIFEST_NAME).exists():
        return [FoundSet("", directory, read_document(directory))]
    splits = [path for path in _folders(directory) if (path / MANIFEST_NAME).exists()]
    for path in splits:
        path_inside(str(directory), path.name, named_in=directory)
    return [FoundSet(path.name, path, read_document(path)) for path in splits]


def strange_files(directory: Path, sets: list[FoundSet]) -> list[str]:
    """Return the paths, relative to `directory`, of files that belong to none of `sets`."""
    strange: list[str] = []
    known_here: set[str] = set()
    for found in sets:
        known = {*found.files(), QUARANTINE_NAME}
        if found.name:
            known_here.add(found.name)
            strange += [f"{found.name}/{name}" for name in _names(found.directory) if name not in known]
        else:
            known_here |= known
    return sorted(strange + [name for name in _names(directory) if name not in known_here])


def _names(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name not in _IGNORED]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(directory: Path) -> list[Path]:
    return sorted(directory / name for name in _names(directory) if (directory / name).is_dir())


_SAMPLE_OVERHEAD = 512  # bytes per sample in the index
_FIELD_OVERHEAD = 1024  # bytes per field of a sample: header and padding
MUTABLE_OPTIONS = ("on_error", "max_errors")  # may change between runs: they decide about bad samples only


def already_ended(destination: Path, options: ConvertOptions) -> list[FoundSet] | None:
    """Return the finished datasets that were made with these options; None if there is something to do.

    Raises OptionError for a destination that is in use, naming the options if it was converted with others.
    """
    if destination.exists() and not destination.is_dir():
        raise OptionError(f"{destination}: is not a directory; choose another destination")
    outer = next((parent for parent in destination.absolute().parents if (parent / MANIFEST_NAME).is_file()), None)
    if outer is not None:
        raise OptionError(f"{destination}: lies within the dataset {outer}; choose a place outside it")
    if options.part is not None and options.overwrite:
        raise OptionError(
            "--overwrite with --part: the parts cannot distinguish the old dataset from the new; delete the destination first"
        )
    while True:
        stage = _stage_of(destination)
        try:
            return _ended_at(stage, destination, options)
        except OptionError:
            if _stage_of(destination) is stage:
                raise  # else another run went on while this one looked


class _Stage(Enum):
    """How far a conversion into a directory has come."""

    NONE = 0  # not begun, or done
    WRITING = 1
    PLACING = 2  # its last steps are recorded


def _stage_of(destination: Path) -> _Stage:
    building = destination / BUILDING_NAME
    if (building / placing.FINAL_NAME).exists():
        return _Stage.PLACING
    return _Stage.WRITING if building.is_dir() else _Stage.NONE


def _ended_at(stage: _Stage, destination: Path, options: ConvertOptions) -> list[FoundSet] | None:
    """Return what `already_ended` does, for a conversion that has come to `stage`."""
    was_swept = stage is _Stage.NONE and placing.sweep(destination)
    sets = find_sets(destination) if holds_dataset(destination) else []
    changed = _changed_options(sets, options)
    if was_swept and sets and not changed:  # with --overwrite, too: the killed run only had to clean up
        return sets
    if stage is _Stage.PLACING:
        return None
    if sets and not options.overwrite:
        if stage is _Stage.WRITING:
            raise OptionError(
                f"{destination}: a conversion with --overwrite was interrupted there; pass --overwrite again to resume"
            )
        if changed:
            raise OptionError(
                f"{destination}: holds a finished dataset, made with other options: {'; '.join(changed)};"
                " pass --overwrite to replace it, or choose another place"
            )
        return sets
    strange = strange_files(destination, sets)
    if strange:
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        raise OptionError(f"{destination}: holds files that no conversion wrote ({shown}); choose an empty or new directory")
    return None


def _changed_options(sets: list[FoundSet], options: ConvertOptions) -> list[str]:
    """Return how `options` differ from those of the existing datasets."""
    if not sets:
        return []
    changed = changed_options(sets[0].manifest.options, options.as_typed())
    found, expected = {one.name for one in sets}, {split.name for split in options.split} or {""}
    if found != expected and not changed:
        changed.append(f"of {', '.join(sorted(expected))} there is {', '.join(sorted(found))}")
    return changed


def compare_finished(sets: list[FoundSet], listing: ListingSummary, destination: Path, source: Place) -> str:
    """Return which properties of a finished dataset and its source were found unchanged.

    Raises IntegrityError if a shard is missing or truncated, or if the source changed.
    """
    for found in sets:
        for shard in found.manifest.shards:
            path = found.directory / shard.name
            nbytes = path.stat().st_size if path.exists() else None
            if nbytes != shard.nbytes:
                state = "is missing" if nbytes is None else f"has {nbytes} bytes, {shard.nbytes} were written"
                raise IntegrityError(f"{path}: {state}; `datapipe verify` shows details; pass --overwrite to convert again")
    known = {found.manifest.source_digest for found in sets}
    if known == {""}:
        return "with the same options; the source was not compared, since the dataset does not record it"
    if known != {listing.digest}:
        num = sum(found.manifest.num_slots for found in sets)
        raise IntegrityError(
            f"{destination}: holds a finished dataset, made of {num} samples; {source} now has {listing.num_samples}, or other"
            " names, sizes or labels; pass --overwrite to convert again, or choose another place"
        )
    return "with the same options, and from files of the same names, sizes and labels"


def refuse_unreadable(plan: ConversionPlan, options: ConvertOptions) -> None:
    """Raise StorageError, under "fail", for places that could not be listed, and DecodeError for samples known to be bad."""
    if options.on_error is not OnError.FAIL:
        return
    if plan.problems:
        source, reason = plan.problems[0]
        at_parent = isinstance(options.source, Path) and source.partition("/")[0] == options.source.name
        where = options.source.parent if at_parent and isinstance(options.source, Path) else options.source
        raise StorageError(
            f"{where}/{source}: {reason} ({len(plan.problems)} such places in all);"
            " repair, or leave them out with --on-error skip"
        )
    known = plan.unreadable
    if known.num:
        by_reason: dict[str, list[str]] = {}
        for source, reason in known.first:
            by_reason.setdefault(reason, []).append(source)
        shown = "; ".join(f"{', '.join(sources)}: bad sample: {reason}" for reason, sources in by_reason.items())
        more = f"; and {known.num - len(known.first)} more" if known.num > len(known.first) else ""
        raise DecodeError(
            f"{options.source}: {known.num} of {plan.num_samples} samples cannot be read: {shown}{more};"
            " repair them, or leave them out with --on-error skip or quarantine"
        )


def refuse_changed_options(plan: ConversionPlan, options: ConvertOptions, destination: Path) -> None:
    """Raise OptionError, naming them, for options that differ from those of the unfinished conversion."""
    if changed := changed_options(plan.options, options.as_typed(), but=MUTABLE_OPTIONS):
        raise OptionError(
            f"{destination}: a conversion with other options is unfinished there: {'; '.join(changed)};"
            f" pass the same options to resume, or delete {destination / BUILDING_NAME} to start over"
        )


def refuse_changed_meaning(plan: ConversionPlan, fresh: ConversionPlan, destination: Path) -> None:
    """Raise OptionError if the same samples would now have other fields or classes, since a map or a header changed."""
    changed = []
    if plan.classes != fresh.classes:
        changed.append(f"classes were {len(plan.classes or ())}, now {len(fresh.classes or ())}, or other names")
    if plan.fields != fresh.fields:
        was, now = (", ".join(f"{field.name} ({field.kind.value})" for field in one.fields) for one in (plan, fresh))
        changed.append(f"fields were {was}, now {now}")
    if changed:
        raise OptionError(
            f"{destination}: an unfinished conversion there had another source: {'; '.join(changed)};"
            f" restore it, or delete {destination / BUILDING_NAME} to start over"
        )


def needed_nbytes(shards: Iterable[PlannedShard], *, num_fields: int) -> int:
    """Return the bytes on disk for `shards`, whose samples have `num_fields` fields, if the images keep their bytes."""
    overhead = _SAMPLE_OVERHEAD + num_fields * _FIELD_OVERHEAD
    return sum(shard.nbytes + shard.num_slots * overhead for shard in shards)


def free_nbytes(directory: Path) -> int:
    """Return the bytes free for this user where `directory` is or will be."""
    directory = directory.absolute()
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
