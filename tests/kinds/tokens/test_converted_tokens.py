"""Converted corpora: their checks, their plans, the commands on them, and those that lie in a store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faulty_store import FaultyStore
from stand_in_stores import BUCKET, moto_store, needs_moto, upload
from tokenizers_of_tests import END, TEXTS, byte_level

import datapipe as dp
from converters import ConvertOptions, FieldChoice, convert
from converters.tokenizer import Tokenizing
from converters.verify import verify
from datapipe.cli.main import main
from datapipe.errors import FormatError, IntegrityError, MissingDataError, OptionError

LENGTH = 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents in several shards. Not to be changed."""
    root = tmp_path_factory.mktemp("made")
    tokenizer = byte_level(root / "tokenizer")
    rows = [{"text": TEXTS[number % len(TEXTS)] * (1 + number % 5), "title": f"number {number}"} for number in range(120)]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options: dict[str, Any] = {"to": "tokens", "tokens": Tokenizing.of(tokenizer), "shard_nbytes": 6000, "num_workers": 1}
    convert(ConvertOptions(root / "corpus.jsonl", root / "tokens", **options))
    fields = (FieldChoice("text", "text"), FieldChoice("title", "text"))
    convert(ConvertOptions(root / "corpus.jsonl", root / "pairs", fields=fields, **options))
    return root


@pytest.fixture
def tokens(made: Path, tmp_path: Path) -> Path:
    """A copy without the plans that other tests have made beside it."""
    return shutil.copytree(made / "tokens", tmp_path / "tokens", ignore=shutil.ignore_patterns(".datapipe-index"))


