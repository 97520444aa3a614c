"""Files of token ids of other libraries are read in place, and refused where they do not fit together."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from token_corpora import random_documents, read_documents, write_datatrove, write_megatron

import datapipe as dp
from datapipe.codecs.npy import npy_bytes
from datapipe.errors import DatapipeError, FormatError, MissingDataError, OptionError
from datapipe.opening.tokens.opening import open_tokens

DOCUMENTS = random_documents(50)
EOS = 0


def plain(path: Path, *, dtype: str = "uint16") -> Path:
    np.concatenate([np.append(document, EOS) for document in DOCUMENTS]).astype(dtype).tofile(path)
    return path


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron(dtype: str, tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a", DOCUMENTS, dtype)
    for named in (path, path.with_suffix(".idx"), tmp_path, f"{tmp_path}/*.bin", f"{tmp_path}/a.*"):
        index = open_tokens(named)
        assert read_documents(index) == [document.tolist() for document in DOCUMENTS]
        assert index.facts.dtype == dtype


def test_megatron_documents_of_several_sequences(tmp_path: Path) -> None:
    index = open_tokens(write_megatron(tmp_path / "a", DOCUMENTS, per_document=3))
    assert read_documents(index) == [np.concatenate(DOCUMENTS[first : first + 3]).tolist() for first in range(0, 50, 3)]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_datatrove(dtype: str, tmp_path: Path) -> None:
    index = open_tokens(write_datatrove(tmp_path, DOCUMENTS, dtype))
    assert read_documents(index) == [document.tolist() for document in DOCUMENTS]
    assert index.facts.dtype == dtype


def test_bare_files_are_divided_after_the_token_that_ends_documents(tmp_path: Path) -> None:
    path = plain(tmp_path / "train.bin")
    expected = [[*document.tolist(), EOS] for document in DOCUMENTS]
    for _ in range(2):  # the second time from the cache
        assert read_documents(open_tokens(path, dtype="uint16", eos=EOS)) == expected
    assert read_documents(open_tokens(path, dtype="uint16")) == [[token for document in expected for token in document]]
    with path.open("ab") as file:
        file.write(np.array([5, 6], "<u2").tobytes())
    assert read_documents(open_tokens(path, dtype="uint16", eos=EOS)) == [*expected, [5, 6]]


def test_bare_files_of_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.opening.tokens.plain._READ_NBYTES", 64)
    expected = [[*document.tolist(), EOS] for document in DOCUMENTS]
    assert read_documents(open_tokens(plain(tmp_path / "train.bin"), dtype="uint16", eos=EOS)) == expected


def test_arrays_of_numpy_say_what_they_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1, 30, dtype=np.uint32))
    plain(tmp_path / "b.npy")  # as OLMo writes them, without a header
    assert read_documents(open_tokens(tmp_path / "a.npy")) == [list(range(1, 30))]
    assert len(open_tokens(tmp_path / "b.npy", dtype="uint16", eos=EOS)) == len(DOCUMENTS)


def test_several_files_in_order(tmp_path: Path) -> None:
    for name, some in (("b", DOCUMENTS[:20]), ("a", DOCUMENTS[20:])):
        write_megatron(tmp_path / name, some)
    assert read_documents(open_tokens(tmp_path)) == [document.tolist() for document in (*DOCUMENTS[20:], *DOCUMENTS[:20])]
    files = [tmp_path / "b.bin", tmp_path / "a.bin"]
    assert read_documents(open_tokens(files)) == [document.tolist() for document in DOCUMENTS]


def test_ids_do_not_depend_on_where_files_lie(tmp_path: Path) -> None:
    paths = [write_datatrove(tmp_path / name, DOCUMENTS) for name in ("a", "b")]
    others = [write_datatrove(tmp_path / name, some) for name, some in (("c", DOCUMENTS[:-1]), ("d", DOCUMENTS[::-1]))]
    assert open_tokens(paths[0]).fingerprint == open_tokens(paths[1]).fingerprint
    assert len({open_tokens(path).fingerprint for path in (*others, paths[0])}) == 3


@pytest.mark.parametrize(
    "changed",
    [(b"\x93NUMPY", b"\x92NUMPY"), (b"NUMPY", b"NUM\0Y"), (b"(29,)", b"( 9,)"), (b"(29,)", b"(39,)"), (b"<u4", b"<u1")],
)
def test_a_header_of_numpy_that_does_not_fit_the_file(changed: tuple[bytes, bytes], tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy_bytes(np.arange(1, 30, dtype=np.uint32)).replace(*changed, 1))
    for options in ({}, {"dtype": "uint32"}):
        with pytest.raises(DatapipeError, match=r"save it again|save it as one|pass dtype"):
            open_tokens(tmp_path / "a.npy", **options)  # type: ignore[arg-type]


def test_an_index_of_megatron_has_nothing_after_it_but_modes(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a", DOCUMENTS)
    index = path.with_suffix(".idx").read_bytes()
    path.with_suffix(".idx").write_bytes(index + bytes(len(DOCUMENTS)))  # as data of several modalities has them
    assert read_documents(open_tokens(path)) == [document.tolist() for document in DOCUMENTS]
    path.with_suffix(".idx").write_bytes(index + bytes(8))
    with pytest.raises(FormatError, match="50 sequences need 1042; get the file again"):
        open_tokens(path)


MASK = np.array([1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 1], np.bool_)
BOUNDS = [(0, 4), (4, 6), (6, 11), (11, 12)]
MASKED = np.array([5, 6, 7, 2, 8, 2, 9, 10, 11, 12, 2, 13], np.uint32)


def masked_files(path: Path, form: str) -> str:
    """Write token ids and a mask of their loss; return what to open."""
    path.mkdir(parents=True)
    if form == "datatrove":
        MASKED.astype("<u4").tofile(path / "x.ds")
        np.array([4, 6, 11, 12], "<u8").tofile(path / "x.ds.index")
        MASK.tofile(path / "x.ds.loss")
        return f"{path}/x.ds*"
    ids, mask = ("input_ids.npy", "label_mask.npy") if form == "OLMo" else ("token_ids_part_0.npy", "labels_mask_part_0.npy")
    MASKED.tofile(path / ids)
    MASK.tofile(path / mask)
    if form == "numpy":
        np.save(path / ids, MASKED)
        np.save(path / mask, MASK)
    return str(path / ids if form == "OLMo" else path)


@pytest.mark.parametrize("form", ["datatrove", "OLMo", "OLMo-core", "numpy"])
def test_masks_of_loss_beside_token_ids(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.opening.tokens.masks._READ_NBYTES", 3)
    path = masked_files(tmp_path / "a", form)
    options = {} if form == "datatrove" else {"eos": 2, **({} if form == "numpy" else {"dtype": "uint32"})}
    carried = [[token for token, has in zip(MASKED[a:b].tolist(), MASK[a:b], strict=True) if has] for a, b in BOUNDS]
    for _ in range(2):  # the second time from the cache
        data = dp.Tokens(path, 8, packing="pad", labels="whole", **options)  # type: ignore[arg-type]
        batches = list(dp.DataLoader(data, 4, num_workers=0))
        assert sorted([one for one in row.tolist() if one != -100] for one in batches for row in one["labels"]) == sorted(carried)
        assert sum(batch["loss_tokens"] for batch in batches) == MASK.sum()


def test_runs_of_loss_count_in_the_fingerprint_and_do_not_cross_documents(tmp_path: Path) -> None:
    index = open_tokens(masked_files(tmp_path / "a", "OLMo"), dtype="uint32", eos=2)
    loss = index.shard(0).loss
    assert loss is not None
    assert [loss.runs_of(number).tolist() for number in range(4)] == [[[0, 1], [3, 4]], [[0, 2]], [[1, 3]], [[0, 1]]]
    (tmp_path / "a" / "label_mask.npy").unlink()
    other = open_tokens(tmp_path / "a" / "input_ids.npy", dtype="uint32", eos=2)
    assert other.shard(0).loss is None
    assert other.fingerprint != index.fingerprint
    MASKED.tofile(tmp_path / "a" / "input_ids.npy")
    MASK.tofile(tmp_path / "a" / "label_mask.npy")
    again = open_tokens(tmp_path / "a" / "input_ids.npy", dtype="uint32", eos=2)
    assert again.fingerprint == index.fingerprint


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (MASK[:-1].tobytes(), "a mask of 11 tokens beside 12 token ids"),
        (b"\2" * 12, "has a byte of 0 or 1 for each token"),
        (npy_bytes(MASKED), r"holds <u4 \(12,\), and not one row of bool"),
    ],
)
def test_masks_that_do_not_fit(mask: bytes, said: str, tmp_path: Path) -> None:
    path = masked_files(tmp_path / "a", "OLMo")
    (tmp_path / "a" / "label_mask.npy").write_bytes(mask)
    with pytest.raises(FormatError, match=said):
        open_tokens(path, dtype="uint32", eos=2)


def test_a_mask_is_no_token_ids(tmp_path: Path) -> None:
    masked_files(tmp_path / "a", "OLMo-core")
    with pytest.raises(FormatError, match=r"a mask of the tokens with loss, .* name token_ids_part_0.npy or"):
        open_tokens(tmp_path / "a" / "labels_mask_part_0.npy", dtype="uint32", eos=2)


@pytest.mark.parametrize("place", [0, 20])
@pytest.mark.parametrize("value", [-8, 2**63 - 8])
def test_sequences_of_megatron_that_lie_nowhere(place: int, value: int, tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a", DOCUMENTS)
    index = bytearray(path.with_suffix(".idx").read_bytes())
    begin = 34 + 4 * len(DOCUMENTS) + 8 * place
    index[begin : begin + 8] = value.to_bytes(8, "little", signed=True)
    path.with_suffix(".idx").write_bytes(index)
    with pytest.raises(FormatError, match="get the file again"):
        open_tokens(path).shard(0)


@pytest.mark.parametrize("values", [(1 << 62, -(1 << 62) - 1), (5, 4), (-1, 0), (0, 1 << 62)])
def test_ends_of_documents_that_do_not_ascend(values: tuple[int, int], tmp_path: Path) -> None:
    """Also where their differences fit no 64 bits, and seem to ascend."""
    path = write_megatron(tmp_path / "a", DOCUMENTS, per_document=2)
    index = bytearray(path.with_suffix(".idx").read_bytes())
    for place, value in enumerate(values):
        begin = len(index) - 8 * (26 - 3 - place)
        index[begin : begin + 8] = value.to_bytes(8, "little", signed=True)
    path.with_suffix(".idx").write_bytes(index)
    with pytest.raises(FormatError, match=r"a\.idx: its documents do not ascend"):
        open_tokens(path).shard(0)
    other = write_datatrove(tmp_path / "b", DOCUMENTS) / "x.ds.index"
    ends = np.fromfile(other, "<i8")
    ends[[0, 1] if values[0] < 0 else [3, 4]] = values
    ends.tofile(other)
    with pytest.raises(FormatError, match=r"x\.ds\.index: the ends of documents do not ascend"):
        open_tokens(tmp_path / "b").shard(0)


def test_a_corpus_without_documents_has_no_rows(tmp_path: Path) -> None:
    data = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 0, 1) + bytes(8)
    (tmp_path / "a.idx").write_bytes(data)
    (tmp_path / "a.bin").write_bytes(b"")
    for packing in ("best-fit", "concat", "pad"):
        with pytest.raises(MissingDataError, match=r"a\.bin: no rows of 8 tokens"):
            dp.Tokens(tmp_path / "a.bin", 8, packing=packing)  # type: ignore[arg-type]


def test_kept_ends_that_are_not_those_of_the_file_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = plain(tmp_path / "train.bin")
    expected = read_documents(open_tokens(path, dtype="uint16", eos=EOS))
    (kept,) = (tmp_path / "cache").rglob("ends")
    sound = kept.read_bytes()
    for damaged in (b"", sound[:-3], sound[:-8], bytes(len(sound)), sound[8:16] + sound):
        kept.write_bytes(damaged)
        assert read_documents(open_tokens(path, dtype="uint16", eos=EOS)) == expected
        assert kept.read_bytes() == sound


WRONG = {
    "no such file": (lambda path: path / "x.bin", {}, MissingDataError, "no such file"),
    "empty folder": (lambda path: path, {}, MissingDataError, "no converted set, and no files of token ids"),
    "no match": (lambda path: f"{path}/*.bin", {}, MissingDataError, "no file matches"),
    "no files": (lambda path: [], {}, OptionError, "name at least one file"),
    "no dtype": (lambda path: plain(path / "x.bin"), {}, OptionError, "pass dtype='uint16'"),
    "dtype": (lambda path: plain(path / "x.bin"), {"dtype": "float32"}, OptionError, "token ids are one of uint8"),
    "odd bytes": (lambda path: _cut(plain(path / "x.bin"), 3), {"dtype": "uint16"}, FormatError, "no whole number of uint16 ids"),
    "eos of an index": (lambda path: _datatrove(path), {"eos": 0}, OptionError, "leave eos out"),
    "dtype of an index": (lambda path: _datatrove(path), {"dtype": "uint32"}, FormatError, "are uint16, not uint32"),
    "field": (lambda path: _datatrove(path), {"field": "x"}, OptionError, "leave it out"),
    "no index": (lambda path: _without(_datatrove(path), "x.ds.index"), {}, MissingDataError, "a .ds and a .ds.index"),
    "no data": (lambda path: _without(_megatron(path), "x.bin"), {}, DatapipeError, "no such file|holds no"),
    "cut data": (lambda path: _cut(_megatron(path), 10), {}, FormatError, "its index says more"),
    "cut datatrove": (lambda path: _cut(_datatrove(path) / "x.ds", 2), {}, FormatError, "do not fit the ends"),
    "cut index": (lambda path: _cut(_megatron(path).with_suffix(".idx"), 9), {}, FormatError, "sequences need"),
    "short index": (lambda path: _cut(_megatron(path).with_suffix(".idx"), 990), {}, FormatError, "too short|need"),
    "matrix": (lambda path: _saved(path / "x.npy", np.zeros((3, 3), np.uint16)), {}, FormatError, "not one row of"),
    "big-endian": (lambda path: _saved(path / "x.npy", np.arange(3, dtype=">u2")), {}, FormatError, "little-endian"),
    "large numbers": (lambda path: _saved(path / "x.npy", np.zeros(3, np.uint64)), {}, FormatError, "x.npy: holds <u8 .* int64"),
    "numbers": (lambda path: _saved(path / "x.npy", np.zeros(3)), {}, FormatError, "not one row of little-endian"),
    "forms": (lambda path: [_datatrove(path) / "x.ds", plain(path / "y.bin")], {}, FormatError, "several forms"),
}  # fmt: skip


def _datatrove(path: Path) -> Path:
    return write_datatrove(path, DOCUMENTS)


def _megatron(path: Path) -> Path:
    return write_megatron(path / "x", DOCUMENTS)


def _cut(path: Path, nbytes: int) -> Path:
    path.write_bytes(path.read_bytes()[:-nbytes])
    return path


def _without(path: Path, name: str) -> Path:
    ((path if path.is_dir() else path.parent) / name).unlink()
    return path if path.is_dir() else path.with_suffix(".idx")


def _saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_read_is_an_error_with_a_remedy(wrong: str, tmp_path: Path) -> None:
    make, options, error, message = WRONG[wrong]
    with pytest.raises(error, match=message) as caught:
        open_tokens(make(tmp_path), **options)
    assert "\n" not in str(caught.value)
