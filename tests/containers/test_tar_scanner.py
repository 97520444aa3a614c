"""The tar scanner against archives of other writers, and against malformed ones."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import entry_of, jpeg, npy, quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.codecs.field_values import NO_LABEL, FieldKind
from datapipe.containers.tar.members import Member, scan_members
from datapipe.containers.tar.scanner import index_shard, split_name
from datapipe.errors import FormatError, MissingDataError
from datapipe.opening.samples import open_index

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
IMAGE = b"\xff\xd8 not looked at \xff\xd9"


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, form: str = "ustar", mtime: float = 0) -> bytes:
    """A tar of these files; TarInfo for what is no regular file."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=FORMATS[form], encoding="utf-8") as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size, info.mtime = len(member[1]), mtime
            file.addfile(info, io.BytesIO(member[1]))
    return sink.getvalue()


def special(name: str, kind: bytes, *, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """512 bytes with a right checksum, whatever the size field holds."""
    block = bytearray(
        name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0") + b"00000000000\0" + b" " * 8 + kind
    )
    block += b"\0" * 100 + b"ustar\x0000" + b"\0" * 247
    block[148:156] = b"%06o\0 " % sum(block)
    assert len(block) == 512
    return bytes(block)


def scan(data: bytes) -> list[tuple[str, bytes]]:
    return [(m.name.decode(), data[m.offset : m.offset + m.nbytes]) for m in scan_members(data, "x.tar") if not m.codec]


def shard(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    return path


# -- what writers make ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name", ["a.jpg", "some/dir/a.b.jpg", "d" * 90 + "/" + "n" * 60 + ".jpg", "with space.jpg", "new\nline.jpg"]
)
@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 5000])
def test_names_and_bytes_of_every_format(form: str, name: str, nbytes: int) -> None:
    contents = bytes(i % 251 for i in range(nbytes))
    data = tar((name, contents), ("last.jpg", b"end"), form=form)
    assert scan(data) == [(name, contents), ("last.jpg", b"end")]


@pytest.mark.parametrize("form", ["gnu", "pax"])
@pytest.mark.parametrize("name", ["n" * 300 + ".jpg", "d/" * 200 + "x.jpg", "zürich/日本.jpg", "日" * 120 + ".jpg"])
def test_long_and_foreign_names(form: str, name: str) -> None:
    data = tar(("before.jpg", b"1"), (name, b"22"), ("after.jpg", b"333"), form=form)
    assert scan(data) == [("before.jpg", b"1"), (name, b"22"), ("after.jpg", b"333")]


def test_pax_headers_for_fractional_times() -> None:
    """webdataset writes one before every member."""
    data = tar(("a.jpg", b"1"), ("a.cls", b"0"), form="pax", mtime=1234.5)
    assert b"mtime=1234.5" in data
    assert scan(data) == [("a.jpg", b"1"), ("a.cls", b"0")]


def test_pax_sizes_win_over_the_headers() -> None:
    entry = b"12 size=600\n"
    data = header(b"pax", b"%011o" % len(entry), b"x") + entry.ljust(512, b"\0") + header(b"a.jpg", b"%011o" % 0)
    data += b"i" * 600 + bytes(424) + header(b"b.jpg", b"%011o" % 1) + b"j".ljust(512, b"\0") + bytes(1024)
    assert scan(data) == [("a.jpg", b"i" * 600), ("b.jpg", b"j")]


def test_base_256_sizes() -> None:
    data = header(b"a.jpg", b"\x80" + (700).to_bytes(11, "big")) + b"i" * 700 + bytes(324) + bytes(1024)
    assert scan(data) == [("a.jpg", b"i" * 700)]


def test_what_webdataset_writes(tmp_path: Path) -> None:
    import webdataset

    images = [jpeg(number) for number in range(5)]
    with webdataset.ShardWriter(str(tmp_path / "set-%02d.tar"), maxcount=2, verbose=0) as writer:
        for number, image in enumerate(images):
            writer.write({"__key__": f"dir/{number:03d}", "jpg": image, "cls": number * 7, "json": {"no": number}})
    index = open_index(tmp_path)
    assert index.labels().tolist() == [0, 7, 14, 21, 28]
    for number, image in enumerate(images):
        path, offset, nbytes = entry_of(index, number)
        assert Path(path).read_bytes()[offset : offset + nbytes] == image
        assert index.describe(number).key == f"dir/{number:03d}".encode()


