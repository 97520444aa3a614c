"""COCO: boxes and their convention, images without any, what an annotation file may get wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import converted, field_of, kinds_of, skipping, sources_of
from source_trees import coco, image, put, size_of

from converters import ConvertOptions, Resize, preview
from datapipe import Images
from datapipe.containers.form import FieldChoice, Form
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.sources.json_stream import array_elements


def box(id: int, image_id: int, *bbox: float, **more: Any) -> dict[str, Any]:
    return {"id": id, "image_id": image_id, "bbox": list(bbox), "category_id": 7, **more}


def annotated(root: Path, boxes: list[dict[str, Any]], num: int = 3, **changes: Any) -> Path:
    """Images 0, 1, 2, ... and these annotations of them; `changes` are of the file's members, None leaves one out."""
    images = []
    for number in range(num):
        put(root / "val" / f"{number}.jpg", image(number))
        height, width = size_of(number)
        images.append({"id": number, "file_name": f"{number}.jpg", "height": height, "width": width})
    value = {"images": images, "annotations": boxes, "categories": [{"id": 7, "name": "zebra"}], **changes}
    return put(root / "instances.json", json.dumps({name: part for name, part in value.items() if part is not None}))


def boxes_of(out: Path) -> list[np.ndarray]:
    return [np.load(io.BytesIO(data)) for data in field_of(out, "boxes")]


def convert_coco(source: Path, out: Path, **options: Any) -> Path:
    return converted(source, out, root=source.parent / "val", **options)


@pytest.mark.promise("form: coco")
def test_boxes_are_float32_corners_and_labels(tmp_path: Path) -> None:
    source = annotated(tmp_path, [box(2, 1, 0.1, 2, 3, 4), box(1, 1, 5, 6, 0, 0.7)])
    out = convert_coco(source, tmp_path / "out")
    found = boxes_of(out)
    assert [(array.dtype, array.shape) for array in found] == [(np.dtype("<f4"), (count, 5)) for count in (0, 2, 0)]
    assert np.array_equal(found[1], np.array([[0.1, 2, 3.1, 6, 0], [5, 6, 5, 6.7, 0]], np.float32))  # in the file's order
    assert [json.loads(data) for data in field_of(out, "image_id")] == [0, 1, 2]
    assert read_manifest(out).classes == ("zebra",)


def test_samples_are_sorted_by_image_and_labels_by_category(tmp_path: Path) -> None:
    made = coco(tmp_path / "in")
    out = converted(made.source, tmp_path / "out", **made.options)
    assert sources_of(out) == [f"{number}.jpg" for number in range(12)]
    assert [sorted(array[:, 4].tolist()) for array in boxes_of(out)[:3]] == [[], [1], [0, 1]]


def test_members_of_annotations_on_request(tmp_path: Path) -> None:
    polygon = [[1.5, 2, 3, 4, 5, 6]]
    annotations = [
        box(1, 0, 1, 1, 2, 2, segmentation=polygon, iscrowd=0),
        box(2, 0, 1, 1, 2, 2, segmentation={"counts": "abc", "size": [20, 30]}, iscrowd=1),
        box(3, 0, 2, 2, 2, 2, iscrowd=0),
    ]
    source = annotated(tmp_path, annotations)
    segmentation, crowd = FieldChoice("segmentation", "json"), FieldChoice("iscrowd", "json")
    out = convert_coco(source, tmp_path / "out", fields=(segmentation,))
    assert kinds_of(out) == {"image": "image", "boxes": "boxes", "image_id": "json", "segmentation": "json"}
    assert [json.loads(data) for data in field_of(out, "segmentation")] == [[polygon, None], [], []]
    assert [len(array) for array in boxes_of(out)] == [2, 0, 0]
    options = ConvertOptions(source, tmp_path / "no", form="coco", root=tmp_path / "val")
    assert preview(options).warnings == ("1 regions of crowds left out (iscrowd; --field iscrowd=json keeps them)",)
    everything = convert_coco(source, tmp_path / "all", fields=(segmentation, crowd))
    assert [json.loads(data) for data in field_of(everything, "iscrowd")] == [[0, 1, 0], [], []]
    assert [len(array) for array in boxes_of(everything)] == [3, 0, 0]
    with pytest.raises(OptionError, match="--resize with --field segmentation=json: the coordinates"):
        convert_coco(source, tmp_path / "no", fields=(segmentation,), resize=Resize.parse("shorter:8"))
    with pytest.raises(OptionError, match=r"no annotation has 'keypoints' \(they have: bbox, category_id, id, image_id, iscrowd"):
        convert_coco(source, tmp_path / "no", fields=(FieldChoice("keypoints", "json"),))
    with pytest.raises(OptionError, match=r"--field segmentation=mask: not possible here"):
        convert_coco(source, tmp_path / "no", fields=(FieldChoice("segmentation", "mask"),))


