"""May this conversion write into that destination? Questions asked before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from converters import finalise
from converters.inventory import find_sets, holds_dataset, strange_files
from converters.options import ConvertOptions
from converters.planning import Plan, PlannedShard
from converters.sources.image_folder import ClassTable
from datapipe.errors import OptionError
from datapipe.manifest import BUILDING_NAME, Manifest

_SAMPLE_OVERHEAD = 2560  # bytes: two headers, padding, label block, index row
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


def refuse_changed_options(plan: Plan, options: ConvertOptions, classes: ClassTable, destination: Path) -> None:
    """Raise OptionError, naming them, for options other than the unfinished conversion's."""
    asked = options.as_typed()
    changed = [
        f"{name} was {plan.options.get(name)!r}, now {asked[name]!r}"
        for name in asked
        if name not in _MUTABLE_OPTIONS and asked[name] != plan.options.get(name)
    ]
    if plan.classes != classes.names:
        changed.append(f"classes were {len(plan.classes)}, now {len(classes.names)}, or other names")
    if changed:
        raise OptionError(
            f"{destination}: a conversion with other options is unfinished there: {'; '.join(changed)};"
            f" pass the same options to resume, or delete {destination / BUILDING_NAME} to begin anew"
        )


def needed_nbytes(shards: Iterable[PlannedShard]) -> int:
    """Bytes on disk for `shards` if the images keep their bytes."""
    return sum(shard.nbytes + shard.num_slots * _SAMPLE_OVERHEAD for shard in shards)


def free_nbytes(directory: Path) -> int:
    """Free for this user where `directory` is or will be."""
    directory = directory.absolute()
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
