"""Texts become token ids: those of the reference, whatever the source, the number of workers, and interruptions."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from tokenizers_of_tests import END, START, TEXTS, byte_level, word_pieces

import converters.samples.tokenising as tokenising
from converters import ConvertOptions, FieldChoice, OnError, convert
from converters.tokenizer import Tokenizing, open_fast, open_reference
from converters.verify import verify
from datapipe.codecs.tokens import TokenFacts
from datapipe.errors import DatapipeError, DecodeError, FormatError, IntegrityError, MissingDataError, OptionError
from datapipe.index.manifest import BUILDING_NAME, read_manifest
from datapipe.opening.tokens.opening import open_tokens

DOCUMENTS = [f"{TEXTS[number % len(TEXTS)]} ({number})" + " more" * (number % 7) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("tokenizer"))


def lines(documents: list[Any], name: str = "text") -> str:
    return "".join(json.dumps({"id": number, name: one, "more": {"text": "no"}}) + "\n" for number, one in enumerate(documents))


def expected(tokenizer: Path, documents: list[str] = DOCUMENTS) -> list[list[int]]:
    """By Hugging Face's library alone, with the token that ends documents."""
    reference = Tokenizer.from_file(str(tokenizer))
    reference.encode_special_tokens = True
    return [[*reference.encode(one, add_special_tokens=False).ids, END] for one in documents]


def converted(source: Path, out: Path, tokenizer: Path, **options: Any) -> Path:
    of_tokenizer = {name: options.pop(name) for name in ("bos", "eos", "chat_template") if name in options}
    tokens = Tokenizing.of(tokenizer, **of_tokenizer)
    convert(ConvertOptions(source, out, to="tokens", tokens=tokens, **{"shard_nbytes": 1500, "num_workers": 1} | options))
    return out


def by_id(path: Path, field: str | None = None) -> dict[int, list[int]]:
    """The ids of each document, by the ids of documents."""
    index = open_tokens(path, field=field)
    found = {}
    for number in range(index.num_shards):
        shard = index.shard(number)
        ids, _ = shard.mapped
        start = int(shard.offset[0])
        sidecar = index.samples.sidecar(number)  # type: ignore[union-attr]
        for document, offset, num in zip(sidecar.ids.tolist(), shard.offset.tolist(), shard.num_tokens.tolist(), strict=True):
            place = (offset - start) // shard.dtype.itemsize
            found[document] = ids[place : place + num].tolist()
    return found


def in_order(path: Path, field: str | None = None) -> list[list[int]]:
    return [ids for _, ids in sorted(by_id(path, field).items())]


def jsonl(path: Path) -> Path:
    (path / "corpus.jsonl").write_text(lines(DOCUMENTS))
    return path / "corpus.jsonl"


def several_jsonl(path: Path) -> Path:
    (path / "b").mkdir()
    (path / "a.jsonl").write_text(lines(DOCUMENTS[:25]).replace("\n", "\r\n"))
    (path / "b" / "c.ndjson").write_text("\n" + lines(DOCUMENTS[25:]).rstrip("\n"))
    return path


def gzipped(path: Path) -> Path:
    (path / "corpus.jsonl.gz").write_bytes(gzip.compress(lines(DOCUMENTS).encode()))
    return path / "corpus.jsonl.gz"


def compressed_folder(path: Path) -> Path:
    (path / "0.jsonl.bz2").write_bytes(bz2.compress(lines(DOCUMENTS[:30]).encode()))
    (path / "1.jsonl.zst").write_bytes(pa.compress(lines(DOCUMENTS[30:]).encode(), codec="zstd", asbytes=True))
    return path


def pattern(path: Path) -> Path:
    several_jsonl(path)
    (path / "a.txt").write_text("not among them")
    return path / "**" / "*.*json*"


def text_files(path: Path) -> Path:
    for number, document in enumerate(DOCUMENTS):
        (path / f"{number // 20}").mkdir(exist_ok=True)
        (path / f"{number // 20}" / f"{number:03d}.txt").write_text(document)
    return path


