"""May this conversion write into that destination? Questions asked before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from converters import finalise
from converters.inventory import find_sets, holds_dataset, strange_files
from converters.options import ConvertOptions, OnError
from converters.planning import Plan, PlannedShard
from datapipe.errors import DecodeError, OptionError, StorageError
from datapipe.manifest import BUILDING_NAME, Manifest

_SAMPLE_OVERHEAD = 512  # bytes: of the index
_FIELD_OVERHEAD = 1024  # bytes per sample: header and padding
_MUTABLE_OPTIONS = ("on_error", "max_errors")  # may change between runs: they decide about bad samples only


def already_ended(destination: Path, options: ConvertOptions) -> list[tuple[str, Manifest]] | None:
    """The manifests if nothing is left to do; None if there is. Raises OptionError for a destination that is in use."""
    if destination.exists() and not destination.is_dir():
        raise OptionError(f"{destination}: is not a directory; choose another destination")
    if options.part is not None and options.overwrite:
        raise OptionError(
            "--overwrite with --part: no part could tell the old dataset from the new; delete the destination first"
        )
    is_building = (destination / BUILDING_NAME).is_dir()
    was_swept = not is_building and finalise.sweep(destination)
    sets = find_sets(destination) if holds_dataset(destination) else []
    manifests = [(found.name, found.manifest) for found in sets]
    if was_swept and sets:
        return manifests
    if is_building and (destination / BUILDING_NAME / finalise.FINAL_NAME).exists():
        return None
    if sets and not options.overwrite:
        if options.part is not None and all(manifest.options == options.as_typed() for _, manifest in manifests):
            return manifests  # job arrays start parts again that others have finished
        if not is_building:
            raise OptionError(f"{destination}: holds a finished dataset; pass --overwrite to replace it, or choose another place")
        raise OptionError(f"{destination}: a conversion with --overwrite was interrupted there; pass --overwrite again to go on")
    strange = strange_files(destination, sets)
    if strange:
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        raise OptionError(f"{destination}: holds files that no conversion wrote ({shown}); choose an empty or new directory")
    return None


def refuse_unreadable(plan: Plan, options: ConvertOptions) -> None:
    """Under "fail", raise StorageError for places that could not be listed, DecodeError for samples known to be bad."""
    if options.on_error is not OnError.FAIL:
        return
    if plan.problems:
        source, reason = plan.problems[0]
        raise StorageError(
            f"{options.source}/{source}: {reason} ({len(plan.problems)} such places in all);"
            " repair, or leave them out with --on-error skip"
        )
    known = plan.unreadable
    if known.num:
        shown = "; ".join(f"{source}: bad sample: {reason}" for source, reason in known.first)
        more = f"; and {known.num - len(known.first)} more" if known.num > len(known.first) else ""
        raise DecodeError(
            f"{options.source}: {known.num} of {plan.num_samples} samples cannot be read: {shown}{more};"
            " repair them, or leave them out with --on-error skip or quarantine"
        )


def refuse_changed_options(plan: Plan, options: ConvertOptions, destination: Path) -> None:
    """Raise OptionError, naming them, for options other than the unfinished conversion's."""
    asked = options.as_typed()
    changed = [
        f"{name} was {plan.options.get(name)!r}, now {asked[name]!r}"
        for name in asked
        if name not in _MUTABLE_OPTIONS and asked[name] != plan.options.get(name)
    ]
    if changed:
        raise OptionError(
            f"{destination}: a conversion with other options is unfinished there: {'; '.join(changed)};"
            f" pass the same options to resume, or delete {destination / BUILDING_NAME} to begin anew"
        )


def refuse_changed_meaning(plan: Plan, fresh: Plan, destination: Path) -> None:
    """Raise OptionError if the same samples would now have other fields or classes: a map or a header changed."""
    changed = []
    if plan.classes != fresh.classes:
        changed.append(f"classes were {len(plan.classes or ())}, now {len(fresh.classes or ())}, or other names")
    if plan.fields != fresh.fields:
        was, now = (", ".join(f"{field.name} ({field.kind.value})" for field in one.fields) for one in (plan, fresh))
        changed.append(f"fields were {was}, now {now}")
    if changed:
        raise OptionError(
            f"{destination}: an unfinished conversion there saw another source: {'; '.join(changed)};"
            f" restore it, or delete {destination / BUILDING_NAME} to begin anew"
        )


def needed_nbytes(shards: Iterable[PlannedShard], *, num_fields: int) -> int:
    """Bytes on disk for `shards`, of samples of so many fields, if the images keep their bytes."""
    overhead = _SAMPLE_OVERHEAD + num_fields * _FIELD_OVERHEAD
    return sum(shard.nbytes + shard.num_slots * overhead for shard in shards)


def free_nbytes(directory: Path) -> int:
    """Free for this user where `directory` is or will be."""
    directory = directory.absolute()
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
