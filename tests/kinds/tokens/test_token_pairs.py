"""Fields of the same documents side by side, and batches of as many documents as fill a number of tokens."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from token_corpora import everything, read_documents, same
from tokenizers_of_tests import TEXTS, byte_level

import datapipe as dp
from converters import ConvertOptions, FieldChoice, convert
from converters.tokenizer import Tokenizing
from datapipe.errors import MissingDataError, OptionError

NUM = 90
MOST = 400  # tokens of a batch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 articles with their titles, in several shards. Not to be changed."""
    root = tmp_path_factory.mktemp("pairs")
    rows = [
        {"article": f"{number}: " + TEXTS[number % len(TEXTS)] * (number % 4), "title": f"title of {number}" * (1 + number % 3)}
        for number in range(NUM)
    ]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(
        ConvertOptions(
            root / "corpus.jsonl",
            root / "tokens",
            to="tokens",
            tokens=Tokenizing.of(byte_level(root / "tokenizer")),
            fields=(FieldChoice("article", "text"), FieldChoice("title", "text")),
            shard_nbytes=2000,
            num_workers=1,
        )
    )
    return root / "tokens"


def data_of(path: Path, **options: Any) -> dp.Tokens:
    options = {"packing": "pad", "field": ["article", "title"], "long": "truncate"} | options
    return dp.Tokens(path, options.pop("length", (64, 16)), **options)


def loader_of(path: Path, *, batch_size: int = 4, ranks: tuple[int, int] | None = None, tail: str = "pad", **options: Any) -> Any:
    of_loader = {name: options.pop(name) for name in ("num_workers", "on_error", "shuffle", "output") if name in options}
    options_of_loader = {"shuffle": True, "seed": 5, "num_workers": 0} | of_loader
    return dp.DataLoader(data_of(path, **options), batch_size, ranks=ranks, tail=tail, **options_of_loader)


def documents(path: Path, field: str) -> list[list[int]]:
    """The tokens of each document of a field."""
    return read_documents(dp.Tokens(path, 64, field=field).index)


def rows_of(batch: dict[str, Any], field: str) -> list[list[int]]:
    """The tokens of each row of a batch, without its padding, which is checked."""
    prefix = f"{field}_" if field else ""
    ids, mask, labels = (batch[prefix + name] for name in ("input_ids", "attention_mask", "labels"))
    nums = mask.sum(1).tolist()
    for row, num in enumerate(nums):
        assert (mask[row, :num] == 1).all()
        assert (ids[row, num:] == 2).all()  # the tokenizer's padding
        assert (labels[row, num:] == -100).all()
    assert ids.shape[1] == max(nums)
    return [ids[row, :num].tolist() for row, num in enumerate(nums)]


def test_a_batch_has_the_same_documents_of_each_field(pairs: Path) -> None:
    expected = Counter(
        (tuple(article[:64]), tuple(title[:16]))
        for article, title in zip(documents(pairs, "article"), documents(pairs, "title"), strict=True)
    )
    seen = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for batch in loader_of(pairs):
        rows = [map(tuple, rows_of(batch, field)) for field in ("article", "title")]
        seen.update(zip(*rows, strict=True))
    assert seen.keys() == expected.keys()
    assert sum(seen.values()) == NUM


@pytest.mark.parametrize("labels", ["same", "shifted", "whole"])
@pytest.mark.parametrize("options", [{}, {"max_tokens": MOST, "batch_size": 1}], ids=["rows", "max_tokens"])
def test_labels_and_loss_tokens_of_each_field(pairs: Path, labels: str, options: dict[str, Any]) -> None:
    for batch in loader_of(pairs, labels=labels, tail="drop", **options):
        for field in ("article", "title"):
            for row, tokens in enumerate(rows_of(batch, field)):
                found = batch[f"{field}_labels"][row, : len(tokens)].tolist()
                if labels == "whole":
                    assert found == tokens
                elif labels == "same":
                    assert found == [-100, *tokens[1:]]
                else:
                    assert found[:-1] == tokens[1:]
            assert batch[f"{field}_loss_tokens"] == int((batch[f"{field}_labels"] != -100).sum())


def test_names_for_encoder_decoder_models(pairs: Path) -> None:
    loader = loader_of(
        pairs,
        labels="whole",
        fields=["article_input_ids", "article_attention_mask", "title_labels"],
        output={"article_input_ids": "input_ids", "article_attention_mask": "attention_mask", "title_labels": "labels"},
    )
    assert list(next(iter(loader))) == ["input_ids", "attention_mask", "labels"]


