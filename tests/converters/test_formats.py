"""Every format through the whole program, and docs/formats.md: its code is run as it stands there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from source_trees import put
from test_source_lmdb import database
from trees import ROOT, encoded_image, make_tree, run_cli

from converters import ConvertOptions, Encode, convert
from converters.writers import Target
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index

TEXT = (ROOT / "docs" / "formats.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", TEXT, re.DOTALL))
TARGET_OF = {
    "webdataset": "webdataset", "DALI, tar": "webdataset", "h5py": "hdf5", "h5py, --encode raw": "hdf5",
    "TensorFlow": "tfrecord", "DALI, TFRecord": "tfrecord", "the tfrecord package": "tfrecord",
    "pyarrow": "parquet", "Hugging Face datasets": "parquet",
}  # fmt: skip
REWRITING = "pyarrow, from OLD to NEW"  # reads no samples
IN_PLACE = "data in place"
NEEDS = {
    "webdataset": "webdataset", "DALI, tar": "nvidia.dali", "DALI, TFRecord": "nvidia.dali", "TensorFlow": "tensorflow",
    "Hugging Face datasets": "datasets",
}  # fmt: skip
LABELS = [0] * 8 + [1] * 8 + [2] * 8  # of the tree's 24 samples


def test_every_block_is_run() -> None:
    assert BLOCKS.keys() == TARGET_OF.keys() | {REWRITING, IN_PLACE}
    assert TEXT.count("```python") == len(BLOCKS)


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of its parent
        return False


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", TARGET_OF)
def test_stock_readers_read_every_sample(tree: Path, tmp_path: Path, name: str) -> None:
    package = NEEDS.get(name, "json")
    if not is_installed(package):
        pytest.skip(f"needs {package}")
    encode = Encode("raw" if "raw" in name else "keep")
    out = tmp_path / "out"
    convert(ConvertOptions(tree, out, to=TARGET_OF[name], shard_nbytes=9_000, num_workers=1, encode=encode))
    found: list[tuple[Any, Any]] = []
    source = BLOCKS[name].replace("DST", str(out)).replace("...", "found.append((image, label))")
    exec(compile(source, name, "exec"), {"found": found})
    assert sorted(map(as_label, (label for _, label in found))) == LABELS
    for image, label in found:
        pixels = np.asarray(image)
        assert pixels.shape == (40, 56, 3)
        assert closest_class(pixels, tree) == as_label(label)


def test_compressed_parquet_written_again_is_read_by_bytes(tmp_path: Path) -> None:
    rows = {"image": [encoded_image(number) for number in range(12)], "label": list(range(12))}
    pq.write_table(pa.table(rows), tmp_path / "old.parquet")
    assert open_index(tmp_path / "old.parquet").look_up(np.arange(12), "image").extents.codecs is not None
    source = BLOCKS[REWRITING].replace("OLD", str(tmp_path / "old.parquet")).replace("NEW", str(tmp_path / "new.parquet"))
    exec(compile(source, REWRITING, "exec"), {})
    index, files = open_index(tmp_path / "new.parquet"), LocalFiles()
    extents = index.look_up(np.arange(12), "image").extents
    assert extents.codecs is None
    assert [files.read(extents, row) for row in range(12)] == rows["image"]
    assert index.labels().tolist() == rows["label"]


def as_label(label: Any) -> int:
    values = np.asarray(label)
    return int(bytes(values)) if values.dtype == np.uint8 else int(values.reshape(-1)[0])


def closest_class(pixels: np.ndarray, tree: Path) -> int:
    """The class of the file that these pixels were decoded from, by whichever decoder."""
    paths = sorted(tree.glob("*/*"))
    differences = [np.abs(np.asarray(Image.open(path)).astype(int) - pixels).mean() for path in paths]
    assert min(differences) < 3  # decoders round differently, files differ by 50 and more
    return int(paths[int(np.argmin(differences))].parent.name.removeprefix("class_"))


@pytest.mark.nightly
def test_the_whole_program(tree: Path, tmp_path: Path, to: str, target: Target) -> None:
    """convert, verify, inspect, index, on a converted set and on one of its shards alone."""
    out = tmp_path / "out"
    dry = run_cli("convert", tree, out, "--to", to, "--dry-run")
    assert "would hold 24 samples" in dry.stdout, dry.stderr
    assert not out.exists()
    done = run_cli("convert", tree, out, "--to", to, "--shard-size", "9KB", "--json")
    assert json.loads(done.stdout)["num_samples"] == 24, done.stderr
    assert sorted(path.suffix for path in out.iterdir()).count(target.suffix) == 3
    assert "intact" in run_cli("verify", out).stdout
    facts = json.loads(run_cli("inspect", out, "--json").stdout)
    assert (facts["container"], facts["samples"], facts["classes"]) == (target.container, 24, 3)
    assert facts["looked_at"]["encodings"] == {"jpeg": 24}
    shard = next(out.glob(f"*{target.suffix}"))
    (tmp_path / "alone").mkdir()
    alone = shard.rename(tmp_path / "alone" / shard.name)
    indexed = json.loads(run_cli("index", alone, "--json").stdout)
    assert indexed["container"] == target.container
    assert indexed["samples"] in (7, 8, 9)
    assert "missing" in run_cli("verify", out).stdout


def test_train_and_val_are_said_with_the_format(tmp_path: Path, to: str) -> None:
    for name in ("train", "val"):
        make_tree(tmp_path / "source" / name, num_classes=1, per_class=1)
    done = run_cli("convert", tmp_path / "source", tmp_path / "out", "--to", to)
    assert done.returncode == 2
    assert f"DST/train --to {to}`" in done.stderr


def test_data_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lmdb")
    photos = make_tree(tmp_path / "photos", num_classes=2, per_class=3)
    files = sorted(photos.rglob("*.jpg"))
    shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    for name in ("imgs", "masks"):
        shutil.copytree(files[0].parent, tmp_path / "roads" / name)
    for number, file in enumerate(files):
        put(tmp_path / "faces" / f"{number}.jpg", file.read_bytes())
        put(tmp_path / "val2017" / f"{number}.jpg", file.read_bytes())
    put(tmp_path / "list.csv", "file,caption\n" + "".join(f"faces/{number}.jpg,x\n" for number in range(len(files))))
    put(tmp_path / "people.csv", "file,age,notes\n" + "".join(f"{number}.jpg,3,y\n" for number in range(len(files))))
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(len(files))]
    boxes = [{"id": 1, "image_id": 0, "bbox": [1, 2, 3, 4], "category_id": 1}]
    annotations = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    put(tmp_path / "instances_val2017.json", json.dumps(annotations))
    database(tmp_path / "bedroom_train_lmdb", {b"%d" % number: file.read_bytes() for number, file in enumerate(files)})
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(compile(BLOCKS[IN_PLACE], IN_PLACE, "exec"), made)
    assert [len(made[name].dataset) for name in ("photos", "captions", "roads", "lsun")] == [6, 6, 3, 6]
    assert [made[name].fields.names for name in ("coco", "faces")] == [("image", "boxes", "image_id"), ("image", "age")]
