"""Columns of a Hugging Face dataset, numbers or lists of numbers, from which the rows of whole batches are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.adapt.loaders import Collation
from datapipe.core.readahead import Span

_MODULE, _NAME = "datasets.arrow_dataset", "Dataset"
_DTYPES = {"b": "bool", "i": "int64", "u": "int64", "f": "float32"}  # of batches, by the kind of numpy's dtype
_OF_PYTHON = {**_DTYPES, "f": "float64"}  # of batches that torch makes of Python's numbers
_OF_LABELS = {**_DTYPES, "b": "int64"}  # of the column that transformers calls "labels"


class UnevenRows(Exception):  # noqa: N818 - an answer, not a failure
    """The lists of a batch differ in length, or are empty: only the dataset's own code can say what becomes of them."""


@dataclass(frozen=True, slots=True)
class ChunkedColumn:
    """A column of numbers in several pieces, such as those of a mapped Arrow file, which are not copied."""

    chunks: tuple[NDArray[Any], ...]
    starts: NDArray[np.int64]  # (chunks + 1,) rows at which they begin, and the number of rows
    dtype: str  # of batches

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return (n,) the values at these rows, each at least 0 and below the number of rows."""
        if len(self.chunks) == 1:
            return torch.from_numpy(self.chunks[0][rows].astype(self.dtype, copy=False))
        found = np.empty(len(rows), self.dtype)
        for chunk, places, inside in _by_chunk(self.starts, rows):
            found[places] = self.chunks[chunk][inside]
        return torch.from_numpy(found)


class Lists(NamedTuple):
    """A piece of a column of lists: the values of all, and where those of each begin (n + 1,), or how many each has."""

    values: NDArray[Any]
    offsets: NDArray[Any] | None
    first: int  # value of the first list, if all have the same length
    length: int  # 0: it varies

    def bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Return (n,) where the values of these lists begin, and the length of all. Raises UnevenRows."""
        if self.offsets is None:
            return self.first + rows * self.length, self.length
        starts = self.offsets[rows].astype(np.int64, copy=False)
        lengths = self.offsets[rows + 1] - starts
        if lengths[0] < 1 or (lengths != lengths[0]).any():
            raise UnevenRows
        return starts, int(lengths[0])


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of lists of numbers, in several pieces. Batches are of rows with lists of the same length."""

    chunks: tuple[Lists, ...]
    starts: NDArray[np.int64]  # (chunks + 1,) rows at which they begin, and the number of rows
    dtype: str  # of batches
    is_transposed: bool  # whether a batch is a list of (n,) the first values of all rows, the second ones, ...

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> torch.Tensor | list[torch.Tensor]:
        """Return (n, length) the lists of these rows, each at least 0 and below the number of rows. Raises UnevenRows."""
        found: NDArray[Any] | None = None
        for chunk, places, inside in _by_chunk(self.starts, rows):
            begins, length = self.chunks[chunk].bounds(inside)
            if found is None:
                found = np.empty((len(rows), length), self.dtype)
            elif found.shape[1] != length:
                raise UnevenRows
            values = self.chunks[chunk].values
            shape, (step,) = (len(values) - length + 1, length), values.strides
            found[places] = np.lib.stride_tricks.as_strided(values, shape, (step, step), writeable=False)[begins]
        if found is None:
            raise UnevenRows
        if not self.is_transposed:
            return torch.from_numpy(found)
        return [torch.from_numpy(found[:, place].copy()) for place in range(found.shape[1])]

    def spans(self, rows: NDArray[np.int64]) -> Iterator[Span]:
        """Yield the memory from which these rows are taken."""
        for chunk, _, inside in _by_chunk(self.starts, rows):
            lists = self.chunks[chunk]
            try:
                begins, length = lists.bounds(inside)
            except UnevenRows:
                continue
            size, base = lists.values.itemsize, lists.values.ctypes.data
            yield from (Span(base + begin * size, length * size) for begin in begins.tolist())


Column = ChunkedColumn | ListColumn


@dataclass(frozen=True)
class HubSource:
    """Where rows come from: a loader's dataset, perhaps a `Subset`, the Hugging Face dataset in it, and that one's state."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]
    inner: Any
    state: tuple[Any, ...]

    def is_unchanged(self) -> bool:
        """Return whether the Hugging Face dataset has the rows and the format that it had."""
        now = state_of(self.inner)
        return now[:2] == self.state[:2] and all(one is other for one, other in zip(now[2:], self.state[2:], strict=True))

    def plain(self, keys: list[int]) -> Any:
        """Return the batch as torch makes it."""
        return self.collate_fn(self.dataset.__getitems__(keys))