def test_documents_of_which_one_field_is_too_long_are_dropped_whole(pairs: Path) -> None:
    articles, titles = documents(pairs, "article"), documents(pairs, "title")
    kept = [one for one in zip(articles, titles, strict=True) if len(one[0]) <= 64 and len(one[1]) <= 16]
    assert 0 < len(kept) < NUM
    assert len(data_of(pairs, long="drop")) == len(kept)
    grouped = loader_of(pairs, long="drop", max_tokens=MOST, batch_size=1)
    assert sum(len(batch["title_labels"]) for batch in grouped) == len(kept)


@pytest.mark.parametrize("field", ["title", ["article", "title"]], ids=["one", "two"])
def test_batches_of_max_tokens_have_each_document_once_and_are_full(pairs: Path, field: str | list[str]) -> None:
    lengths = {"length": 64} if field == "title" else {}
    names = ("article", "title") if isinstance(field, list) else ("",)
    fields = [] if isinstance(field, list) else ["input_ids", "labels", "attention_mask", "id"]
    loader = loader_of(pairs, field=field, max_tokens=MOST, batch_size=1, **lengths, **({"fields": fields} if fields else {}))
    seen, padded, num_batches = Counter[tuple[int, ...]](), 0, 0
    for batch in loader:
        rows = [rows_of(batch, name) for name in names]
        seen.update(tuple(itertools.chain(*row)) for row in zip(*rows, strict=True))
        here = sum(batch[f"{name}_input_ids" if name else "input_ids"].numel() for name in names)
        assert here <= MOST
        padded += here
        num_batches += 1
    assert num_batches == len(loader)
    articles, titles = documents(pairs, "article"), documents(pairs, "title")
    if isinstance(field, list):
        assert seen == Counter(tuple(one[:64] + other[:16]) for one, other in zip(articles, titles, strict=True))
    else:
        assert seen == Counter(tuple(title[:64]) for title in titles)
    assert padded >= 0.75 * (num_batches - dp.Tokens(pairs, 64, field="title").index.num_shards) * MOST  # a rest in each shard


def test_ids_of_batches_of_max_tokens_are_the_numbers_of_documents(pairs: Path) -> None:
    titles = documents(pairs, "title")
    fields = ["input_ids", "attention_mask", "labels", "id"]
    for batch in loader_of(pairs, field="title", length=64, max_tokens=MOST, batch_size=1, fields=fields):
        assert [titles[number] for number in batch["id"].tolist()] == rows_of(batch, "")