def test_files_count_and_links_to_them() -> None:
    data = tar(
        special("dir", tarfile.DIRTYPE), special("link.jpg", tarfile.SYMTYPE, link="/etc/passwd"), ("a.jpg", b"1"),
        special("hard.jpg", tarfile.LNKTYPE, link="a.jpg"), special("device.jpg", tarfile.CHRTYPE),
        special("pipe.jpg", tarfile.FIFOTYPE), special("block.jpg", tarfile.BLKTYPE), ("b.jpg", b"2"),
    )  # fmt: skip
    assert scan(data) == [("a.jpg", b"1"), ("hard.jpg", b"1"), ("b.jpg", b"2")]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_members_without_data_have_none_whatever_their_size_says(kind: bytes) -> None:
    """As tarfile reads them; were the size believed, members could be hidden from one reader and not the other."""
    data = header(b"x.jpg", b"%011o" % 512, kind) + tar(("a.jpg", b"1"), ("b.jpg", b"2"))
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        assert [info.name for info in file if info.isreg()] == ["a.jpg", "b.jpg"]
    assert scan(data) == [("a.jpg", b"1"), ("b.jpg", b"2")]


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["../../etc/up.jpg", "/etc/absolute.jpg", "a/../../b.jpg", "./c.jpg"])
def test_names_are_keys_not_paths(name: str, tmp_path: Path) -> None:
    """Nothing is extracted, so a hostile name has nowhere to lead."""
    before = set(tmp_path.parent.rglob("*"))
    path = shard(tmp_path, tar((name, IMAGE)))
    index = open_index(tmp_path)
    assert entry_of(index, 0) == (str(path), 512, len(IMAGE))
    assert index.describe(0).key == name.removesuffix(".jpg").encode()
    created = set(tmp_path.parent.rglob("*")) - before
    assert all(new == path or new.is_relative_to(tmp_path / ".datapipe-index") for new in created)


@pytest.mark.parametrize(("name", "expected"), [
    (b"a.jpg", (b"a", "jpg")), (b"d/a.b.jpg", (b"d/a", "b.jpg")), (b"d.x/a.JPG", (b"d.x/a", "jpg")), (b"d.x/a", None),
    (b".DS_Store", None), (b"d/._a.jpg", None), (b"a.", None), (b"", None), (b"d/", None),
    (b"\xff\xfe.jpg", (b"\xff\xfe", "jpg")),
])  # fmt: skip
def test_names_split_at_the_first_dot_of_the_base_name(name: bytes, expected: tuple[bytes, str] | None) -> None:
    assert split_name(name) == expected


def test_hidden_files_are_no_samples(tmp_path: Path) -> None:
    members = [("d/._a.jpg", b"x"), ("d/a.jpg", IMAGE), ("d/.DS_Store", b"x"), ("README", b"x"), ("d/b.jpg", IMAGE)]
    rows, _ = index_shard(shard(tmp_path, tar(*members)))
    assert rows.keys == [b"d/a", b"d/b"]


def test_hidden_tars_are_no_shards(tmp_path: Path) -> None:
    """macOS writes `._x.tar` next to `x.tar` on foreign disks."""
    shard(tmp_path, tar(("a.jpg", IMAGE)))
    (tmp_path / "._x.tar").write_bytes(b"\0\x05\x16\x07 not a tar")
    assert len(open_index(tmp_path)) == 1


