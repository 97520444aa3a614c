"""Tars that others wrote: members by suffix, several images of one key, damaged and hostile archives."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from source_trees import image, mask, npy, put
from tar_files import link_to, old_sparse, tar_of
from trees import contents

from converters import ConvertOptions, OnError, Resize, convert
from datapipe import Images
from datapipe.containers.form import FieldChoice
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError, StorageError, UnfinishedError
from datapipe.index.manifest import read_manifest
from datapipe.opening.samples import open_index


def tar(path: Path, members: list[tuple[str, bytes]], *, form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def jpegs(*keys: str) -> list[tuple[str, bytes]]:
    return [(f"{key}.jpg", image(number)) for number, key in enumerate(keys)]


def test_a_file_or_a_folder_in_the_order_of_names(tmp_path: Path) -> None:
    tar(tmp_path / "in" / "b.tar", jpegs("z", "a"))
    tar(tmp_path / "in" / "a.tar", jpegs("y"), form=tarfile.GNU_FORMAT)
    put(tmp_path / "in" / "b.idx", "x")
    put(tmp_path / "in" / "._b.tar", "x")
    assert sources_of(converted(tmp_path / "in", tmp_path / "all", form="tar")) == ["a.tar/y", "b.tar/z", "b.tar/a"]
    assert sources_of(converted(tmp_path / "in" / "b.tar", tmp_path / "one")) == ["b.tar/z", "b.tar/a"]
    assert sources_of(converted(tmp_path / "in" / "[a-b].tar", tmp_path / "two")) == ["a.tar/y", "b.tar/z", "b.tar/a"]
    with pytest.raises(MissingDataError, match=r"c\*\.tar: no file matches"):
        converted(tmp_path / "in" / "c*.tar", tmp_path / "none")
    tar(tmp_path / "on" / "a.tar", jpegs("y"))
    with pytest.raises(OptionError, match="matches tars in several directories"):
        converted(tmp_path / "[io]n" / "*.tar", tmp_path / "none")
    assert sources_of(converted(tmp_path / "in" / "b**.tar", tmp_path / "three")) == ["b.tar/z", "b.tar/a"]


def test_sparse_members_links_and_joined_tars(tmp_path: Path) -> None:
    """As the index of the tar itself has them; what leads out of the tar is a bad sample."""
    data = image(1, "BMP")
    padded = data + bytes(9000)
    sparse = old_sparse("s.bmp", len(padded), [(0, len(data))], data)
    links = tar_of(link_to("s.bmp", "h.bmp", is_hard=True), link_to("s.bmp", "l.bmp"), link_to("/x.bmp", "o.bmp"))
    put(tmp_path / "x.tar", sparse + links + tar_of(("z.bmp", data)))
    with pytest.raises(DecodeError, match=r"x\.tar/o: bad sample: its bmp is a link that leads out of the archive"):
        converted(tmp_path / "x.tar", tmp_path / "out")
    out = tmp_path / "out"
    assert list(skipping(tmp_path / "x.tar", out)) == ["x.tar/o"]
    assert sources_of(out) == ["x.tar/s", "x.tar/h", "x.tar/l", "x.tar/z"]
    assert field_of(out, "image") == [padded, padded, padded, data]


def test_keys_with_dots_are_told_from_labels(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tar", [("22.05.jpg", image(1)), ("22.05.cls", b"3")])
    with pytest.raises(OptionError, match=r"'22\.05\.cls', and a key ends at the first dot .*--field 05\.cls=label or =none"):
        converted(path, tmp_path / "out")
    out = converted(path, tmp_path / "out", fields=(FieldChoice("05.cls", "label"), FieldChoice("05.jpg", "image")))
    assert labels_of(out) == [3]


def test_suffixes_become_fields(tmp_path: Path) -> None:
    members = {
        "JPG": image(1), "seg.png": mask(1), "depth.png": image(1, "PNG"), "txt": b"t", "caption.txt": b"c", "meta.json": b"[1]",
        "v.npy": npy([1]), "mp4": b"film", "raw.bin": b"raw", "a.b.xyz": b"?", "input.jpg": image(2),
    }  # fmt: skip
    out = converted(tar(tmp_path / "x.tar", [(f"k.{suffix}", data) for suffix, data in members.items()]), tmp_path / "out")
    assert kinds_of(out) == {
        "image": "image", "seg": "mask", "depth": "image", "txt": "text", "caption": "text", "meta": "json", "v": "array",
        "mp4": "bytes", "raw": "bytes", "a_b_xyz": "bytes", "input": "image",
    }  # fmt: skip
    assert (field_of(out, "image"), field_of(out, "input"), field_of(out, "mp4")) == ([image(1)], [image(2)], [b"film"])


def test_images_of_any_suffix_are_the_image(tmp_path: Path) -> None:
    members = [("a.jpg", image(0)), ("b.png", image(1, "PNG")), ("c.jpeg", image(2, "PNG"))]
    out = converted(tar(tmp_path / "x.tar", members), tmp_path / "out")
    assert field_of(out, "image") == [data for _, data in members]


def test_two_images_of_one_key_have_to_be_told_apart(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("a.png", mask(0)), ("b.jpg", image(1)), ("b.png", mask(1))])
    with pytest.raises(
        DecodeError, match=r"2 of 2 .*has jpg and png for the field 'image'; say what they are, such as --field png=mask"
    ):
        converted(source, tmp_path / "out")
    out = converted(source, tmp_path / "out", fields=(FieldChoice("png", "mask"),))
    assert kinds_of(out) == {"image": "image", "mask": "mask"}
    assert field_of(out, "mask") == [mask(0), mask(1)]
    out = converted(source, tmp_path / "plain", fields=(FieldChoice("png", "none"),))
    assert kinds_of(out) == {"image": "image"}
    with pytest.raises(OptionError, match=r"has no 'gif' \(has: jpg, png\)"):
        converted(source, tmp_path / "no", fields=(FieldChoice("png", "mask"), FieldChoice("gif", "mask")))


def test_members_that_would_be_one_field(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("a.mask.png", mask(0)), ("a.mask.npy", npy([1]))])
    with pytest.raises(OptionError, match=r"mask\.npy and mask\.png would both be the field 'mask'; .*--field mask\.png=none"):
        converted(source, tmp_path / "out")
    assert kinds_of(converted(source, tmp_path / "out", fields=(FieldChoice("mask.npy", "none"),)))["mask"] == "mask"


def test_labels_are_numbers_or_names(tmp_path: Path) -> None:
    members = [
        (f"{key}.{suffix}", data)
        for key, label in zip("abc", (b" 7\n", b"0", b"7"), strict=True)
        for suffix, data in (("jpg", image(0)), ("cls", label))
    ]
    out = converted(tar(tmp_path / "x.tar", members), tmp_path / "out")
    assert (labels_of(out), read_manifest(out).classes) == ([7, 0, 7], None)
    named = [(name, b"dog" if data == b"0" else data) for name, data in members]
    out = converted(tar(tmp_path / "y.tar", named), tmp_path / "named")
    assert (labels_of(out), read_manifest(out).classes) == ([0, 1, 0], ("7", "dog"))
    bad = [(name, b"\xff" if data == b"0" else data) for name, data in members]
    assert skipping(tar(tmp_path / "z.tar", bad), tmp_path / "bad") == {"z.tar/b": "its label b'\\xff' is not text"}


@pytest.mark.parametrize("suffix", ["cls", "label"])
def test_labels_are_the_numbers_that_webdataset_reads(tmp_path: Path, suffix: str) -> None:
    """In place and converted."""
    texts = {"a": b"007", "b": b"+7", "c": b"\xef\xbb\xbf10", "d": b" 12\r\n", "e": b"-1", "f": b"0"}
    source = tar(
        tmp_path / "x.tar",
        [(f"{key}.{name}", data) for key, text in texts.items() for name, data in (("jpg", image(0)), (suffix, text))],
    )
    assert open_index(source).labels().tolist() == [7, 7, 10, 12, -1, 0]
    assert [Images(source)[row][1] for row in range(6)] == [7, 7, 10, 12, -1, 0]
    out = converted(source, tmp_path / "out")
    assert (labels_of(out), read_manifest(out).classes) == ([7, 7, 10, 12, -1, 0], None)
    assert sorted(member_texts(out, "cls")) == [b"-1", b"0", b"10", b"12", b"7", b"7"]


def member_texts(out: Path, suffix: str) -> list[bytes]:
    found: list[bytes] = []
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as archive:
            opened = [archive.extractfile(member) for member in archive if member.name.endswith(f".{suffix}")]
            found += [file.read() for file in opened if file is not None]
    return found


def test_a_label_beside_a_class_number_is_a_field_of_its_own(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", [("a.label", b"cat"), ("a.jpg", image(0)), ("a.cls", b"3")])
    out = converted(source, tmp_path / "out")
    assert (labels_of(out), field_of(out, "label_")) == ([3], [b"cat"])
    assert (open_index(source).labels().tolist(), field_of(source, "label_")) == ([3], [b"cat"])


def test_an_empty_label_is_none(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("a.cls", b"\n"), ("b.jpg", image(1)), ("b.cls", b"1")])
    assert skipping(source, tmp_path / "out") == {"x.tar/a": "has no label (has: image), which others have"}


def test_samples_without_a_field_that_others_have(tmp_path: Path) -> None:
    source = tar(
        tmp_path / "x.tar", [("a.jpg", image(0)), ("a.txt", b"x"), ("b.jpg", image(1)), ("c.txt", b"y"), ("c.jpg", image(2))]
    )
    assert skipping(source, tmp_path / "out") == {"x.tar/b": "has no txt (has: image), which others have"}
    assert len(field_of(converted(source, tmp_path / "all", fields=(FieldChoice("txt", "none"),)), "image")) == 3


def test_raw_pixels_and_arrays(tmp_path: Path) -> None:
    pixels = npy(np.zeros((4, 5, 3), np.uint8))
    out = converted(tar(tmp_path / "x.tar", [("a.npy", pixels), ("a.cls", b"1")]), tmp_path / "out")
    assert (kinds_of(out), read_manifest(out).image_size) == ({"image": "image", "label": "label"}, (4, 5))
    out = converted(tar(tmp_path / "y.tar", [("a.npy", npy([1.5]))]), tmp_path / "array")
    assert kinds_of(out) == {"array": "array"}


def test_our_own_shards_come_back(tmp_path: Path) -> None:
    """With the kinds of their fields and the names of their classes; a half-made set is refused."""
    boxes = npy(np.array([[1, 2, 3, 4, 0]], np.float32))
    members = [("a.jpg", image(0)), ("a.mask.png", mask(0)), ("a.boxes.npy", boxes), ("a.cls", b"3")]
    fields = (FieldChoice("boxes.npy", "boxes"),)
    first = converted(tar(tmp_path / "in" / "x.tar", members), tmp_path / "first", fields=fields)
    manifest = json.loads((first / "dataset.json").read_text())
    (first / "dataset.json").write_text(json.dumps({**manifest, "classes": list("wxyz"), "checksum": ""}))
    second = converted(first, tmp_path / "second")
    assert read_manifest(second).classes == tuple("wxyz")
    (first / ".building").mkdir()
    with pytest.raises(UnfinishedError, match="unfinished"):
        converted(first, tmp_path / "third")
    assert kinds_of(second) == {"image": "image", "mask": "mask", "boxes": "boxes", "label": "label"}
    assert [field_of(second, name) for name in ("image", "mask", "boxes")] == [[image(0)], [mask(0)], [boxes]]


# -- what tars may hold ---------------------------------------------------------------------------


def test_names_never_become_paths(tmp_path: Path) -> None:
    path = tmp_path / "in" / "x.tar"
    tar(path, [("../../up/a.jpg", b"bad"), ("/etc/b.jpg", b"bad"), ("c/./../d.jpg", b"bad"), ("ok.jpg", image(0))])
    with tarfile.open(path, "a") as archive:
        for name, kind in (
            ("l.jpg", tarfile.SYMTYPE),
            ("h.jpg", tarfile.LNKTYPE),
            ("f.jpg", tarfile.FIFOTYPE),
            ("d.jpg", tarfile.CHRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("plain name"))
        archive.addfile(tarfile.TarInfo("k/.DS_Store"))
    before = contents(tmp_path).keys()
    out = converted(path, tmp_path / "out", on_error=OnError.QUARANTINE, form="tar")
    assert sources_of(out) == ["x.tar/ok"]
    kept = {str(path.relative_to(out)) for path in (out / "quarantine").rglob("*") if path.is_file()}
    assert kept == {"quarantine/x.tar/_/_/up/a.image", "quarantine/x.tar/_/etc/b.image", "quarantine/x.tar/c/_/_/d.image"}
    assert {name for name in contents(tmp_path) if not name.startswith("out/")} == before


def test_interleaved_members_are_bad_samples(tmp_path: Path) -> None:
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("b.jpg", image(1)), ("a.txt", b"x"), ("b.txt", b"y")])
    bad = skipping(source, tmp_path / "out", fields=(FieldChoice("txt", "none"),))
    assert bad == {"x.tar/a": "its members are not consecutive: some were earlier; sort the tar by name"} | {
        "x.tar/b": "its members are not consecutive: some were earlier; sort the tar by name"
    }
    assert sources_of(tmp_path / "out") == ["x.tar/a", "x.tar/b"]
    twice = tar(tmp_path / "y.tar", [("a.jpg", image(0)), ("a.jpg", image(1))])
    with pytest.raises(DecodeError, match="has two members jpg for the field 'image'"):
        converted(twice, tmp_path / "no")


def test_a_cut_tar(tmp_path: Path) -> None:
    """What lies before the cut may be had; that something is missing is always said."""
    tar(tmp_path / "in" / "a.tar", jpegs("a", "b", "c"))
    data = (tmp_path / "in" / "a.tar").read_bytes()
    put(tmp_path / "in" / "a.tar", data[: data.index(b"c.jpg") + 700])
    tar(tmp_path / "in" / "b.tar", jpegs("d"))
    with pytest.raises(StorageError, match=r"a\.tar: member at byte \d+ reaches to .*it was cut; samples after that are missing"):
        converted(tmp_path / "in", tmp_path / "out", form="tar")
    bad = skipping(tmp_path / "in", tmp_path / "out", form="tar")
    assert list(bad) == ["a.tar"]
    assert sources_of(tmp_path / "out") == ["a.tar/a", "b.tar/d"]  # the sample before the cut may lack members


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "empty file, not a tar"), (b"x" * 2000, "not a tar, or damaged"), (b"\0" * 1024, "no samples in 1 tar")],
)
def test_files_that_are_no_tars(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises((FormatError, StorageError, MissingDataError), match=said):
        converted(put(tmp_path / "x.tar", data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(MissingDataError, match=r"no \.tar files"):
        converted(tmp_path / "in", tmp_path / "out", form="tar")
    with pytest.raises(MissingDataError, match="no such file"):
        converted(tmp_path / "x.tar", tmp_path / "out", form="tar")
    os.mkfifo(tmp_path / "in" / "x.tar")
    with pytest.raises(FormatError, match="not a regular file"):
        converted(tmp_path / "in", tmp_path / "out", form="tar")


def test_pickles_are_bytes(tmp_path: Path) -> None:
    """They are carried, never loaded; as arrays they are refused."""
    evil = io.BytesIO()
    np.save(evil, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("a.pyd", b"\x80"), ("a.x.npy", evil.getvalue())])
    with pytest.raises(DecodeError, match=r"field 'x': holds Python objects \(pickled\), which are never loaded"):
        converted(source, tmp_path / "out")


def test_resizing_takes_masks_and_boxes_along(tmp_path: Path) -> None:
    boxes = npy(np.array([[3, 4, 9, 12, 1]], np.float32))
    source = tar(tmp_path / "x.tar", [("a.jpg", image(0)), ("a.mask.png", mask(0)), ("a.boxes.npy", boxes)])
    fields = (FieldChoice("boxes.npy", "boxes"),)
    options = ConvertOptions(source, tmp_path / "out", num_workers=1, fields=fields, resize=Resize.parse("exact:40x15"))
    convert(options)  # the image is 20 x 30
    assert np.load(io.BytesIO(field_of(tmp_path / "out", "boxes")[0])).tolist() == [[1.5, 8, 4.5, 24, 1]]
    assert read_manifest(tmp_path / "out").image_size == (40, 15)
