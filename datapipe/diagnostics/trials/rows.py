"""Try whole batches from memory in place of a Dataset that reads its rows one by one: from tensors, arrays or a data frame.

The Dataset's own code is run in a fork of the script's process, as nobody else can run it. The table is found among its
attributes: those of as many rows as it has samples, whose values at some rows are the numbers of the samples there, no more and
no fewer.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from datapipe.diagnostics.trials.forking import Make, cpu_ratio, told_by_fork

_MAX_BATCH = 1024  # rows
_NUM_COMPARED = 12  # samples
_NAN = -1.1754944e-38  # stands for NaN, which is not equal to itself
_MOST_NAMED = 6  # columns in the code that is shown
_MOST_COPIED = 1 << 30  # bytes of columns that are laid side by side; larger ones are gathered each by itself


def try_rows(loader: Any, *, seconds: float) -> dict[str, Any]:
    """Return {"rows": `cpu_ratio` of gathered batches over the Dataset's, and "code"}; {} if it reads no table.

    `code`: the data for a loader that gathers, as Python; empty if `from_torch` finds it by itself. Forks, and waits for the
    child for at most `seconds` and some more.
    """
    from datapipe.adapt.number_rows import rows_of

    dataset = loader.dataset
    if loader.batch_sampler is None or not hasattr(dataset, "__len__") or not len(dataset):
        return {}
    if rows_of(dataset) is None and not list(_columns(dataset)):
        return {}
    told = told_by_fork(lambda: _measured(loader, seconds=seconds), seconds=seconds)
    return {"rows": told} if "ratio" in told else {}


def table_behind(dataset: Any) -> tuple[Make, str] | None:
    """Return what gathers the rows that a Dataset reads, and code for its data; None if that is not certain.

    Reads some samples.
    """
    import torch

    from datapipe.adapt.number_rows import NumberRows, rows_of

    known = rows_of(dataset)
    if known is not None:
        return known.__getitems__, ""
    keys = np.random.default_rng(0).integers(len(dataset), size=_NUM_COMPARED).tolist()
    wanted = [_numbers(dataset[key]) for key in keys]
    chosen: dict[str, list[str]] = {}
    parts = []
    for name, column, values in _columns(dataset):
        here = [_numbers(values[key]) for key in keys]
        if all(numbers <= left for numbers, left in zip(here, wanted, strict=True)):
            wanted = [left - numbers for numbers, left in zip(here, wanted, strict=True)]
            chosen.setdefault(name, []).extend([column] if column else [])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a read-only array, which is only read
                parts.append(torch.as_tensor(np.ascontiguousarray(values)))
    if any(wanted) or not parts:
        return None
    frames = {name for name, columns in chosen.items() if columns}
    vectors = [part for part in parts if part.ndim == 1]
    is_small = sum(part.nbytes for part in vectors) <= _MOST_COPIED
    if frames and is_small and len(vectors) > 1 and len({part.dtype for part in vectors}) == 1:  # as `to_numpy` lays them
        parts = [part for part in parts if part.ndim > 1] + [torch.stack(vectors, 1)]
    tensors = ", ".join(f"torch.as_tensor({_expression(dataset, name, columns)})" for name, columns in chosen.items())
    return NumberRows(parts).__getitems__, f"data = TensorDataset({tensors})"


def _columns(dataset: Any) -> Iterator[tuple[str, str, np.ndarray[Any, Any]]]:
    """Yield (attribute, column of a data frame or "", values) of the attributes that hold a row of numbers for each sample."""
    import torch

    for name, value in getattr(dataset, "__dict__", {}).items():
        kind = type(value)
        is_pandas = kind.__module__.partition(".")[0] == "pandas"
        if is_pandas and kind.__name__ == "DataFrame" and len(value) == len(dataset):
            for column in value.columns:
                values = value[column].to_numpy()
                if values.dtype.kind in "biuf":
                    yield name, str(column), values
            continue
        array = value.to_numpy() if is_pandas and kind.__name__ == "Series" else value
        if kind is torch.Tensor and value.device.type == "cpu" and not value.requires_grad and value.dtype is not torch.bfloat16:
            array = value.numpy()
        if isinstance(array, np.ndarray) and array.ndim and len(array) == len(dataset) and array.dtype.kind in "biuf":
            yield name, "", array


def _expression(dataset: Any, name: str, columns: list[str]) -> str:
    if not columns:
        return f"dataset.{name}"
    listed = f"[{', '.join(map(repr, columns))}]" if len(columns) <= _MOST_NAMED else "columns"
    return f"dataset.{name}[{listed}].to_numpy()"


def _numbers(sample: Any) -> Counter[float]:
    """Count the numbers in a sample, as float32: a Dataset may well have rounded them."""
    import torch
    from torch.utils._pytree import tree_leaves

    found: Counter[float] = Counter()
    for leaf in tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().float().numpy()
        try:
            found.update(np.nan_to_num(np.asarray(leaf, np.float32), nan=_NAN).ravel().tolist())
        except (TypeError, ValueError):
            found[float("inf")] += 1  # something else, which no table of numbers holds
    return found


def _measured(loader: Any, *, seconds: float) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)  # as in a worker
    dataset = loader.dataset
    behind = table_behind(dataset)
    if behind is None:
        return {"reason": f"{type(dataset).__qualname__} does not read its samples from a table in memory"}
    gather, code = behind

    def by_rows(keys: np.ndarray[Any, Any]) -> Any:
        read = getattr(dataset, "__getitems__", None)
        return loader.collate_fn(read(keys.tolist()) if read is not None else [dataset[key] for key in keys.tolist()])

    return cpu_ratio(gather, by_rows, loader, seconds=seconds, max_batch=_MAX_BATCH) | {"code": code}
