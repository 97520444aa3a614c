"""Tell the formats of shards by their names, which shards belong together, and what reads them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.forms import FORMS
from datapipe.containers.listing import held_apart_names
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, StorageError
from datapipe.index.entries import RowGroup, Rows
from datapipe.index.sidecar import SidecarRows

TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")  # of lists and of tables
_T = TypeVar("_T")
_OTHERS = re.compile(r".*\.(idx|index|json|txt|tmp|part)", re.IGNORECASE)  # what lies beside shards


def refuse_several_sets(shards: Sequence[str], where: str) -> None:
    """Raise FormatError for `train-*` beside `test-*`: sets of their own, as on Hugging Face's hub. `shards`: their names."""
    names = _grouped(shards, lambda name: re.split(r"[^A-Za-z]", name, maxsplit=1)[0])
    sets = held_apart_names(names)
    if sets:
        pattern = sets[0] + names[sets[0]][0][len(sets[0])] + "*"
        raise FormatError(
            f"{where}: holds shards of {', '.join(sets)}; open one set of them, e.g. '{where.rstrip('/')}/{pattern}'"
        )


def _grouped(names: Sequence[str], group_of: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the names by group, in their order."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group_of(name), []).append(name)
    return groups


def container_of(name: str) -> str | None:
    """The format of a file of that name, None for a file that is no shard; hidden files, as macOS's `._x.tar`, are none."""
    name = name.rpartition("/")[2]
    if name.startswith(".") or _OTHERS.fullmatch(name):
        return None
    return next((form for form, facts in FORMS.items() if facts.shards and facts.files and facts.files.fullmatch(name)), None)


def is_file_name(name: str) -> bool:
    """Return True if files of some form have such a name, whatever its case."""
    return any(facts.files and facts.files.fullmatch(name.lower()) for facts in FORMS.values())


def only_format(names: Sequence[str], where: str, *, pattern: str) -> str:
    """Return the format of these shards. Raises FormatError for several formats, with a pattern that names shards of one."""
    containers = _grouped(names, lambda name: container_of(name) or "")
    if len(containers) > 1:
        found = ", ".join(f"{container} ({group[0]})" for container, group in containers.items())
        raise FormatError(f"{where}: shards of several formats: {found}; open those of one, by a pattern such as '{pattern}'")
    return next(iter(containers))


def scanner_of(container: str) -> Callable[[Any], tuple[SidecarRows, tuple[FieldSpec, ...]]]:
    """Return the function that indexes a shard of that format, by its path; imported now, as some need large libraries.

    That of tars and of Parquet also takes URLs.
    """
    scanner: Callable[[Any], tuple[SidecarRows, tuple[FieldSpec, ...]]]
    scanner = importlib.import_module(FORMS[container].shards).index_shard
    return scanner


def entry_of(form: str, folder: Path) -> Path | None:
    """Return the file by which a folder of a form is read; None if the form has none, or it is no such folder."""
    module = FORMS[form].entries
    found: Path | None = importlib.import_module(module).entry_of(folder) if module else None
    return found


def table_entry_of(folder: Path) -> Path | None:
    """Return the file by which a folder is read that is a table of its own; None for other folders."""
    return next((entry for form in FORMS if FORMS[form].tables and (entry := entry_of(form, folder)) is not None), None)


def take_rows(container: str, path: str, column: str, rows: Sequence[int]) -> list[bytes | DecodeError]:
    """Return one field of rows of a shard by their numbers, of a form that `takes_rows`; errors of single values among them.

    Values are as those of `read_rows`, which also says what is raised. Thread-safe.
    """
    reader = importlib.import_module(FORMS[container].rows)
    found: list[bytes | DecodeError] = _reported(reader, lambda: reader.take_rows(path, column, rows), path, f"{column!r}")
    return found


def read_rows(group: RowGroup) -> Rows:
    """Read one field of a row group: values as the bytes that decoders and `field_values` take. Thread-safe.

    Numbers are `.npy` files, texts UTF-8, nested values JSON; images are as stored, or `.npy` files of pixels.
    Raises MissingDataError, StorageError, or IntegrityError if the shard is damaged or has changed since it was indexed.
    """
    module = FORMS[group.container].rows if group.container in FORMS else ""
    if not module:
        raise IntegrityError(f"{group.path}: its index has row groups, which {group.container} has not; get the index again")
    reader = importlib.import_module(module)
    what = f"{group.column!r} of rows {group.first} to {group.end - 1}"
    rows: Rows = _reported(reader, lambda: reader.read_rows(group), group.path, what)
    return rows


def _reported(reader: Any, read: Callable[[], _T], path: str, what: str) -> _T:
    """Return what `read` returns, with errors that say where, and `what` could not be read. `reader`: the module that reads."""
    try:
        return read()
    except (MissingDataError, StorageError):  # of a store, which has said what is wrong
        raise
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: is missing; get the file again") from exc
    except reader.DAMAGE as exc:
        if isinstance(exc, OSError) and exc.errno:
            raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror or exc})") from exc
        raise IntegrityError(
            f"{path}: {what} cannot be read ({str(exc) or repr(exc)}): damaged, or changed since it was indexed; get the file"
            " again"
        ) from exc
