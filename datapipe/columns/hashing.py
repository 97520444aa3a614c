"""Hash values to stable 64-bit keys, and look ids up by them.

Keys depend only on values: not on the process, the platform or a library's version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.errors import FormatError
from datapipe.order.draws import mix64

Words = NDArray[np.uint64]

_WORD = 8  # bytes
_STEP = np.uint64(0x9E3779B97F4A7C15)
SEED = np.uint64(0x243F6A8885A308D3)


def keys_of_numbers(values: NDArray[Any]) -> Words:
    """Return (n,) keys, a bijection of int64 values. Floating values are distinguished by their bits, -0.0 being 0.0."""
    if values.dtype.kind == "f":
        return mix64((values.astype(np.float64) + 0.0).view(np.uint64) ^ SEED)
    return mix64(values.astype(np.int64).view(np.uint64) ^ SEED)


def keys_of_texts(texts: pa.Array) -> Words:
    """Return (n,) hashes of the bytes of strings or binary values; anything for nulls.

    Each value's words of 8 bytes, the last padded with zeros, go through `mix64` one after another, starting from its length.
    """
    if pa.types.is_string(texts.type) or pa.types.is_binary(texts.type):
        width: Any = np.int32
    else:
        width = np.int64
    texts.validate(full=True)  # checks where each value lies
    _, ends, data = texts.buffers()
    num = len(texts)
    if not num:
        return np.empty(0, np.uint64)
    edges = np.frombuffer(ends, width, count=num + 1, offset=texts.offset * np.dtype(width).itemsize).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    padded = np.concatenate([raw[edges[0] : edges[-1]], np.zeros(_WORD, np.uint8)])
    starts, lengths = edges[:-1] - edges[0], np.diff(edges)
    hashes = mix64(lengths.astype(np.uint64) ^ SEED)
    words = np.lib.stride_tricks.as_strided(padded.view(np.uint8), (len(padded) - _WORD + 1, _WORD), (1, 1))
    for place in range(0, int(lengths.max()), _WORD):
        active = np.flatnonzero(lengths > place)
        found = np.ascontiguousarray(words[starts[active] + place]).view("<u8")[:, 0]
        left = np.minimum(lengths[active] - place, _WORD).astype(np.uint64)
        found = found & (~np.uint64(0) >> (np.uint64(64) - np.uint64(8) * left))
        hashes[active] = mix64((hashes[active] * _STEP) ^ found)
    return hashes


@dataclass(frozen=True, slots=True, eq=False)
class IdTable:
    """A hash table from keys to ids, with linear probing, at most half full. Thread-safe.

    `slots`: (2^k,) keys; `ids`: (2^k,) int32, -1 for empty slots.
    """

    slots: Words
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Words) -> IdTable:
        """Return the table in which the id of a key is its position. Raises FormatError if two keys are equal."""
        size = 1 << max(4, (2 * len(keys)).bit_length())
        slots, ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
        mask = np.int64(size - 1)
        left = np.arange(len(keys), dtype=np.int64)
        places = (keys & np.uint64(size - 1)).astype(np.int64)
        while len(left):
            free = ids[places] < 0
            if (slots[places[~free]] == keys[left[~free]]).any():
                raise FormatError("two values of a vocabulary have the same 64-bit key; remove one of them")
            candidates, targets = left[free], places[free]
            ids[targets] = candidates.astype(np.int32)  # of several that want one slot the last stays
            won = ids[targets] == candidates
            slots[targets[won]] = keys[candidates[won]]
            lost = np.concatenate([candidates[~won], left[~free]])
            places = np.concatenate([targets[~won], places[~free]])
            places = np.where(np.isin(lost, candidates[~won], assume_unique=True), places, (places + 1) & mask)
            left = lost
        return cls(slots, ids)

    def sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the keys as signed numbers, in ascending order, and their ids."""
        used = self.ids >= 0
        keys, ids = self.slots[used].view(np.int64), self.ids[used]
        order = np.argsort(keys)
        return keys[order], ids[order]

    def find(self, keys: Words, *, otherwise: int) -> NDArray[np.int32]:
        """Return (n,) int32 ids; `otherwise` for keys that are not in the table."""
        mask = np.int64(len(self.slots) - 1)
        places = (keys & np.uint64(len(self.slots) - 1)).astype(np.int64)
        found = self.ids[places]
        left = np.flatnonzero((found >= 0) & (self.slots[places] != keys))
        while len(left):
            places[left] = (places[left] + 1) & mask
            found[left] = self.ids[places[left]]
            left = left[(found[left] >= 0) & (self.slots[places[left]] != keys[left])]
        found[found < 0] = otherwise
        return found
