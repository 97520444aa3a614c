"""Pack documents of given lengths: into rows of a given length, or into batches of like lengths.

Rows are packed by best-fit decreasing, on the histogram of lengths. Best fit puts each document, longest first, where the least
space is left. Documents of one length are alike, so whole groups are placed at once: some of the packs with the least sufficient
space get as many of them as fit. The result is the same as one by one; the time depends on the number of different lengths and
spaces. (Johnson, "Near-optimal bin packing algorithms", 1973.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.order.draws import Ints

_Group = tuple[int, int, int]  # consecutive packs with equal space: the first, how many, and the documents in each

_WORD = 64  # spaces whose presence is kept in one integer
_ROOM = 1.004  # packs that are dealt documents, for each that all tokens would fill
_MOST_MORE = 1.01  # packs, for each of best fit
_SHARE_DEALT = 0.9  # of all tokens
_LIKE = 128  # packs, or documents, that are about as full, or as long


def best_fit(lengths: NDArray[np.integer], capacity: int, *, most: int | None = None) -> tuple[Ints, Ints]:
    """Return (n,) the documents in the order of packs, and (packs,) where each pack ends in it.

    `lengths`: (n,) of documents, 1 to `capacity`. `most`: documents of a pack. Each document is in one pack. Documents of a pack
    are in their own order, and packs in that of their first documents.
    """
    return _in_order(_best_packs(lengths, capacity, most or len(lengths), np.zeros(0, np.int64)))


def even_fit(lengths: NDArray[np.integer], weights: NDArray[np.float64], capacity: int) -> tuple[Ints, Ints]:
    """Return as `best_fit` does, in packs that are alike: in the lengths of their documents, and in the sum of their weights.

    `weights`: (n,) of documents, such as the work that their images are. Where that takes more packs than best fit, by 1 in 100,
    it is best fit.

    As many packs as the tokens fill, and a few more, are dealt documents, longest first: the emptiest pack gets the longest one,
    and of packs that are about as full and documents about as long, the lightest pack gets the heaviest document. The shortest
    documents, a tenth of all tokens, then go where best fit puts them.
    """
    tokens: Ints = lengths.astype(np.int64)
    least = -(-int(tokens.sum()) // capacity)
    pack_of = _dealt(tokens, weights, capacity, max(1, math.ceil(int(tokens.sum()) * _ROOM / capacity)))
    if len(tokens) and pack_of.max() + 1 > least * _MOST_MORE:
        best = _best_packs(tokens, capacity, len(tokens), np.zeros(0, np.int64))
        if (best.max() + 1) * _MOST_MORE < pack_of.max() + 1:
            return _in_order(best)
    return _in_order(pack_of)


def _dealt(lengths: Ints, weights: NDArray[np.float64], capacity: int, num_packs: int) -> Ints:
    """Return (n,) the pack of each document, of `num_packs` that are dealt them, and others for what is left."""
    longest = np.argsort(-lengths, kind="stable")
    mean = weights.sum() / max(1, int(lengths.sum()))
    excess = weights - mean * lengths
    pack_of = np.full(len(lengths), -1, np.int64)
    filled, held = np.zeros(num_packs, np.int64), np.zeros(num_packs)
    num_dealt = int(np.searchsorted(np.cumsum(lengths[longest]), _SHARE_DEALT * lengths.sum()))
    for first in range(0, num_dealt, num_packs):
        documents = longest[first : min(first + num_packs, num_dealt)]
        packs = np.argsort(filled, kind="stable")[: len(documents)]
        like = np.arange(len(documents)) // _LIKE
        packs, documents = packs[np.lexsort((held[packs], like))], documents[np.lexsort((-excess[documents], like))]
        fits = filled[packs] + lengths[documents] <= capacity
        packs, documents = packs[fits], documents[fits]
        pack_of[documents] = packs
        filled[packs] += lengths[documents]
        held[packs] += excess[documents]
    left = np.flatnonzero(pack_of < 0)
    pack_of[left] = _best_packs(lengths[left], capacity, len(lengths), capacity - filled)
    kept = np.unique(pack_of)
    return np.searchsorted(kept, pack_of)


def _best_packs(lengths: NDArray[np.integer], capacity: int, most: int, spaces: Ints) -> Ints:
    """Return (n,) the pack of each document by best fit. `spaces`: (p,) left in packs that there are already."""
    placed = np.array(_placed(lengths, capacity, most, spaces.tolist()), np.int64).reshape(-1, 3)
    first_of, num_of, each_of = placed.T
    packs = ranges(first_of, num_of)
    pack_of = np.empty(len(lengths), np.int64)
    pack_of[np.argsort(lengths, kind="stable")[::-1]] = np.repeat(packs, np.repeat(each_of, num_of))
    return pack_of


def _in_order(pack_of: Ints) -> tuple[Ints, Ints]:
    """Return documents and packs in the order that `best_fit` describes, from (n,) the pack of each document."""
    sizes = np.bincount(pack_of)
    first_document = np.empty(len(sizes), np.int64)
    first_document[pack_of[::-1]] = np.arange(len(pack_of) - 1, -1, -1)  # the last one assigned, which is the first, stays
    documents = np.argsort(first_document[pack_of], kind="stable")
    return documents, np.cumsum(sizes[np.argsort(first_document)])


def _placed(lengths: NDArray[np.integer], capacity: int, most: int, spaces: list[int]) -> list[_Group]:
    """Return to which packs documents go, longest first: the first pack, how many, and how many documents each of them gets.

    `spaces`: left in packs that there are already, the first ones.

    One function without calls, as its loop takes most of the time of a plan. Packs with space left are kept in `groups` by their
    space; `words` has a bit for each space that there is, and `used` one for each word that is not 0.
    """
    counts = np.bincount(lengths, minlength=capacity + 1)
    present = np.flatnonzero(counts)[::-1]
    groups: dict[int, list[_Group]] = {}
    words, used = [0] * (capacity // _WORD + 1), 0
    placed: list[_Group] = []
    num_packs = len(spaces)
    for number, space in enumerate(spaces):
        if space:
            groups.setdefault(space, []).append((number, 1, 0))
            words[space // _WORD] |= 1 << space % _WORD
            used |= 1 << (space // _WORD)
    for length, left in zip(present.tolist(), counts[present].tolist(), strict=True):
        number = length // _WORD
        while left:
            bits = words[number] >> (length % _WORD)
            if bits:
                space = length + (bits & -bits).bit_length() - 1
            elif later := used >> (number + 1):
                word = number + (later & -later).bit_length()
                bits = words[word]
                space = word * _WORD + (bits & -bits).bit_length() - 1
            else:
                space = 0
            if space:
                group = groups[space]
                first, num, held = group.pop()
                each = space // length
                if each > left or each > most - held:
                    each = min(left, most - held)
                if num * each > left:
                    group.append((first + left // each, num - left // each, held))
                    num = left // each
                elif not group:
                    del groups[space]
                    word = space // _WORD
                    words[word] ^= 1 << space % _WORD
                    if not words[word]:
                        used ^= 1 << word
            else:
                space, held = capacity, 0
                each = min(capacity // length, left, most)
                first, num = num_packs, left // each
                num_packs += num
            placed.append((first, num, each))
            left -= num * each
            space -= each * length
            held += each
            if not space or held == most:
                continue
            if space in groups:
                groups[space].append((first, num, held))
            else:
                groups[space] = [(first, num, held)]
                word = space // _WORD
                words[word] |= 1 << space % _WORD
                used |= 1 << word
    return placed


def like_lengths(lengths: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Return (n,) the documents in the order of batches, longest first, and (batches,) where each batch ends in it.

    `lengths`: (fields, n) of each document's fields, whose sum is at most `max_tokens`. A batch has as many documents as fit once
    all are padded to its longest one, field by field. Documents of equal lengths stay in their order.
    """
    sums = lengths.sum(axis=0)
    order = np.argsort(-sums, kind="stable")
    lengths, sums = lengths[:, order], sums[order]
    ends: list[int] = []
    begin = 0
    while begin < len(order):
        most = max_tokens // int(sums[begin])  # its padded documents have at least as many tokens as its first one
        widths = np.maximum.accumulate(lengths[:, begin : begin + most], axis=1).sum(axis=0)
        padded = widths * np.arange(1, len(widths) + 1)
        begin += int(np.searchsorted(padded, max_tokens, side="right"))
        ends.append(begin)
    return order, np.array(ends, np.int64)
