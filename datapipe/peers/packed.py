"""Files that begin with the offsets of all samples, each of which begins with the sizes of its values: MosaicML's and LitData's.

    file     uint32 number of samples n; n + 1 uint32 offsets of the samples in the file, the last one of their end; ...; samples
    sample   a uint32 size for each value of no fixed size; the values

All numbers are little-endian. What the numbers claim is checked against the sizes of file and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.containers.mapped import ByteSource
from datapipe.errors import FormatError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedValues:
    """The places of one value of each sample."""

    offset: Ints  # (n,) bytes from the start of the file
    nbytes: Ints  # (n,)
    codecs: Sequence[str] = ()  # how each is stored (`codecs/stored`), where not as it is

    def read(self, data: ByteSource, *, at_most: int | None = None) -> list[bytes]:
        """Return the bytes of all values, or the first of each."""
        ends = self.offset + (self.nbytes if at_most is None else np.minimum(self.nbytes, at_most))
        return [data[start:end] for start, end in zip(self.offset.tolist(), ends.tolist(), strict=True)]


def head_nbytes(data: ByteSource) -> int:
    """Return the size of the offsets at the start of a file, with the number of samples."""
    return 4 * (int.from_bytes(data[:4], "little") + 2)


def sample_bounds(data: ByteSource, form: str, where: str) -> Ints:
    """Return the (n + 1,) offsets of samples. `form`: what the file should be, as in "an MDS shard". Raises FormatError."""
    begin = head_nbytes(data)
    num = begin // 4 - 2
    if begin > len(data):
        raise FormatError(f"{where}: not {form}: it would have {num:,} samples in {len(data):,} bytes; get the file again")
    if not num:
        raise FormatError(f"{where}: no samples; remove it")
    bounds = np.frombuffer(data[4:begin], "<u4").astype(np.int64)
    if bounds[0] < begin or bounds[-1] > len(data) or (np.diff(bounds) < 0).any():
        what = f"its samples lie from byte {bounds[0]:,} to {bounds[-1]:,}, the file has {len(data):,}"
        raise FormatError(f"{where}: not {form}, cut off or damaged ({what}); get the file again")
    return bounds


def packed_values(data: ByteSource, bounds: Ints, fixed: Sequence[int | None], where: str) -> list[PackedValues]:
    """Return where each value of the samples lies. `fixed`: sizes in bytes; None: each sample says it. Raises FormatError."""
    num = len(bounds) - 1
    is_said = np.array([size is None for size in fixed])
    head = 4 * int(is_said.sum())
    sizes = np.diff(bounds)
    known = np.array([size or 0 for size in fixed], np.int64)
    _refuse_first(sizes < head + known.sum(), "is too short for its values", where)
    heads = b"".join([data[start : start + head] for start in bounds[:-1].tolist()])
    found = np.broadcast_to(known, (num, len(fixed))).copy()
    found[:, is_said] = np.frombuffer(heads, "<u4").reshape(num, -1) if head else 0
    _refuse_first(found.sum(1) + head != sizes, "has values of other sizes than it says", where)
    offsets = bounds[:-1, None] + head + found.cumsum(1) - found
    return [PackedValues(offsets[:, place], found[:, place]) for place in range(len(fixed))]


def _refuse_first(is_wrong: NDArray[np.bool_], what: str, where: str) -> None:
    if is_wrong.any():
        raise FormatError(f"{where}: sample {int(is_wrong.argmax())} {what}: damaged; get the file again")