# -- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "said"), [
    ([("a.jpg", IMAGE), ("b.jpg", IMAGE), ("a.cls", b"1")], "sample 'a' are not consecutive"),
    ([("a.jpg", IMAGE), ("a.JPG", IMAGE)], "sample 'a' has two fields 'jpg'"),
    ([("a.cls", b"1")], r"sample 'a' has no image \(has: cls"),
    ([("a.jpg", IMAGE), ("a.cls", b"-2")], "label of sample 'a' is b'-2'"),
    ([("a.jpg", IMAGE), ("a.cls", b"9" * 30)], "label of sample 'a'"),
    ([("a.jpg", IMAGE), ("a.cls", b"9" * 9000)], "label of sample 'a'"),
    ([("a.jpg", IMAGE), ("a.cls", b"")], r"none of its 1 sample can be read: a \(its label is empty\)"),
    ([("a.jpg", IMAGE), ("a.label", b"1.5")], r"label of sample 'a' is b'1\.5', expected a class number"),
    ([("README", b"hello")], "no samples"),
    ([], "no samples"),
])  # fmt: skip
def test_samples_that_readers_would_mistake_are_refused(members: list[tuple[str, bytes]], said: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=said) as caught:
        index_shard(shard(tmp_path, tar(*members)))
    assert "x.tar" in str(caught.value)


@pytest.mark.parametrize("suffix", ["cls", "label"])
def test_labels_that_are_names_are_told_to_whoever_knows_all_shards(tmp_path: Path, suffix: str) -> None:
    members = [("a.jpg", IMAGE), (f"a.{suffix}", b"1"), ("b.jpg", IMAGE), (f"b.{suffix}", b"cat")]
    rows, fields = index_shard(shard(tmp_path, tar(*members)))
    assert [field.name for field in fields] == ["image", "label"]
    assert rows.said is not None
    assert [rows.said[label] for label in rows.labels] == ["1", "cat"]
    index = open_index(tmp_path)
    assert (index.labels().tolist(), index.manifest.classes) == ([0, 1], ("1", "cat"))


