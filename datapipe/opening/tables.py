"""Recognise tables: files of rows that hold neither images nor sound, and that list no files of these."""

from __future__ import annotations

import os

from datapipe.containers.form import Form
from datapipe.containers.formats import container_of
from datapipe.containers.forms import FORMS, TABLE
from datapipe.containers.look import LIST_NAMES, Evidence, Look, Nature, Strength
from datapipe.containers.parquet import scanner as parquet
from datapipe.containers.tables.container import rows_container
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.index.tables import TABLE_NAME
from datapipe.peers import arrow
from datapipe.peers.lance import scanner as lance
from datapipe.sources.lists import names_files

_SAMPLES = ("tar", "tfrecord")  # forms of shards that no table has
_TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson")
_MATRIX = ".npy"


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a table, or files of rows of a form that has them alone; None if it is none."""
    if form.has_choices or look.nature is Nature.NOTHING:
        return None  # what is chosen are files of samples
    if form.name != TABLE:
        return _recognise_own(look, form.name)
    if look.nature is Nature.FOLDER and TABLE_NAME.encode() in look.files:
        return Evidence(f"it holds {TABLE_NAME}", Strength.DECISIVE)
    if look.is_stored:
        return _recognise_stored(look)
    if look.nature is Nature.FOLDER and look.holds(_is_of_samples):
        return None
    # Beside files of samples, a text is rather a list of them, and what lies in a folder of theirs is no table.
    is_beside = look.nature is Nature.FOLDER and look.has_media
    first = next(look.paths(lambda name: _is_columns_name(name, look) if is_beside else _is_rows_name(name)), None)
    if first is not None and look.nature is Nature.FOLDER and os.path.basename(first).lower().encode() in LIST_NAMES:
        return None  # a list of what may lie elsewhere
    if first is None or not _are_rows(look, first):
        return None
    name = os.path.basename(first)
    if look.nature is Nature.PATTERN and not all(map(_is_rows_name, look.files)):
        return None
    return None if look.nature is Nature.FOLDER and name.endswith(_MATRIX) else look.evidence(name)


def _recognise_own(look: Look, form: str) -> Evidence | None:
    """Return why a place is files of a form that holds rows alone, by their names."""
    own = [name for name in map(os.fsdecode, look.files) if rows_container(name) == form]
    if not own or look.is_stored:
        return None
    return None if look.nature is Nature.PATTERN and len(own) < len(look.files) else look.evidence(own[0])


def _recognise_stored(look: Look) -> Evidence | None:
    """Return why objects are a table: of the tables in stores, Parquet is read."""
    if look.nature is not Nature.PATTERN and not any(map(_is_parquet, look.files)):
        return None
    first = look.first_shard("parquet")
    if first is None or not _is_parquet(os.path.basename(first).encode()) or _holds_samples(look, first, "parquet"):
        return None
    return Evidence(f"its name ends with {look.suffix}" if look.nature is Nature.FILE else "it holds Parquet files of rows")


def _is_parquet(name: bytes) -> bool:
    return container_of(os.fsdecode(name)) == "parquet"


def _is_of_samples(name: bytes) -> bool:
    return container_of(os.fsdecode(name)) in _SAMPLES or name in (MANIFEST_NAME.encode(), TABLE_NAME.encode())


def _is_rows_name(name: bytes) -> bool:
    pattern = FORMS[TABLE].files
    is_other = name.endswith(SIDECAR_SUFFIX.encode()) or name.startswith(b"_")
    return pattern is not None and pattern.fullmatch(os.fsdecode(name)) is not None and not is_other


def _is_columns_name(name: bytes, look: Look) -> bool:
    return name in look.files and rows_container(os.fsdecode(name)) is not None and _is_rows_name(name)


def _are_rows(look: Look, path: str) -> bool:
    suffix = os.path.splitext(path)[1].lower()
    if suffix == _MATRIX:
        return True
    if suffix in _TEXTS:
        return not names_files(look, path)
    container = rows_container(path) or ""
    if container == "hdf5":
        from datapipe.containers.hdf5.row_major import is_row_major  # late: h5py takes a tenth of a second

        return look.once(f"rows in {path}", lambda: is_row_major(path))
    return container_of(os.path.basename(path)) is None or not _holds_samples(look, path, container)


def _holds_samples(look: Look, path: str, container: str) -> bool:
    holds = {"parquet": parquet.holds_samples, "lance": lance.holds_samples}.get(container, arrow.holds_samples)
    return look.once(f"samples in {path}", lambda: holds(path))
