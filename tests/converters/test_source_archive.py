"""Archives read in place: the folder's own result, what a tar is told to be, and archives that are damaged or hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest
from archive_trees import FILES, class_tars, tar_bytes, write, write_zip, zstd
from fixtures import entry_of
from reading import converted, field_of, labels_of, skipping, sources_of
from source_trees import image, put
from trees import ROOT, contents

from converters import ConvertOptions, OnError, Part, convert, preview, recognise
from datapipe.containers.form import ClassFrom
from datapipe.errors import DatapipeError, DecodeError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.opening.samples import open_index


def without_manifest(out: Path) -> dict[str, str]:
    return {name: digest for name, digest in contents(out).items() if not name.endswith("dataset.json")}


def folder(root: Path, prefix: str = "") -> Path:
    for name, data in FILES:
        put(root / prefix / name, data)
    return root


@pytest.mark.parametrize("class_from", [None, ClassFrom.PARENT, ClassFrom.PATH, ClassFrom.NONE])
def test_an_archive_gives_what_its_folder_gives(tmp_path: Path, class_from: ClassFrom | None) -> None:
    source = folder(tmp_path / "photos")
    put(source / "n01440764" / "deep" / "x.png", image(7, "PNG"))
    put(source / "n01440764" / ".hidden.jpg", b"")
    put(source / "n01440764" / "notes.txt", b"")
    expected = without_manifest(converted(source, tmp_path / "plain", class_from=class_from))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(source, "photos")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in source.rglob("*"):
            zipped.write(path, path.relative_to(source))
    write(tmp_path / "a.tar.gz", gzip.compress((tmp_path / "a.tar").read_bytes()))
    for name in ("a.tar", "a.zip", "a.tar.gz"):
        out = converted(tmp_path / name, tmp_path / f"out-{name}", class_from=class_from)
        assert without_manifest(out) == expected
        made_from = read_manifest(out).made_from
        assert made_from == {"container": "archive", "files": [name], "num_files": 1}


def test_zip64(tmp_path: Path) -> None:
    """As written where sizes are not known beforehand, or with more than 65,535 members' worth of headers."""
    path = tmp_path / "big.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES:
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    num, nbytes, offset = struct.unpack_from("<2xH2L", data, end + 8)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, num, num, nbytes, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(bytes(data[:end]) + end64 + locator + tail)
    assert len(zipfile.ZipFile(path).namelist()) == len(FILES)
    assert field_of(converted(path, tmp_path / "out"), "image") == [data for _, data in FILES]
    front = tmp_path / "front.zip"  # self-extracting zips have a program before them
    front.write_bytes(b"#!/bin/sh\nexit\n" + write_zip(tmp_path / "plain.zip", FILES).read_bytes())
    assert field_of(converted(front, tmp_path / "out2"), "image") == [data for _, data in FILES]


def test_what_a_tar_is_taken_for(tmp_path: Path) -> None:
    def form(path: Path) -> str:
        return recognise(ConvertOptions(path, tmp_path / "out")).form

    assert form(write(tmp_path / "flat.tar", tar_bytes([("a.jpg", image(0)), ("b.jpg", image(1))]))) == "tar"
    assert form(write(tmp_path / "set.tar", tar_bytes([("x/a.jpg", image(0)), ("x/a.cls", b"1")]))) == "tar"
    assert form(write(tmp_path / "tree.tar", tar_bytes(FILES))) == "archive"
    assert form(write(tmp_path / "of.tar", tar_bytes(class_tars()))) == "archive"
    assert form(write(tmp_path / "set.tar.gz", gzip.compress(tar_bytes([("a.jpg", image(0)), ("a.cls", b"1")])))) == "tar"
    assert form(write(tmp_path / "tree.tar.zst", zstd(tar_bytes(FILES)))) == "archive"
    for name, data in class_tars():
        write(tmp_path / "classes" / name, data)
        write(tmp_path / "shards" / f"part-{len(os.listdir(tmp_path / 'classes')):03d}.tar", data)
        write(tmp_path / "digits" / f"{len(os.listdir(tmp_path / 'classes'))}.tar", data)
    assert (form(tmp_path / "classes"), form(tmp_path / "shards")) == ("archive", "tar")
    warning = preview(ConvertOptions(tmp_path / "shards", tmp_path / "out")).warnings[0]
    assert "have no label" in warning
    assert "--from archive" in warning
    with pytest.raises(OptionError, match=r"say which: --from tar \(shards without labels.*; or --from archive \(tars of one"):
        form(tmp_path / "digits")
    out = converted(tmp_path / "digits", tmp_path / "digits-out", form="archive")
    assert len(set(labels_of(out))) == len(class_tars())


