"""Members of tars that are no plain files: sparse ones, links, several tars in one; Python's tarfile is the reference."""

from __future__ import annotations

import io
import logging
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import encode, picture
from tar_files import link_to, old_sparse, pax_member, sparse_tars, tar_of

from datapipe.codecs.stored import decode_stored, why_absent
from datapipe.containers.tar.members import Member, scan_members
from datapipe.containers.tar.scanner import index_shard
from datapipe.errors import DecodeError, FormatError
from datapipe.fetch.files import open_files
from datapipe.opening.samples import open_index

IMAGE = encode(picture(0, 6, 7), "PNG")
RUNS = [(0, 700), (4096, 512), (5000, 30)]
CONTENTS = b"\xff" * 700 + bytes(3396) + b"\xee" * 512 + bytes(392) + b"\xdd" * 30 + bytes(70)  # 5100 bytes


def value(member: Member, data: bytes) -> bytes:
    return decode_stored(data[member.offset : member.offset + member.nbytes], member.codec)


def read(data: bytes) -> dict[str, bytes]:
    return {member.name.decode(): value(member, data) for member in scan_members(data, "x.tar") if not why_absent(member.codec)}


def reasons(data: bytes) -> dict[str, str | None]:
    return {member.name.decode(): why_absent(member.codec) for member in scan_members(data, "x.tar")}