def loader_of(path: Path | str, **options: Any) -> dp.DataLoader:
    data = dp.Tokens(
        path, options.pop("length", LENGTH), **{name: options.pop(name) for name in ("remote", "packing") if name in options}
    )
    return dp.DataLoader(data, **{"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 2} | options)


def rows_of(loader: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in loader]


def test_each_field_of_a_set_has_rows_of_its_own(made: Path, tmp_path: Path) -> None:
    pairs = shutil.copytree(made / "pairs", tmp_path / "pairs")
    text, title = (dp.Tokens(pairs, LENGTH, field=field) for field in ("text", "title"))
    assert len(title) < len(text)
    for data in (text, title):
        loader = dp.DataLoader(data, 4, seed=0, num_workers=0)
        assert sum(int((batch["document_ids"] >= 0).sum()) for batch in loader) == int(
            data.index.num_tokens(np.arange(len(data.index))).sum()
        )


def test_a_corpus_says_what_fills_rows(tokens: Path) -> None:
    data = dp.Tokens(tokens, LENGTH)
    assert data.settings.pad == 2  # the tokenizer's own
    assert data.index.facts.eos == END
    assert data.vocab_size == dp.mix([data, data]).vocab_size == data.index.facts.vocab_size
    assert data.vocab_size is not None
    with pytest.raises(OptionError, match="a converted set knows its dtype, eos and vocab_size"):
        dp.Tokens(tokens, LENGTH, eos=0)
    with pytest.raises(OptionError, match="has no field 'titles'"):
        dp.Tokens(tokens, LENGTH, field="titles")


def test_another_tokenizer_than_the_shards_is_refused(made: Path, tmp_path: Path) -> None:
    assert len(dp.Tokens(made / "tokens", LENGTH, tokenizer=made / "tokenizer")) > 10
    with pytest.raises(OptionError, match="was made by another tokenizer than"):
        dp.Tokens(made / "tokens", LENGTH, tokenizer=byte_level(tmp_path, vocab_size=300))
    with pytest.raises(MissingDataError, match=r"pass the tokenizer\.json of the model"):
        dp.Tokens(made / "tokens", LENGTH, tokenizer=tmp_path / "absent.json")


@pytest.mark.nightly
def test_rows_can_be_planned_by_the_conversion(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "convert",
        str(made / "corpus.jsonl"),
        str(tmp_path / "out"),
        "--to",
        "tokens",
        "--tokenizer",
        str(made / "tokenizer"),
    ]
    assert main([*command, "--pack", "64", "--split", "a=0.5,b=0.5"]) == 0
    assert "rows of 64 tokens planned" in capsys.readouterr().err
    (plan,) = (tmp_path / "out" / "a" / ".datapipe-index").glob("packs-*.arrow")
    assert len(dp.Tokens(tmp_path / "out" / "a", 64)) > 10
    assert list(plan.parent.glob("packs-*.arrow")) == [plan]
    assert main(["convert", "x.jsonl", "s3://bucket/x", "--to", "tokens", "--tokenizer", "t.json", "--pack", "64"]) == 2
    assert "--pack: the plan of rows is kept beside shards" in capsys.readouterr().err
    assert main([*command, "--pack", "1"]) == 2
    assert "length is 1" in capsys.readouterr().err
    assert main(["convert", "x", "y", "--to", "hdf5", "--pack", "64"]) == 2
    assert "--pack is for --to tokens" in capsys.readouterr().err


def test_a_damaged_document_is_found_by_its_checksum(tokens: Path) -> None:
    good = rows_of(loader_of(tokens))
    shard = sorted(tokens.glob("*.tokens"))[1]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"shard-000001\.tokens: sample \d+ \(corpus\.jsonl/line \d+\): .*have crc32c"):
        rows_of(loader_of(tokens))
    loader = loader_of(tokens, on_error="skip")
    assert sum(map(len, rows_of(loader))) == sum(map(len, good)) - 1
    assert len(loader.bad_samples) == 1
    assert any("sha256" in problem.what for problem in verify(tokens).problems)


def test_a_plan_is_kept_beside_the_shards_and_is_no_part_of_the_set(tokens: Path) -> None:
    dp.Tokens(tokens, LENGTH)
    (plan,) = (tokens / ".datapipe-index").glob("packs-*")
    written = plan.stat().st_mtime_ns
    dp.Tokens(tokens, LENGTH)
    assert plan.stat().st_mtime_ns == written
    dp.Tokens(tokens, LENGTH + 1)
    assert len(list((tokens / ".datapipe-index").glob("packs-*"))) == 2
    assert verify(tokens).problems == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_plan_of_a_set_that_cannot_be_written_is_kept_for_the_user(tokens: Path) -> None:
    tokens.chmod(0o555)
    assert len(rows_of(loader_of(tokens))) > 1
    assert not (tokens / ".datapipe-index").exists()


def test_a_loader_pickles_and_goes_on(tokens: Path) -> None:
    loader = loader_of(tokens)
    everything = rows_of(loader_of(tokens))
    iterator = iter(loader)
    first = [next(iterator)["input_ids"].tolist() for _ in range(3)]
    other = pickle.loads(pickle.dumps(loader_of(tokens)))
    other.load_state_dict(loader.state_dict())
    assert first + rows_of(other) == everything


def test_fields_of_pairs_are_loaded_one_by_one(made: Path) -> None:
    with pytest.raises(OptionError, match=r"has the fields text, title; say which one, as field='text'"):
        dp.Tokens(made / "pairs", LENGTH)
    with pytest.raises(OptionError, match="has several fields"):
        dp.Tokens(made / "pairs", LENGTH, field="text", packing="concat")
    texts = sorted(
        tuple(row)
        for batch in rows_of(dp.DataLoader(dp.Tokens(made / "pairs", 512, field="text", packing="pad"), 1))
        for row in batch
    )
    alone = sorted(
        tuple(row) for batch in rows_of(dp.DataLoader(dp.Tokens(made / "tokens", 512, packing="pad"), 1)) for row in batch
    )
    assert texts == alone


def test_inspect_and_bench(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(made / "tokens")]) == 0
    said = capsys.readouterr().out
    assert "120 documents of" in said
    assert "eos 0" in said
    assert main(["inspect", "--json", str(made / "tokens")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tokens"] == sum(np.fromfile(path, "<u2").size for path in (made / "tokens").glob("*.tokens"))
    assert sum(one["documents"] for one in facts["histogram"]) == 120
    assert main(["bench", str(made / "tokens"), "--rounds", "1"]) == 0
    assert "M tokens/s" in capsys.readouterr().out
    assert main(["inspect", str(made / "pairs")]) == 0
    said = capsys.readouterr().out
    assert "pairs, text: 120 documents of" in said
    assert "pairs, title: 120 documents of" in said
    assert main(["inspect", str(made / "tokens"), "--grid", "x.png"]) == 2
    assert "without images" in capsys.readouterr().err


def test_inspect_says_how_full_rows_are(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(made / "tokens")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    index = dp.Tokens(made / "tokens", LENGTH).index
    lengths = index.num_tokens(np.arange(len(index)))
    for row in rows:
        data = dp.Tokens(made / "tokens", row["length"])
        assert row["best_fit_fill"] == pytest.approx(lengths.sum() / (len(data) * row["length"]))
        assert row["longer"] == pytest.approx((lengths > row["length"]).mean())
    ends = np.cumsum(lengths)
    cut = sum(begin // 1024 != (end - 1) // 1024 for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True))
    assert rows[0]["length"] == 1024
    assert rows[0]["cut_by_concat"] == pytest.approx(cut / len(lengths))


def test_inspect_shows_documents_as_texts(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(made / "tokens"), "--tokenizer", str(made / "tokenizer")]) == 0
    said = capsys.readouterr().out
    assert said.count("those after > carry loss") == 3
    assert any(f"\n  > {text[:20]}" in said for text in TEXTS)
    assert "<|end|>" in said
    assert main(["inspect", str(made / "tokens"), "--tokenizer", str(byte_level(tmp_path, vocab_size=300))]) == 2
    assert "was made by another tokenizer than" in capsys.readouterr().err
    assert main(["inspect", str(made / "tokens"), "--tokenizer", str(tmp_path / "absent")]) == 1
    assert "no such file; pass the tokenizer.json of the model" in capsys.readouterr().err


def test_images_of_a_corpus_are_refused(made: Path) -> None:
    with pytest.raises(OptionError, match=r"holds token ids; read them with datapipe\.Tokens"):
        dp.Images(made / "tokens")
    with pytest.raises(FormatError, match="and no token ids; convert texts"):
        _no_tokens(made)


def _no_tokens(made: Path) -> dp.Tokens:
    options = ConvertOptions(made / "corpus.jsonl", made / "plain", to="webdataset", form="documents", num_workers=1)
    if not (made / "plain").exists():
        convert(options)
    return dp.Tokens(made / "plain", LENGTH)


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", 0), ("eos", -1), ("eos", 1 << 63), ("pad", 10**30), ("bos", -(1 << 70))]
)
def test_ids_that_no_tokenizer_has_are_refused(name: str, value: int, tokens: Path) -> None:
    manifest = json.loads((tokens / "dataset.json").read_text())
    del manifest["checksum"]
    manifest["tokens"] |= {"vocab_size": None, name: value}
    (tokens / "dataset.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=rf"dataset\.json: .*{name} is"):
        dp.Tokens(tokens, LENGTH)


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_shards_that_are_no_files_of_the_set_are_refused(what: str, tokens: Path, tmp_path: Path) -> None:
    shard = min(tokens.glob("*.tokens"))
    shard.rename(tmp_path / "elsewhere")
    if what == "pipe":
        os.mkfifo(shard)
    else:
        shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match=r"named pipe|leads out of"):
        rows_of(loader_of(tokens))


@pytest.mark.nightly
@needs_moto
def test_a_corpus_in_a_store_has_the_batches_of_the_local_one(made: Path, tmp_path: Path) -> None:
    with moto_store() as store:
        shutil.copytree(made / "tokens", tmp_path / "set", ignore=shutil.ignore_patterns(".datapipe-index"))
        upload(tmp_path / "set", "corpus")
        _compare_with_store(made, store, tmp_path)


def _compare_with_store(made: Path, store: FaultyStore, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/corpus"
    for remote in (None, dp.Remote(cache_dir=tmp_path / "cache")):
        here, there = loader_of(made / "tokens"), loader_of(url, remote=remote)
        for _ in range(2):
            for one, other in zip(here, there, strict=True):
                assert one.keys() == other.keys()
                assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)
    iterator = iter(loader := loader_of(url))
    next(iterator)
    resumed = loader_of(made / "tokens")
    resumed.load_state_dict(loader.state_dict())
    assert rows_of(resumed) == rows_of(loader_of(made / "tokens"))[1:]