def test_compressed_shards_of_webdataset(tmp_path: Path) -> None:
    members = [("a.jpg", image(0)), ("a.cls", b"1"), ("b.jpg", image(1)), ("b.cls", b"0")]
    write(tmp_path / "in" / "x-0.tar.gz", gzip.compress(tar_bytes(members)))
    write(tmp_path / "in" / "x-1.tar", tar_bytes(members))
    out = converted(tmp_path / "in", tmp_path / "out")
    assert (labels_of(out), sources_of(out)) == ([1, 0, 1, 0], ["x-0.tar.gz/a", "x-0.tar.gz/b", "x-1.tar/a", "x-1.tar/b"])
    assert field_of(out, "image") == [image(0), image(1)] * 2


def test_several_sets_in_one_archive(tmp_path: Path) -> None:
    files = [(f"data/{part}/{name}", data) for part in ("train", "val") for name, data in FILES]
    path = write_zip(tmp_path / "data.zip", files)
    with pytest.raises(
        OptionError, match=r"holds train/ and val/.*pass one at a time: .*data\.zip/data/train and .*data\.zip/data/val"
    ):
        converted(path, tmp_path / "out")
    assert labels_of(converted(path / "data" / "val", tmp_path / "val")) == [row // 4 for row in range(len(FILES))]
    with pytest.raises(DatapipeError, match="no images in it"):
        converted(path / "data" / "test", tmp_path / "test")


def test_a_folder_that_is_left_out_is_said(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", [(f"photos/{name}", data) for name, data in FILES])
    shown = preview(ConvertOptions(path, tmp_path / "out"))
    assert (shown.num_classes, shown.warnings[0]) == (
        3,
        "all images lie in photos/, which is left out of their names and classes",
    )


def test_images_in_no_folder(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "flat.zip", [("a.jpg", image(0)), ("b.jpg", image(1))])
    with pytest.raises(DecodeError, match=r"2 of 2 samples cannot be read: .*no folder .*--class-from none.*--root"):
        converted(path, tmp_path / "no")
    assert sources_of(converted(path, tmp_path / "out", class_from=ClassFrom.NONE)) == ["a.jpg", "b.jpg"]


# -- damaged and hostile ---------------------------------------------------------------------------


def refused(path: Path, out: Path, said: str, **options: object) -> None:
    """One clear line, and nothing is left behind."""
    with pytest.raises(DatapipeError, match=said) as raised:
        converted(path, out, **options)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    assert not out.exists()


def test_names_that_lead_out(tmp_path: Path) -> None:
    """They are never paths, not even in the quarantine."""
    files = [("../../evil/a.jpg", b"bad"), ("/etc/b.jpg", b"bad"), ("k/c.jpg", image(0)), ("k/../../d.jpg", b"bad")]
    for path in (write_zip(tmp_path / "x.zip", files), write(tmp_path / "x.tar", tar_bytes(files))):
        refused(path, tmp_path / "out", "3 of 4 samples cannot be read: .*leads out of it", form="archive")
        out = tmp_path / f"out-{path.suffix}"
        bad = skipping(path, out, form="archive", on_error=OnError.QUARANTINE)
        assert len(bad) == 3
        assert sources_of(out) == ["k/c.jpg"]
    assert sorted(path.name for path in tmp_path.parent.iterdir() if path.name in ("evil", "d.jpg")) == []


def linked(tmp_path: Path, links: dict[str, str]) -> list[Path]:
    """A tar and a zip of two files and of symbolic links."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive, zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        for name, data in FILES[:2]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            zipped.writestr(name, data)
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
            link = zipfile.ZipInfo(name)
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(link, target, zipfile.ZIP_DEFLATED)
    return [tmp_path / "x.tar", tmp_path / "x.zip"]


def test_links_are_the_files_that_they_lead_to(tmp_path: Path) -> None:
    folder, name = FILES[0][0].rsplit("/", 1)
    for path in linked(tmp_path, {f"{folder}/s.jpg": name, "k/t.jpg": f"../{folder}/s.jpg"}):
        made = open_index(converted(path, tmp_path / f"out{path.suffix}"))
        names = {key: number for number, key in enumerate(sources_of(tmp_path / f"out{path.suffix}"))}
        stored = [Path(place).read_bytes()[at : at + nbytes] for place, at, nbytes in map(partial(entry_of, made), range(4))]
        assert sorted(names) == sorted([FILES[0][0], FILES[1][0], f"{folder}/s.jpg", "k/t.jpg"])
        assert stored.count(FILES[0][1]) == 3


def test_links_that_lead_to_no_file_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Out of the archive, to nothing, in a circle; one to a folder is no sample, and said."""
    links = {"k/o.jpg": "/etc/passwd", "k/u.jpg": "../../x.jpg", "k/n.jpg": "gone.jpg", "k/c.jpg": "d.jpg", "k/d.jpg": "c.jpg"}
    folder = FILES[0][0].rsplit("/", 1)[0]
    for path in linked(tmp_path, {**links, "again": folder}):
        refused(path, tmp_path / "out", "5 of 7 samples cannot be read: .*a link (that leads|to)")
        caplog.clear()
        index = open_index(path)
        assert len(index) == 7
        assert "1 link to folders not followed, such as again" in caplog.text
        assert "5 of 7 samples cannot be read" in caplog.text


def test_backslashes_of_windows_are_what_is_between_folders(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        for name, data in FILES:
            info = zipfile.ZipInfo("x")
            info.filename = name.replace("/", "\\")
            zipped.writestr(info, data)
    assert sources_of(converted(tmp_path / "x.zip", tmp_path / "out")) == sources_of(
        converted(write_zip(tmp_path / "y.zip", FILES), tmp_path / "out2")
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_occur_twice(tmp_path: Path) -> None:
    files = [*FILES, FILES[0]]
    for path in (write_zip(tmp_path / "x.zip", files), write(tmp_path / "x.tar", tar_bytes(files))):
        refused(path, tmp_path / "out", "1 of 13 samples cannot be read: .*in the archive twice, by the same name")


def test_encrypted_and_strangely_compressed_members(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", FILES)
    data = bytearray(path.read_bytes())
    for at in [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]:
        data[at + 8] |= 1
    path.write_bytes(data)
    refused(path, tmp_path / "out", "12 of 12 samples cannot be read: .*is encrypted; unpack the zip with its password")
    path = write_zip(tmp_path / "y.zip", FILES, zipfile.ZIP_LZMA)
    refused(path, tmp_path / "out", "12 of 12 .*is compressed by LZMA, which is not read; unpack the zip first")


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    """And one that says a lot: it is not unpacked."""
    path = write_zip(tmp_path / "x.zip", FILES, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    places = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    struct.pack_into("<L", data, places[1] + 24, 50)
    struct.pack_into("<L", data, places[2] + 24, (1 << 30) + 1)
    struct.pack_into("<L", data, places[3] + 24, 1 << 20)
    path.write_bytes(data)
    reasons = list(skipping(path, tmp_path / "out").values())
    assert "unpacks to more than the 50 bytes that the archive announces" in reasons[0]
    assert f"{(1 << 30) + 1} bytes exceed the limit" in reasons[1]
    assert f"of the {1 << 20} bytes that the archive announces" in reasons[2]
    assert len(reasons) == 3


def test_damaged_members_are_bad_samples(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = write_zip(tmp_path / "x.zip", FILES, method)
        data = bytearray(path.read_bytes())
        data[data.index(FILES[3][0].encode()) + len(FILES[3][0]) + 200] ^= 0x55
        path.write_bytes(data)
        reasons = skipping(path, tmp_path / f"out{method}")
        assert list(reasons) == [FILES[3][0]]
        assert "damaged" in reasons[FILES[3][0]]


def test_members_that_overlap(tmp_path: Path) -> None:
    """A bomb of a few bytes that are counted a million times."""
    path = write_zip(tmp_path / "x.zip", [(f"k/{row}.jpg", image(0) * 20) for row in range(20)])
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\1\2")
    directory, end = data[start : data.rindex(b"PK\5\6")], data[data.rindex(b"PK\5\6") :]
    for at in [at for at in range(len(directory)) if directory[at : at + 4] == b"PK\1\2"]:
        struct.pack_into("<L", directory, at + 42, 0)
    first = data[: data.index(b"PK\3\4", 40)]
    struct.pack_into("<2H2L", end, 8, 20, 20, len(directory), len(first))
    path.write_bytes(bytes(first) + bytes(directory) + bytes(end))
    refused(path, tmp_path / "out", "its members overlap, .*bomb")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tar.zst", "x.tar.bz2", "x.tar.xz"])
def test_archives_that_are_cut(tmp_path: Path, name: str, share: float) -> None:
    plain = tar_bytes(FILES).rstrip(b"\0")
    made = {
        "x.zip": write_zip(tmp_path / "whole.zip", FILES).read_bytes(), "x.tar": plain, "x.tar.gz": gzip.compress(plain),
        "x.tar.zst": zstd(plain), "x.tar.bz2": bz2.compress(plain), "x.tar.xz": lzma.compress(plain),
    }  # fmt: skip
    path = write(tmp_path / name, made[name][: int(len(made[name]) * share)])
    refused(path, tmp_path / "out", "cut|damaged", form="archive")


def test_what_is_no_archive_at_all(tmp_path: Path) -> None:
    for name in ("x.zip", "x.tar", "x.tar.gz", "x.tar.zst", "x.tar.xz", "x.tar.bz2"):
        refused(write(tmp_path / name, b"nothing of the kind" * 100), tmp_path / "out", "not a|damaged", form="archive")
        refused(write(tmp_path / name, b""), tmp_path / "out", "empty|cut off|no end", form="archive")


def test_bombs_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.sources.spool._BELIEVED_NBYTES", 1 << 20)
    path = write(tmp_path / "x.tar.gz", gzip.compress(tar_bytes([("k/a.jpg", bytes(30 << 20))])))
    refused(path, tmp_path / "out", "unpacks to more than 6?.* bytes, 200 times its size: a bomb")


def test_archives_within_archives(tmp_path: Path) -> None:
    """A tar in a tar or in a stored zip is read; deeper ones and compressed ones are named."""
    inner = tar_bytes([("a.jpg", image(1))])
    path = write(
        tmp_path / "x.tar", tar_bytes([("k/b.jpg", image(0)), ("c.tar", inner), ("d.tar", tar_bytes([("e.tar", inner)]))])
    )
    refused(path, tmp_path / "out", r"d/e\.tar: an archive three levels deep, which is not read")
    assert skipping(path, tmp_path / "out") == {
        "x.tar/d/e.tar": "an archive three levels deep, which is not read; unpack the outer one first"
    }
    assert sources_of(tmp_path / "out") == ["c/a.jpg", "k/b.jpg"]
    for packed in (
        write_zip(tmp_path / "z.zip", [("c.tar", inner)], zipfile.ZIP_DEFLATED),
        write(tmp_path / "y.tar", tar_bytes([("c.tar.gz", gzip.compress(inner)), ("k/a.jpg", image(0))])),
    ):
        refused(packed, tmp_path / "no", "a compressed archive within an archive")
    stored = write_zip(tmp_path / "s.zip", [("c.tar", inner), ("d.tar", inner)])
    assert field_of(converted(stored, tmp_path / "stored"), "image") == [image(1)] * 2
    cut = write(tmp_path / "cut.tar", tar_bytes([("c.tar", tar_bytes(FILES)[:3000]), ("d.tar", inner)]))
    refused(cut, tmp_path / "no", r"cut\.tar/c\.tar: .*cut")


def test_a_spool_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """A run that goes on, and one whose archive changed."""
    path = write(tmp_path / "x.tar.gz", gzip.compress(tar_bytes(FILES)))
    out, reference = tmp_path / "out", converted(path, tmp_path / "reference", shard_nbytes=5_000)
    convert(ConvertOptions(path, out, shard_nbytes=5_000, num_workers=1, part=Part(1, 2)))
    (spooled,) = (out / ".building" / "spool").iterdir()
    before = spooled.stat()
    assert before.st_mtime_ns == path.stat().st_mtime_ns
    convert(ConvertOptions(path, out, shard_nbytes=5_000, num_workers=1, part=Part(1, 2)))
    assert spooled.stat().st_ino == before.st_ino
    convert(ConvertOptions(path, out, shard_nbytes=5_000, num_workers=2))
    assert contents(out) == contents(reference)


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_members(tmp_path: Path) -> None:
    """40,000 members against 4,000: the directory of a zip is read entry by entry."""
    peaks = {}
    for num in (4_000, 40_000):
        write_zip(tmp_path / f"{num}.zip", [(f"k/{row:06d}" + "x" * 150 + ".jpg", b"") for row in range(num)])
        script = (
            "from pathlib import Path;"
            "from datapipe.sources.archives.members import scan_archive; from datapipe.index.listed import Workspace;"
            "from datapipe.containers.listing import ScanNotes; import tracemalloc; tracemalloc.start();"
            f"n = sum(1 for _ in scan_archive(Path({str(tmp_path)!r}), b'{num}.zip', Workspace(Path(), Path()), ScanNotes()));"
            "print(n, tracemalloc.get_traced_memory()[1])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
        found, peak = map(int, done.stdout.split())
        assert found == num
        peaks[num] = peak
    assert peaks[40_000] < peaks[4_000] + 200_000
