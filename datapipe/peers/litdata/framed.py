r"""Unpack chunks of LitData's whose samples are compressed in frames of some hundred, so that each can be read by itself.

    chunk    b"LDFZ01\0\0", uint16 version 1, uint16 flags 0, uint32 samples n, uint32 samples a frame, uint32 frames;
             n + 1 uint32 offsets of the samples among the unpacked ones; the frames' heads; the frames
    head     uint32 first sample, uint32 samples, uint64 place in the file, uint32 size there, uint32 unpacked size

All numbers are little-endian (litdata/streaming/framed_zstd.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.containers.mapped import is_bomb, mapped
from datapipe.errors import FormatError

_MAGIC = b"LDFZ01\0\0"
_HEAD = struct.Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("num", "<u4"), ("offset", "<u8"), ("nbytes", "<u4"), ("unpacked", "<u4")])
_MAX_NBYTES = (1 << 32) - 1  # that offsets can say


def unframed(path: Path) -> Iterator[bytes]:
    """Yield the bytes of the chunk as it would be without compression. Raises FormatError, MissingDataError or StorageError."""
    with mapped(path, "a chunk of LitData's") as data:
        begin = _HEAD.size
        if len(data) < begin:
            raise FormatError(f"{path}: not a compressed chunk of LitData's: {len(data)} bytes; get the file again")
        magic, version, flags, num, _, num_frames = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != 1 or flags:
            raise FormatError(
                f"{path}: not a chunk that LitData compressed in batches, or of version {version}; get the file again"
            )
        at_frames = begin + 4 * (num + 1)
        end = at_frames + _FRAME.itemsize * num_frames
        if end > len(data):
            raise FormatError(f"{path}: cut off: its heads would take {end:,} of {len(data):,} bytes; get the file again")
        offsets = np.frombuffer(data[begin:at_frames], "<u4").astype(np.int64)
        frames = np.frombuffer(data[at_frames:end], _FRAME)
        _check(path, offsets, frames, num, len(data))
        plain = 4 * (num + 2)
        if plain + int(offsets[-1]) > _MAX_NBYTES:
            raise FormatError(f"{path}: would unpack to {offsets[-1]:,} bytes, more than a chunk can have; get the file again")
        yield num.to_bytes(4, "little") + (offsets + plain).astype("<u4").tobytes()
        for place, size, unpacked in zip(*(frames[name].tolist() for name in ("offset", "nbytes", "unpacked")), strict=True):
            try:
                yield pa.decompress(data[place : place + size], unpacked, codec="zstd", asbytes=True)
            except (pa.ArrowException, OSError) as exc:
                raise FormatError(f"{path}: a frame at byte {place:,} is damaged ({exc}); get the file again") from exc


def _check(path: Path, offsets: np.ndarray, frames: np.ndarray, num: int, size: int) -> None:
    """Raise FormatError unless the frames hold all samples, in order, and lie in the file."""
    firsts, nums = frames["first"].astype(np.int64), frames["num"].astype(np.int64)
    ends = firsts + nums
    places, sizes = frames["offset"].astype(np.float64), frames["nbytes"].astype(np.float64)
    are_whole = len(frames) > 0 and firsts[0] == 0 and ends[-1] == num and (ends[:-1] == firsts[1:]).all() and (nums > 0).all()
    if not are_whole or offsets[0] or (np.diff(offsets) < 0).any() or (places + sizes > size).any():
        raise FormatError(f"{path}: its frames do not hold its samples: damaged; get the file again")
    unpacked = offsets[ends] - offsets[firsts]
    if (unpacked != frames["unpacked"]).any():
        raise FormatError(f"{path}: a frame says another size than its samples have: damaged; get the file again")
    if any(is_bomb(one, stored) for one, stored in zip(unpacked.tolist(), frames["nbytes"].tolist(), strict=True)):
        raise FormatError(f"{path}: a frame would unpack to over 1,100 times its size: a bomb? Not read")