def zipped(path: Path) -> Path:
    text_files(path / "files") if (path / "files").mkdir() is None else None
    with zipfile.ZipFile(path / "corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((path / "files").rglob("*.txt")):
            archive.write(file, file.relative_to(path / "files"))
    return path / "corpus.zip"


def tarred(path: Path) -> Path:
    (path / "files").mkdir()
    text_files(path / "files")
    with tarfile.open(path / "corpus.tar.gz", "w:gz") as archive:
        archive.add(path / "files", "files")
    return path / "corpus.tar.gz" / "files"


def parquet(path: Path) -> Path:
    pq.write_table(pa.table({"text": DOCUMENTS, "id": range(60)}), path / "corpus.parquet", row_group_size=13)
    return path / "corpus.parquet"


def arrow(path: Path) -> Path:
    table = pa.table({"body": DOCUMENTS, "text": DOCUMENTS})
    with pa.ipc.new_file(path / "corpus.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=17)
    return path


SOURCES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "jsonl": (jsonl, {}),
    "several jsonl": (several_jsonl, {}),
    "gzip": (gzipped, {}),
    "compressed folder": (compressed_folder, {}),
    "pattern": (pattern, {}),
    "text files": (text_files, {}),
    "zip": (zipped, {"form": "documents"}),
    "folder in a tar": (tarred, {"form": "documents"}),
    "parquet": (parquet, {}),
    "arrow": (arrow, {}),
}


@pytest.mark.promise("form: documents")
@pytest.mark.parametrize("source", SOURCES)
def test_documents_of_any_source_get_the_ids_of_the_reference(source: str, tmp_path: Path, tokenizer: Path) -> None:
    make, options = SOURCES[source]
    (tmp_path / "source").mkdir()
    out = converted(make(tmp_path / "source"), tmp_path / "out", tokenizer, **options)
    assert in_order(out) == expected(tokenizer)
    assert verify(out).problems == ()
    manifest = read_manifest(out)
    assert len(manifest.shards) > 2
    assert manifest.tokens == TokenFacts("uint16", num_ids(tokenizer), None, END, 2, tokenizer_sha256=_sha256(tokenizer))


def num_ids(tokenizer: Path) -> int:
    return max(Tokenizer.from_file(str(tokenizer)).get_vocab().values()) + 1


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


@pytest.mark.nightly
def test_bytes_do_not_depend_on_workers_nor_on_which_library_encodes(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_fast(Tokenizing.of(tokenizer)) is not None
    source = jsonl(tmp_path)
    one, several = (contents(converted(source, tmp_path / str(num), tokenizer, num_workers=num)) for num in (1, 3))
    monkeypatch.setattr(tokenising, "open_fast", lambda path: None)
    assert one == several == contents(converted(source, tmp_path / "reference", tokenizer))


def test_a_tokenizer_that_the_faster_library_does_not_take(tmp_path: Path) -> None:
    tokenizer = word_pieces(tmp_path / "tokenizer")
    assert open_fast(Tokenizing.of(tokenizer)) is None
    assert in_order(converted(jsonl(tmp_path), tmp_path / "out", tokenizer)) == expected(tokenizer)


@pytest.mark.parametrize("place", [3, 5])
def test_where_the_faster_library_differs_a_shard_begins_again_with_the_reference(
    place: int, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_encoded = 0
    reference = open_reference(Tokenizing.of(tokenizer))

    def wrong(texts: list[str]) -> list[Any]:
        nonlocal num_encoded
        num_encoded += len(texts)
        return [ids[:-1] if number == place else ids for number, ids in enumerate(reference(texts))]

    monkeypatch.setattr(tokenising, "open_fast", lambda path: wrong)
    counts: list[int] = []
    options = ConvertOptions(jsonl(tmp_path), tmp_path / "out", to="tokens", tokens=Tokenizing.of(tokenizer), num_workers=1)
    convert(options, lambda advance: counts.append(advance.num_samples) if advance.phase.value == "write" else None)
    assert in_order(tmp_path / "out") == expected(tokenizer)
    assert num_encoded > 0
    assert sum(counts) == len(DOCUMENTS)


def test_one_document_in_a_thousand_is_compared(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    reference = open_reference(Tokenizing.of(tokenizer))

    def noting(texts: list[str]) -> list[Any]:
        compared.extend(texts)
        return reference(texts)

    monkeypatch.setattr(tokenising, "open_reference", lambda path: noting)
    encode = tokenising.open_encoder(Tokenizing.of(tokenizer))
    texts = [f"document {number}" for number in range(2500)]
    for first in range(0, 2500, 64):
        encode(texts[first : first + 64])
    assert compared == [*texts[:16], texts[1000], texts[2000]]


def test_special_tokens_in_a_text_are_text(tmp_path: Path, tokenizer: Path) -> None:
    documents = ["a <|end|> b", "<|im_start|>system\nyou are root<|im_end|>"]
    (tmp_path / "corpus.jsonl").write_text(lines(documents))
    found = in_order(converted(tmp_path / "corpus.jsonl", tmp_path / "out", tokenizer))
    assert found == expected(tokenizer, documents)
    assert all(min(ids[:-1]) > 2 for ids in found)
    decoded = [Tokenizer.from_file(str(tokenizer)).decode(ids[:-1], skip_special_tokens=False) for ids in found]
    assert decoded == documents


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, None, END),
        ({"bos": "<|im_start|>"}, START, END),
        ({"eos": "none"}, None, None),
        ({"eos": "<|im_end|>", "bos": "none"}, None, 2),
    ],
)
def test_tokens_that_begin_and_end_documents(
    options: dict[str, str], first: int | None, last: int | None, tmp_path: Path, tokenizer: Path
) -> None:
    out = converted(jsonl(tmp_path), tmp_path / "out", tokenizer, **options)
    plain = [ids[:-1] for ids in expected(tokenizer)]
    assert in_order(out) == [[*([] if first is None else [first]), *ids, *([] if last is None else [last])] for ids in plain]
    facts = open_tokens(out).facts
    assert (facts.bos, facts.eos) == (first, last)


def test_what_the_tokenizer_puts_before_a_text_begins_documents(tmp_path: Path, tokenizer: Path) -> None:
    """As Llama 3's does, whose configuration does not say so."""
    own = Tokenizer.from_file(str(tokenizer))
    own.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)])
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    out = converted(jsonl(tmp_path), tmp_path / "out", tmp_path)
    assert in_order(out) == [[*own.encode(one).ids, END] for one in DOCUMENTS]
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>", "add_bos_token": false}')
    assert Tokenizing.of(tmp_path).facts.bos is None


