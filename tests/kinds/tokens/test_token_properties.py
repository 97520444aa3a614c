"""Whatever the documents and settings are: batches have each token once, and the loss and cost that their packs promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given, settings
from hypothesis import strategies as st

import datapipe as dp
from datapipe.codecs.tokens import TokenFacts
from datapipe.index.tokens import LossRuns, TokenIndex, TokenShard
from datapipe.kinds.tokens.data import _Opening
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.packing.settings import PackSettings
from datapipe.stores.settings import remote_settings

pytestmark = pytest.mark.nightly

PAD = 0
FIELDS = ("input_ids", "labels", "position_ids", "document_ids", "loss_tokens", "id")
SHARDS = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=20), min_size=1, max_size=3)
_numbers = count()


@dataclass(frozen=True)
class Corpus:
    """Documents of which no two tokens are alike, and which of their tokens carry loss."""

    documents: list[list[int]]
    has_loss: dict[int, bool]  # by token
    index: TokenIndex


def corpus_of(path: Path, sizes: list[list[int]], *, with_runs: bool, first: int = 1, seed: int = 0) -> Corpus:
    """Write a corpus of documents of these sizes, shard by shard; tokens are `first` and those after it."""
    rng = np.random.default_rng(seed)
    documents: list[list[int]] = []
    has_loss: dict[int, bool] = {}
    shards = []
    for number, lengths in enumerate(sizes):
        runs: list[list[tuple[int, int]]] = []
        begin = first
        for length in lengths:
            carries = (rng.random(length) < 0.6) if with_runs else np.ones(length, np.bool_)
            documents.append(list(range(first, first + length)))
            has_loss |= dict(zip(documents[-1], carries.tolist(), strict=True))
            edges = np.flatnonzero(np.diff(np.concatenate([[False], carries, [False]]).astype(int)))
            runs.append([(int(start), int(end)) for start, end in edges.reshape(-1, 2)])
            first += length
        file = path / f"{seed}-{number}.u32"
        np.arange(begin, first, dtype="<u4").tofile(file)
        num = np.array(lengths, np.int64)
        flat = np.array([run for some in runs for run in some], np.int32).reshape(-1, 2)
        loss = LossRuns(np.cumsum([0, *map(len, runs)]), flat) if with_runs else None
        shards.append(TokenShard(str(file), np.dtype("<u4"), 4 * (np.cumsum(num) - num), num, loss=loss))
    facts = TokenFacts("uint32")
    fingerprint = f"{next(_numbers)}"
    index = TokenIndex(str(path), [len(one) for one in sizes], shards.__getitem__, fingerprint=fingerprint, facts=facts)
    return Corpus(documents, has_loss, index)


def tokens_of(index: TokenIndex, packs: PackSettings, *, accumulate: int = 1, repack: bool = False) -> dp.Tokens:
    """What a user has of a corpus, over an index that no file of a known form gives."""
    opening = _Opening(index.where, None, None, None, (), remote_settings(None))
    data = dp.Tokens.__new__(dp.Tokens)
    token_settings = TokenSettings((packs,), repack=repack, fields=FIELDS, pad=PAD, accumulate=accumulate)
    data._set(opening, token_settings, is_padded=True, indexes=[index])
    return data


def rows_of(batch: dict[str, Any]) -> Iterator[tuple[int, list[list[int]], list[list[int]]]]:
    """The number, the parts, and their labels, of each row that is no repeat; checks what lies around the parts."""
    for row in np.flatnonzero(batch["real"].numpy()).tolist():
        numbers = batch["document_ids"][row].tolist()
        ids, labels, positions = (batch[name][row].tolist() for name in ("input_ids", "labels", "position_ids"))
        spans = [list(span) for _, span in groupby(range(len(numbers)), numbers.__getitem__)]
        assert [numbers[span[0]] for span in spans if numbers[span[0]] >= 0] == list(range(len({*numbers} - {-1})))
        for span in spans:
            assert [positions[place] for place in span] == list(range(len(span)))
            if numbers[span[0]] < 0:
                assert span[-1] == len(numbers) - 1
                assert {(ids[place], labels[place]) for place in span} == {(PAD, -100)}
        parts = [span for span in spans if numbers[span[0]] >= 0]
        yield int(batch["id"][row]), [[ids[at] for at in part] for part in parts], [[labels[at] for at in part] for part in parts]


def expected_labels(part: list[int], document: list[int], has_loss: dict[int, bool], labels: str) -> list[int]:
    """The labels of a part of a document."""
    if labels == "same":
        targets: list[int | None] = [None, *part[1:]]
    elif labels == "whole":
        targets = [*part]
    else:
        following = document.index(part[-1]) + 1
        targets = [*part[1:], document[following] if following < len(document) else None]
    return [-100 if target is None or not has_loss[target] else target for target in targets]


def check(data: dp.Tokens, corpora: list[Corpus], packs: PackSettings, *, accumulate: int = 1) -> Counter[int]:
    """Check two epochs of batches against the documents and the packs; return how often each token comes in the second."""
    has_loss = {token: carries for corpus in corpora for token, carries in corpus.has_loss.items()}
    documents = {token: document for corpus in corpora for document in corpus.documents for token in document}
    loader = dp.DataLoader(data, 3, shuffle=True, seed=3, num_workers=0, tail="mask")
    for epoch in range(2):
        seen = Counter[int]()
        numbers: list[int] = []
        with_loss: list[int] = []
        promised: list[int] = []
        for batch in loader:
            losses = 0
            for number, parts, labels in rows_of(batch):
                numbers.append(number)
                assert sum(map(len, parts)) <= packs.length
                assert len(parts) <= (packs.max_documents or packs.length)
                for part, found in zip(parts, labels, strict=True):
                    assert part == list(range(part[0], part[0] + len(part))), "a part of one document"
                    assert documents[part[0]] is documents[part[-1]]
                    assert found == expected_labels(part, documents[part[0]], has_loss, packs.labels)
                    seen.update(part)
                one = np.array([number])
                num_with_loss = sum(label != -100 for found in labels for label in found)
                assert data.corpora[0].packs.loss(one, seed=3, epoch=epoch).tolist() == [num_with_loss]
                assert data.corpora[0].packs.cost(one, seed=3, epoch=epoch).tolist() == [sum(len(part) ** 2 for part in parts)]
                losses += num_with_loss
            with_loss.append(losses)
            promised.append(batch["loss_tokens"])
        assert sorted(numbers) == list(range(len(data))), "each row once"
        steps = [sum(with_loss[step : step + accumulate]) for step in range(0, len(with_loss), accumulate)]
        assert promised == [steps[step // accumulate] for step in range(len(promised))]
    return seen


def kept_by(packs: PackSettings, corpus: Corpus) -> Counter[int]:
    """The tokens that rows have by `long`, each once."""
    length = packs.length
    kept: list[list[int]] = []
    for document in corpus.documents:
        if packs.long == "split" or len(document) <= length:
            kept.append(document)
        elif packs.long == "truncate":
            kept.append(document[:length])
    return Counter(token for document in kept for token in document)


WHOLE = st.builds(
    PackSettings,
    length=st.integers(2, 40),
    packing=st.sampled_from(["best-fit", "pad"]),
    long=st.sampled_from(["split", "truncate", "drop"]),
    max_documents=st.none() | st.integers(1, 5),
    labels=st.sampled_from(["same", "shifted", "whole"]),
)


@quick
@given(SHARDS, WHOLE, st.booleans(), st.booleans(), st.integers(1, 3), st.integers(0, 10**6))
def test_documents_kept_whole_come_once(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[list[int]],
    packs: PackSettings,
    with_runs: bool,
    repack: bool,
    accumulate: int,
    seed: int,
) -> None:
    corpus = corpus_of(tmp_path_factory.mktemp("corpus"), sizes, with_runs=with_runs, seed=seed)
    expected = kept_by(packs, corpus)
    if not expected:
        with pytest.raises(dp.errors.DatapipeError):
            tokens_of(corpus.index, packs)
        return
    data = tokens_of(corpus.index, packs, accumulate=accumulate, repack=repack and packs.packing == "best-fit")
    assert check(data, [corpus], packs, accumulate=accumulate) == expected


@quick
@given(SHARDS, st.integers(2, 40), st.sampled_from(["same", "shifted", "whole"]), st.booleans(), st.integers(0, 10**6))
def test_a_stream_leaves_out_less_than_a_row(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], length: int, labels: str, with_runs: bool, seed: int
) -> None:
    corpus = corpus_of(tmp_path_factory.mktemp("corpus"), sizes, with_runs=with_runs, seed=seed)
    packs = PackSettings(length, "concat", labels=labels)  # type: ignore[arg-type]
    num_tokens = len(corpus.has_loss)
    if num_tokens < length:
        with pytest.raises(dp.errors.MissingDataError):
            tokens_of(corpus.index, packs)
        return
    found = check(tokens_of(corpus.index, packs), [corpus], packs)
    assert set(found.values()) == {1}
    assert found.total() == num_tokens // length * length


@settings(quick, max_examples=20)
@given(st.lists(SHARDS, min_size=2, max_size=3), WHOLE, st.integers(1, 3), st.integers(0, 10**6))
def test_mixed_corpora_come_once(
    tmp_path_factory: pytest.TempPathFactory, all_sizes: list[list[list[int]]], packs: PackSettings, accumulate: int, seed: int
) -> None:
    """By default each row of each corpus once; some corpora say which tokens carry loss, some do not."""
    path = tmp_path_factory.mktemp("corpora")
    packs = PackSettings(packs.length, "best-fit", packs.long, packs.max_documents, packs.labels)
    corpora: list[Corpus] = []
    first = 1
    for number, sizes in enumerate(all_sizes):
        corpora.append(corpus_of(path, sizes, with_runs=number % 2 == 0, first=first, seed=seed + number))
        first += len(corpora[-1].has_loss)
    corpora = [corpus for corpus in corpora if kept_by(packs, corpus)]
    if len(corpora) < 2:
        return
    mixed = dp.mix([tokens_of(corpus.index, packs, accumulate=accumulate) for corpus in corpora])
    assert isinstance(mixed, dp.Tokens)
    assert check(mixed, corpora, packs, accumulate=accumulate) == sum((kept_by(packs, one) for one in corpora), Counter[int]())
