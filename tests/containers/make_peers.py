"""Make `peers.tar.gz`: small sets written by MosaicML's streaming, LitData and FFCV, and what their own readers read from them.

Not run by tests, which need none of these. In an environment with mosaicml-streaming 0.13.0, litdata 0.2.76 and FFCV's sources:

    python tests/containers/make_peers.py tests/containers/peers.tar.gz
"""

from __future__ import annotations

import decimal
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

NUM = 7


def picture(number: int, mode: str = "RGB") -> Any:
    pixels = np.random.default_rng(number).integers(0, 255, (12 + number % 3, 16, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(number: int, folder: Path) -> Path:
    path = folder / f"{number}.jpg"
    picture(number).save(path)
    return path


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays and images with their dtypes, bytes in hex."""
    if isinstance(value, Image.Image):
        value = np.asarray(value)
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.tolist()}
    if isinstance(value, bytes | memoryview):
        return {"hex": bytes(value).hex()}
    return str(value) if isinstance(value, decimal.Decimal) else value


def make_mds(top: Path, name: str, compression: str | None) -> list[dict[str, Any]]:
    from streaming import MDSWriter
    from streaming.base.compression import decompress
    from streaming.base.format.mds.reader import MDSReader

    columns = {
        "x": "jpeg", "y": "int", "filename": "str", "raw": "pil", "f": "float32", "u": "uint8", "meta": "json", "depth": "png",
        "emb": "ndarray:float32:4", "dyn": "ndarray", "row": "ndarray:int16", "blob": "bytes", "si": "str_int", "sf": "str_float",
        "sd": "str_decimal", "pickled": "pkl", "several": "list[jpeg]",
    }  # fmt: skip
    with MDSWriter(out=str(top / name), columns=columns, compression=compression, hashes=["sha1"], size_limit=6000) as writer:
        for number in range(NUM):
            rng = np.random.default_rng(number)
            writer.write(
                {
                    "x": Image.open(jpeg(number, top)), "y": number % 3, "filename": f"n{number}", "u": number, "f": number / 3,
                    "raw": picture(number, "L" if number % 2 else "RGB"), "meta": {"a": number}, "depth": picture(number, "L"),
                    "emb": np.arange(4, dtype=np.float32) + number, "si": number * 10**15, "sf": number / 7,
                    "dyn": rng.integers(0, 9, (1 + number % 3, 2)).astype(["float64", "uint8", "int32"][number % 3]),
                    "row": np.arange(number % 4 + 1, dtype=np.int16), "blob": b"\x00\xff" * number,
                    "sd": decimal.Decimal(number) / 4, "pickled": {"z": number}, "several": [picture(number)],
                }
            )  # fmt: skip
    found = []
    for shard in json.loads((top / name / "index.json").read_text())["shards"]:
        place = top / name
        if compression is not None:
            place = top / f"unpacked-{name}"
            place.mkdir(exist_ok=True)
            packed = (top / name / shard["zip_data"]["basename"]).read_bytes()
            (place / shard["raw_data"]["basename"]).write_bytes(decompress(compression, packed))
        reader = MDSReader.from_json(str(place), "", shard)
        found += [reader.get_item(row) for row in range(reader.samples)]
    return found


def make_litdata(top: Path, name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    from litdata.streaming import Cache

    (top / name).mkdir()
    cache = Cache(str(top / name), chunk_bytes=6000, **options)
    written = []
    for number in range(NUM):
        sample = {
            "image": Image.open(jpeg(number, top)), "class": number % 3, "filename": f"n{number}", "f": number / 3,
            "raw": picture(number, "L" if number % 2 else "RGB"), "ok": bool(number % 2), "blob": b"\x00\xff" * number,
            "t": torch.arange(6).reshape(2, 3) + number, "v": torch.arange(1 + number % 3, dtype=torch.float32),
            "n": np.ones((2, 1 + number % 2), np.int16) * number, "w": np.arange(number % 3 + 1, dtype=np.uint8),
            "nested": {"a": number, "b": "x"},
        }  # fmt: skip
        cache[number] = sample
        written.append(sample)
    cache.done()
    cache.merge()
    read = [Cache(str(top / name), chunk_bytes=6000, **options)[number] for number in range(NUM)]
    for sample, one in zip(read, written, strict=True):  # images are tensors there, channels first, by torchvision
        sample["image"] = one["image"]
        sample |= {f"nested_{key}": value for key, value in sample.pop("nested").items()}
    return read


def row(number: int) -> dict[str, Any]:
    """A sample of bytes, numbers and texts alone."""
    image = io.BytesIO()
    picture(number).save(image, "JPEG")
    return {"image": image.getvalue(), "label": number % 3, "f": number / 3, "text": f"n{number}"}


def make_rows(top: Path, name: str) -> list[dict[str, Any]]:
    """Such samples are rows of Arrow's."""
    from litdata.streaming import Cache

    (top / name).mkdir()
    cache = Cache(str(top / name), chunk_size=3)
    for number in range(NUM):
        cache[number] = row(number)
    cache.done()
    cache.merge()
    read = [Cache(str(top / name), chunk_size=3)[number] for number in range(NUM)]
    return [sample | {"image": Image.open(io.BytesIO(sample["image"]))} for sample in read]


def make_beton(top: Path, name: str) -> list[dict[str, Any]]:
    from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
    from ffcv.writer import DatasetWriter

    def sample(number: int) -> dict[str, Any]:
        return {
            "image": np.asarray(picture(number)), "label": number % 3, "f": number / 3, "js": {"a": int(number)},
            "blob": np.arange(number + 1, dtype=np.uint8), "t": torch.arange(4) + int(number),
            "arr": (np.arange(6) + number).astype(np.float32).reshape(2, 3),
        }  # fmt: skip

    class Samples:
        def __len__(self) -> int:
            return NUM

        def __getitem__(self, number: int) -> tuple[Any, ...]:
            return tuple(sample(number).values())

    fields = {
        "image": RGBImageField(), "label": IntField(), "f": FloatField(), "js": JSONField(), "blob": BytesField(),
        "t": TorchTensorField(torch.int64, (4,)), "arr": NDArrayField(np.dtype("float32"), (2, 3)),
    }  # fmt: skip
    DatasetWriter(str(top / name), fields, page_size=1 << 21, num_workers=1).from_indexed_dataset(Samples())
    return [sample(number) | {"blob": bytes(range(number + 1))} for number in range(NUM)]  # whose reader compiles C++


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        sets = {
            "mds": make_mds(top, "mds", None),
            "mds-zstd": make_mds(top, "mds-zstd", "zstd:7"),
            "litdata": make_litdata(top, "litdata", {}),
            "litdata-batches": make_litdata(top, "litdata-batches", {"compression": "zstd", "compression_batch_size": 2}),
            "litdata-rows": make_rows(top, "litdata-rows"),
            "ffcv.beton": make_beton(top, "ffcv.beton"),
        }
        expected = {name: [{key: plain(value) for key, value in one.items() if key not in _UNREAD} for one in samples]
                    for name, samples in sets.items()}  # fmt: skip
        with tarfile.open(target, "w:gz") as archive:
            for name in sets:
                archive.add(top / name, name)
            text = json.dumps(expected).encode()
            entry = tarfile.TarInfo("expected.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


_UNREAD = ("pickled", "several")

if __name__ == "__main__":
    main(Path(sys.argv[1]))