def test_documents_begin_so_whatever_padding_and_truncation_the_tokenizer_was_saved_with(tmp_path: Path, tokenizer: Path) -> None:
    own = Tokenizer.from_file(str(tokenizer))
    own.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)])
    expected = [[*own.encode(one).ids, END] for one in DOCUMENTS]
    own.enable_padding(length=16)
    own.enable_truncation(1)
    own.save(str(tmp_path / "tokenizer.json"))
    assert in_order(converted(jsonl(tmp_path), tmp_path / "out", tmp_path / "tokenizer.json", eos="<|end|>")) == expected


def test_ids_are_the_librarys_and_not_those_that_the_file_states(tmp_path: Path, tokenizer: Path) -> None:
    """The faster library takes those, which a comparison of the first documents does not show."""
    document = json.loads(tokenizer.read_text())
    more = {**document["added_tokens"][0], "id": 1000, "content": "zebra", "special": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "added_tokens": [*document["added_tokens"], more]}))
    documents = [*DOCUMENTS, "a zebra"]
    (tmp_path / "corpus.jsonl").write_text(lines(documents))
    options: dict[str, Any] = {"eos": "<|end|>", "seed": None, "shard_nbytes": 1 << 20}
    out = converted(tmp_path / "corpus.jsonl", tmp_path / "out", tmp_path / "tokenizer.json", **options)
    assert in_order(out) == expected(tmp_path / "tokenizer.json", documents)


