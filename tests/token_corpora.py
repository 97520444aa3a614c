"""Corpora of token ids that several tests share, in the forms of other libraries."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.index.tokens import TokenIndex

Documents = Sequence[NDArray[np.int64]]
_MEGATRON_CODES = {"uint16": 8, "int32": 4}


def random_documents(num: int, *, most: int = 60, least: int = 1, vocab: int = 1000, seed: int = 0) -> list[NDArray[np.int64]]:
    """Documents of random ids, 1 to `vocab` - 1."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab, int(length)) for length in rng.integers(least, most + 1, num)]


def write_datatrove(path: Path, documents: Documents, dtype: str = "uint16") -> Path:
    """Write `x.ds` and its index into the directory `path`; return it."""
    path.mkdir(parents=True, exist_ok=True)
    np.concatenate([np.zeros(0, np.int64), *documents]).astype(dtype).tofile(path / "x.ds")
    np.cumsum([len(document) for document in documents], dtype=np.int64).astype("<u8").tofile(path / "x.ds.index")
    return path


def write_megatron(path: Path, documents: Documents, dtype: str = "uint16", *, per_document: int = 1) -> Path:
    """Write `path`.bin and `path`.idx, every `per_document` of them one document of several sequences; return `path`.bin."""
    lengths = np.array([len(document) for document in documents], "<i4")
    sizes = lengths.astype(np.int64) * np.dtype(dtype).itemsize
    bounds = [*range(0, len(documents), per_document), len(documents)]
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, _MEGATRON_CODES[dtype], len(documents), len(bounds))
    pointers = (np.cumsum(sizes) - sizes).astype("<i8")
    index = header + lengths.tobytes() + pointers.tobytes() + np.array(bounds, "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)
    np.concatenate(documents).astype(dtype).tofile(path.with_suffix(".bin"))
    return path.with_suffix(".bin")


def read_documents(index: TokenIndex) -> list[list[int]]:
    """All documents of a corpus, by their places."""
    found = []
    for number in range(index.num_shards):
        shard = index.shard(number)
        ids, _ = shard.mapped
        starts = ((shard.offset - shard.offset[0]) // shard.dtype.itemsize).tolist()
        found += [ids[start : start + num].tolist() for start, num in zip(starts, shard.num_tokens.tolist(), strict=True)]
    return found


def everything(loader: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copies of all batches."""
    return [
        {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batch.items()} for batch in loader
    ]


def same(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> bool:
    """Whether batches have the same names and values."""
    return len(first) == len(second) and all(
        one.keys() == other.keys() and all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
        for one, other in zip(first, second, strict=True)
    )
