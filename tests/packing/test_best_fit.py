"""Best fit on the histogram packs as best fit one by one does."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.packing.fit import best_fit, even_fit, like_lengths


def one_by_one(lengths: list[int], capacity: int, most: int) -> list[int]:
    """The spaces that best-fit decreasing leaves in packs, ascending."""
    spaces: list[tuple[int, int]] = []  # space, documents
    for length in sorted(lengths, reverse=True):
        spaces.sort()
        open_packs = [pack for pack in spaces if pack[1] < most]
        place = bisect.bisect_left(open_packs, (length, 0))
        if place == len(open_packs):
            spaces.append((capacity - length, 1))
            continue
        space, num = open_packs[place]
        spaces.remove((space, num))
        spaces.append((space - length, num + 1))
    return sorted(space for space, _ in spaces)


@quick
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=80))), st.integers(1, 9))
def test_each_document_is_in_one_pack_that_has_room_for_it(of: tuple[int, list[int]], most: int) -> None:
    capacity, listed = of
    lengths = np.array(listed, np.int64)
    documents, ends = best_fit(lengths, capacity, most=most)
    assert sorted(documents.tolist()) == list(range(len(lengths)))
    packs = np.split(documents, ends[:-1]) if len(ends) else []
    assert all(0 < len(pack) <= most and lengths[pack].sum() <= capacity for pack in packs)
    assert all((np.diff(pack) > 0).all() for pack in packs)
    assert [int(pack[0]) for pack in packs] == sorted(int(pack[0]) for pack in packs)


@quick
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=60))))
def test_packs_are_as_full_as_one_by_one(of: tuple[int, list[int]]) -> None:
    capacity, listed = of
    lengths = np.array(listed, np.int64)
    documents, ends = best_fit(lengths, capacity)
    packs = np.split(documents, ends[:-1]) if len(ends) else []
    assert sorted(capacity - int(lengths[pack].sum()) for pack in packs) == one_by_one(listed, capacity, len(listed) or 1)


@pytest.mark.parametrize(("capacity", "dtype"), [(4096, np.uint16), (32768, np.int64), (70_000, np.int64)])
def test_rows_of_web_like_documents_are_full(capacity: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(415), 1.2, 65_536)), 16, capacity).astype(dtype)
    _, ends = best_fit(lengths, capacity)
    assert int(lengths.astype(np.int64).sum()) / (len(ends) * capacity) > 0.999


weighted = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 9)), max_size=80)  # lengths as shares of the capacity, weights


@quick
@given(st.integers(1, 60), weighted)
def test_even_packs_have_room_and_are_hardly_more_than_best_fit_makes(capacity: int, of: list[tuple[float, float]]) -> None:
    lengths = np.array([max(1, round(share * capacity)) for share, _ in of], np.int64)
    documents, ends = even_fit(lengths, np.array([weight for _, weight in of]), capacity)
    assert sorted(documents.tolist()) == list(range(len(lengths)))
    packs = np.split(documents, ends[:-1]) if len(ends) else []
    assert all(len(pack) and lengths[pack].sum() <= capacity for pack in packs)
    assert all((np.diff(pack) > 0).all() for pack in packs)
    assert [int(pack[0]) for pack in packs] == sorted(int(pack[0]) for pack in packs)
    assert len(packs) <= len(best_fit(lengths, capacity)[1]) * 1.01 + 1


def test_even_packs_have_like_weights() -> None:
    """Conversations of which most are images, in numbers and sizes as people have them."""
    rng = np.random.default_rng(0)
    num, capacity = 65_536, 8192
    num_images = np.where(rng.random(num) < 0.08, 0, np.minimum(rng.geometric(0.7, num), 6))
    images = [np.clip(np.exp(rng.normal(np.log(350), 0.5, num)), 64, 1280) * (num_images > one) for one in range(6)]
    weights = np.sum(images, axis=0)
    lengths = np.minimum(
        capacity, weights.astype(np.int64) + np.clip(np.exp(rng.normal(5.2, 0.9, num)), 20, 4000).astype(np.int64)
    )
    spread = {}
    for name, (documents, ends) in {"even": even_fit(lengths, weights, capacity), "best": best_fit(lengths, capacity)}.items():
        sums = np.add.reduceat(weights[documents], np.concatenate([[0], ends[:-1]]))
        spread[name] = sums.std() / sums.mean()
        assert lengths.sum() / (len(ends) * capacity) > 0.99
    assert spread["even"] < 0.07
    assert spread["even"] < spread["best"] / 2


@quick
@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=0, max_size=60), st.integers(90, 300))
def test_batches_of_like_lengths_take_as_many_documents_as_fit(rows: list[list[int]], most: int) -> None:
    num_fields = max(map(len, rows), default=1)
    lengths = np.array([row + [1] * (num_fields - len(row)) for row in rows], np.int64).reshape(-1, num_fields).T
    order, ends = like_lengths(lengths, most)
    assert sorted(order.tolist()) == list(range(len(rows)))
    begin = 0
    for end in ends.tolist():
        assert end > begin
        here = lengths[:, order[begin:end]]
        assert here.max(axis=1).sum() * (end - begin) <= most
        if end < len(rows):
            assert lengths[:, order[begin : end + 1]].max(axis=1).sum() * (end + 1 - begin) > most
        begin = end
    assert begin == len(rows)
