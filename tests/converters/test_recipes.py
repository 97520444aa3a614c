"""The recipes of docs/convert.md, run as they stand there, on small likenesses of the published datasets."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from archive_trees import class_tars, tar_bytes, write, write_zip
from reading import field_of, labels_of, sources_of
from source_trees import image, put
from trees import ROOT

from datapipe.index.manifest import read_manifest

PAGE = (ROOT / "docs" / "convert.md").read_text().split("\n## Datasets as they are downloaded\n")[1]


def recipe(title: str) -> list[tuple[str, str]]:
    """(language, text) of the code blocks of a section."""
    section = PAGE.split(f"\n### {title}\n", 1)[1]
    section = re.split(r"\n##+ ", section, maxsplit=1)[0]
    return re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)


def run(title: str, here: Path) -> None:
    """Write the scripts of a recipe and run its commands in `here`, by a shell."""
    program = f"{shlex.quote(sys.executable)} -c 'import sys; from datapipe.cli.main import main; sys.exit(main())'"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for language, text in recipe(title):
        if language == "python":
            name = re.match(r"# (\S+\.py):", text)
            assert name is not None
            (here / name[1]).write_text(text)
            continue
        functions = f'datapipe() {{ {program} "$@" --workers 1; }}\npython() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
        done = subprocess.run(
            ["bash", "-euc", functions + text], cwd=here, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


def boxes_of(out: Path) -> list[list[list[float]]]:
    return [np.load(io.BytesIO(data)).tolist() for data in field_of(out, "boxes")]


@pytest.mark.nightly
def test_imagenet(tmp_path: Path) -> None:
    write(tmp_path / "ILSVRC2012_img_train.tar", tar_bytes(class_tars()))
    names = [f"ILSVRC2012_val_{row:08d}.JPEG" for row in range(1, 5)]
    write(tmp_path / "ILSVRC2012_img_val.tar", tar_bytes((name, image(row)) for row, name in enumerate(names)))
    put(tmp_path / "map_clsloc.txt", "n02093428 1 terrier\nn01440764 2 tench\nn01443537 3 goldfish\n")
    put(tmp_path / "ILSVRC2012_validation_ground_truth.txt", "2\n3\n1\n2\n")
    run(r"ImageNet (ILSVRC2012)", tmp_path)
    train, val = tmp_path / "shards" / "train", tmp_path / "shards" / "val"
    assert read_manifest(train).classes == read_manifest(val).classes == ("n01440764", "n01443537", "n02093428")
    assert (labels_of(val), sources_of(val)) == ([0, 1, 2, 0], names)
    assert field_of(val, "image") == [image(row) for row in range(4)]
    assert labels_of(train) == [row // 4 for row in range(12)]


def coco_of(names: list[str], **more: object) -> dict[str, object]:
    images = [{"id": row, "file_name": name, "height": 20 + row, "width": 30} for row, name in enumerate(names)]
    return {"images": images, "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}], **more}


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_coco(tmp_path: Path, method: int) -> None:
    write_zip(tmp_path / "val2017.zip", [(f"val2017/{row}.jpg", image(row)) for row in range(3)], method)
    annotations = [{"id": 1, "image_id": 1, "bbox": [1, 2, 3, 4], "category_id": 7}]
    value = coco_of([f"{row}.jpg" for row in range(3)], annotations=annotations)
    put(tmp_path / "annotations" / "instances_val2017.json", json.dumps(value))
    run("COCO", tmp_path)
    out = tmp_path / "shards" / "val"
    assert boxes_of(out) == [[], [[1, 2, 4, 6, 1]], []]
    assert field_of(out, "image") == [image(row) for row in range(3)]


def test_open_images(tmp_path: Path) -> None:
    put(tmp_path / "train_0" / "ab.jpg", image(0))
    put(tmp_path / "train_0" / "cd.jpg", image(1))
    put(tmp_path / "class-descriptions-boxable.csv", "/m/01,Cat\n/m/02,Dog\n")
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    rows = ["cd,x,/m/02,1,0.1,0.5,0,1,0,0,0,0,0", "ab,x,/m/01,1,0,0.5,0.25,0.75,0,0,0,0,0", "ab,x,/m/01,1,0,1,0,1,0,0,1,0,0"]
    put(tmp_path / "train-annotations-bbox.csv", "\n".join([header, *rows]) + "\n")
    run("Open Images", tmp_path)
    out = tmp_path / "shards" / "train_0"
    assert sources_of(out) == ["cd.jpg", "ab.jpg"]
    assert boxes_of(out) == [[[3, 0, 15, 21, 1]], [[0, 5, 15, 15, 0]]]
    assert read_manifest(out).classes == ("Cat", "Dog")


def test_cifar(tmp_path: Path) -> None:
    files = [
        (f"cifar10/{part}/{name}/{row}.png", image(row, "PNG"))
        for part in ("test", "train") for name in ("cat", "dog") for row in range(2)
    ]  # fmt: skip
    write(tmp_path / "cifar10.tar.gz", gzip.compress(tar_bytes(files)))
    run("CIFAR and others as folders of PNGs", tmp_path)
    out = tmp_path / "shards" / "train"
    assert (labels_of(out), sources_of(out)) == ([0, 0, 1, 1], ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"])


@pytest.mark.nightly
def test_pascal_voc(tmp_path: Path) -> None:
    top = tmp_path / "VOCdevkit" / "VOC2012"
    for row in range(2):
        put(top / "JPEGImages" / f"2007_{row}.jpg", image(row))
        corners = "<bndbox><xmax>9</xmax><xmin>3</xmin><ymax>8</ymax><ymin>1</ymin></bndbox>"
        thing = f"<object><name>{{}}</name><difficult>{{}}</difficult>{corners}</object>"
        text = f"<filename>2007_{row}.jpg</filename><size><width>30</width><height>{20 + row}</height><depth>3</depth></size>"
        put(top / "Annotations" / f"2007_{row}.xml", f"<annotation>{text}{thing.format(['dog', 'ant'][row], row)}</annotation>")
    put(top / "ImageSets" / "Main" / "trainval.txt", "2007_1\n2007_0\n")
    run("Pascal VOC", tmp_path)
    out = tmp_path / "shards" / "voc"
    assert sources_of(out) == ["2007_1.jpg", "2007_0.jpg"]
    assert boxes_of(out) == [[[2, 0, 9, 8, 0]], [[2, 0, 9, 8, 1]]]
    assert read_manifest(out).classes == ("ant", "dog")
    assert [json.loads(data) for data in field_of(out, "difficult")] == [[1], [0]]


@pytest.mark.nightly
def test_yolo(tmp_path: Path) -> None:
    for row in range(3):
        put(tmp_path / "images" / "train" / f"{row}.jpg", image(row))
    put(tmp_path / "labels" / "train" / "0.txt", "1 0.5 0.5 0.2 0.5\n0 0.1 0.1 0.2 0.2\n")
    put(tmp_path / "labels" / "train" / "2.txt", "")
    put(tmp_path / "classes.txt", "cat\ndog\n")
    run("YOLO", tmp_path)
    out = tmp_path / "shards" / "yolo"
    found = boxes_of(out)
    assert found[1:] == [[], []]
    assert np.allclose(found[0], [[12, 5, 18, 15, 1], [0, 0, 6, 4, 0]], atol=1e-5)


def test_inaturalist(tmp_path: Path) -> None:
    names = [f"train/{row % 2:05d}_Animalia/{row}.jpg" for row in range(4)]
    write(tmp_path / "train.tar.gz", gzip.compress(tar_bytes((name, image(row)) for row, name in enumerate(names))))
    annotations = [{"id": row, "image_id": row, "category_id": (3, 7)[row % 2]} for row in range(4)]
    put(tmp_path / "train.json", json.dumps(coco_of(names, annotations=annotations)))
    run("iNaturalist", tmp_path)
    out = tmp_path / "shards" / "train"
    assert (labels_of(out), read_manifest(out).classes) == ([0, 1, 0, 1], ("cat", "dog"))
    assert field_of(out, "image") == [image(row) for row in range(4)]