@pytest.mark.parametrize(
    ("member", "reason"),
    [((), "has no cls, which others have"), ((("b.cls", b" "),), "label is empty"), ((("b.cls", b"\xff"),), "is not text")],
)
def test_a_sample_without_a_label_is_bad(
    member: tuple[tuple[str, bytes], ...], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [("a.jpg", IMAGE), ("a.cls", b"1"), ("b.jpg", IMAGE), *member, ("c.jpg", IMAGE), ("c.cls", b"0")]
    with caplog.at_level(logging.WARNING):
        rows, fields = index_shard(shard(tmp_path, tar(*members)))
    assert [field.name for field in fields] == ["image", "label"]
    assert list(rows.labels) == [1, NO_LABEL, 0]
    assert re.search(rf"1 of 3 samples cannot be read, which on_error= decides about: b \(.*{reason}", caplog.text)


def test_shards_with_other_fields_are_refused(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(tar(("a.jpg", IMAGE), ("a.cls", b"1")))
    (tmp_path / "1.tar").write_bytes(tar(("b.jpg", IMAGE)))
    with pytest.raises(FormatError, match=r"1\.tar: has fields image, the shards before it image, label"):
        open_index(tmp_path)


# -- further fields -------------------------------------------------------------------------------

FURTHER = {
    "mask.png": (b"mask", "mask", FieldKind.MASK), "seg.npy": (npy(np.zeros((4, 5), np.int32)), "seg", FieldKind.MASK),
    "depth.png": (b"depth", "depth", FieldKind.IMAGE), "vector.npy": (npy([0.5, 1.5]), "vector", FieldKind.ARRAY),
    "seg2.npy": (npy(np.zeros((3, 4, 5), np.int32)), "seg2", FieldKind.ARRAY), "npy": (npy([1]), "array", FieldKind.ARRAY),
    "txt": (b"t", "txt", FieldKind.TEXT), "caption": (b"c", "caption", FieldKind.TEXT),
    "note.txt": (b"n", "note", FieldKind.TEXT),
    "json": (b"{}", "json", FieldKind.JSON), "meta.json": (b"[]", "meta", FieldKind.JSON),
    "mp4": (b"film", "mp4", FieldKind.BYTES),
    "x.bin": (b"", "x", FieldKind.BYTES), "a.b.xyz": (b"?", "a_b_xyz", FieldKind.BYTES),
    "png": (b"another", "png", FieldKind.IMAGE),
    "label": (b"3", "label_", FieldKind.BYTES),
}  # fmt: skip


def test_what_all_samples_have_is_a_field(tmp_path: Path) -> None:
    members = [(f"{key}.{suffix}", data) for key in "abc" for suffix, (data, _, _) in FURTHER.items()]
    members += [(f"{key}.{suffix}", data) for key in "abc" for suffix, data in (("jpg", IMAGE), ("cls", b"1"))]
    data = tar(*sorted(members, key=lambda member: member[0][0]))
    rows, fields = index_shard(shard(tmp_path, data))
    expected = {"image": FieldKind.IMAGE, "label": FieldKind.LABEL} | {name: kind for _, name, kind in FURTHER.values()}
    assert {spec.name: spec.kind for spec in fields} == expected
    assert [spec.name for spec in fields][:2] == ["image", "label"]
    assert (rows.lacking, rows.unread) == ({}, {})
    for contents, name, _ in FURTHER.values():
        column = rows.columns[name]
        assert [data[start : start + nbytes] for start, nbytes in zip(column.offset, column.nbytes, strict=True)] == [
            contents
        ] * 3


def test_one_field_may_have_several_suffixes(tmp_path: Path) -> None:
    members = [("a.jpg", IMAGE), ("a.depth.png", b"1"), ("b.png", IMAGE), ("b.depth.jpg", b"22"), ("c.image.jpg", IMAGE)]
    rows, fields = index_shard(shard(tmp_path, tar(*members, ("c.depth.png", b"333"))))
    assert [spec.name for spec in fields] == ["image", "depth"]
    assert rows.columns["depth"].nbytes.tolist() == [1, 2, 3]
    assert rows.columns["image"].nbytes.tolist() == [len(IMAGE)] * 3


def test_members_that_would_be_one_field_keep_their_suffixes(tmp_path: Path) -> None:
    """In one sample, or of different kinds."""
    both = [(f"{key}.{suffix}", b"x") for key in "ab" for suffix in ("depth.jpg", "depth.png", "meta.json", "meta.txt", "jpg")]
    _, fields = index_shard(shard(tmp_path, tar(*both)))
    assert [spec.name for spec in fields] == ["image", "depth_jpg", "depth_png", "meta_json", "meta_txt"]


def test_a_second_image_of_some_samples(tmp_path: Path) -> None:
    """The first suffix in order of preference is the image; the others become fields if all samples have them."""
    rows, fields = index_shard(shard(tmp_path, tar(("a.png", b"1"), ("a.jpg", IMAGE), ("b.png", b"22"))))
    assert [spec.name for spec in fields] == ["image"]
    assert rows.columns["image"].nbytes.tolist() == [len(IMAGE), 2]
    assert rows.lacking == {"png": 1}


def test_fields_that_some_samples_lack_are_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0.tar").write_bytes(tar(("a.jpg", IMAGE), ("a.txt", b"t"), ("a.json", b"1"), ("b.jpg", IMAGE), ("b.txt", b"t")))
    (tmp_path / "1.tar").write_bytes(tar(("c.jpg", IMAGE), ("c.txt", b"t"), ("c.npy", npy([1])), ("c.v.npy", npy([1]))))
    (tmp_path / "2.tar").write_bytes(tar(("d.jpg", IMAGE), ("d.txt", b"t"), ("d.v.txt", b"t")))
    with caplog.at_level(logging.WARNING):
        index = open_index(tmp_path)
    assert {spec.name: spec.kind for spec in index.manifest.fields} == {"image": FieldKind.IMAGE, "txt": FieldKind.TEXT}
    assert caplog.messages == [
        f"{tmp_path}: left out: 'json', which 3 of 4 samples lack; 'array', which 3 of 4 samples lack;"
        " 'v', which 2 of 4 samples lack"
    ]
    assert [entry_of(index, sample, "txt")[2] for sample in range(4)] == [1, 1, 1, 1]
    caplog.clear()
    assert open_index(tmp_path).manifest == index.manifest
    assert not caplog.messages, "said when the index is made"


def test_a_field_of_other_kinds_in_other_shards_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0.tar").write_bytes(tar(("a.jpg", IMAGE), ("a.v.npy", npy([1]))))
    (tmp_path / "1.tar").write_bytes(tar(("b.jpg", IMAGE), ("b.v.txt", b"1")))
    with caplog.at_level(logging.WARNING):
        assert [spec.name for spec in open_index(tmp_path).manifest.fields] == ["image"]
    assert caplog.messages == [f"{tmp_path}: left out: 'v', of other kinds in other shards (array, text)"]


def test_keys_with_dots_are_no_fields_by_the_million(tmp_path: Path) -> None:
    """`x.0001.jpg` has suffix `0001.jpg`."""
    members = [("a.jpg", IMAGE), *((f"a.{number:05d}.txt", b"") for number in range(1500))]
    rows, fields = index_shard(shard(tmp_path, tar(*members)))
    assert len(fields) == 1000
    assert rows.unread == {"...": "501 members of more than 1000 suffixes: do the keys have dots?"}


def test_an_index_of_an_older_program_is_made_again(tmp_path: Path) -> None:
    path = shard(tmp_path, tar(("a.jpg", IMAGE), ("a.txt", b"t")))
    home = open_index(path).sidecar_directory
    stamp = json.loads((home / "source.json").read_text())
    manifest = json.loads((home / "dataset.json").read_text())
    del stamp["version"], manifest["fields"][1]
    (home / "source.json").write_text(json.dumps(stamp))
    (home / "dataset.json").write_text(json.dumps(manifest))
    assert [spec.name for spec in open_index(path).manifest.fields] == ["image", "txt"]


# -- damage ---------------------------------------------------------------------------------------

WHOLE = tar(("a.jpg", b"1" * 700), ("b.jpg", b"2" * 100), ("c.jpg", b"3" * 100))
BOUNDARIES = (0, 1536, 2560, 3584)  # where a member begins, or the end marker


@pytest.mark.parametrize("stop", BOUNDARIES[1:])
def test_a_cut_between_members_is_logged(stop: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(scan(WHOLE[:stop])) == BOUNDARIES.index(stop)
    assert "x.tar: no end-of-archive marker" in caplog.text


def test_a_whole_tar_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(scan(WHOLE)) == 3
    assert not caplog.text


@pytest.mark.parametrize("stop", [1, 300, 511, 512, 600, 1211, 1536 + 12, 1536 + 511, 1536 + 600])
def test_a_cut_elsewhere_is_an_error(stop: int) -> None:
    with pytest.raises(FormatError, match=r"x\.tar: .*cut"):
        scan(WHOLE[:stop])


@pytest.mark.parametrize("at", [0, 50, 100, 130, 150, 156, 258, 400])
def test_a_damaged_header_is_an_error(at: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[1536 + at] ^= 0x11
    with pytest.raises(FormatError, match="damaged"):
        scan(bytes(damaged))


@pytest.mark.parametrize("size", [
    b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80" + struct.pack(">3xQ", 2**63), b"-0000000001\0",
    b"0000000200x\0",
])  # fmt: skip
def test_sizes_beyond_belief_are_errors(size: bytes) -> None:
    with pytest.raises(FormatError, match=r"x\.tar"):
        scan(header(b"a.jpg", size) + bytes(2048))


@pytest.mark.parametrize("text", [
    b"12 size=9999\n", b"12 size=-600\n", b"11 size=xx\n", b"9999999 path=a\n", b"path=a\n", b"0 a=b\n", b"-5 a=b\n",
    b"9" * 6000 + b" a=b\n", b"30 size=999999999999999999999\n", b" 9 a=b\n", b"3 \n\n",
])  # fmt: skip
def test_damaged_pax_headers_are_errors(text: bytes) -> None:
    data = header(b"pax", b"%011o" % len(text), b"x") + text + bytes(-len(text) % 512)
    data += header(b"a.jpg", b"%011o" % 1) + b"i".ljust(512, b"\0") + bytes(1024)
    with pytest.raises(FormatError, match=r"^x\.tar: "):
        scan(data)


@pytest.mark.parametrize("kind", [b"L", b"x"])
def test_names_of_megabytes_are_not_believed(kind: bytes) -> None:
    with pytest.raises(FormatError, match="more than the limit"):
        scan(header(b"name", b"%011o" % (2 << 20), kind) + bytes(3 << 20))


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 1024, b"PK\x03\x04" * 300, b"\x1f\x8b" + bytes(range(200)) * 5, b"hello", bytes([1]) * 512]
)
def test_what_is_no_tar_has_no_samples(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"x\.tar"):
        index_shard(shard(tmp_path, data))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.tar"):
        index_shard(tmp_path / "gone.tar")


SEEDS = {
    "ustar": tar(("a.jpg", b"1" * 600), ("a.cls", b"1"), ("b.jpg", b"2" * 10), ("b.cls", b"0")),
    "gnu": tar(("n" * 150 + ".jpg", b"1" * 600), ("n" * 150 + ".cls", b"1"), form="gnu"),
    "pax": tar(("n" * 150 + ".jpg", b"1" * 600), ("n" * 150 + ".cls", b"1"), form="pax", mtime=0.5),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mend", [False, True], ids=["as it is", "checksums mended"])
@quick
@given(data=st.data())
def test_damage_raises_nothing_but_format_errors(
    seed: str, mend: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes set, blocks dropped, repeated or moved; with checksums made right again so that deeper checks are reached."""
    damaged = bytearray(SEEDS[seed])
    for _ in range(data.draw(st.integers(1, 5))):
        block = data.draw(st.integers(0, len(damaged) // 512 - 1)) * 512
        change = data.draw(st.sampled_from(["set", "drop", "again", "cut"]))
        if change == "set":
            at = block + data.draw(st.sampled_from([0, 124, 125, 135, 148, 156, 257, 345]) | st.integers(0, 511))
            damaged[at] = data.draw(st.sampled_from(b"\0\x80\xff0759LxgK1 ") | st.integers(0, 255))
        elif change == "drop":
            del damaged[block : block + 512]
        elif change == "again":
            damaged[block:block] = damaged[block : block + 512]
        else:
            del damaged[block + data.draw(st.integers(0, 511)) :]
        if len(damaged) < 512:
            break
    if mend:
        for block in range(0, len(damaged) - 511, 512):
            if damaged[block + 257 : block + 262] == b"ustar":
                damaged[block + 148 : block + 156] = b" " * 8
                damaged[block + 148 : block + 156] = b"%06o\0 " % sum(damaged[block : block + 512])
    path = tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}.tar"
    path.write_bytes(damaged)
    with contextlib.suppress(FormatError):
        rows, _ = index_shard(path)
        assert len(rows) > 0
        for extent in (extent for extents in rows.extents.values() for extent in extents):
            assert 0 <= extent.offset <= extent.offset + extent.nbytes <= len(damaged)


@quick
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=130), st.binary(max_size=1500)
        ),
        max_size=6,
    ),
    st.sampled_from(["gnu", "pax"]),
)
def test_agrees_with_tarfile(members: list[tuple[str, bytes]], form: str) -> None:
    data = tar(*members, form=form)
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        expected = [(info.offset_data, info.size) for info in file if info.isreg()]
    found = [(member.offset, member.nbytes) for member in scan_members(data, "x.tar")]
    assert [Member(b"", *extent) for extent in expected] == [Member(b"", *extent) for extent in found if extent in expected]
    assert len(found) >= len(expected)  # "name/" without type is a directory to tarfile; here it is a name without a suffix


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((("0.jpg", IMAGE), ("0.txt", b""), ("1.txt", b""), ("1.json", b"{}")),
         r"sample '1' has no image \(has: txt, json; .*1 of 2 samples: convert --on-error skip leaves them out"),
        ((("22.05.jpg", IMAGE), ("22.05.cls", b"0")), r"sample '22' has no image .*a key ends at the first dot of a name"),
    ],
)  # fmt: skip
def test_samples_without_an_image_are_told_with_the_remedy(tmp_path: Path, members: Any, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        index_shard(shard(tmp_path, tar(*members)))
