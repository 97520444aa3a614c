"""Batches of tokens have what they promise, for every packing, layout and form of labels."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_corpora import everything, random_documents, same, write_datatrove, write_megatron

import datapipe as dp
from datapipe.errors import DecodeError, IntegrityError, MissingDataError, OptionError, StateError
from datapipe.kernel.loader import Loader

DOCUMENTS = random_documents(400, most=70)
ALL = ("input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "max_seqlen", "loss_tokens", "id")
LENGTH = 32


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """400 documents of 1 to 70 random ids; no two begin alike, which tests rely on."""
    return write_datatrove(tmp_path / "corpus", DOCUMENTS)


def loader_of(corpus: Path, **options: Any) -> Loader:
    names = ("batch_size", "shuffle", "num_workers", "ranks", "tail", "on_error", "batch_transform", "output", "drop_last")
    of_loader = {name: options.pop(name) for name in names if name in options}
    data = dp.Tokens(corpus, options.pop("length", LENGTH), **{"fields": ALL} | options)
    return dp.DataLoader(data, **{"batch_size": 5, "shuffle": True, "seed": 7, "num_workers": 0} | of_loader)


def parts_of(batch: dict[str, Any], row: int) -> list[slice]:
    """The parts of a row that are documents, by its numbers of documents."""
    numbers = batch["document_ids"][row].tolist()
    bounds = [0, *(place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1]), len(numbers)]
    return [slice(*pair) for pair in itertools.pairwise(bounds) if numbers[pair[0]] >= 0]


def _following() -> dict[tuple[int, int], set[int]]:
    """What comes after each pair of neighbouring tokens, of which random ids hardly have one twice; -100 for nothing."""
    found: dict[tuple[int, int], set[int]] = {}
    for document in DOCUMENTS:
        tokens = [*document.tolist(), -100]
        for place in range(len(tokens) - 2):
            found.setdefault((tokens[place], tokens[place + 1]), set()).add(tokens[place + 2])
    return found


FOLLOWING = _following()


@pytest.mark.parametrize("packing", ["best-fit", "concat", "pad"])
@pytest.mark.parametrize("labels", ["same", "shifted"])
def test_rows_are_documents_with_their_positions_labels_and_boundaries(corpus: Path, packing: str, labels: str) -> None:
    seen = Counter[int]()
    for batch in loader_of(corpus, packing=packing, labels=labels):
        ids, wanted = batch["input_ids"], batch["labels"]
        num, width = ids.shape
        boundaries = []
        for row in range(num):
            parts = parts_of(batch, row)
            assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
            for number, part in enumerate(parts):
                tokens = ids[row, part].tolist()
                seen.update(tokens)
                boundaries.append(row * width + part.start)
                assert batch["document_ids"][row, part].unique().tolist() == [number]
                assert batch["position_ids"][row, part].tolist() == list(range(len(tokens)))
                assert (batch["attention_mask"][row, part] == 1).all()
                found = wanted[row, part].tolist()
                if labels == "same":
                    assert found == [-100, *tokens[1:]]
                else:
                    assert found[:-1] == tokens[1:]
                    assert len(tokens) == 1 or found[-1] in FOLLOWING[tokens[-2], tokens[-1]]
            end = parts[-1].stop
            if end < width:
                boundaries.append(row * width + end)
                assert (ids[row, end:] == 0).all()
                assert (wanted[row, end:] == -100).all()
                assert (batch["document_ids"][row, end:] == -1).all()
                assert batch["position_ids"][row, end:].tolist() == list(range(width - end))
                assert (batch["attention_mask"][row, end:] == 0).all()
        assert batch["cu_seqlens"].tolist() == [*boundaries, num * width]
        assert batch["max_seqlen"] == int(batch["cu_seqlens"].diff().max())
        assert batch["loss_tokens"] == int((wanted != -100).sum())
        assert [batch[name].dtype for name in ALL[:6]] == [torch.int64] * 3 + [torch.int32, torch.int64, torch.int32]
    everything = Counter(np.concatenate(DOCUMENTS).tolist())
    assert (seen == everything) if packing != "concat" else (0 <= sum((everything - seen).values()) < LENGTH)


@pytest.mark.parametrize("packing", ["best-fit", "concat"])
def test_a_flat_batch_is_the_rows_laid_end_to_end(corpus: Path, packing: str) -> None:
    for rows, flat in zip(loader_of(corpus, packing=packing), loader_of(corpus, packing=packing, layout="flat"), strict=True):
        for name in ("input_ids", "labels", "position_ids", "attention_mask"):
            assert torch.equal(flat[name], rows[name].reshape(1, -1))
        for name in ("cu_seqlens", "max_seqlen", "loss_tokens"):
            assert torch.equal(torch.as_tensor(flat[name]), torch.as_tensor(rows[name]))
        numbers = flat["document_ids"][0]
        starts = flat["cu_seqlens"][:-1].long()
        is_document = numbers[starts] >= 0
        assert numbers[starts][is_document].tolist() == torch.arange(len(starts))[is_document].tolist()


def test_boundaries_of_a_fixed_number(corpus: Path) -> None:
    for batch in loader_of(corpus, num_seqlens=60, max_documents=5):
        assert len(batch["cu_seqlens"]) == 60
        assert (batch["cu_seqlens"].diff() >= 0).all()
        assert int(batch["cu_seqlens"][-1]) == batch["input_ids"].numel()
    with pytest.raises(OptionError, match="num_seqlens is 4, and a batch has"):
        list(loader_of(corpus, num_seqlens=4))


@pytest.mark.parametrize("long", ["truncate", "drop"])
def test_documents_that_are_too_long(corpus: Path, long: str) -> None:
    batches = everything(loader_of(corpus, long=long))
    tokens = Counter(token for batch in batches for token in batch["input_ids"].flatten().tolist() if token)
    kept = [document[:LENGTH] for document in DOCUMENTS if long == "truncate" or len(document) <= LENGTH]
    assert tokens == Counter(np.concatenate(kept).tolist())
    with pytest.raises(OptionError, match="pass long='split'"):
        loader_of(corpus, long="error")


def global_rows(loaders: list[Loader], num: int | None = None) -> list[list[list[int]]]:
    """The rows of each step over all ranks, in order."""
    steps = itertools.islice(zip(*loaders, strict=True), num)
    return [[row for batch in step for row in batch["input_ids"].tolist()] for step in steps]


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": "concat"}, {"packing": "pad"}, {"repack": True}, {"balance": "step", "accumulate": 2}],
    ids=["best-fit", "concat", "pad", "repack", "balance"],
)
def test_eight_ranks_go_on_as_two_and_as_sixteen_in_the_middle_of_an_epoch(corpus: Path, options: dict[str, Any]) -> None:
    def ranks(num: int) -> list[Loader]:
        return [loader_of(corpus, batch_size=32 // num, ranks=(rank, num), tail="drop", **options) for rank in range(num)]

    def rows(steps: list[list[list[int]]]) -> list[list[list[int]]]:
        return [[[token for token in row if token] for row in step] for step in steps]  # without padding, whose width differs

    alone = rows(global_rows(ranks(1)))
    begun = ranks(8)
    first = rows(global_rows(begun, 3))
    state = json.loads(json.dumps(begun[0].state_dict()))
    assert len(json.dumps(state)) < 1000
    for num in (2, 16):
        others = ranks(num)
        for loader in others:
            loader.load_state_dict(state)
        assert first + rows(global_rows(others)) == alone


def test_loss_tokens_are_those_of_the_whole_optimizer_step(corpus: Path) -> None:
    for tail in ("pad", "drop", "mask"):
        ranks = [loader_of(corpus, batch_size=3, ranks=(rank, 4), accumulate=3, tail=tail) for rank in range(4)]
        steps = [everything(rank) for rank in ranks]
        for first in range(0, len(steps[0]), 3):
            batches = [batch for rank in steps for batch in rank[first : first + 3]]
            total = sum(int((batch["labels"] != -100).sum()) for batch in batches)
            assert {batch["loss_tokens"] for batch in batches} == {total}


def test_balanced_steps_have_the_same_rows(corpus: Path) -> None:
    plain, balanced = (everything(loader_of(corpus, batch_size=4, accumulate=3, balance=how)) for how in (None, "step"))
    assert not same(plain, balanced)
    for first in range(0, len(plain), 3):
        ours, theirs = (
            sorted(row for batch in one[first : first + 3] for row in batch["id"].tolist()) for one in (plain, balanced)
        )
        assert ours == theirs


def test_a_mask_says_which_rows_are_repeats(corpus: Path) -> None:
    *_, last = loader_of(corpus, batch_size=50, tail="mask")
    assert len(last["real"]) == 50
    assert not last["real"].all()
    assert (last["labels"][~last["real"]] == -100).all()
    assert (last["labels"][last["real"]] != -100).any()


def test_mixed_corpora_have_their_shares_of_rows_and_resume(corpus: Path, tmp_path: Path) -> None:
    other = write_datatrove(tmp_path / "other", random_documents(150, most=40, least=2, vocab=3000, seed=1))
    data = [dp.Tokens(path, LENGTH, fields=["input_ids", "id", "loss_tokens", "labels"]) for path in (corpus, other)]
    mixed = dp.mix(data, weights=[3, 1], num_samples=200)
    assert len(mixed) == 200

    def ranks(num: int) -> list[Loader]:
        return [dp.DataLoader(mixed, 8 // num, True, seed=1, num_workers=0, ranks=(rank, num)) for rank in range(num)]

    batches = everything(ranks(1)[0])
    from_second = sum(int((batch["id"] >= len(data[0])).sum()) for batch in batches)
    assert from_second == 50
    assert all(batch["loss_tokens"] == int((batch["labels"] != -100).sum()) for batch in batches)
    begun = ranks(4)
    first = global_rows(begun, 5)
    (resumed,) = ranks(1)
    resumed.load_state_dict(begun[0].state_dict())
    assert first + global_rows([resumed]) == [batch["input_ids"].tolist() for batch in batches]
    assert same(everything(dp.DataLoader(pickle.loads(pickle.dumps(mixed)), 8, True, seed=1, num_workers=0)), batches)


def test_a_state_of_other_packs_is_refused(corpus: Path) -> None:
    loader = loader_of(corpus)
    next(iter(loader))
    for options in ({"packing": "concat"}, {"length": 33}, {"long": "drop"}, {"repack": True}, {"labels": "shifted"}):
        with pytest.raises(StateError, match="saved with other length, packing, long"):
            loader_of(corpus, **options).load_state_dict(loader.state_dict())
    loader_of(corpus, layout="flat").load_state_dict(loader.state_dict())


def test_a_row_with_a_bad_document_is_left_out_or_replaced(corpus: Path) -> None:
    ids = np.fromfile(corpus / "x.ds", "<u2")
    ids[2000] = 60_000
    ids.tofile(corpus / "x.ds")
    good = everything(loader_of(corpus))  # without a vocabulary nothing is wrong with it
    with pytest.raises(DecodeError, match=r"x\.ds.*document \d+.*token 60000 is beyond the vocabulary of 1000"):
        everything(loader_of(corpus, vocab_size=1000))
    for on_error, num_rows in (("skip", len(good[0]["id"]) - 1), ("replace", len(good[0]["id"]))):
        loader = loader_of(corpus, vocab_size=1000, on_error=on_error)
        batches = everything(loader)
        (bad,) = loader.bad_samples
        for one, batch in zip(good, batches, strict=True):
            if bad.id not in one["id"].tolist():
                assert same([one], [batch])
                continue
            assert len(batch["input_ids"]) == num_rows if one is good[0] else True
            assert 60_000 not in batch["input_ids"]
            kept = one["id"] != bad.id
            still = batch["input_ids"][kept] if on_error == "replace" else batch["input_ids"]
            assert torch.equal(still, one["input_ids"][kept])
            parts = sum(
                len(parts_of(batch, row)) + (int(batch["document_ids"][row, -1]) < 0) for row in range(len(batch["input_ids"]))
            )
            assert len(batch["cu_seqlens"]) == parts + 1


def test_a_file_that_becomes_shorter_is_an_error(corpus: Path) -> None:
    loader = loader_of(corpus)
    data = (corpus / "x.ds").read_bytes()
    (corpus / "x.ds").write_bytes(data[: len(data) // 2])
    with pytest.raises(IntegrityError, match="ends before its documents do"):
        next(iter(loader))
    loader = loader_of(write_datatrove(corpus, DOCUMENTS))
    (corpus / "x.ds").unlink()
    with pytest.raises(MissingDataError, match="is missing"):
        next(iter(loader))


def test_fields_are_chosen_and_renamed(corpus: Path) -> None:
    batch = next(iter(loader_of(corpus, fields=["input_ids", "labels"], output={"input_ids": "x"})))
    assert list(batch) == ["x", "labels"]


def test_a_batch_transform_gets_each_batch(corpus: Path) -> None:
    assert next(iter(loader_of(corpus, batch_transform=lambda batch: tuple(batch["input_ids"].shape)))) == (5, LENGTH)


WRONG = {
    "length": ({"length": 1}, "length is 1"),
    "a length that no memory has": ({"length": 2**31}, "length is 2147483648; it must be at most 16777216"),
    "a length of no integer": ({"length": 2**64 + 1}, "length is 18446744073709551617; it must be at most"),
    "max_tokens": (
        {"packing": "pad", "long": "drop", "max_tokens": 2**62},
        "max_tokens is 4611686018427387904; it must be at most",
    ),
    "accumulate of no integer": ({"accumulate": 2**62}, "accumulate is 4611686018427387904; it must be at most"),
    "num_seqlens": ({"num_seqlens": 2**31}, "num_seqlens is 2147483648; it must be at most"),
    "a pad of no integer": ({"pad": 2**63}, "pad is 9223372036854775808; it must be at most"),
    "fields of another type": ({"fields": 5}, "fields is 5; it must be a list of names"),
    "field of another type": ({"field": 5}, "field is 5; it must be a list of names"),
    "packing": ({"packing": "tight"}, "packing is 'tight'; choose"),
    "long": ({"long": "keep"}, "long is 'keep'; choose"),
    "labels": ({"labels": "next"}, "labels is 'next'; choose"),
    "layout": ({"layout": "columns"}, "layout is 'columns'; choose 'rows' or 'flat'"),
    "fields": ({"fields": ["pixels"]}, "fields has 'pixels'; choose of input_ids"),
    "no fields": ({"fields": []}, "fields is empty"),
    "balance": ({"balance": "epoch"}, "balance is 'epoch'; pass 'step' or nothing"),
    "accumulate": ({"accumulate": 0}, "accumulate is 0"),
    "repack": ({"packing": "concat", "repack": True}, "repack is for packing='best-fit'"),
    "max_documents": ({"packing": "concat", "max_documents": 3}, "max_documents is for packing='best-fit'"),
    "pad": ({"pad": 1000, "vocab_size": 1000}, "pad is 1000, beyond the vocabulary of 1000"),
    "output": ({"output": {"image": "x"}}, "output renames 'image', which batches have not"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings(wrong: str, corpus: Path) -> None:
    options, message = WRONG[wrong]
    with pytest.raises(OptionError, match=message):
        loader_of(corpus, **options)


@pytest.mark.parametrize(
    ("name", "value"), [("transform", []), ("sampler", [1]), ("collate_fn", list), ("backend", "dali"), ("batch_sampler", [[1]])]
)
def test_arguments_that_tokens_do_not_serve(name: str, value: Any, corpus: Path) -> None:
    with pytest.raises(OptionError, match=r"the data is tokens|tokens are read by the host"):
        dp.DataLoader(dp.Tokens(corpus, LENGTH), **{name: value})


def test_a_path_alone_does_not_say_how_long_rows_are(corpus: Path) -> None:
    with pytest.raises(OptionError, match=r"say how long rows are: datapipe\.Tokens\("):
        dp.DataLoader(corpus)


def test_what_explain_says(corpus: Path) -> None:
    text = str(dp.explain(loader_of(corpus, balance="step", accumulate=4)))
    for line in ("400 documents in 1 shard, uint16 ids", "rows of 32 tokens", "fitted into rows", "over 4 micro-batches"):
        assert line in text


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    for documents in ([], [np.zeros(0, np.int64)]):
        path = write_datatrove(tmp_path / str(len(documents)), documents)
        with pytest.raises(dp.errors.DatapipeError):
            dp.Tokens(path, LENGTH)


def test_mixed_corpora_may_differ_in_what_becomes_of_long_documents_alone(corpus: Path) -> None:
    drops, splits = (dp.Tokens(corpus, LENGTH, long=long) for long in ("drop", "split"))
    assert len(dp.mix([drops, splits], weights=[1, 1], num_samples=40)) == 40
    with pytest.raises(OptionError, match=r"differ in length, labels; give all of them the same"):
        dp.mix([splits, dp.Tokens(corpus, LENGTH + 1, labels="shifted")])


def test_labels_after_a_row_are_ids_of_the_vocabulary_too(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "x", [np.array([1, 2, 3, 4, 60_000, 5, 6, 7])])
    data = dp.Tokens(path, 4, packing="concat", labels="shifted", vocab_size=100)
    with pytest.raises(DecodeError, match="token 60000 is beyond the vocabulary of 100"):
        next(iter(dp.DataLoader(data, 1, num_workers=0)))
