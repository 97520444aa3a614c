"""Columns that folders name, as Hive and Spark write them: all rows of the files in `label=0/` have the label 0."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from datapipe.stores.location import is_url

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_MAGIC = re.compile(r"[*?\[{]")


def partition_root(source: object, paths: Sequence[str]) -> str:
    """Return the folder below which names of folders are columns: the source, or what its files have in common.

    `paths`: the files of the source. Of a pattern it is the folder before its first wildcard.
    """
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)  # type: ignore[call-overload]
    if len(sources) > 1:
        folders = [f"{os.path.dirname(path)}/" for path in paths]
        return os.path.commonprefix(folders).rpartition("/")[0]  # noqa: RUF071, of URLs, and of paths of several forms
    text = os.fspath(sources[0])
    if [text] == list(paths):
        return os.path.dirname(text)
    return text if os.path.isdir(text) or not _MAGIC.search(text) else os.path.dirname(_MAGIC.split(text)[0])


def partitions_of(paths: Sequence[str], root: str) -> list[dict[str, Any]]:
    """Return the value of each column that folders name, as a pa.Scalar, for each of these files below the root.

    A column is of the smallest integers if all its values are whole numbers without leading zeros, else of strings.
    """
    found = [_named(path, root) for path in paths]
    names = dict.fromkeys(name for one in found for name in one)
    kinds = {name: _kind_of([one[name] for one in found if name in one]) for name in names}
    return [{name: _scalar(text, kinds[name]) for name, text in one.items()} for one in found]


def _named(path: str, root: str) -> dict[str, str | None]:
    folder = os.path.dirname(path)
    if "=" not in folder:
        return {}
    below = folder.removeprefix(root.rstrip("/")) if is_url(path) else os.path.relpath(folder or ".", root or ".")
    pairs = (part.partition("=") for part in below.split("/"))
    return {unquote(name): None if value == _NULL else unquote(value) for name, sign, value in pairs if name and sign}


def _kind_of(texts: Sequence[str | None]) -> Any:
    values = [text for text in texts if text is not None]
    if not values or not all(map(_WHOLE.fullmatch, values)):
        return pa.string()
    ends = max(max(map(int, values)), -1 - min(map(int, values)))
    return next(kind for kind in _INTEGERS if ends < 1 << (kind.bit_width - 1))


def _scalar(text: str | None, kind: Any) -> Any:
    return pa.scalar(None if text is None else text if pa.types.is_string(kind) else int(text), kind)