@pytest.mark.parametrize("options", [{}, {"max_tokens": MOST, "batch_size": 1}], ids=["rows", "max_tokens"])
def test_threads_change_nothing_and_states_resume(pairs: Path, options: dict[str, Any]) -> None:
    alone = everything(loader_of(pairs, **options))
    assert same(alone, everything(loader_of(pairs, num_workers=3, **options)))
    loader = loader_of(pairs, num_workers=2, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = pickle.loads(pickle.dumps(loader_of(pairs, **options)))
    resumed.load_state_dict(loader.state_dict())
    assert same(alone[3:], everything(resumed))


def test_batches_of_max_tokens_go_on_on_another_number_of_ranks(pairs: Path) -> None:
    options: dict[str, Any] = {"field": "title", "length": 32, "max_tokens": 60, "fields": ["id"]}
    begun = [loader_of(pairs, ranks=(rank, 4), tail="drop", batch_size=1, **options) for rank in range(4)]
    iterators = [iter(loader) for loader in begun]
    seen = [number for _ in range(3) for iterator in iterators for number in next(iterator)["id"].tolist()]
    states = {json.dumps(loader.state_dict()) for loader in begun}
    assert len(states) == 1
    resumed = [loader_of(pairs, ranks=(rank, 2), tail="drop", batch_size=1, **options) for rank in range(2)]
    for loader in resumed:
        loader.load_state_dict(begun[0].state_dict())
    seen += [number for loader in resumed for batch in loader for number in batch["id"].tolist()]
    assert len(seen) == len({*seen})
    num_batches = len(data_of(pairs, **{name: options[name] for name in ("field", "length", "max_tokens")}))
    assert sum(map(len, resumed)) == num_batches // 2 * 2


def test_other_documents_of_the_same_lengths_come_together_in_each_epoch(pairs: Path) -> None:
    fields = ["input_ids", "attention_mask", "labels", "id"]
    loader = loader_of(pairs, field="title", length=32, max_tokens=60, batch_size=1, repack=True, fields=fields)
    epochs = [{frozenset(batch["id"].tolist()) for batch in loader} for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(itertools.chain(*epochs[0])) == sorted(itertools.chain(*epochs[1])) == list(range(NUM))


def test_mixed_batches_of_pairs(pairs: Path) -> None:
    mixed = dp.mix([data_of(pairs, max_tokens=MOST), data_of(pairs, max_tokens=MOST)], weights=[1, 1], num_samples=20)
    batches = list(dp.DataLoader(mixed, seed=0, num_workers=0))
    assert len(batches) == 20
    for batch in batches:
        assert len(rows_of(batch, "article")) == len(rows_of(batch, "title"))
    with pytest.raises(OptionError, match="pass max_tokens or packing='best-fit'"):
        dp.mix([data_of(pairs), data_of(pairs)])
    with pytest.raises(OptionError, match=r"mix\(\) of Tokens that differ in length"):
        dp.mix([data_of(pairs, max_tokens=MOST), data_of(pairs, max_tokens=MOST, length=32)])


@pytest.mark.parametrize("options", [{}, {"max_tokens": MOST, "batch_size": 1}], ids=["rows", "max_tokens"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_damaged_document_of_one_field_takes_its_row(pairs: Path, tmp_path: Path, policy: str, options: dict[str, Any]) -> None:
    for path in pairs.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    index = dp.Tokens(tmp_path, 16, field="title").index
    shard = index.shard(1)
    data = bytearray(Path(shard.path).read_bytes())
    data[int(shard.offset[2])] ^= 1
    Path(shard.path).write_bytes(data)
    loader = loader_of(tmp_path, on_error=policy, tail="drop", num_workers=2, **options)
    num = sum(len(rows_of(batch, "article")) for batch in loader)
    assert num == sum(len(rows_of(batch, "title")) for batch in loader_of(pairs, tail="drop", **options)) - (policy == "skip")
    assert len(loader.bad_samples) == 1
    assert "corpus.jsonl/line" in loader.bad_samples[0].where


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"long": None}, r"its title has \d+ tokens, and length is 16; pass long='truncate' or 'drop', or a greater length"),
        ({"packing": "best-fit"}, "which only packing='pad' keeps together"),
        ({"long": "split"}, "long='split' for several fields"),
        ({"length": (1, 2, 3)}, r"length is \(1, 2, 3\) for 2 fields; pass one, or one of each"),
        ({"max_tokens": 70}, "max_tokens is 70, and documents have up to 80 tokens"),
        ({"max_tokens": 30, "length": 40}, "max_tokens is 30"),
        ({"field": ["article", "article"]}, "name fields of tokens, each once"),
        ({"field": ["article", "summary"]}, "has no field 'summary' of token ids"),
        ({"fields": ["input_ids"]}, "fields has 'input_ids'; choose of article_input_ids"),
        ({"fields": []}, "fields is empty"),
        ({"max_tokens": 100, "repack": True}, "documents of several fields stay"),
        ({"max_tokens": 100, "field": "title", "length": 64, "long": "split"}, "long='split' with max_tokens"),
        ({"max_tokens": 100, "field": "title", "length": 64, "packing": "concat"}, "max_tokens is for packing='pad'"),
    ],
)
def test_wrong_settings_are_refused(pairs: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        data_of(pairs, **options)


def test_a_batch_size_beside_max_tokens_is_refused(pairs: Path) -> None:
    with pytest.raises(OptionError, match="batch_size is 4, and max_tokens says how many rows; leave it out"):
        loader_of(pairs, max_tokens=MOST)
    with pytest.raises(MissingDataError, match="no rows of 64 and 2 tokens"):
        data_of(pairs, length=(64, 2), long="drop")


def test_explain_says_how_documents_are_grouped(pairs: Path) -> None:
    said = str(dp.explain(loader_of(pairs, max_tokens=MOST, batch_size=1)))
    assert "up to 64 and 16 tokens: documents of like lengths, as many as fill 400 tokens, padding included" in said
