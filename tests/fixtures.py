"""Small deterministic pictures and datasets that several tests share."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from PIL import Image

import datapipe as dp
from converters.writers import TARGETS

NUM_SAMPLES = 37
CLASSES = ("ant", "bee", "cat")
OF_SAMPLES = tuple(name for name in TARGETS if name != "tokens")  # formats of shards that hold any samples

quick = settings(max_examples=60)


def timed(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test that measures time try again, three times at most: another process may have had the cores meanwhile."""

    @functools.wraps(test)
    def again(*args: Any, **kwargs: Any) -> None:
        for _ in range(3):
            with contextlib.suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return again


def meeting_point() -> tuple[Any, dict[str, str]]:
    """What ranks meet at while it is kept, and the environment that leads them there, as torchrun has it.

    Nobody can take its port first, as of a free port that was looked for and let go.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def picture(number: int, height: int = 40, width: int = 48) -> NDArray[np.uint8]:
    """(height, width, 3) uint8: a gradient with some noise, another one for each number."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:height, :width]
    slopes = rng.uniform(-2, 2, (2, 3))
    smooth = 128 + (y[:, :, None] - height / 2) * slopes[0] + (x[:, :, None] - width / 2) * slopes[1]
    return np.clip(smooth + rng.normal(0, 6, (height, width, 3)), 0, 255).astype(np.uint8)


def encode(pixels: NDArray[Any], form: str = "JPEG", *, mode: str | None = None, **options: Any) -> bytes:
    """The pixels as a file of that form, converted to the Pillow mode first."""
    image = Image.fromarray(pixels)
    sink = io.BytesIO()
    (image.convert(mode) if mode else image).save(sink, form, **options)
    return sink.getvalue()


def pillow_rgb(data: bytes) -> NDArray[np.uint8]:
    """The pixels that Pillow makes of a file."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def npy(array: Any) -> bytes:
    """A `.npy` file of the array."""
    sink = io.BytesIO()
    np.save(sink, np.asarray(array))
    return sink.getvalue()


@functools.lru_cache(4096)
def jpeg(number: int, height: int = 40, width: int = 48, **options: Any) -> bytes:
    return encode(picture(number, height, width), "JPEG", **({"quality": 90} | options))


def label_of(number: int) -> int:
    """Classes of unequal sizes: 19, 12 and 6 of 37 samples."""
    return (0, 1, 0, 1, 0, 2)[number % 6]


def size_of(number: int) -> tuple[int, int]:
    """(height, width) of sample `number` where sizes differ."""
    return 32 + number % 5 * 4, 48 - number % 3 * 6


def make_folder(root: Path, *, num: int = NUM_SAMPLES, size: tuple[int, int] | None = None) -> Path:
    """An image folder of `num` JPEGs; of `size` (height, width) or of sizes that differ."""
    for number in range(num):
        directory = root / CLASSES[label_of(number)]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:04d}.jpg").write_bytes(jpeg(number, *(size or size_of(number))))
    return root


def made_once(make: Callable[[Path, int], Path]) -> Callable[[Path, int], Path]:
    """Return a function that gives what `make` does, by copying what it made first of as many samples."""
    kept: dict[int, tempfile.TemporaryDirectory[str]] = {}

    @functools.wraps(make)
    def copy(path: Path, num: int) -> Path:
        if num not in kept:
            kept[num] = tempfile.TemporaryDirectory()
            make(Path(kept[num].name, "made"), num)
        return Path(shutil.copytree(Path(kept[num].name, "made"), path))

    return copy


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 JPEGs of sizes that differ, made once; for the conftest of tests that share it. Not to be changed."""
    return make_folder(tmp_path_factory.mktemp("folder") / "set")


def mostly_nightly(cases: Iterable[Any], *daily: Any) -> list[Any]:
    """The cases as a test's parameters, a tuple as several; those that are not `daily` are left to the night."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=[] if case in daily else [pytest.mark.nightly],
        )
        for case in cases
    ]


def listing(root: Path) -> list[Path]:
    """The files of a folder in the order of sample ids."""
    return sorted(root.glob("*/*"), key=lambda path: (os.fsencode(path.parent.name), os.fsencode(path.name)))


def write_webdataset(source: Path, destination: Path, *, per_shard: int = 10) -> Path:
    """The folder's samples, in the order of ids, in shards written by webdataset itself."""
    import webdataset

    destination.mkdir(parents=True)
    with webdataset.ShardWriter(str(destination / "set-%03d.tar"), maxcount=per_shard, verbose=0) as writer:
        for path in listing(source):
            key = f"{path.parent.name}/{path.stem}"
            writer.write({"__key__": key, "jpg": path.read_bytes(), "cls": CLASSES.index(path.parent.name)})
    return destination


