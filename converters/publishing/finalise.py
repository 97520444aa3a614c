"""Finish a conversion: move shards from the building directory into place, write the manifest, remove the marker.

Every step can be repeated, and the first one records what the others do, so a run that finds `final.json` continues where
another one was killed. Readers refuse the directory until the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from converters.database import open_read_only
from converters.options import OnError
from converters.planning.duplicates import named_duplicates
from converters.planning.plan import ConversionPlan, PlannedSet
from converters.publishing.inventory import ERRORS_NAME, FINISHED_NAME, find_sets
from converters.shards import QUARANTINE_NAME, DoneShard, SampleError, shard_files
from converters.writers import Target
from datapipe.core import atomic, regular_files
from datapipe.core.errors import FormatError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, Manifest, write_manifest

FINAL_NAME = "final.json"
_REMOVED_NAME = "old-removed"


def prepare(
    destination: Path, plan: ConversionPlan, done: dict[int, DoneShard], *, target: Target, options: dict[str, Any]
) -> None:
    """Decide the final contents of the destination, and record them.

    `done`: by shard number, all of them. `options`: as recorded in the manifests.
    """
    sets = []
    for planned in plan.sets:
        mine = [done[shard.number] for shard in plan.shards if shard.set_name == planned.name]
        sets.append({"name": planned.name, "manifest": _manifest(plan, planned, mine, target, options).to_json()})
    old = [os.path.join(found.name, name) for found in find_sets(destination) for name in (*found.files(), QUARANTINE_NAME)]
    atomic.write_json(destination / BUILDING_NAME / FINAL_NAME, {"sets": sets, "remove": old})


def finish(destination: Path, plan: ConversionPlan, done: dict[int, DoneShard], *, target: Target) -> list[tuple[str, Manifest]]:
    """Execute what `prepare` recorded; return the manifests by set."""
    building = destination / BUILDING_NAME
    final = _read_final(destination, building / FINAL_NAME)
    _remove_old(destination, building, final.remove)
    manifests = prepared_manifests(destination)
    for name, manifest in manifests:
        directory = destination / name
        directory.mkdir(exist_ok=True)
        (directory / BUILDING_NAME).mkdir(exist_ok=True)  # marks the directory of a split as unfinished, too
        shards = [shard for shard in plan.shards if shard.set_name == name]
        for shard in shards:
            for file in shard_files(shard.stem, target):
                _move(building / file, directory / file)
        quarantine = building / QUARANTINE_NAME / name
        if OnError(manifest.options["on_error"]) is OnError.QUARANTINE and quarantine.is_dir():
            _move_quarantine(quarantine, directory / QUARANTINE_NAME)
        if write_errors(building / ERRORS_NAME, plan, name, done):
            os.replace(building / ERRORS_NAME, directory / ERRORS_NAME)
        atomic.sync_directory(directory)
        write_manifest(building, manifest)  # not in place, since a kill would leave a temporary file there
        atomic.move(building / MANIFEST_NAME, directory / MANIFEST_NAME)
    for name, _ in manifests:
        if name:
            (destination / name / BUILDING_NAME).rmdir()
    shutil.rmtree(destination / FINISHED_NAME, ignore_errors=True)
    atomic.move(building, destination / FINISHED_NAME)
    sweep(destination)
    return manifests


def prepared_manifests(destination: Path) -> list[tuple[str, Manifest]]:
    """Return the manifests that `prepare` recorded, by set."""
    path = destination / BUILDING_NAME / FINAL_NAME
    return [(one.name, Manifest.from_json(one.manifest, str(path))) for one in _read_final(destination, path).sets]


class _FinalSet(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    manifest: dict[str, Any]


class _Final(msgspec.Struct, forbid_unknown_fields=True):
    """The record that `prepare` wrote."""

    sets: list[_FinalSet]
    remove: list[str]


def _read_final(destination: Path, path: Path) -> _Final:
    """Read the record. Raises FormatError for a file that `prepare` did not write, and for a name outside the destination."""
    try:
        final = msgspec.convert(json.loads(regular_files.read_bytes(path)), _Final)
    except FormatError:
        raise
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"{path}: damaged ({exc}); delete {path.parent} and convert again") from exc
    for name in (*final.remove, *filter(None, [one.name for one in final.sets])):
        regular_files.path_inside(str(destination), name, named_in=path, follows=True)  # a link itself is removed,
        if folder := os.path.dirname(name):  # but one on the way to it would be followed
            regular_files.path_inside(str(destination), folder, named_in=path)
    return final


def sweep(destination: Path) -> bool:
    """Delete what a finished conversion leaves behind; return True if there was anything."""
    leftover = destination / FINISHED_NAME
    if not leftover.is_dir():
        return False
    shutil.rmtree(leftover, ignore_errors=True)
    return True


def _manifest(
    plan: ConversionPlan, planned: PlannedSet, done: list[DoneShard], target: Target, options: dict[str, Any]
) -> Manifest:
    sizes = {size for shard in done for size in shard.image_sizes} - {(0, 0)}  # of samples without an image
    return Manifest(
        container=target.container,
        fields=plan.fields,
        shards=tuple(shard.info for shard in done),
        classes=plan.classes,
        class_to_idx=None if plan.classes is None else {name: label for label, name in enumerate(plan.classes)},
        permutation_key=planned.permutation_key,
        image_size=sizes.pop() if len(sizes) == 1 else None,
        options=options,
        source_digest=plan.source_digest,
        made_from=plan.made_from,
    )


def _remove_old(destination: Path, building: Path, names: list[str]) -> None:
    """Delete the replaced dataset, its manifest first; only once, since new files take its names."""
    if not names or (building / _REMOVED_NAME).exists():
        return
    for name in sorted(names, key=lambda name: os.path.basename(name) != MANIFEST_NAME):
        path = destination / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in {os.path.dirname(name) for name in names} - {""}:
        with contextlib.suppress(OSError):  # the folder of a split, removed if it is empty
            (destination / folder).rmdir()
    atomic.write_json(building / _REMOVED_NAME, True)


def _move(source: Path, target: Path) -> None:
    """Rename unless an earlier run did. Raises FileNotFoundError if the file is in neither place."""
    try:
        os.replace(source, target)
    except FileNotFoundError:
        if not target.exists():
            raise


def _move_quarantine(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.replace(source, target)


def _errors_of(plan: ConversionPlan, set_name: str, done: list[DoneShard]) -> list[SampleError]:
    """Return directories that could not be listed first, then duplicates in the order of the listing, then bad samples by id."""
    planned = next(planned for planned in plan.sets if planned.name == set_name)
    unlisted = [SampleError(source, None, reason) for source, reason in planned.problems]
    if plan.duplicates.num and planned is plan.sets[0]:
        with open_read_only(plan.path) as connection:
            for source, original, is_one_label in named_duplicates(connection):
                unlisted.append(SampleError(source, None, _as_reason(original, is_one_label)))
    return unlisted + sorted((error for shard in done for error in shard.errors), key=lambda error: error.id or 0)


def _as_reason(original: str, is_one_label: bool) -> str:
    return f"duplicate: has the same bytes as {original}{'' if is_one_label else ', with another label'}"


def write_errors(path: Path, plan: ConversionPlan, set_name: str, done: dict[int, DoneShard]) -> bool:
    """Write the list of a set's bad samples, and return True; False, and no file, if there are none."""
    shards = [done[shard.number] for shard in plan.shards if shard.set_name == set_name]
    errors = _errors_of(plan, set_name, shards)
    if not errors:
        return False
    with atomic.atomic_writer(path) as file:
        for error in errors:
            line = json.dumps({"source": error.source, "id": error.id, "reason": error.reason}, ensure_ascii=False)
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")
    return True
