"""Read datatrove's tokenised files: `x.ds`, token ids, and `x.ds.index`, the ends of documents in tokens (u64)."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from datapipe.codecs.tokens import TokenFacts
from datapipe.core.arrow_maps import map_file
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.tokens import ShardFacts, TokenShard

SUFFIX, INDEX_SUFFIX = ".ds", ".ds.index"
_END_NBYTES = 8
_BY_SIZE = {2: "uint16", 4: "uint32"}


def look(path: Path) -> ShardFacts:
    """Return what a file holds; its dtype follows from its size.

    Raises MissingDataError if its index is missing, FormatError if the two do not fit together.
    """
    index_path = path.with_name(path.name + ".index")
    try:
        with open_file(index_path) as file:
            index_nbytes = os.fstat(file.fileno()).st_size
            last = os.pread(file.fileno(), _END_NBYTES, max(0, index_nbytes - _END_NBYTES))
        nbytes = path.stat().st_size
    except FileNotFoundError as exc:
        raise MissingDataError(f"{exc.filename}: no such file; datatrove's data is a .ds and a .ds.index") from exc
    num_tokens = int.from_bytes(last, "little")
    dtype = None if index_nbytes % _END_NBYTES or not num_tokens or nbytes % num_tokens else _BY_SIZE.get(nbytes // num_tokens)
    if dtype is None:
        raise FormatError(
            f"{path}: its {nbytes} bytes do not fit the ends of documents in {index_path.name}; get the files again"
        )
    opened = functools.partial(_open, path, index_path, dtype)
    return ShardFacts(index_nbytes // _END_NBYTES, num_tokens, dtype, crc32c(map_file(index_path)), opened)


def _open(path: Path, index_path: Path, dtype: str) -> TokenShard:
    """Return the documents of a file. Raises FormatError for ends that do not ascend."""
    try:
        ends = np.frombuffer(map_file(index_path), "<i8")
    except (OSError, ValueError) as exc:
        raise FormatError(f"{index_path}: no list of the ends of documents ({exc}); get the file again") from exc
    if (ends[:1] < 0).any() or (ends[1:] < ends[:-1]).any():  # differences of such ends need not fit 64 bits
        raise FormatError(f"{index_path}: the ends of documents do not ascend; get the file again")
    stored, num_tokens = TokenFacts(dtype).stored, np.diff(ends, prepend=0)
    return TokenShard(str(path), stored, (ends - num_tokens) * stored.itemsize, num_tokens)
