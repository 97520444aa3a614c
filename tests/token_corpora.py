"""Corpora of token ids that several tests share, in the forms of other libraries."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