def write_tfrecord(source: Path, destination: Path, *, per_shard: int = 10) -> Path:
    """The same in TFRecord files, written by the `tfrecord` package with the features of TensorFlow's ImageNet scripts."""
    from tfrecord.writer import TFRecordWriter

    destination.mkdir(parents=True)
    files = listing(source)
    num_shards = -(-len(files) // per_shard)
    for shard in range(num_shards):
        writer = TFRecordWriter(str(destination / f"set-{shard:05d}-of-{num_shards:05d}"))
        for path in files[shard * per_shard : (shard + 1) * per_shard]:
            features = {
                "image/class/label": (CLASSES.index(path.parent.name), "int"),
                "image/class/text": (path.parent.name.encode(), "byte"),
                "image/encoded": (path.read_bytes(), "byte"),
                "image/filename": (str(path.relative_to(source)).encode(), "byte"),
                "image/object/bbox/xmin": ([0.25, 0.5], "float"),
            }
            writer.write(features)
        writer.close()
    return destination


def write_hdf5(source: Path, destination: Path, *, per_shard: int = 10, **options: Any) -> Path:
    """The same in HDF5 files, as h5py's users write them: a variable-length dataset of images, and their labels."""
    import h5py

    destination.mkdir(parents=True)
    files = listing(source)
    for number, start in enumerate(range(0, len(files), per_shard)):
        mine = files[start : start + per_shard]
        with h5py.File(destination / f"set-{number:03d}.h5", "w") as file:
            images = file.create_dataset("images", (len(mine),), h5py.vlen_dtype(np.uint8), **options)
            for row, path in enumerate(mine):
                images[row] = np.frombuffer(path.read_bytes(), np.uint8)
            file["labels"] = np.array([CLASSES.index(path.parent.name) for path in mine], np.int32)
            file["key"] = np.array([str(path.relative_to(source)).encode() for path in mine])
    return destination


def write_hdf5_pixels(source: Path, destination: Path, *, per_shard: int = 10, **options: Any) -> Path:
    """The same as arrays of pixels; the folder's images must be of one size."""
    import h5py

    destination.mkdir(parents=True)
    files = listing(source)
    for number, start in enumerate(range(0, len(files), per_shard)):
        mine = files[start : start + per_shard]
        with h5py.File(destination / f"set-{number:03d}.h5", "w") as file:
            file.create_dataset("x", data=np.stack([np.asarray(Image.open(path)) for path in mine]), **options)
            file["y"] = np.array([CLASSES.index(path.parent.name) for path in mine])
            file["key"] = np.array([str(path.relative_to(source)).encode() for path in mine])
    return destination


def write_parquet(source: Path, destination: Path, *, per_shard: int = 10, **options: Any) -> Path:
    """The same in Parquet files, as pyarrow's users write them: several rows in a page, small columns compressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    destination.mkdir(parents=True)
    files = listing(source)
    num_shards = -(-len(files) // per_shard)
    for number in range(num_shards):
        mine = files[number * per_shard : (number + 1) * per_shard]
        columns = {
            "image": [{"bytes": path.read_bytes(), "path": str(path.relative_to(source))} for path in mine],
            "label": [CLASSES.index(path.parent.name) for path in mine],
        }
        stored = {"compression": {"image.bytes": "none", "label": "zstd"}, "use_dictionary": ["label"], "row_group_size": 7}
        path = destination / f"train-{number:05d}-of-{num_shards:05d}.parquet"
        pq.write_table(pa.table(columns), path, **(stored | options))
    return destination


def write_datasets(source: Path, destination: Path, *, per_shard: int = 10) -> Path:
    """The same as in Hugging Face's `datasets`, its tables written as its older versions did: compressed, with dictionaries."""
    import datasets
    import pyarrow.parquet as pq

    destination.mkdir(parents=True)
    files = listing(source)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    for start in range(0, len(files), per_shard):
        mine = files[start : start + per_shard]
        rows = {
            "image": [{"bytes": path.read_bytes(), "path": str(path.relative_to(source))} for path in mine],
            "label": [CLASSES.index(path.parent.name) for path in mine],
        }
        table = datasets.Dataset.from_dict(rows, features=features).data.table
        pq.write_table(table, destination / f"train-{start:05d}.parquet", row_group_size=4)
    return destination


def write_arrow(source: Path, destination: Path, *, per_shard: int = 10) -> Path:
    """The same in Arrow's file form, in record batches of four; images in a plain column, labels without names."""
    import pyarrow as pa

    destination.mkdir(parents=True)
    files = listing(source)
    for start in range(0, len(files), per_shard):
        mine = files[start : start + per_shard]
        columns = {
            "number": list(range(len(mine))),
            "file_name": [str(path.relative_to(source)) for path in mine],
            "picture": [path.read_bytes() for path in mine],
            "label": pa.array([CLASSES.index(path.parent.name) for path in mine], pa.int32()),
        }
        table = pa.table(columns)
        with pa.OSFile(str(destination / f"part-{start:05d}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return destination


def write_mds(source: Path, destination: Path, *, per_shard: int = 10, compression: str | None = None) -> Path:
    """The same in MosaicML's shards, with their `index.json`; labels are integers of 64 bits."""
    destination.mkdir(parents=True)
    files, shards = listing(source), []
    classes = sorted({path.parent.name for path in files})
    columns = {"filename": "str", "image": "jpeg", "label": "int"}
    for number, start in enumerate(range(0, len(files), per_shard)):
        samples = [
            (os.fsencode(path.relative_to(source)), path.read_bytes(), classes.index(path.parent.name).to_bytes(8, "little"))
            for path in files[start : start + per_shard]
        ]
        data = mds_shard(columns, samples)
        name = f"shard.{number:05d}.mds"
        shards.append({"version": 2, "format": "mds", "samples": len(samples), "hashes": [], "compression": compression})
        shards[-1]["raw_data"], shards[-1]["zip_data"] = {"basename": name, "bytes": len(data), "hashes": {}}, None
        if compression is not None:
            data, name = pyarrow_compressed(data, compression), f"{name}.{compression}"
            shards[-1]["zip_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        (destination / name).write_bytes(data)
    (destination / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return destination


def mds_shard(columns: Mapping[str, str], samples: Sequence[Sequence[bytes]]) -> bytes:
    """A shard of MosaicML's. `columns`: their encodings; `samples`: the stored values of each, in the columns' order."""
    sizes = [_MDS_SIZES.get(encoding) for encoding in columns.values()]
    about = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "column_names": [*columns],
            "column_encodings": [*columns.values()],
            "column_sizes": sizes,
        }
    ).encode()
    return packed(samples, [size is None for size in sizes], about)


def packed(samples: Sequence[Sequence[bytes]], has_size: Sequence[bool], about: bytes = b"") -> bytes:
    """A file of samples after their offsets. `has_size`: whether samples say the size of a value; `about`: before the samples."""
    bodies = [
        b"".join(len(value).to_bytes(4, "little") for value, is_said in zip(sample, has_size, strict=True) if is_said)
        + b"".join(sample)
        for sample in samples
    ]
    bounds = itertools.accumulate(map(len, bodies), initial=4 * (len(samples) + 2) + len(about))
    head = b"".join(number.to_bytes(4, "little") for number in (len(samples), *bounds))
    return head + about + b"".join(bodies)


def write_litdata(source: Path, destination: Path, *, per_shard: int = 10, compression: str | None = None) -> Path:
    """The same in chunks of Lightning's, with their `index.json`."""
    destination.mkdir(parents=True)
    files, chunks = listing(source), []
    classes = sorted({path.parent.name for path in files})
    for number, start in enumerate(range(0, len(files), per_shard)):
        samples = [
            (path.read_bytes(), classes.index(path.parent.name).to_bytes(8, "little"), os.fsencode(path.relative_to(source)))
            for path in files[start : start + per_shard]
        ]
        data = packed(samples, [True] * 3)
        name = f"chunk-0-{number}{'' if compression is None else f'.{compression}'}.bin"
        chunks.append({"filename": name, "chunk_bytes": len(data), "chunk_size": len(samples), "dim": None})
        (destination / name).write_bytes(data if compression is None else pyarrow_compressed(data, compression))
    formats = {"image": "jpeg", "label": "int", "filename": "str"}
    (destination / "index.json").write_text(json.dumps({"chunks": chunks, "config": litdata_config(formats, compression)}))
    return destination


def write_beton(source: Path, destination: Path) -> Path:
    """The same in FFCV's form, in two files."""
    from fuzz_peers import beton_file

    destination.mkdir(parents=True)
    files = listing(source)
    classes = sorted({path.parent.name for path in files})
    samples = [
        ((0, 1, 1, path.read_bytes()), classes.index(path.parent.name), os.fsencode(path.relative_to(source))) for path in files
    ]
    for number, part in enumerate((samples[:20], samples[20:])):
        (destination / f"{number}.beton").write_bytes(beton_file({"image": 2, "label": 1, "filename": 3}, part))
    return destination


def write_lance(source: Path, destination: Path, *, per_shard: int = 10, blobs: bool = False, mode: str = "create") -> Path:
    """A Lance dataset, at its first version, of fragments of `per_shard` rows; images are binary values, or blobs."""
    import lance
    import pyarrow as pa

    paths = listing(source)
    binary, about = (pa.large_binary(), {"lance-encoding:blob": "true"}) if blobs else (pa.binary(), None)
    schema = pa.schema([pa.field("image", binary, metadata=about), ("label", pa.int64()), ("file_name", pa.string())])
    names = [os.fspath(path.relative_to(source)) for path in paths]
    classes = sorted({path.parent.name for path in paths})
    labels = [classes.index(path.parent.name) for path in paths]
    table = pa.table([[path.read_bytes() for path in paths], labels, names], schema=schema)
    lance.write_dataset(table, os.fspath(destination), mode=mode, max_rows_per_file=per_shard)
    return destination


def litdata_config(formats: Mapping[str, str], compression: str | None = None) -> dict[str, Any]:
    """What an `index.json` says of samples that are dicts. `formats`: of their values."""
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps([*formats]), "children_spec": [leaf] * len(formats)}
    return {
        "data_format": [*formats.values()],
        "data_spec": json.dumps([1, tree]),
        "compression": compression,
        "compression_level": None if compression is None else "chunk",
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }


_MDS_SIZES = {"int": 8, "int32": 4, "uint8": 1, "float32": 4, "float64": 8, "ndarray:float32:4": 16}


def pyarrow_compressed(data: bytes, compression: str) -> bytes:
    """The data as a file of that suffix holds it."""
    import pyarrow as pa

    if compression == "snappy":
        return bytes(pa.compress(data, codec="snappy", asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {"gz": "gzip", "br": "brotli"}.get(compression, compression)) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def save_datasets(source: Path, destination: Path, *, num_shards: int = 3) -> Path:
    """The same, saved by Hugging Face's `datasets`."""
    hugging_face_dataset(source).save_to_disk(destination, num_shards=num_shards)
    return destination


def hugging_face_dataset(source: Path) -> Any:
    """The folder as a `datasets.Dataset` in memory."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": str(path.relative_to(source))} for path in listing(source)],
        "label": [CLASSES.index(path.parent.name) for path in listing(source)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def convert(source: Path, destination: Path, **options: Any) -> Path:
    """The folder as a converted dataset of several shards."""
    import converters

    converters.convert(
        converters.ConvertOptions(
            source=source, destination=destination, **({"shard_nbytes": 12_000, "num_workers": 1} | options)
        )
    )
    return destination


def entry_of(index: Any, position: int, field: str = "image") -> tuple[str, int, int]:
    """(path, offset, nbytes) of one sample."""
    extents = index.look_up(index.ids(np.array([position], np.int64)), field).extents
    return extents.paths[0], int(extents.offset[0]), int(extents.nbytes[0])


def flip_bit(path: Path, offset: int) -> None:
    """Damage one byte; the file's times stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def open_images(source: Any, batch_size: int = 1, **options: Any) -> dp.DataLoader:
    """A loader of images; what says what a sample is, is taken out of the options."""
    names = options.keys() & inspect.signature(dp.Images).parameters
    settings = {name: options.pop(name) for name in names}
    return dp.DataLoader(dp.Images(source, **settings), batch_size, **options)


def until(holds: Callable[[], bool]) -> bool:
    """Wait for it, for half a minute at most; whether it came to hold."""
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