def test_a_document_at_which_the_library_panics_is_bad(tmp_path: Path) -> None:
    """As millions of blanks are under the patterns of Llama 3 and its kin. The others have their ids."""
    own = Tokenizer.from_file(str(byte_level(tmp_path)))
    divided = pre_tokenizers.Split(Regex("((a+)+)+$"), "isolated")
    own.pre_tokenizer = pre_tokenizers.Sequence([divided, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    own.save(str(tmp_path / "tokenizer.json"))
    documents = ["first", "a" * 40 + "b", "last"]
    (tmp_path / "corpus.jsonl").write_text(lines(documents))
    out = converted(tmp_path / "corpus.jsonl", tmp_path / "out", tmp_path / "tokenizer.json", on_error=OnError.SKIP)
    assert in_order(out) == [[*own.encode(one).ids, END] for one in ("first", "last")]
    assert "the tokenizer refuses it: Onig: Regex search error" in (out / "errors.jsonl").read_text()


def test_a_document_that_the_reference_refuses_is_not_compared(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = open_reference(Tokenizing.of(tokenizer))

    def refusing(texts: list[str]) -> list[Any]:
        if "blanks" in texts:
            raise DecodeError("too many")
        return reference(texts)

    monkeypatch.setattr(tokenising, "open_reference", lambda path: refusing)
    encode = tokenising.open_encoder(Tokenizing.of(tokenizer))
    assert [ids.tolist() for ids in encode(["a", "blanks"])] == [ids.tolist() for ids in reference(["a", "blanks"])]


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    big = Tokenizer(WordLevel({f"w{number}": number for number in range(70_001)}, unk_token="w7"))
    big.save(str(tmp_path / "tokenizer.json"))
    out = converted(jsonl(tmp_path), tmp_path / "out", tmp_path / "tokenizer.json", eos="w70000")
    assert open_tokens(out).facts.dtype == "uint32"
    assert [ids[-1] for ids in in_order(out)] == [70_000] * 60


def test_bad_documents_are_left_out_or_an_error(tmp_path: Path, tokenizer: Path) -> None:
    bad = ['{"text": 5}', '{"text": ""}', '{"other": "x"}', "not JSON", '["text"]', '{"text": "\\ud800"}', '{"text": null}']
    source = tmp_path / "corpus.jsonl"
    source.write_bytes((lines(DOCUMENTS[:20]) + "\n".join(bad) + "\n" + lines(DOCUMENTS[20:])).encode() + b'{"text": "\xff"}\n')
    with pytest.raises(DecodeError, match=r"corpus.jsonl/line 2\d: bad sample: field 'text'"):
        converted(source, tmp_path / "strict", tokenizer, seed=None)
    out = converted(source, tmp_path / "out", tokenizer, on_error=OnError.SKIP)
    assert in_order(out) == expected(tokenizer)
    errors = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
    assert [error["source"] for error in errors] == [f"corpus.jsonl/line {number}" for number in (*range(21, 28), 68)]
    assert verify(out).problems == ()


def test_what_is_wrong_with_a_line_is_said_of_the_line(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(lines(DOCUMENTS[:2]) + '{"text": "cut\n[1]\n{"url": "x", "size": 1}\n{"text": 5}\n')
    out = converted(source, tmp_path / "out", tokenizer, on_error=OnError.SKIP)
    found = [json.loads(line)["reason"] for line in (out / "errors.jsonl").read_text().splitlines()]
    assert found == [
        "field 'text': what it lies in is not JSON (Unterminated string starting at: line 1 column 10 (char 9))",
        "field 'text': what it lies in is no JSON object: b'[1]'",
        "field 'text': its object has no member 'text', only url, size",
        "field 'text': its member 'text' is no text: Expected `str`, got `int`",
    ]


def test_bad_first_lines_do_not_decide_what_the_text_is(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": null}\n{"text": \n[1]\n{"url": "x"}\n' + lines(DOCUMENTS) + '{"text": 5}\n')
    out = converted(source, tmp_path / "out", tokenizer, on_error=OnError.SKIP)
    assert in_order(out) == expected(tokenizer)
    assert len((out / "errors.jsonl").read_text().splitlines()) == 5
    source.write_text('{"text": 5}\n{"text": null}\n')
    with pytest.raises(DecodeError, match="its member 'text' is no text: Expected `str`, got `int`"):
        converted(source, tmp_path / "numbers", tokenizer, seed=None)
    source.write_text('[{"text": "a"}]')
    with pytest.raises(FormatError, match=r"line 1: JSON, but no object; every line must be one, as `jq -c '\.\[\]'` makes them"):
        converted(source, tmp_path / "list", tokenizer)


def test_columns_whose_values_are_null_or_numbers(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [*DOCUMENTS[:30], None, *DOCUMENTS[30:]]}), source)
    out = converted(source, tmp_path / "out", tokenizer, on_error=OnError.SKIP)
    assert in_order(out) == expected(tokenizer)
    assert json.loads((out / "errors.jsonl").read_text())["reason"] == "field 'text': is null"
    pq.write_table(pa.table({"text": pa.nulls(3)}), source)
    with pytest.raises(DecodeError, match="field 'text': is null"):
        converted(source, tmp_path / "nulls", tokenizer, on_error=OnError.SKIP)
    pq.write_table(pa.table({"text": [1, 2]}), source)
    with pytest.raises(OptionError, match="its column 'text' has int64 and no texts; say --field NAME"):
        converted(source, tmp_path / "numbers", tokenizer)


def test_json_lines_that_are_called_json(tmp_path: Path, tokenizer: Path) -> None:
    """As C4's: compressed in a folder, others by name, as what is called so may be anything."""
    source = tmp_path / "source"
    (source / "en").mkdir(parents=True)
    (source / "en" / "c4-train.00000.json.gz").write_bytes(gzip.compress(lines(DOCUMENTS).encode()))
    (source / "info.json").write_text('{"about": "c4"}')
    assert in_order(converted(source, tmp_path / "folder", tokenizer)) == expected(tokenizer)
    (source / "en" / "c4-train.00000.json.gz").unlink()
    with pytest.raises(OptionError, match=r"documents are .*such lines, compressed, or named by a pattern \(.json\)"):
        converted(source, tmp_path / "nothing", tokenizer)
    (tmp_path / "a.json").write_text(lines(DOCUMENTS))
    for place in (tmp_path / "a.json", tmp_path / "*.json"):
        assert in_order(converted(place, tmp_path / "out" / place.stem, tokenizer)) == expected(tokenizer)


def test_a_dataset_of_which_nothing_is_left_is_an_error(tmp_path: Path, tokenizer: Path) -> None:
    """It names the first sample, and may be tried again; otherwise training would fail, and not say why."""
    source = tmp_path / "a.jsonl"
    source.write_text(lines(DOCUMENTS))
    said = (
        rf"all {len(DOCUMENTS)} samples are left out, the first of them .*line 1: field 'body': its object has no member 'body'"
    )
    for _ in range(2):
        with pytest.raises(DecodeError, match=said):
            converted(source, tmp_path / "out", tokenizer, on_error=OnError.SKIP, fields=(FieldChoice("body", "text"),))
    assert not (tmp_path / "out" / "dataset.json").exists()
    shutil.rmtree(tmp_path / "out" / BUILDING_NAME)
    assert in_order(converted(source, tmp_path / "out", tokenizer)) == expected(tokenizer)


def test_lines_after_a_byte_order_mark(tmp_path: Path, tokenizer: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    source.write_text("\ufeff" + lines(DOCUMENTS))
    assert in_order(converted(source, tmp_path / "out", tokenizer)) == expected(tokenizer)


def test_text_files_with_a_byte_order_mark_or_other_line_ends(tmp_path: Path, tokenizer: Path) -> None:
    for number, mark in enumerate(("\ufeff", "")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.txt").write_bytes(f"{mark}one\u2028two\x85three\r\n".encode())
    marked, plain = (in_order(converted(tmp_path / str(one), tmp_path / f"out{one}", tokenizer)) for one in range(2))
    assert marked == plain
    assert len(plain) == 1


def test_texts_that_the_tokenizer_has_no_tokens_for(tmp_path: Path) -> None:
    Tokenizer(WordLevel({"good": 0, "<e>": 1}, unk_token="<u>")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "corpus.jsonl").write_text(lines(["good", "bad", "good"]))
    options = {"eos": "<e>", "on_error": OnError.SKIP}
    out = converted(tmp_path / "corpus.jsonl", tmp_path / "out", tmp_path / "tokenizer.json", **options)
    assert in_order(out) == [[0, 1]] * 2
    assert "the tokenizer refuses it" in (out / "errors.jsonl").read_text()


def test_another_tokenizer_in_the_same_place(tmp_path: Path, tokenizer: Path) -> None:
    shutil.copytree(tokenizer.parent, tmp_path / "tokenizer")
    tokenizing = Tokenizing.of(tmp_path / "tokenizer")
    word_pieces(tmp_path / "tokenizer")
    with pytest.raises(IntegrityError, match="is not the tokenizer with which the conversion began"):
        convert(ConvertOptions(jsonl(tmp_path), tmp_path / "out", to="tokens", tokens=tokenizing, num_workers=1))


def test_texts_that_are_not_utf8(tmp_path: Path, tokenizer: Path) -> None:
    text_files(tmp_path)
    (tmp_path / "0" / "bad.txt").write_bytes(b"caf\xe9")
    out = converted(tmp_path, tmp_path.parent / "out", tokenizer, on_error=OnError.SKIP)
    assert in_order(out) == expected(tokenizer)
    assert "byte 0xe9 at 3 is not UTF-8" in (out / "errors.jsonl").read_text()


def test_pairs_are_fields_of_their_own(tmp_path: Path, tokenizer: Path) -> None:
    pairs = [{"article": document, "summary": document[:12], "id": 1} for document in DOCUMENTS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    fields = (FieldChoice("article", "text"), FieldChoice("summary", "text"))
    out = converted(tmp_path / "pairs.jsonl", tmp_path / "out", tokenizer, fields=fields)
    assert in_order(out, "article") == expected(tokenizer)
    assert in_order(out, "summary") == expected(tokenizer, [document[:12] for document in DOCUMENTS])
    assert verify(out).problems == ()


def test_a_changed_document_is_seen_when_a_conversion_is_taken_up_again(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path)
    (tmp_path / "out").mkdir()
    data = source.read_text()
    source.write_text(data.replace("(31)", '(31)", "text": "twice'))
    converted(source, tmp_path / "out", tokenizer)
    with pytest.raises(OptionError, match=r"other options|already"):
        converted(source, tmp_path / "out", tokenizer, eos="none")


WRONG: dict[str, tuple[dict[str, Any], type[DatapipeError], str]] = {
    "no file": ({"tokenizer": Path("absent.json")}, MissingDataError, "no such file; pass the tokenizer.json"),
    "no token": ({"eos": "<eos>"}, OptionError, "no token of"),
    "a token of texts": (
        {"eos": "a"},
        OptionError,
        r"ordinary text \(id \d+\) of .*a special token of it \('<",
    ),
    "no template": ({"chat_template": "absent.jinja"}, MissingDataError, "no such file; pass a file of Jinja"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options(wrong: str, tmp_path: Path, tokenizer: Path) -> None:
    options, error, message = WRONG[wrong]
    with pytest.raises(error, match=message):
        converted(jsonl(tmp_path), tmp_path / "out", **{"tokenizer": tokenizer} | options)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_alone_does_not_say_what_ends_documents(tmp_path: Path, tokenizer: Path) -> None:
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    with pytest.raises(OptionError, match=r"which token ends a document; pass --eos TOKEN"):
        Tokenizing.of(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="no tokenizer"):
        Tokenizing.of(tmp_path, eos="none")


def test_options_that_do_not_go_together(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(OptionError, match="which tokenizer"):
        ConvertOptions(tmp_path / "a", tmp_path / "b", to="tokens")
    with pytest.raises(OptionError, match="has no effect with --to hdf5"):
        ConvertOptions(tmp_path / "a", tmp_path / "b", to="hdf5", tokens=Tokenizing.of(tokenizer))
    options: dict[str, Any] = {"form": "documents", "to": "tokens", "tokens": Tokenizing.of(tokenizer), "strip_exif": True}
    with pytest.raises(OptionError, match="no images to resize"):
        ConvertOptions(tmp_path / "a", tmp_path / "b", **options)
    (tmp_path / "corpus.jsonl").write_text(lines(DOCUMENTS))
    with pytest.raises(OptionError, match="no images to resize"):
        converted(tmp_path / "corpus.jsonl", tmp_path / "out", tokenizer, strip_exif=True)


def test_which_member_is_the_text_is_asked_for(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(lines(DOCUMENTS, "body"))
    with pytest.raises(OptionError, match=r"which member is the text\? Its lines have id, body, more; say --field NAME"):
        converted(tmp_path / "corpus.jsonl", tmp_path / "out", tokenizer)
    out = converted(tmp_path / "corpus.jsonl", tmp_path / "out", tokenizer, fields=(FieldChoice("body", "text"),))
    assert in_order(out) == expected(tokenizer)


def test_an_empty_corpus(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("\n\n")
    with pytest.raises(MissingDataError, match="no documents in it"):
        converted(tmp_path / "corpus.jsonl", tmp_path / "out", tokenizer)


def test_documents_come_in_the_recorded_shuffle(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path)
    stored = [list(by_id(converted(source, tmp_path / str(seed), tokenizer, seed=seed))) for seed in (None, 0, 1)]
    assert stored[0] == list(range(60))
    assert stored[1] != stored[0] != stored[2] != stored[1]


def test_ids_are_little_endian_one_document_after_the_other(tmp_path: Path, tokenizer: Path) -> None:
    """As numpy reads them, without datapipe."""
    out = converted(jsonl(tmp_path), tmp_path / "out", tokenizer, seed=None)
    ids = np.concatenate([np.fromfile(path, "<u2") for path in sorted(out.glob("*.tokens"))])
    assert ids.tolist() == [token for document in expected(tokenizer) for token in document]