def is_of_hub(dataset: object) -> bool:
    """Return whether it is a map-style dataset of Hugging Face's. By name: nothing else imports the package."""
    return (type(dataset).__module__, type(dataset).__qualname__) == (_MODULE, _NAME)


def state_of(dataset: Any) -> tuple[Any, ...]:
    """Return the format and the columns of a Hugging Face dataset, then the table and the selection of rows."""
    form = dataset.format
    return (
        (form["type"], bool(form["output_all_columns"]), str(form["format_kwargs"])),
        tuple(form["columns"]),
        dataset._data,
        dataset._indices,
    )


def columns_of(dataset: Any, collation: Collation) -> dict[str, Column] | None:
    """Return the columns of a batch of a Hugging Face dataset in Python's or torch's format without arguments.

    None if one is neither numbers nor lists of numbers without nulls.
    """
    form = dataset.format
    dtypes = _OF_PYTHON if collation == "torch" and form["type"] is None else _DTYPES
    if collation == "transformers" and torch.get_default_dtype() is not torch.float32:
        return None  # to which it makes tensors of Python's numbers
    if form["type"] not in (None, "torch") or form["format_kwargs"] or form["output_all_columns"] or not form["columns"]:
        return None
    names = [name for name in dataset.column_names if name in form["columns"]]
    given = {name: (name, dtypes) for name in names}
    if collation == "transformers":
        if "label_ids" in names or {"label", "labels"} <= set(names):
            return None
        if "label" in names:  # comes first
            given = {"labels": ("label", _OF_LABELS), **{name: source for name, source in given.items() if name != "label"}}
    columns: dict[str, Column] = {}
    for name, (source, kinds) in given.items():
        transposes = collation == "torch" and form["type"] is None
        column = _column(dataset.data.column(source), dataset.features[source], kinds, transposes=transposes)
        if column is None or (source == "label" and name == "labels" and isinstance(column, ListColumn)):
            return None
        columns[name] = column
    return columns


def rows_selected(dataset: Any) -> NDArray[np.int64] | None:
    """Return (n,) the rows of the table that make up the dataset; None: all."""
    return None if dataset._indices is None else dataset._indices.column(0).to_numpy().astype(np.int64)


def _column(values: Any, feature: Any, dtypes: dict[str, str], *, transposes: bool) -> Column | None:
    kind = type(feature).__qualname__
    if values.null_count or not values.num_chunks:
        return None
    starts = np.concatenate([[0], np.cumsum([len(chunk) for chunk in values.chunks])]).astype(np.int64)
    if kind in ("List", "LargeList", "Sequence"):
        lists = tuple(piece for piece in map(_lists, values.chunks) if piece is not None)
        is_whole = len(lists) == values.num_chunks
        return ListColumn(lists, starts, dtypes[lists[0].values.dtype.kind], transposes) if is_whole else None
    if kind not in ("Value", "ClassLabel"):
        return None
    arrays = tuple(numbers for numbers in map(_numbers, values.chunks) if numbers is not None)
    return ChunkedColumn(arrays, starts, dtypes[arrays[0].dtype.kind]) if len(arrays) == values.num_chunks else None


def _lists(chunk: Any) -> Lists | None:
    """Return the lists of an Arrow array; None unless they are of numbers without nulls."""
    name = str(chunk.type)
    is_fixed = name.startswith("fixed_size_list<")
    if not (is_fixed or name.startswith(("list<", "large_list<"))) or str(chunk.type.value_type) == "bool":
        return None  # bits, which would be unpacked for the whole column
    values = _numbers(chunk.values)
    if values is None or not len(values):
        return None
    if not is_fixed:
        return Lists(values, chunk.offsets.to_numpy(), 0, 0)
    length = chunk.type.list_size
    return Lists(values, None, chunk.offset * length, length) if length else None


def _numbers(chunk: Any) -> NDArray[Any] | None:
    """Return the numbers of an Arrow array; None unless they are numbers without nulls, other than uint64."""
    name = str(chunk.type)
    if chunk.null_count:
        return None
    if name == "bool":
        return chunk.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if name in ("float", "double") or (name.lstrip("u").startswith("int") and name != "uint64"):
        return chunk.to_numpy()  # type: ignore[no-any-return]
    return None


def _by_chunk(starts: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[tuple[int, Any, NDArray[np.int64]]]:
    """Yield chunks, the places in the batch of the rows that lie in each, and their rows within it."""
    if len(starts) == 2:
        if len(rows):
            yield 0, slice(None), rows
        return
    chunk_of = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(chunk_of, kind="stable")
    edges = np.flatnonzero(np.diff(chunk_of[order], prepend=-1))
    for places in np.split(order, edges[1:]) if len(rows) else []:
        chunk = int(chunk_of[places[0]])
        yield chunk, places, rows[places] - starts[chunk]
