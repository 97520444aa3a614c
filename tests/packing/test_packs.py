"""Packs have each token of a corpus once, whatever the packing; plans are kept, and refused if they are damaged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.codecs.tokens import TokenFacts
from datapipe.errors import FormatError, OptionError
from datapipe.index.joined_tokens import joined_index
from datapipe.index.tokens import LossRuns, TokenIndex, TokenShard
from datapipe.packing import plan as plans
from datapipe.packing import windows
from datapipe.packing.joined import JoinedPacks
from datapipe.packing.kept_plans import open_plan
from datapipe.packing.losses import loss_of
from datapipe.packing.packs import Packs, Segments
from datapipe.packing.settings import PackSettings
from datapipe.packing.single import DocumentPacks
from datapipe.packing.stream import StreamPacks

SHARD_SIZES = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=3)


def index_of(shards: list[list[int]], *, runs: list[LossRuns] | None = None, fingerprint: str = "f") -> TokenIndex:
    """An index of documents of these lengths, whose files do not exist."""

    def open_shard(number: int) -> TokenShard:
        num = np.array(shards[number], np.int64)
        offset = 6 + 2 * (np.cumsum(num) - num)
        return TokenShard(f"{number}.ds", np.dtype("<u2"), offset, num, loss=None if runs is None else runs[number])

    return TokenIndex("corpus", [len(one) for one in shards], open_shard, fingerprint=fingerprint, facts=TokenFacts("uint16"))


def tokens_of(segments: Segments) -> Counter[tuple[int, int, int]]:
    """How often each token of each document is in these parts."""
    parts = zip(*(column.tolist() for column in segments[1:5]), strict=True)
    return Counter((shard, document, first + token) for shard, document, first, num in parts for token in range(num))


def all_segments(packs: Packs, *, seed: int | None = None, epoch: int = 0) -> Segments:
    return packs.segments(np.arange(len(packs)), seed=seed, epoch=epoch)


def rows_of(segments: Segments) -> list[int]:
    """The tokens of each pack."""
    return np.bincount(segments.row, weights=segments.num).astype(int).tolist()


@quick
@given(SHARD_SIZES, st.integers(2, 40), st.sampled_from(["split", "truncate", "drop"]), st.integers(1, 6), st.booleans())
def test_fitted_packs_have_each_token_once(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], length: int, long: str, most: int, repack: bool
) -> None:
    index = index_of(shards)
    settings = PackSettings(length, long=long, max_documents=most)  # type: ignore[arg-type]
    plan = open_plan(index, settings, [tmp_path_factory.mktemp("plans")], repack=repack)
    expected = Counter[tuple[int, int, int]]()
    for shard, sizes in enumerate(shards):
        for document, size in enumerate(sizes):
            kept = size if long == "split" else min(size, length) if long == "truncate" or size <= length else 0
            expected.update((shard, document, token) for token in range(kept))
    for epoch in (0, 1):
        segments = all_segments(plan, seed=4, epoch=epoch)
        assert tokens_of(segments) == expected
        assert all(num <= length for num in rows_of(segments))
        assert Counter(segments.row.tolist()).most_common(1)[0][1] <= most if len(plan) else True
        assert (plan.loss(np.arange(len(plan)), seed=4, epoch=epoch) == losses(index, segments, settings, len(plan))).all()
        squares = np.bincount(segments.row, weights=segments.num.astype(float) ** 2, minlength=len(plan))
        assert np.allclose(plan.cost(np.arange(len(plan)), seed=4, epoch=epoch), squares)
    some = np.random.default_rng(0).integers(0, max(1, len(plan)), 5 if len(plan) else 0)
    asked, everything = plan.segments(some, seed=None, epoch=0), all_segments(plan)
    for row, pack in enumerate(some.tolist()):
        assert [column[asked.row == row].tolist() for column in asked[1:]] == [
            column[everything.row == pack].tolist() for column in everything[1:]
        ]


@quick
@given(SHARD_SIZES, st.integers(2, 40), st.sampled_from(["truncate", "drop"]), st.integers(1, 200), st.booleans())
def test_batches_of_so_many_tokens_have_each_document_once_in_all_fields(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], length: int, long: str, more: int, has_other: bool
) -> None:
    most = length * (1 + has_other) + more
    lengths = [np.random.default_rng(number).permutation(sizes).tolist() for number, sizes in enumerate(shards)]
    fields = [(index_of(sizes), PackSettings(length, "pad", long, max_tokens=most)) for sizes in (shards, lengths)]  # type: ignore[arg-type]
    fields = fields if has_other else fields[:1]
    plan = open_plan(*fields[0], [tmp_path_factory.mktemp("plans")], beside=fields[1:])
    all_kept = [
        [min(size) > 0 and (long == "truncate" or max(size) <= length) for size in zip(*sizes, strict=True)]
        for sizes in zip(*([shards, lengths][: len(fields)]), strict=True)
    ]
    of_fields = [all_segments(plan.of_field(*field)) for field in fields]
    widths = np.zeros(len(plan), np.int64)
    for segments, (index, settings) in zip(of_fields, fields, strict=True):
        assert Counter(zip(segments.shard.tolist(), segments.document.tolist(), strict=True)) == Counter(
            (shard, document) for shard, kept in enumerate(all_kept) for document, is_kept in enumerate(kept) if is_kept
        )
        assert (segments.num == np.minimum(segments.total, length)).all()
        assert (segments.document == of_fields[0].document).all()
        np.maximum.at(found := np.zeros(len(plan), np.int64), segments.row, segments.num)
        widths += found
        expected = np.bincount(segments.row, weights=loss_of(index, segments, settings.labels), minlength=len(plan))
        assert (plan.of_field(index, settings).loss(np.arange(len(plan)), seed=None, epoch=0) == expected).all()
    num_rows = np.bincount(of_fields[0].row, minlength=len(plan))
    assert (widths * num_rows <= most).all()


def losses(index: TokenIndex, segments: Segments, settings: PackSettings, num: int) -> np.ndarray:
    return np.bincount(segments.row, weights=loss_of(index, segments, settings.labels), minlength=num)


@quick
@given(SHARD_SIZES, st.integers(2, 40), st.sampled_from(["same", "shifted"]))
def test_a_stream_is_cut_into_full_rows_elsewhere_each_epoch(shards: list[list[int]], length: int, labels: str) -> None:
    index = index_of(shards)
    packs = StreamPacks(index, PackSettings(length, "concat", labels=labels))  # type: ignore[arg-type]
    num_tokens = sum(map(sum, shards))
    assert len(packs) == num_tokens // length
    for seed, epoch in ((None, 0), (3, 0), (3, 1)):
        segments = all_segments(packs, seed=seed, epoch=epoch)
        assert rows_of(segments) == [length] * len(packs)
        found = tokens_of(segments)
        assert len(found) == len(packs) * length  # each at most once
        parts = zip(
            segments.shard.tolist(), segments.document.tolist(), segments.first.tolist(), segments.num.tolist(), strict=True
        )
        assert all(first + num <= shards[shard][document] for shard, document, first, num in parts)
        assert (
            packs.loss(np.arange(len(packs)), seed=seed, epoch=epoch) == losses(index, segments, packs.settings, len(packs))
        ).all()


@quick
@given(SHARD_SIZES, st.integers(2, 40), st.sampled_from(["split", "truncate", "drop"]))
def test_padded_rows_have_one_part_of_a_document_each(shards: list[list[int]], length: int, long: str) -> None:
    packs = DocumentPacks(index_of(shards), PackSettings(length, "pad", long))  # type: ignore[arg-type]
    segments = all_segments(packs)
    assert segments.row.tolist() == list(range(len(packs)))
    assert all(0 < num <= length for num in segments.num.tolist())
    sizes = [size for shard in shards for size in shard]
    expected = {"split": sum(sizes), "truncate": sum(min(size, length) for size in sizes)}
    assert sum(segments.num.tolist()) == expected.get(long, sum(size for size in sizes if size <= length))


@quick
@given(st.integers(1, 60), st.integers(2, 30), st.sampled_from(["same", "shifted"]), st.integers(0, 10**6))
def test_labels_with_loss_are_counted_by_runs(num: int, length: int, labels: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 50, num)
    carries = [rng.random(size) < 0.4 for size in sizes]
    runs = [np.flatnonzero(np.diff(np.concatenate([[0], one, [0]]))).reshape(-1, 2) for one in carries]
    ends = np.cumsum([0, *map(len, runs)])
    loss = LossRuns(ends, np.concatenate(runs).astype(np.int32))
    index = index_of([sizes.tolist()], runs=[loss])
    packs = StreamPacks(index, PackSettings(length, "concat", labels=labels))  # type: ignore[arg-type]
    segments = all_segments(packs, seed=1)
    expected = np.zeros(len(packs), np.int64)
    for row, document, first, count, total in zip(*(segments[place].tolist() for place in (0, 2, 3, 4, 5)), strict=True):
        end = min(first + count + 1, total) if labels == "shifted" else first + count
        expected[row] += carries[document][first + 1 : end].sum()
    assert packs.loss(np.arange(len(packs)), seed=1, epoch=0).tolist() == expected.tolist()


def test_repacking_changes_which_documents_share_a_row_and_no_row_is_added(tmp_path: Path) -> None:
    index = index_of([np.random.default_rng(0).integers(1, 50, 3000).tolist()])
    plan = open_plan(index, PackSettings(100), [tmp_path], repack=True)
    rows = [all_segments(plan, seed=1, epoch=epoch) for epoch in (0, 1)]
    assert rows_of(rows[0]) == rows_of(rows[1])
    assert (rows[0].document != rows[1].document).mean() > 0.5
    still = all_segments(plan, seed=None, epoch=5)
    assert (still.document == all_segments(plan, seed=None, epoch=6).document).all()


def test_windows_are_packed_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plans, windows):
        monkeypatch.setattr(module, "WINDOW", 100)
    index = index_of([[30] * 250, [7] * 30])
    plan = open_plan(index, PackSettings(60), [tmp_path])
    segments = all_segments(plan)
    assert tokens_of(segments) == Counter(
        {(s, d, t): 1 for s, n, size in ((0, 250, 30), (1, 30, 7)) for d in range(n) for t in range(size)}
    )
    of_windows = {
        (row, shard, document // 100)
        for row, shard, document in zip(segments.row.tolist(), segments.shard.tolist(), segments.document.tolist(), strict=True)
    }
    assert len(of_windows) == len(plan)


def test_a_plan_is_made_once_and_another_corpus_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of([[3, 4, 5]])
    open_plan(index, PackSettings(8), [tmp_path])
    monkeypatch.setattr(windows, "best_fit", None)
    assert len(open_plan(index, PackSettings(8), [tmp_path])) == 2
    with pytest.raises(TypeError):
        open_plan(index, PackSettings(9), [tmp_path])


def test_a_plan_of_another_corpus_is_refused_under_any_name(tmp_path: Path) -> None:
    """Both corpora have as many documents, in as many windows."""
    settings = PackSettings(8)
    ours, theirs = index_of([[3, 5, 7]], fingerprint="ours"), index_of([[3, 5, 47]], fingerprint="theirs")
    open_plan(theirs, settings, [tmp_path])
    (path,) = tmp_path.glob("packs-*.arrow")
    path.rename(tmp_path / path.name.replace("theirs", "ours"))
    with pytest.raises(FormatError, match="it is of other documents"):
        open_plan(ours, settings, [tmp_path])


@pytest.mark.parametrize("damage", ["cut", "empty", "no batch", "noise", "items", "other items", "ends", "losses", "costs"])
def test_a_damaged_plan_is_refused(damage: str, tmp_path: Path) -> None:
    index = index_of([[3, 4, 5, 9]])
    plan = open_plan(index, PackSettings(8), [tmp_path])
    (path,) = tmp_path.glob("packs-*")
    data = bytearray(path.read_bytes())
    if damage == "items":
        at = data.index(plan.items.tobytes())
        data[at : at + 2] = b"\xff\xff"
    elif damage == "other items":  # which fit their rows too
        at = data.index(plan.items.tobytes())
        assert plan.items.tolist() == [0, 2, 1, 3, 3]
        data[at : at + 2] = b"\1\0"
    elif damage in ("losses", "costs"):
        at = data.index(getattr(plan, damage).tobytes())
        data[at] ^= 1
    elif damage == "ends":
        at = data.index(plan.ends.tobytes())
        data[at : at + 8] = np.array([1 << 40], np.int64).tobytes()
    schema = pa.ipc.open_stream(path).schema.serialize().to_pybytes()
    whole = {"cut": data[:200], "no batch": schema + b"\xff\xff\xff\xff" + bytes(4), "empty": b"", "noise": b"x" * 500}
    path.write_bytes(whole.get(damage, bytes(data)))
    for ask in (Packs.segments, Packs.loss, Packs.cost):
        with pytest.raises(FormatError, match=r"packs-.*\.arrow: .*delete it, and it is made again"):
            getattr(open_plan(index, PackSettings(8), [tmp_path]), ask.__name__)(np.arange(2), seed=None, epoch=0)


def test_a_plan_of_no_documents_has_no_rows(tmp_path: Path) -> None:
    for _ in range(2):
        assert len(open_plan(index_of([]), PackSettings(8), [tmp_path])) == 0


def test_a_document_that_is_too_long_can_be_an_error(tmp_path: Path) -> None:
    index = index_of([[3, 4], [5, 90]])
    for packing in ("best-fit", "pad"):
        settings = PackSettings(8, packing, "error")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"1\.ds.*has 90 tokens, and length is 8; pass long='split'"):
            open_plan(index, settings, [tmp_path]) if packing == "best-fit" else DocumentPacks(index, settings)


def test_corpora_join(tmp_path: Path) -> None:
    indexes = [index_of([[3, 4], [5]]), index_of([[6, 2, 2]])]
    joined = joined_index(indexes)
    packs = JoinedPacks([open_plan(one, PackSettings(6), [tmp_path / str(place)]) for place, one in enumerate(indexes)], [0, 2])
    assert (len(joined), len(packs)) == (6, 5)
    segments = all_segments(packs)
    assert tokens_of(segments) == Counter(
        {(s, d, t): 1 for s, d, n in ((0, 0, 3), (0, 1, 4), (1, 0, 5), (2, 0, 6), (2, 1, 2), (2, 2, 2)) for t in range(n)}
    )


def test_a_stream_has_no_gaps() -> None:
    gaps = TokenShard("x.ds", np.dtype("<u2"), np.array([0, 10]), np.array([3, 4]))
    index = TokenIndex("x", [2], lambda number: gaps, fingerprint="f", facts=TokenFacts("uint16"))
    with pytest.raises(OptionError, match="several fields"):
        StreamPacks(index, PackSettings(4, "concat"))


@dataclass
class Lengths:
    """Samples that are no files of tokens, in one shard: nothing is known of them but their lengths."""

    num: np.ndarray
    loss: None = None
    where: str = "somewhere"
    field: str = "conversation"
    can_be_cut: bool = True
    fingerprint: str = "f"
    num_shards: int = 1

    @property
    def starts(self) -> np.ndarray:
        return np.array([0, len(self.num)])

    def shard(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(num_tokens=self.num, loss=None, weights=None)

    def locate(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(documents), np.int64), documents

    def num_tokens(self, documents: np.ndarray) -> np.ndarray:
        return self.num[documents]

    def describe(self, document: int) -> str:
        return f"sample {document}"


@pytest.mark.parametrize("packing", ["best-fit", "pad"])
def test_whatever_has_lengths_is_packed(packing: str, tmp_path: Path) -> None:
    samples, settings = Lengths(np.array([3, 4, 5, 8, 1, 1])), PackSettings(8, packing, "error")  # type: ignore[arg-type]
    packs: Packs = open_plan(samples, settings, [tmp_path]) if packing == "best-fit" else DocumentPacks(samples, settings)
    assert rows_of(all_segments(packs)) == ([8, 6, 8] if packing == "best-fit" else samples.num.tolist())
    assert packs.loss(np.arange(len(packs)), seed=None, epoch=0).sum() == samples.num.sum() - len(samples.num)
    with pytest.raises(OptionError, match=r"sample 3: .*has 8 tokens, and length is 7"):
        open_plan(samples, replace(settings, length=7, packing="best-fit"), [tmp_path])
