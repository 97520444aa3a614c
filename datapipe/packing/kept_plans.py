"""Plans of packs, each made once, kept in a file and mapped."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.core import arrow_maps, atomic
from datapipe.core.user_cache import one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, StorageError
from datapipe.index.arrow_buffers import array_of, lists_of, values_of
from datapipe.packing.documents import Documents, Field
from datapipe.packing.plan import PackPlan
from datapipe.packing.settings import PackSettings
from datapipe.packing.windows import fitted, grouped, windows_of

_IDENTITY = b"datapipe.packs"  # key of the schema's metadata
_PLAN_COLUMNS = {
    "shard_of_window": np.int64, "first_document": np.int64, "first_pack": np.int64, "num_fitted": np.int64,
    "first_part": np.int64, "ends": np.int64, "items": np.uint16, "parts": np.uint32, "losses": np.uint32, "costs": np.float32,
    "checksums": np.uint32,
}  # fmt: skip


def open_plan(
    index: Documents, settings: PackSettings, homes: Sequence[Path], *, beside: Sequence[Field] = (), repack: bool = False
) -> PackPlan:
    """Return the plan of packs by these settings: one that is kept in one of `homes`, else one made now and kept in the first.

    `beside`: other fields of the documents, which are packed with them, by `max_tokens`. Raises OptionError for a document that
    is too long, if that is an error, and where no pack is left.
    """
    fields = [(index, settings), *beside]
    digest = hashlib.sha256(_identity(fields)).hexdigest()[:16] if beside else index.fingerprint
    name = f"packs-{settings.name}-{digest}.arrow"
    for home in homes:
        with contextlib.suppress(FileNotFoundError):
            return _mapped(home / name, fields, repack)
    writable = [home for home in homes if _is_writable(home)]
    if not writable:
        places = " and ".join(map(str, homes))
        raise StorageError(errno.EACCES, f"{places}: no plan of packs can be written; make one of them writable")
    home = writable[0]
    with one_at_a_time(home / ".packs.lock"):
        if not (home / name).exists():
            with reported_wait(f"the packs of {index.where}", "they are planned once"):
                _write_plan(home / name, fields)
    return _mapped(home / name, fields, repack)


def _identity(fields: Sequence[Field]) -> bytes:
    """Return what documents a plan is of, and by which settings."""
    return " ".join(f"{index.fingerprint} {settings.name}" for index, settings in fields).encode()


def _write_plan(path: Path, fields: Sequence[Field]) -> None:
    (index, settings), spans = fields[0], windows_of(fields[0][0])
    if settings.max_tokens is None:
        windows = [fitted(index, settings, number, first) for number, first in spans]
    else:
        windows = [grouped(fields, number, first) for number, first in spans]
    num_packs = [len(window.ends) for window in windows]
    num_items = np.cumsum([0, *(len(window.items) for window in windows)])
    columns: dict[str, NDArray[Any]] = {
        "shard_of_window": np.array([number for number, _ in spans], np.int64),
        "first_document": np.array([first for _, first in spans], np.int64),
        "first_pack": np.cumsum([0, *num_packs], dtype=np.int64),
        "num_fitted": np.array([window.num_fitted for window in windows], np.int64),
        "first_part": np.cumsum([0, *(len(window.parts) for window in windows)], dtype=np.int64)[:-1],
        "ends": _joined([before + window.ends for before, window in zip(num_items.tolist(), windows, strict=False)], np.int64),
    }
    for name in ("items", "parts", "losses", "costs"):
        columns[name] = _joined([getattr(window, name) for window in windows], _PLAN_COLUMNS[name])
    unchecked = np.zeros(len(spans), np.bool_)
    columns["checksums"] = np.zeros(len(spans), np.uint32)
    plan = PackPlan(path, index, settings, False, **columns, is_checked=unchecked, is_of_several=False)
    columns["checksums"] = np.array([plan.checksum(number) for number in range(len(spans))], np.uint32)
    table = pa.table({name: lists_of([len(values)], array_of(values)) for name, values in columns.items()})
    table = table.replace_schema_metadata({_IDENTITY: _identity(fields)})
    with atomic.atomic_writer(path) as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Return these arrays one after the other; there may be none."""
    return np.concatenate([np.zeros(0, dtype), *parts])


def _mapped(path: Path, fields: Sequence[Field], repack: bool) -> PackPlan:
    """Map a plan. Raises FileNotFoundError if there is none, FormatError if it is not one of these documents."""
    index, settings = fields[0]
    try:
        (batch,) = pa.ipc.open_stream(arrow_maps.stream_of(arrow_maps.map_file(path)))
        batch.validate(full=True)
        if (batch.schema.metadata or {}).get(_IDENTITY) != _identity(fields):
            raise ValueError("it is of other documents, or by other settings")
        arrays = {name: _values(batch.column(name), np.dtype(dtype)) for name, dtype in _PLAN_COLUMNS.items()}
        sizes = {name: len(values) for name, values in arrays.items()}
        per_window = {sizes[name] for name in ("shard_of_window", "first_document", "num_fitted", "first_part", "checksums")}
        per_pack = {sizes[name] for name in ("ends", "losses", "costs")}
        if per_window != {sizes["first_pack"] - 1} or per_pack != {int(arrays["first_pack"][-1])}:
            raise ValueError("its columns differ in length")
        spans = np.array(windows_of(index), np.int64).reshape(-1, 2)
        if not np.array_equal(np.stack([arrays["shard_of_window"], arrays["first_document"]], axis=1), spans):
            raise ValueError("it is of other documents")
        first_pack, num_fitted = arrays["first_pack"], arrays["num_fitted"]
        if first_pack[0] or (first_pack[1:] < first_pack[:-1]).any() or (num_fitted < 0).any():
            raise ValueError("its packs do not ascend")
        num_full = np.diff(first_pack) - num_fitted
        if (num_full < 0).any() or [*arrays["first_part"], sizes["parts"]] != [0, *np.cumsum(num_full)]:
            raise ValueError("its packs do not have the parts that there are")
    except FileNotFoundError:
        raise
    except arrow_maps.DAMAGE as exc:
        raise FormatError(f"{path}: no plan of packs ({exc}); delete it, and it is made again") from exc
    return PackPlan(path, index, settings, repack, **arrays, is_checked=np.zeros(len(spans), np.bool_), is_of_several=False)


def _values(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of the only row of a column of lists, where they lie."""
    if column.type != pa.large_list(pa.from_numpy_dtype(dtype)) or len(column) != 1 or column.null_count:
        raise ValueError(f"a column is {column.type}")
    return values_of(column.flatten(), dtype)


def _is_writable(home: Path) -> bool:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(home, os.W_OK | os.X_OK)