def by_tarfile(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return {info.name: file.extractfile(info).read() for info in file if info.isreg() or info.islnk() or info.issym()}  # type: ignore[union-attr]


# -- sparse files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", sparse_tars(CONTENTS, RUNS))
def test_sparse_files_are_read(form: str) -> None:
    data = sparse_tars(CONTENTS, RUNS)[form] + tar_of(("b.bin", b"after"))
    assert read(data) == by_tarfile(sparse_tars(CONTENTS, RUNS)[form]) | {"b.bin": b"after"}
    assert read(data)["dir/a.bin"] == CONTENTS


def test_a_map_of_many_runs() -> None:
    runs = [(number * 1024, 512) for number in range(60)]
    contents = b"".join(bytes([number + 1]) * 512 + bytes(512) for number in range(60))
    for form, data in sparse_tars(contents, runs).items():
        assert read(data) == {"dir/a.bin": contents}, form


@pytest.mark.parametrize("form", sparse_tars(CONTENTS, RUNS))
@pytest.mark.parametrize(
    ("runs", "nbytes", "said"),
    [
        ([(0, 700), (500, 542)], 5100, "overlaps"),
        ([(4096, 512), (0, 730)], 5100, "overlaps"),
        ([(0, 700), (4096, 542)], 4600, "ends after the file"),
        ([(0, 700)], 5100, "do not add up to"),
        ([(0, 700), (4096, 542)], 1 << 40, "a bomb"),
        ([(number * 2, 0) for number in range(10_050)], 1 << 20, "10000"),
    ],
)
def test_maps_that_cannot_be_make_a_bad_member(form: str, runs: list[tuple[int, int]], nbytes: int, said: str) -> None:
    data = sparse_tars(bytes(1242), runs, nbytes=nbytes, stored=bytes(1242))[form] + tar_of(("b.bin", b"after"))
    found = reasons(data)
    assert said in str(found["dir/a.bin"])
    assert found["b.bin"] is None


def test_a_map_without_end_is_cut() -> None:
    """Each block says that another follows."""
    data = old_sparse("a.bin", 5100, [(0, 700)] * 4, bytes(0), more=b"\1" * 504 + b"\1" + bytes(7))
    with pytest.raises(FormatError, match=r"x\.tar: member at byte 0 reaches to \d+, .*it was cut"):
        reasons(data)


def test_what_pax_claims_of_a_map_costs_no_memory() -> None:
    for pax, body in (
        (
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
            b"999999999999999999\n".ljust(512, b"\0"),
        ),
        ({"GNU.sparse.size": "999999999999999999", "GNU.sparse.map": "0,1"}, b"x"),
        ({"GNU.sparse.size": "-1", "GNU.sparse.map": "0,1"}, b"x"),
        ({"GNU.sparse.major": "7"}, b"x"),
    ):
        tracemalloc.start()
        assert "sparse" in str(reasons(pax_member("a.bin", pax, body))["a.bin"])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


@pytest.mark.parametrize(
    "codec", ["sparse:9:0,5,3,2", "sparse:9:0,5,8,2", "sparse:9:0,4", "sparse:9:5,2,0,5", f"sparse:{1 << 40}:0,7"]
)
def test_an_index_that_lies_about_runs_is_damage(codec: str) -> None:
    with pytest.raises(DecodeError):
        decode_stored(b"1234567", codec)


# -- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_are_the_files_that_they_lead_to(form: int) -> None:
    long = "n" * 120
    data = tar_of(
        ("d/a.jpg", b"11"), link_to("d/a.jpg", "b.jpg", is_hard=True), link_to("a.jpg", "d/c.jpg"),
        link_to("../e/x.jpg", "d/f.jpg"), (f"e/{long}.jpg", b"22"), link_to(f"e/{long}.jpg", f"{long}2.jpg"),
        link_to("d/c.jpg", "g.jpg"), ("e/x.jpg", b"333"), form=form,
    )  # fmt: skip
    assert read(data) == by_tarfile(data)
    assert read(data)["g.jpg"] == b"11"
    assert read(data)["d/f.jpg"] == b"333", "also one that comes later"


def test_links_that_lead_to_no_file_say_why() -> None:
    data = tar_of(
        ("d/a.jpg", b"1"), ("d/a.jpg", b"2"), ("f/b.jpg", b"3"), link_to("/etc/passwd", "abs.jpg"),
        link_to("../../x", "d/up.jpg"), link_to("gone.jpg", "gone2.jpg"), link_to("self.jpg", "self.jpg"),
        link_to("two.jpg", "one.jpg"), link_to("one.jpg", "two.jpg"), link_to("d/a.jpg", "twice.jpg", is_hard=True),
        link_to("f", "folder"), link_to("../x/../../b.jpg", "f/out.jpg"),
    )  # fmt: skip
    assert {name: reason.partition(";")[0] for name, reason in reasons(data).items() if reason} == {
        "abs.jpg": "is a link that leads out of the archive, to '/etc/passwd'",
        "d/up.jpg": "is a link that leads out of the archive, to '../../x'",
        "gone2.jpg": "is a link to 'gone.jpg', which is no file in the archive",
        "self.jpg": "is a link that leads back to itself, or through too many others",
        "one.jpg": "is a link that leads back to itself, or through too many others",
        "two.jpg": "is a link that leads back to itself, or through too many others",
        "twice.jpg": "is a link to 'd/a.jpg', of which the archive has several",
        "folder/": "is a link to the folder 'f', which is not followed",
        "f/out.jpg": "is a link that leads out of the archive, to '../x/../../b.jpg'",
    }


def test_links_of_more_names_than_are_remembered_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.core.archive_links._MAX_NBYTES", 1000)
    data = tar_of(*((f"{number}.jpg", b"1") for number in range(5)), link_to("4.jpg", "l.jpg"), link_to("0.jpg", "m.jpg"))
    assert "too many members" in str(reasons(data)["l.jpg"])
    assert read(data)["m.jpg"] == b"1"


def test_the_rest_of_a_file_of_another_volume_is_named() -> None:
    data = tar_of(("a.jpg", b"1"))
    info = tarfile.TarInfo("b.jpg")
    info.type = b"M"
    assert "kind b'M', which is not read" in str(reasons(data[:1024] + tar_of(info))["b.jpg"])


# -- several tars in one, and what is after the end -----------------------------------------------


@pytest.mark.parametrize("between", [0, 512, 1024, 10_240 - 512, (1 << 20) + 512])
def test_tars_that_were_joined_are_read(between: int, caplog: pytest.LogCaptureFixture) -> None:
    one, other = tar_of(("a.jpg", b"1")).rstrip(b"\0"), tar_of(("b.jpg", b"2"), ("c.jpg", b"3"))
    one += bytes(-len(one) % 512)
    with caplog.at_level(logging.WARNING):
        assert list(read(one + bytes(between) + other)) == ["a.jpg", "b.jpg", "c.jpg"]
    assert len(caplog.messages) == (between > 0)
    assert all("another tar begins at byte" in text for text in caplog.messages)


def test_what_is_no_tar_after_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(read(tar_of(("a.jpg", b"1")) + b"signature")) == ["a.jpg"]
    assert "9 bytes from byte 10240 on, after the end-of-archive marker, are no tar and are not read" in caplog.text


def test_a_header_of_zeros_is_damage() -> None:
    data = bytearray(tar_of(("a.jpg", b"1"), ("b.jpg", b"2" * 600), ("c.jpg", b"3")))
    data[1024:1536] = bytes(512)
    with pytest.raises(FormatError, match=r"x\.tar: zeros in place of the header at byte 1024: damaged"):
        read(bytes(data))


def test_a_second_tar_that_was_cut_is_told() -> None:
    one, other = tar_of(("a.jpg", b"1")), tar_of(("b.jpg", b"2" * 600))
    with pytest.raises(FormatError, match="no end-of-archive marker"):
        list(scan_members(one + other[:1536], "x.tar", needs_end=True))
    with pytest.raises(FormatError, match="it was cut"):
        read(one + other[:1000])


# -- as shards ------------------------------------------------------------------------------------


def index_of(tmp_path: Path, data: bytes) -> Any:
    (tmp_path / "x.tar").write_bytes(data)
    return open_index(tmp_path / "x.tar")


def values_of(index: Any, field: str = "image") -> list[bytes | Exception]:
    extents = index.look_up(np.arange(len(index)), field).extents
    return list(open_files(index).read_each(extents, range(len(extents))))


def test_a_shard_of_sparse_files_and_links(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = IMAGE + bytes(5000) + b"end"
    runs = [(0, len(IMAGE)), (len(IMAGE) + 5000, 3)]
    head = old_sparse("0.png", len(image), runs, IMAGE + b"end") + tar_of(("0.cls", b"7"))[:1024]
    data = head + tar_of(
        link_to("0.png", "1.png"), link_to("0.cls", "1.cls", is_hard=True), link_to("/x.png", "2.png"), ("2.cls", b"8")
    )
    with caplog.at_level(logging.WARNING):
        index = index_of(tmp_path, data)
    assert "1 of 3 samples cannot be read, which on_error= decides about: 2 (png is a link that leads out of" in caplog.text
    found = values_of(index)
    assert found[:2] == [image, image]
    assert isinstance(found[2], DecodeError)
    assert "a link that leads out of the archive" in str(found[2])
    assert index.labels().tolist() == [7, 7, 8]


def test_a_shard_of_links_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of(link_to("/a.jpg", "0.jpg"), link_to("/b.jpg", "1.jpg")))
    with pytest.raises(FormatError, match=r"none of its 2 samples can be read: 0 \(jpg is a link .*pack what it leads to"):
        index_shard(tmp_path / "x.tar")


def test_a_label_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of(("0.jpg", IMAGE), link_to("/a", "0.cls"), ("1.jpg", IMAGE), ("1.cls", b"1")))
    with pytest.raises(FormatError, match=r"label '0\.cls' is a link that leads out"):
        index_shard(tmp_path / "x.tar")
