"""Converted shards without their dataset.json are read like shards of other writers: every field, with its recognisable kind."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from reading import converted, field_of, kinds_of
from source_trees import image, mask, npy

from datapipe.containers.form import FieldChoice
from datapipe.opening.samples import open_index

FIELDS = {
    "jpg": "image", "cls": "label", "seg.png": "mask", "depth.png": "image", "caption.txt": "text", "txt": "text",
    "meta.json": "json", "v.npy": "array", "mp4": "bytes", "clip": "bytes", "json.bin": "bytes",
}  # fmt: skip
KINDS = {
    "image": "image", "label": "label", "seg": "mask", "depth": "image", "caption": "text", "txt": "text", "meta": "json",
    "v": "array", "mp4": "bytes", "clip": "bytes", "json": "bytes",
}  # fmt: skip
NOT_TOLD = {"webdataset": {}, "tfrecord": {"meta": "bytes", "json": "json"}}  # names of features alone say less than suffixes


def source(path: Path, num: int = 6) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(num):
            contents = {
                "jpg": image(number), "cls": b"%d" % number, "seg.png": mask(number), "depth.png": image(number, "PNG"),
                "caption.txt": b"caption %d" % number, "txt": b"text", "meta.json": b"[%d]" % number, "v.npy": npy([number, 0.5]),
                "mp4": b"film %d" % number, "clip": bytes(number), "json.bin": b"no JSON",
            }  # fmt: skip
            for suffix in FIELDS:
                info = tarfile.TarInfo(f"{number:03d}.{suffix}")
                info.size = len(contents[suffix])
                tar.addfile(info, io.BytesIO(contents[suffix]))
    return path


@pytest.mark.parametrize("to", NOT_TOLD)
def test_every_field_comes_back(tmp_path: Path, to: str) -> None:
    out = converted(
        source(tmp_path / "in.tar"),
        tmp_path / "out",
        to=to,
        shard_nbytes=5_000,
        seed=None,
        fields=(FieldChoice("meta.json", "json"),),
    )
    assert kinds_of(out) == KINDS
    alone = tmp_path / "alone"
    alone.mkdir()
    shards = [path for path in out.iterdir() if path.suffix in (".tar", ".tfrecord")]
    assert len(shards) > 1
    for path in shards:
        shutil.copy(path, alone)
    assert kinds_of(alone) == KINDS | NOT_TOLD[to]
    assert [spec.name for spec in open_index(alone).manifest.fields][:2] == ["image", "label"]
    assert open_index(alone).labels().tolist() == list(range(6))
    for name in KINDS:
        assert field_of(alone, name) == field_of(out, name)
    again = converted(alone, tmp_path / "again", seed=None) if to == "webdataset" else None
    assert again is None or kinds_of(again) == KINDS


def test_bytes_keep_their_name_in_the_tar(tmp_path: Path) -> None:
    """So that code that knows `mp4` finds it, and decodes the original bytes."""
    out = converted(source(tmp_path / "in.tar"), tmp_path / "out", seed=None)
    with tarfile.open(next(out.glob("*.tar"))) as tar:
        suffixes = {name.partition(".")[2] for name in tar.getnames()}
    assert suffixes == set(FIELDS)
    assert np.load(io.BytesIO(field_of(out, "v")[3])).tolist() == [3, 0.5]
