"""The object that claims a location in a store for one conversion, from before its first shard until after its manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from converters.planning.plan import ConversionPlan
from converters.publishing.destination import ERRORS_NAME, MUTABLE_OPTIONS, FoundSet
from converters.writers import TARGETS
from datapipe.core.remembering import looking_again
from datapipe.errors import MissingDataError, StorageError
from datapipe.index.manifest import BUILDING_NAME, MANIFEST_NAME, parse_document
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.stores.location import Location
from datapipe.stores.objects import list_names, read_object
from datapipe.stores.transfers import delete, write

_SUFFIXES = "|".join(re.escape(target.suffix) for target in TARGETS.values())
_SHARD_NAME = re.compile(rf".*-\d{{6}}(({_SUFFIXES})({re.escape(SIDECAR_SUFFIX)})?|\.idx)")
_NOWHERE = Path()


class Claim(msgspec.Struct, frozen=True):
    """A statement of what a conversion writes to a location and replaces there, the same on every machine that makes it."""

    plan: str  # digest of the plan: equal ones write equal bytes
    sets: list[str]  # names of the sets to write, "" for the location itself
    replaced: dict[str, str]  # by set, the SHA-256 of each manifest that was there and is deleted first
    replaces: list[str]  # objects below the location that go once the new dataset is complete


@dataclass(frozen=True, slots=True)
class Present:
    """The manifests at a location."""

    location: Location
    manifests: Mapping[str, bytes]  # by set

    def place_of(self, name: str) -> Location:
        """Return the prefix of a set."""
        return _place(self.location, name)

    def replaced_by(self, claim: Claim) -> list[str]:
        """Return the sets that were there when `claim` was made, and are to be deleted."""
        return [name for name, text in self.manifests.items() if claim.replaced.get(name) == _sha256(text)]

    def is_finished_by(self, claim: Claim) -> bool:
        """Return True if every set of `claim` was written."""
        written = set(self.manifests) - set(self.replaced_by(claim))
        return bool(claim.sets) and written >= set(claim.sets)

    def files(self) -> set[str]:
        """Return the names, below the location, of all objects of these datasets."""
        names: set[str] = set()
        for name, text in self.manifests.items():
            files = FoundSet(name, _NOWHERE, parse_document(text, str(self.place_of(name) / MANIFEST_NAME))).files()
            names |= {f"{name}/{file}" if name else file for file in files}
        return names


@looking_again()
def find_present(location: Location) -> Present:
    """Return the manifests at `location` and one level below. Raises StorageError."""
    found: dict[str, bytes] = {}
    for name in ("", *(name.rstrip("/") for name in list_names(location) if name.endswith("/"))):
        if not name or MANIFEST_NAME in list_names(location / name):
            text = _read_if_there(_place(location, name) / MANIFEST_NAME)
            if text is not None:
                found[name] = text
    return Present(location, found)


def read_claim(location: Location) -> Claim | None:
    """Return the claim on `location`, None if there is none. One that this program did not write has no plan."""
    text = _read_if_there(location / BUILDING_NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Claim)
    except (msgspec.MsgspecError, ValueError):
        return Claim("", [], {}, [])


def make_claim(plan: ConversionPlan, present: Present, *, overwrite: bool) -> Claim:
    """Claim the location for `plan`, before anything else is written there, or take up a claim of the same plan; return it.

    Of two conversions that begin at once, the store lets one create the object. Raises StorageError for the other one, unless
    both would write the same; with `overwrite`, a claim that exists is replaced.
    """
    location = present.location
    place = location / BUILDING_NAME
    digest = _digest_of(plan)
    there = {name: _sha256(text) for name, text in present.manifests.items()} if overwrite else {}
    replaces = present.files() if overwrite else set()
    wanted = Claim(digest, [planned.name for planned in plan.sets], there, sorted(replaces))
    existing = read_claim(location)
    if existing is None:
        try:
            write(msgspec.json.encode(wanted), place, overwrite=False)
            return wanted
        except StorageError:
            existing = read_claim(location)
            if existing is None:
                raise
    if existing.plan == digest:
        return existing
    if not overwrite:
        raise StorageError(
            None,
            f"{location}: another conversion, of other options or another source, was begun there (it wrote {BUILDING_NAME});"
            " wait for it, choose another place, or pass --overwrite",
        )
    replaces |= {*existing.replaces, *_begun(location, existing.sets)}
    wanted = Claim(digest, wanted.sets, there, sorted(replaces))
    write(msgspec.json.encode(wanted), place, overwrite=True)
    return wanted


def refuse_lost_claim(location: Location, claim: Claim) -> None:
    """Raise StorageError if another conversion, begun with --overwrite, has taken the location since."""
    found = read_claim(location)
    if found is None or found.plan == claim.plan:  # none: another process has finished the same conversion
        return
    raise StorageError(
        None,
        f"{location}: another conversion took this place over with --overwrite; nothing more was written."
        " Wait for it, and convert to another place",
    )


def release_claim(present: Present, claim: Claim) -> None:
    """Delete what a finished conversion replaces, then its claim."""
    location = present.location
    for name in sorted(set(claim.replaces) - present.files()):
        if _is_of_a_dataset(name):  # the claim was read from the store, where anybody may have written it
            delete(location / name)
    delete(location / BUILDING_NAME)


def _is_of_a_dataset(name: str) -> bool:
    """Return True for a name that a conversion gives, in the location itself or in a split."""
    folder, _, last = name.rpartition("/")
    return "/" not in folder and (last in (MANIFEST_NAME, ERRORS_NAME) or _SHARD_NAME.fullmatch(last) is not None)


@looking_again()
def _begun(location: Location, sets: list[str]) -> set[str]:
    """Return the names of the shards that another conversion of these sets may have written."""
    found: set[str] = set()
    for name in sets:
        names = list_names(_place(location, name), at_most=1_000_000)
        found |= {f"{name}/{one}" if name else one for one in names if _SHARD_NAME.fullmatch(one)}
    return found


def _digest_of(plan: ConversionPlan) -> str:
    """Return a digest of all that decides the bytes to be written."""
    facts = {
        "options": {name: value for name, value in plan.options.items() if name not in MUTABLE_OPTIONS},
        "source": plan.source_digest,
        "sets": [[planned.name, planned.num_slots, planned.permutation_key] for planned in plan.sets],
        "fields": [[field.name, field.kind.value] for field in plan.fields],
        "classes": plan.classes,
        "made_from": plan.made_from,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode(errors="surrogateescape")).hexdigest()


def _place(location: Location, name: str) -> Location:
    """Return the prefix of a set."""
    return location / name if name else location


def _read_if_there(location: Location) -> bytes | None:
    try:
        return read_object(location)
    except MissingDataError as exc:
        if "no such object" not in str(exc):
            raise
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
