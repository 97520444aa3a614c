"""Read files of token ids with an index beside them, which says where documents end: Megatron's and datatrove's.

Megatron has `x.bin`, token ids, and `x.idx`, the sequences and the documents they make up. The index is little-endian: 9 bytes of
magic, a version (u64), the code of the dtype (u8), the numbers of sequences and of bounds of documents (u64), then the lengths of
sequences (int32), their places in bytes (int64), the bounds of documents (int64), and of several modalities the mode of each
sequence (int8). (megatron/core/datasets/indexed_dataset.py)

datatrove has `x.ds`, token ids, and `x.ds.index`, the ends of documents in tokens (u64).
"""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.codecs.tokens import TokenFacts
from datapipe.core.arrow_maps import map_file
from datapipe.core.regular_files import open_file
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.tokens import Ints, ShardFacts, TokenShard

MEGATRON_INDEX, MEGATRON_DATA = ".idx", ".bin"  # suffixes
DATATROVE_INDEX, DATATROVE_DATA = ".ds.index", ".ds"
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_END_NBYTES = 8
_BY_SIZE = {2: "uint16", 4: "uint32"}


def look_at_megatron(path: Path) -> ShardFacts:
    """Return what a pair of files holds, given either.

    Raises MissingDataError if one of them is missing, FormatError if they are not Megatron's or do not fit together.
    """
    index_path, data_path = path.with_suffix(MEGATRON_INDEX), path.with_suffix(MEGATRON_DATA)
    try:
        index, num_data = map_file(index_path), data_path.stat().st_size
    except FileNotFoundError as exc:
        raise MissingDataError(f"{exc.filename}: no such file; Megatron's data is a .bin and an .idx") from exc
    except OSError as exc:
        raise FormatError(f"{index_path}: cannot be mapped ({exc}); get the file again") from exc
    magic, version, code, num_sequences, num_bounds = _header(index, index_path)
    if magic != _MAGIC or version != 1 or code not in _DTYPES:
        raise FormatError(f"{index_path}: no index of Megatron's version 1 of whole numbers; preprocess the data again")
    needed = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if index.size not in (needed, needed + num_sequences):  # with a byte each for their modes
        raise FormatError(
            f"{index_path}: has {index.size} bytes, and {num_sequences} sequences need {needed}; get the file again"
        )
    lengths = np.frombuffer(index, "<i4", num_sequences, _HEADER.size)
    pointers = np.frombuffer(index, "<i8", num_sequences, _HEADER.size + 4 * num_sequences)
    bounds = np.frombuffer(index, "<i8", num_bounds, _HEADER.size + 12 * num_sequences)
    num_tokens = int(lengths.sum(dtype=np.int64))
    if num_sequences and int(pointers[0]) + num_tokens * TokenFacts(_DTYPES[code]).stored.itemsize > num_data:
        raise FormatError(f"{data_path}: has {num_data} bytes, and its index says more; get the file again")
    if len(bounds) < 1 or bounds[0] or bounds[-1] != num_sequences:
        raise FormatError(f"{index_path}: its documents do not cover its {num_sequences} sequences; get the file again")
    opened = functools.partial(_open_megatron, data_path, _DTYPES[code], lengths, pointers, bounds)
    return ShardFacts(num_bounds - 1, num_tokens, _DTYPES[code], crc32c(index), opened)


def _open_megatron(path: Path, dtype: str, lengths: NDArray[np.int32], pointers: Ints, bounds: Ints) -> TokenShard:
    """Return the documents of a file: its sequences, or several of them each."""
    stored = TokenFacts(dtype).stored
    index_path = path.with_suffix(MEGATRON_INDEX)
    if ((pointers < 0) | (pointers > 1 << 60)).any():
        raise FormatError(f"{index_path}: sequences begin outside its file; get the file again")
    shard = TokenShard(str(path), stored, pointers, lengths.astype(np.int64))
    if np.array_equal(bounds, np.arange(len(lengths) + 1)):
        return shard
    if (bounds[1:] < bounds[:-1]).any():  # from 0 to the number of sequences, as was checked
        raise FormatError(f"{index_path}: its documents do not ascend; get the file again")
    if shard.has_gaps:
        raise FormatError(f"{index_path}: something lies between the sequences of its documents; preprocess the data again")
    before = np.concatenate([[0], np.cumsum(shard.num_tokens)])[bounds]
    start = int(pointers[0]) if len(pointers) else 0
    return TokenShard(str(path), stored, start + before[:-1] * stored.itemsize, np.diff(before))


def _header(index: object, path: Path) -> tuple[bytes, int, int, int, int]:
    try:
        return _HEADER.unpack_from(index)  # type: ignore[arg-type]
    except struct.error as exc:
        raise FormatError(f"{path}: too short for an index of Megatron's; get the file again") from exc


def look_at_datatrove(path: Path) -> ShardFacts:
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
    opened = functools.partial(_open_datatrove, path, index_path, dtype)
    return ShardFacts(index_nbytes // _END_NBYTES, num_tokens, dtype, crc32c(map_file(index_path)), opened)


def _open_datatrove(path: Path, index_path: Path, dtype: str) -> TokenShard:
    """Return the documents of a file. Raises FormatError for ends that do not ascend."""
    try:
        ends = np.frombuffer(map_file(index_path), "<i8")
    except (OSError, ValueError) as exc:
        raise FormatError(f"{index_path}: no list of the ends of documents ({exc}); get the file again") from exc
    if (ends[:1] < 0).any() or (ends[1:] < ends[:-1]).any():  # differences of such ends need not fit 64 bits
        raise FormatError(f"{index_path}: the ends of documents do not ascend; get the file again")
    stored, num_tokens = TokenFacts(dtype).stored, np.diff(ends, prepend=0)
    return TokenShard(str(path), stored, (ends - num_tokens) * stored.itemsize, num_tokens)
