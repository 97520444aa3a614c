"""Files paired by name: which becomes which field, and what happens to files without a partner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from source_trees import image, mask, npy, put

from converters import OnError
from datapipe.containers.form import ClassFrom, FieldChoice
from datapipe.errors import DecodeError, MissingDataError, OptionError
from datapipe.index.manifest import read_manifest


@pytest.mark.promise("form: pairs")
def test_side_by_side(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b.c", "sub/d e")):
        for suffix, data in {
            ".jpg": image(number),
            "_mask.png": mask(number),
            ".txt": name,
            ".json": "{}",
            ".npy": npy([1]),
        }.items():
            put(tmp_path / "in" / f"{name}{suffix}", data)
    out = converted(tmp_path / "in", tmp_path / "out", form="pairs")
    assert kinds_of(out) == {"image": "image", "mask": "mask", "array": "array", "json": "json", "txt": "text"}
    assert sources_of(out) == ["a.jpg", "b.c.jpg", "sub/d e.jpg"]
    assert field_of(out, "txt") == [b"a", b"b.c", b"sub/d e"]
    assert field_of(out, "mask") == [mask(0), mask(1), mask(2)]


def test_a_png_of_the_same_name_is_the_mask(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "in" / f"{number}.jpg", image(number))
        put(tmp_path / "in" / f"{number}.PNG", mask(number))
    out = converted(tmp_path / "in", tmp_path / "out")
    assert kinds_of(out) == {"image": "image", "mask": "mask"}
    assert field_of(out, "mask") == [mask(0), mask(1), mask(2)]
    assert field_of(out, "image") == [image(0), image(1), image(2)]


def test_an_image_that_is_called_like_a_mask_is_an_image(tmp_path: Path) -> None:
    put(tmp_path / "in" / "gas_mask.jpg", image(0))
    put(tmp_path / "in" / "gas_mask.txt", "a gas mask")
    put(tmp_path / "in" / "x.jpg", image(1))
    put(tmp_path / "in" / "x.txt", "x")
    out = converted(tmp_path / "in", tmp_path / "out", form="pairs")
    assert sources_of(out) == ["gas_mask.jpg", "x.jpg"]


@pytest.mark.parametrize(("images", "masks"), [("imgs", "masks"), ("images", "GT"), ("JPEGImages", "SegmentationClass")])
def test_folders_of_one_field_each(tmp_path: Path, images: str, masks: str) -> None:
    """A mask goes to the image of its own name first, and otherwise to that before its `_mask`."""
    for number, name in enumerate(("a", "a_mask", "b_gt")):
        put(tmp_path / "in" / images / f"{name}.jpg", image(number))
    put(tmp_path / "in" / masks / "a_mask.png", mask(1))
    put(tmp_path / "in" / masks / "a_Mask.png", mask(0))
    put(tmp_path / "in" / masks / "b_gt_mask.png", mask(2))
    put(tmp_path / "in" / "Depth Maps" / "a.png", image(0, "PNG"))
    put(tmp_path / "in" / "Depth Maps" / "a_mask.png", image(1, "PNG"))
    put(tmp_path / "in" / "Depth Maps" / "b_gt.png", image(2, "PNG"))
    out = converted(tmp_path / "in", tmp_path / "out")
    assert kinds_of(out) == {"image": "image", "mask": "mask", "depth_maps": "image"}
    assert field_of(out, "mask") == [mask(0), mask(1), mask(2)]


def test_texts_in_a_folder_called_labels_are_no_masks(tmp_path: Path) -> None:
    put(tmp_path / "in" / "images" / "a.jpg", image(0))
    put(tmp_path / "in" / "labels" / "a.txt", "0 0.5 0.5 1 1")
    assert kinds_of(converted(tmp_path / "in", tmp_path / "out")) == {"image": "image", "labels": "text"}


def alone(root: Path) -> Path:
    for number in range(5):
        put(root / "imgs" / f"{number}.jpg", image(number))
        put(root / "masks" / f"{number}.png", mask(number))
    put(root / "imgs" / "5.jpg", image(5))
    put(root / "masks" / "6.png", mask(6))
    put(root / "masks" / "7.png", mask(7, size=(9, 9)))
    put(root / "imgs" / "7.jpg", image(7))
    return root


def test_files_that_are_alone_are_bad_samples(tmp_path: Path) -> None:
    source = alone(tmp_path / "in")
    with pytest.raises(DecodeError, match=r"2 of 8 samples cannot be read: imgs/5\.jpg: bad sample: has no mask .*masks/6\.png"):
        converted(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    bad = skipping(source, tmp_path / "out")
    assert bad == {
        "imgs/5.jpg": "has no mask (has: image), which others have",
        "masks/6.png": "has no image (has: mask), which others have",
        "imgs/7.jpg": "field 'mask': the mask is 9x9 (height x width), the image 27x30 (height x width)",
    }
    out = converted(source, tmp_path / "kept", on_error=OnError.QUARANTINE)
    kept = sorted(str(path.relative_to(out / "quarantine")) for path in (out / "quarantine").rglob("*.*"))
    assert kept == ["imgs/5.jpg", "imgs/7.jpg", "masks/6.png", "masks/7.png"]


def test_fields_may_be_left_out_or_be_something_else(tmp_path: Path) -> None:
    source = alone(tmp_path / "in")
    put(source / "masks" / "x.txt", "not a mask")
    put(source / "masks" / "x.json", "{}")
    with pytest.raises(
        OptionError, match=r"files of 'masks' are json and text by their suffixes; say which with --field masks=KIND"
    ):
        converted(source, tmp_path / "out")
    fields = (FieldChoice("mask", "none"), FieldChoice("masks", "none"))
    with pytest.raises(OptionError, match=r"nothing to pair, there are files of one kind only \(image\)"):
        converted(source, tmp_path / "out", fields=fields)
    fields = (FieldChoice("mask", "image"), FieldChoice("masks", "none"))
    skipping(source, tmp_path / "out", fields=fields)
    assert kinds_of(tmp_path / "out") == {"image": "image", "mask": "image"}
    with pytest.raises(OptionError, match=r"has no 'depth' \(has: image, mask, masks\)"):
        converted(source, tmp_path / "no", fields=(*fields, FieldChoice("depth", "none")))
    with pytest.raises(OptionError, match=r"--field mask=label: not possible here; choose one of: image, mask"):
        converted(source, tmp_path / "no", fields=(FieldChoice("mask", "label"),))


def test_three_images_of_one_name(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.webp", "b.jpg", "b.png"):
        put(tmp_path / "in" / name, image(0))
    assert "two files for the field 'image'" in skipping(tmp_path / "in", tmp_path / "out", form="pairs")["a.jpg"]


def test_classes_from_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/a", "cat/b", "dog/a")):
        put(tmp_path / "in" / f"{name}.jpg", image(number))
        put(tmp_path / "in" / f"{name}.txt", name)
    with pytest.raises(OptionError, match=r"--from image-folder \(.*; or --from pairs \(.*a\.txt\)"):
        converted(tmp_path / "in", tmp_path / "out")
    out = converted(tmp_path / "in", tmp_path / "out", form="pairs", class_from=ClassFrom.FOLDER)
    assert (labels_of(out), read_manifest(out).classes) == ([0, 0, 1], ("cat", "dog"))
    plain = converted(tmp_path / "in", tmp_path / "plain", form="pairs")
    assert "label" not in kinds_of(plain)


def test_odd_files(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "in") + b"/caf\xff"
    os.makedirs(root)
    for number, name in enumerate((b"\xfe", b"new\nline", b"it's")):
        for suffix, data in ((b".jpg", image(number)), (b".txt", b"x")):
            with open(root + b"/" + name + suffix, "wb") as file:
                file.write(data)
    for name in (b".DS_Store", b"._a.jpg", b"Thumbs.db", b"notes.pdf"):
        with open(root + b"/" + name, "wb") as file:
            file.write(b"junk")
    os.mkfifo(root + b"/pipe.jpg")
    os.symlink(b"/etc/passwd", root + b"/pipe.txt")
    os.symlink(root, root + b"/loop")
    with open(root + b"/bad.txt", "wb") as file:
        file.write(b"caf\xff")
    os.symlink(b"it's.jpg", root + b"/bad.jpg")
    bad = skipping(tmp_path / "in", tmp_path / "out", form="pairs")
    assert [os.fsencode(name) for name in sources_of(tmp_path / "out")] == [
        b"caf\xff/" + name for name in (b"it's.jpg", b"new\nline.jpg", b"\xfe.jpg")
    ]
    reasons = sorted(bad.values())
    assert len(reasons) == 2
    assert "field 'txt': byte 0xff at 3 is not UTF-8" in reasons[0]
    assert "named pipe" in reasons[1] or "leads out" in reasons[1]


def test_nothing_to_pair(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.pdf", "x")
    with pytest.raises(MissingDataError, match="no files to pair"):
        converted(tmp_path / "in", tmp_path / "out", form="pairs")
