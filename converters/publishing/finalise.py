"""Decide the final contents of a destination: manifests and lists of bad samples, and where every file goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from converters.options import OnError
from converters.planning.duplicates import named_duplicates
from converters.planning.plan import ConversionPlan, PlannedSet
from converters.publishing import placing
from converters.publishing.destination import ERRORS_NAME, find_sets
from converters.samples.tokenising import stored_fields
from converters.shards import QUARANTINE_NAME, DoneShard, SampleError, shard_files
from converters.writers import Target
from datapipe.codecs.tokens import TokenFacts
from datapipe.core import atomic
from datapipe.core.database import open_read_only
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, Manifest, class_numbers, write_manifest

DOCUMENTS_NAME = "documents"  # in the building directory: by set, its manifest and its list of bad samples


def prepare(
    destination: Path, plan: ConversionPlan, done: dict[int, DoneShard], *, target: Target, options: dict[str, Any]
) -> None:
    """Write manifests and lists of bad samples into the building directory, and record the last steps.

    `done`: by shard number, all of them. `options`: as recorded in the manifests.
    """
    building = destination / BUILDING_NAME
    moves: list[tuple[str, str]] = []
    last: list[tuple[str, str]] = []
    for planned in plan.sets:
        documents, name = os.path.join(DOCUMENTS_NAME, planned.name), planned.name
        (building / documents).mkdir(parents=True, exist_ok=True)
        mine = [shard for shard in plan.shards if shard.set_name == name]
        moves += [(file, os.path.join(name, file)) for shard in mine for file in shard_files(shard.stem, target)]
        quarantine = os.path.join(QUARANTINE_NAME, name) if name else QUARANTINE_NAME
        if OnError(options["on_error"]) is OnError.QUARANTINE and (building / quarantine).is_dir():
            moves.append((quarantine, os.path.join(name, QUARANTINE_NAME)))
        shards = [done[shard.number] for shard in mine]
        if errors := _errors_of(plan, planned, shards):
            _write_errors(building / documents / ERRORS_NAME, errors)
            moves.append((os.path.join(documents, ERRORS_NAME), os.path.join(name, ERRORS_NAME)))
        write_manifest(building / documents, _manifest(plan, planned, shards, target, options))
        last.append((os.path.join(documents, MANIFEST_NAME), os.path.join(name, MANIFEST_NAME)))
    old = [os.path.join(found.name, name) for found in find_sets(destination) for name in (*found.files(), QUARANTINE_NAME)]
    placing.record(destination, remove=old, moves=moves, last=last)


def _manifest(
    plan: ConversionPlan, planned: PlannedSet, done: list[DoneShard], target: Target, options: dict[str, Any]
) -> Manifest:
    sizes = {size for shard in done for size in shard.image_sizes} - {(0, 0)}  # of samples without an image
    tokens = options.get("tokens")
    return Manifest(
        container=target.container,
        fields=plan.fields if tokens is None else stored_fields(plan.fields),
        shards=tuple(shard.info for shard in done),
        classes=plan.classes,
        class_to_idx=class_numbers(plan.classes),
        permutation_key=planned.permutation_key,
        image_size=sizes.pop() if len(sizes) == 1 else None,
        options=options,
        source_digest=plan.source_digest,
        made_from=plan.made_from,
        tokens=None if tokens is None else TokenFacts(**tokens),
    )


def _errors_of(plan: ConversionPlan, planned: PlannedSet, done: list[DoneShard]) -> list[SampleError]:
    """Return directories that could not be listed first, then duplicates in the order of the listing, then bad samples by id."""
    unlisted = [SampleError(source, None, reason) for source, reason in planned.problems]
    if plan.duplicates.num and planned is plan.sets[0]:
        with open_read_only(plan.path) as connection:
            for source, original, is_one_label in named_duplicates(connection):
                unlisted.append(SampleError(source, None, _as_reason(original, is_one_label)))
    return unlisted + sorted((error for shard in done for error in shard.errors), key=lambda error: error.id or 0)


def _as_reason(original: str, is_one_label: bool) -> str:
    return f"duplicate: has the same bytes as {original}{'' if is_one_label else ', with another label'}"


def _write_errors(path: Path, errors: list[SampleError]) -> None:
    with atomic.atomic_writer(path) as file:
        for error in errors:
            line = json.dumps({"source": error.source, "id": error.id, "reason": error.reason}, ensure_ascii=False)
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")
