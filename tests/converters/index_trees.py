"""Small sets in the containers that the loader opens, written by others' libraries or by a conversion, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from source_trees import NUM, Made, image, manifest, mask, npy
from tfrecord import example_pb2
from tfrecord.writer import TFRecordWriter

from converters import ConvertOptions, convert

CLASSES = ("ant", "bee", "cat")
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": list(CLASSES)},
    "caption": {"_type": "Value", "dtype": "string"},
}


def converted_from(to: str) -> Callable[[Path], Made]:
    """A set that `convert` made of a manifest, of two shards and more."""

    def make(root: Path) -> Made:
        made = manifest(root / "before")
        convert(ConvertOptions(made.source, root / "set", to=to, shard_nbytes=8_000, num_workers=1, seed=5))
        return Made(root / "set", made.samples, made.labels, made.classes, made.kinds)

    return make


def hugging_face(root: Path) -> Made:
    """Two Parquet files as on the hub: dictionaries, compressed pages, classes in the metadata, lists and numbers."""
    root.mkdir(parents=True)
    samples = []
    for shard in range(2):
        rows = range(shard * 6, shard * 6 + 6)
        columns = {
            "image": pa.array([{"bytes": image(row), "path": f"{row}.jpg"} for row in rows]),
            "label": pa.array([row % 3 for row in rows], pa.int64()),
            "caption": [f"née {row}" for row in rows],
            "score": [row / 2 for row in rows],
            "tags": pa.array([list(range(row)) for row in rows], pa.list_(pa.int32())),
        }
        table = pa.table(columns).replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()})
        pq.write_table(table, root / f"train-0000{shard}-of-00002.parquet", row_group_size=4, compression="snappy")
        for row in rows:
            score, tags = npy(np.float64(row / 2)), npy(np.arange(row, dtype=np.int32))
            samples.append({"image": image(row), "caption": f"née {row}".encode(), "score": score, "tags": tags})
    kinds = {"caption": "text", "score": "array", "tags": "array"}
    return Made(root, samples, [row % 3 for row in range(NUM)], CLASSES, kinds)


def petastorm(root: Path) -> Made:
    """A Parquet file of binary columns, as Petastorm's codecs make them, named by a pattern; the masks are PNGs."""
    root.mkdir(parents=True)
    columns: dict[str, Any] = {
        "image": pa.array([image(row) for row in range(NUM)], pa.binary()),
        "seg_mask": pa.array([mask(row) for row in range(NUM)], pa.binary()),
        "embedding": pa.array([npy(np.arange(row, dtype=np.float32)) for row in range(NUM)], pa.binary()),
        "label": pa.array(range(NUM), pa.int32()),
    }
    pq.write_table(pa.table(columns), root / "part-00000.parquet", compression="none", use_dictionary=False)
    (root / "_common_metadata").write_bytes(b"PAR1")
    samples = [
        {"image": image(row), "seg_mask": mask(row), "embedding": npy(np.arange(row, dtype=np.float32))} for row in range(NUM)
    ]
    return Made(root / "part-*.parquet", samples, list(range(NUM)), None, {"seg_mask": "mask", "embedding": "array"})


def tfrecords(root: Path) -> Made:
    """What TensorFlow's scripts write."""
    root.mkdir(parents=True)
    writer = TFRecordWriter(str(root / "train-00000-of-00001"))
    for row in range(NUM):
        datum = {"image/encoded": (image(row), "byte"), "image/class/label": (row % 3, "int"), "image/class/text": (b"x", "byte")}
        writer.write(datum)
    writer.close()
    assert example_pb2
    samples = [{"image": image(row), "image_class_text": b"x"} for row in range(NUM)]
    return Made(root / "train-00000-of-00001", samples, [row % 3 for row in range(NUM)], None, {"image_class_text": "text"})


def hdf5_pixels(root: Path) -> Made:
    """Pixels in compressed chunks, and the rows of a plain array of numbers."""
    root.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (NUM, 10, 12, 3), dtype=np.uint8)
    vectors = np.arange(NUM * 3, dtype=np.float32).reshape(NUM, 3)
    with h5py.File(root / "x.h5", "w") as file:
        file.create_dataset("images", data=pixels, chunks=(5, 10, 12, 3), compression="gzip")
        file.create_dataset("labels", data=np.arange(NUM) % 4)
        file.create_dataset("vectors", data=vectors)
    samples = [{"image": npy(pixels[row]), "vectors": npy(vectors[row])} for row in range(NUM)]
    return Made(root / "x.h5", samples, [row % 4 for row in range(NUM)], None, {"vectors": "array"})


def arrow(root: Path) -> Made:
    """A dataset as Hugging Face's `save_to_disk` leaves it."""
    root.mkdir(parents=True)
    table = pa.table(
        {
            "image": pa.array([{"bytes": image(row), "path": f"{row}.jpg"} for row in range(NUM)]),
            "label": pa.array([row % 3 for row in range(NUM)], pa.int64()),
            "caption": [f"number {row}" for row in range(NUM)],
        }
    ).replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": FEATURES}}).encode()})
    with pa.ipc.new_stream(root / "data-00000-of-00001.arrow", table.schema) as sink:
        sink.write_table(table, max_chunksize=5)
    (root / "state.json").write_text("{}")
    (root / "dataset_info.json").write_text("{}")
    samples = [{"image": image(row), "caption": f"number {row}".encode()} for row in range(NUM)]
    return Made(root, samples, [row % 3 for row in range(NUM)], CLASSES, {"caption": "text"})


INDEX_SOURCES: dict[str, Callable[[Path], Made]] = {
    "dataset, tar": converted_from("webdataset"),
    "dataset, hdf5": converted_from("hdf5"),
    "dataset, parquet": converted_from("parquet"),
    "dataset, tfrecord": converted_from("tfrecord"),
    "parquet, hugging face": hugging_face,
    "parquet, petastorm": petastorm,
    "tfrecord": tfrecords,
    "hdf5": hdf5_pixels,
    "arrow": arrow,
}