def test_captions_have_no_boxes(tmp_path: Path) -> None:
    captions = [{"id": number, "image_id": number % 2, "caption": f"é {number}"} for number in range(3)]
    source = annotated(tmp_path, captions, categories=None)
    out = convert_coco(source, tmp_path / "out", fields=(FieldChoice("caption", "json"),))
    assert kinds_of(out) == {"image": "image", "image_id": "json", "caption": "json"}
    assert [json.loads(data) for data in field_of(out, "caption")] == [["é 0", "é 2"], ["é 1"], []]


def test_class_map_numbers_the_categories(tmp_path: Path) -> None:
    categories = [{"id": 7, "name": "zebra"}, {"id": 9, "name": "ant"}]
    source = annotated(tmp_path, [box(1, 0, 1, 1, 2, 2)], categories=categories)
    out = convert_coco(source, tmp_path / "out", class_map=put(tmp_path / "map", "ant 0\nzebra 1"))
    assert boxes_of(out)[0][:, 4].tolist() == [1]
    assert read_manifest(out).classes == ("ant", "zebra")


def test_bad_samples(tmp_path: Path) -> None:
    images = [{"id": number, "file_name": f"{number}.jpg", "height": 20, "width": 30} for number in range(9)]
    annotations = [
        box(1, 0, 1, 1, 2, 2), box(2, 3, 1, 1, -2, 2), box(3, 4, 1, 1, 2), box(4, 5, 1, 1, 2, 2, category_id=1),
        box(5, 6, 1, 1, 2, 1e999), {"id": 6, "image_id": 7},
    ]  # fmt: skip
    source = annotated(tmp_path, annotations, num=8, images=images)
    for number in range(3, 8):
        put(tmp_path / "val" / f"{number}.jpg", image(0))
    bad = skipping(source, tmp_path / "out", root=tmp_path / "val")
    assert sources_of(tmp_path / "out") == ["0.jpg"]
    assert bad["1.jpg"] == "the image is 21x30 pixels (height x width), its annotations are of 20x30 (height x width)"
    assert bad["3.jpg"] == "annotation 2: bbox is [1, 1, -2, 2], expected [x, y, width, height]"
    assert bad["4.jpg"].startswith("annotation 3: bbox is [1, 1, 2]")
    assert bad["5.jpg"] == "annotation 4: its category 1 is none of the file's categories"
    assert bad["6.jpg"].startswith("annotation 5: bbox is [1, 1, 2, inf]")
    assert bad["7.jpg"].startswith("annotation 6: bbox is None")
    assert bad["8.jpg"] == "no such file"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": None}, "has no images: not a COCO annotation file"),
        ({"images": [{"id": 0}]}, "`file_name` of image 0 is None, expected a text"),
        ({"images": [{"id": None, "file_name": "0.jpg"}]}, "`id` of image .* is None, expected a whole number"),
        ({"images": [{"id": 0, "file_name": "0.jpg"}] * 2}, "two images have the id 0"),
        ({"images": [3]}, "`images` holds 3, expected objects"),
        ({"categories": [{"id": 7, "name": "a"}, {"id": 8, "name": "a"}]}, "two categories have the name 'a'"),
        ({"categories": [{"id": 7, "name": "a"}] * 2}, "two categories have the id 7"),
        ({"annotations": {"1": 2}}, "expected '\\[', found '{'"),
    ],
)
def test_annotation_files_that_are_none(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    source = annotated(tmp_path, [box(1, 0, 1, 1, 2, 2)], **changes)
    with pytest.raises(FormatError, match=said):
        converted(source, tmp_path / "out", root=tmp_path / "val", form="coco")
    assert not (tmp_path / "out").exists()


def test_strays_and_ids_as_texts(tmp_path: Path) -> None:
    source = annotated(tmp_path, [box(1, 99, 1, 1, 2, 2), {**box(2, 0, 1, 1, 2, 2), "image_id": "0"}])
    seen = preview(ConvertOptions(source, tmp_path / "no", root=tmp_path / "val"))
    assert seen.warnings == ("1 annotations of images that the file does not list left out",)
    assert [len(array) for array in boxes_of(convert_coco(source, tmp_path / "out"))] == [1, 0, 0]


@pytest.mark.parametrize("write", [str, float])
def test_numbers_that_tools_write_as_texts_or_floats(write: Callable[[int], object], tmp_path: Path) -> None:
    """Ids of images, annotations and categories, and `iscrowd`."""
    annotations = [
        {"id": write(1), "image_id": write(0), "bbox": [1, 1, 2, 2], "category_id": write(7), "iscrowd": write(0)},
        {"id": write(2), "image_id": write(0), "bbox": [1, 1, 2, 2], "category_id": write(7), "iscrowd": write(1)},
    ]
    images = [{"id": write(0), "file_name": "0.jpg"}]
    categories = [{"id": write(9), "name": "ant"}, {"id": write(7), "name": "zebra"}]
    source = annotated(tmp_path, annotations, num=1, images=images, categories=categories)
    loaded = Images(source, form=Form("coco", root=tmp_path / "val"), fields=["boxes", "image_id"])
    boxes, number = loaded[0]
    assert (boxes.tolist(), number) == ([[1, 1, 3, 3, 0]], 0)
    assert [array.tolist() for array in boxes_of(convert_coco(source, tmp_path / "out"))] == [[[1, 1, 3, 3, 0]]]


@pytest.mark.parametrize("wrong", [{"category_id": 7.5}, {"category_id": "seven"}])
def test_categories_that_are_no_numbers(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"annotation 1: its category .* is none of the file's categories"):
        convert_coco(annotated(tmp_path, [{**box(1, 0, 1, 1, 2, 2), **wrong}]), tmp_path / "out")


def test_a_crowd_is_0_or_1(tmp_path: Path) -> None:
    source = annotated(tmp_path, [box(1, 0, 1, 1, 2, 2, iscrowd="no")])
    with pytest.raises(FormatError, match=r"instances\.json: `iscrowd` of annotation .* is 'no', expected 0 or 1"):
        convert_coco(source, tmp_path / "out")


def test_sizes_of_images_that_exif_turns(tmp_path: Path) -> None:
    height, width = size_of(0)
    source = annotated(tmp_path, [], images=[{"id": 0, "file_name": "0.jpg", "height": width, "width": height}])
    with pytest.raises(DecodeError, match="swapped, as where boxes were drawn on images turned by EXIF; store the images turned"):
        convert_coco(source, tmp_path / "out")


def test_annotations_in_utf_16_are_named_as_such(tmp_path: Path) -> None:
    source = annotated(tmp_path, [])
    source.write_text(source.read_text(), "utf-16")
    with pytest.raises(OptionError, match=r"instances\.json: not COCO's JSON: is not UTF-8 .*save it as UTF-8"):
        convert_coco(source, tmp_path / "out")


@pytest.mark.parametrize("digits", [400, 4000])
def test_numbers_that_no_float_can_hold(tmp_path: Path, digits: int) -> None:
    """In a box; in an id, a size or a category."""
    huge = 10**digits
    for number, value in enumerate((box(1, 0, huge, 1, 2, 2), box(1, 0, 1, 1, 2, huge), box(1, 0, 1e308, 1, 1e308, 2))):
        source = annotated(tmp_path, [value])
        with pytest.raises(DecodeError, match=r"bbox is|that are not finite numbers"):
            convert_coco(source, tmp_path / f"out-{number}")
    source = annotated(tmp_path, [{**box(1, 0, 1, 1, 2, 2), "category_id": huge}])
    with pytest.raises(DecodeError, match="is none of the file's categories"):
        convert_coco(source, tmp_path / "category")
    source = annotated(tmp_path, [{**box(1, 0, 1, 1, 2, 2), "image_id": huge}])
    with pytest.raises(FormatError, match="expected a whole number"):
        convert_coco(source, tmp_path / "id")
    source = annotated(tmp_path, [], images=[{"id": 0, "file_name": "0.jpg", "height": huge, "width": huge}])
    with pytest.raises(FormatError, match="height of image 0 is 1000"):
        convert_coco(source, tmp_path / "size")


def test_a_wrong_root(tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataError, match=r"none of the first 3 files is there; the first is '0\.jpg'.*it is in .*val: pass --root"
    ):
        converted(annotated(tmp_path, []), tmp_path / "out")


def test_images_that_leave_the_root(tmp_path: Path) -> None:
    images = [{"id": 0, "file_name": "0.jpg"}, {"id": 1, "file_name": "../../etc/passwd"}]
    source = annotated(tmp_path, [], images=images)
    with pytest.raises(DecodeError, match="leads out of"):
        convert_coco(source, tmp_path / "out")


# -- reading large JSON ---------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 7, 1 << 20])
def test_elements_come_whole_wherever_the_file_is_cut(tmp_path: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {
        "skip": [{"a": "]}\\\"é"}, 12345], "a": [1234567, -1.5e3, "x€y", None, [[]], {"a": {}}], "n": 17, "empty": [],
        "b": [True],
    }  # fmt: skip
    monkeypatch.setattr("datapipe.sources.json_stream._READ_NBYTES", nbytes)
    path = put(tmp_path / "x.json", b"\xef\xbb\xbf" + json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")
    found = list(array_elements(path, frozenset(("a", "b", "empty"))))
    expected = [("a", None), *(("a", one) for one in value["a"]), ("empty", None), ("b", None), ("b", True)]  # type: ignore[union-attr]
    assert found == expected
    for cut in range(1, len(path.read_bytes()) - 3, 5):
        put(tmp_path / "cut.json", path.read_bytes()[:cut])
        with pytest.raises(FormatError):
            list(array_elements(tmp_path / "cut.json", frozenset(("a", "b"))))


@pytest.mark.parametrize("side", [0, -1, 1 << 63, 1.5, "640", True, [640]])
@pytest.mark.parametrize("name", ["width", "height"])
def test_sizes_that_no_image_has_are_refused(side: object, name: str, tmp_path: Path) -> None:
    """Or the image's own size would not be compared with any."""
    images = [{"id": 0, "file_name": "0.jpg", "width": 8, "height": 8, name: side}]
    source = annotated(tmp_path, [], num=1, images=images)
    with pytest.raises(FormatError, match=rf"instances\.json: {name} of image 0 is .*, expected 1 to 2,147,483,647 pixels"):
        convert_coco(source, tmp_path / "out")
