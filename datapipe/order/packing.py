"""Pack documents of given lengths into rows of a given length: best-fit decreasing, on the histogram of lengths.

Best fit puts each document, longest first, where the least space is left. Documents of one length are alike, so whole groups are
placed at once: some of the packs with the least sufficient space get as many of them as fit. The result is the same as one by
one; the time depends on the number of different lengths and spaces. (Johnson, "Near-optimal bin packing algorithms", 1973.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_Group = tuple[int, int, int]  # consecutive packs with equal space: the first, how many, and the documents in each

_WORD = 64  # spaces whose presence is kept in one integer


def best_fit(lengths: NDArray[np.integer], capacity: int, *, most: int | None = None) -> tuple[Ints, Ints]:
    """Return (n,) the documents in the order of packs, and (packs,) where each pack ends in it.

    `lengths`: (n,) of documents, 1 to `capacity`. `most`: documents of a pack. Each document is in one pack. Documents of a pack
    are in their own order, and packs in that of their first documents.
    """
    counts = np.bincount(lengths, minlength=capacity + 1)
    present = np.flatnonzero(counts)[::-1]
    most = len(lengths) if most is None else most
    open_packs = _OpenPacks(capacity)
    placed: list[_Group] = []  # here the last number is of documents that were added
    num_packs = 0
    for length, left in zip(present.tolist(), counts[present].tolist(), strict=True):
        while left:
            space = open_packs.least_space(length)
            if space:
                first, num, held = open_packs.take(space)
                each = min(space // length, left, most - held)
                if num * each > left:
                    open_packs.put(space, (first + left // each, num - left // each, held))
                    num = left // each
            else:
                space, held = capacity, 0
                each = min(capacity // length, left, most)
                first, num = num_packs, left // each
                num_packs += num
            placed.append((first, num, each))
            left -= num * each
            if held + each < most:
                open_packs.put(space - each * length, (first, num, held + each))
    first_of, num_of, each_of = np.array(placed, np.int64).reshape(-1, 3).T
    packs = np.repeat(first_of - (np.cumsum(num_of) - num_of), num_of) + np.arange(int(num_of.sum()))
    pack_of = np.empty(len(lengths), np.int64)
    pack_of[np.argsort(lengths, kind="stable")[::-1]] = np.repeat(packs, np.repeat(each_of, num_of))
    first_document = np.empty(num_packs, np.int64)
    first_document[pack_of[::-1]] = np.arange(len(lengths) - 1, -1, -1)  # the last one assigned, which is the first, stays
    documents = np.argsort(first_document[pack_of], kind="stable")
    sizes = np.bincount(pack_of, minlength=num_packs)
    return documents, np.cumsum(sizes[np.argsort(first_document)])


class _OpenPacks:
    """Packs with space left, in groups of equal space; which spaces there are is kept in bits."""

    def __init__(self, capacity: int) -> None:
        self._groups: dict[int, list[_Group]] = {}
        self._words = [0] * (capacity // _WORD + 1)
        self._used = 0  # the words that are not 0

    def least_space(self, length: int) -> int:
        """Return the least space of a pack into which a document of this length fits; 0 if there is none."""
        word = length // _WORD
        here = self._words[word] >> (length % _WORD)
        if here:
            return length + (here & -here).bit_length() - 1
        later = self._used >> (word + 1)
        if not later:
            return 0
        word += (later & -later).bit_length()
        here = self._words[word]
        return word * _WORD + (here & -here).bit_length() - 1

    def take(self, space: int) -> _Group:
        """Take a group with this space out."""
        groups = self._groups[space]
        taken = groups.pop()
        if not groups:
            del self._groups[space]
            word = space // _WORD
            self._words[word] &= ~(1 << space % _WORD)
            if not self._words[word]:
                self._used &= ~(1 << word)
        return taken

    def put(self, space: int, group: _Group) -> None:
        """Add a group; full packs are left out."""
        if space in self._groups:
            self._groups[space].append(group)
        elif space:
            self._groups[space] = [group]
            word = space // _WORD
            self._words[word] |= 1 << space % _WORD
            self._used |= 1 << word
