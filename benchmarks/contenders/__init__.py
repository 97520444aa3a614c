"""One file per contender, and their names.

Each file has `make(task, ...)`, which returns the batches of endless epochs: float32, normalised,
(b, 3, 224, 224) with any strides, or for the limits anything whose `len` is a number of images.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any

from benchmarks.task import Task

Maker = Callable[..., Iterator[Sized]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, what to call it in a table, and where its code is."""

    name: str
    title: str
    module: str
    needs: str  # the part of a data set that it reads
    options: dict[str, Any] = field(default_factory=dict)
    output: str = "float32"  # "float32", "uint8", or "pixels" for the limits, which make no batches
    interpreter: str = "here"  # "ffcv": runs in the environment of FFCV and SPDL, "peers": of LitData and MosaicML Streaming

    def make(self, task: Task) -> Iterator[Sized]:
        maker: Maker = importlib.import_module(f"benchmarks.contenders.{self.module}").make
        return maker(task, **self.options)


_DALI_UINT8 = {"backend": "dali", "dtype": "uint8"}
_FILE_UINT8 = {"reader": "file", "dtype": "uint8"}
_WDS_UINT8 = {"reader": "webdataset", "dtype": "uint8"}
_AS_IT_IS: dict[str, Any] = {"taken_over": False}
_OWN_CHAIN: dict[str, Any] = {"chain": "own"}
_OWN_DATASET: dict[str, Any] = {"dataset": "own"}
_BY_WORKERS = {"backend": "images_cpu"}
_SMOOTH = {"jpeg_fancy_upsampling": True}
# Kinds of Datasets of one's own, and what to call them.
OWN_DATASETS = {
    "path": "Image.open(path) and a Compose",
    "functional": "functions and Python's random",
    "bytes": "images from BytesIO",
    "two-crops": "two crops, SimCLR's recipe",
    "timm": "timm's ImageDataset and training transform",
    "ten-crops": "ten crops, DINO's recipe",
    "pyramid": "four sizes, each of the one before",
    "one-mean": "one mean for three channels",
    "convert-dtype": "bytes, then convert_image_dtype",
    "random-collate": "a collate_fn that draws (MixUp)",
    "array": "an array as the last step",
    "pixels": "every pixel looked at",
}
_ALL = (
    Contender("ours", "datapipe, shards", "ours", "shards"),
    Contender("ours-again", "datapipe, shards (the same again)", "ours", "shards"),
    Contender("ours-folder", "datapipe, folder", "ours", "folder", {"part": "folder"}),
    Contender("ours-uint8", "datapipe, shards, uint8 out", "ours", "shards", {"dtype": "uint8"}, "uint8"),
    Contender("ours-hdf5", "datapipe, HDF5", "ours", "hdf5", {"part": "hdf5"}),
    Contender("ours-tfrecord", "datapipe, TFRecord", "ours", "tfrecord", {"part": "tfrecord"}),
    Contender("ours-parquet", "datapipe, Parquet", "ours", "parquet", {"part": "parquet"}),
    Contender("ours-mds", "datapipe, MosaicML's shards", "ours", "mds", {"part": "mds"}),
    Contender("ours-litdata", "datapipe, LitData's chunks", "ours", "litdata", {"part": "litdata"}),
    Contender("ours-beton", "datapipe, FFCV's file", "ours", "ffcv.beton", {"part": "ffcv.beton"}),
    Contender("ours-lance", "datapipe, a Lance dataset", "ours", "lance", {"part": "lance"}),
    Contender("lance-local", "Lance + PIL", "local_peers", "lance", {"peer": "lance"}),
    Contender("mosaicml-local", "MosaicML Streaming + PIL", "local_peers", "mds", {"peer": "mds"}, interpreter="peers"),
    Contender("litdata-local", "LitData + PIL", "local_peers", "litdata", {"peer": "litdata"}, interpreter="peers"),
    Contender("ours-raw", "datapipe, raw shards", "ours", "raw", {"part": "raw"}),
    Contender("ours-raw-uint8", "datapipe, raw shards, uint8 out", "ours", "raw", {"part": "raw", "dtype": "uint8"}, "uint8"),
    Contender("ours-dali", "datapipe, backend dali", "ours", "shards", {"backend": "dali"}),
    Contender("ours-dali-again", "datapipe, backend dali (the same again)", "ours", "shards", {"backend": "dali"}),
    Contender("ours-dali-uint8", "datapipe, backend dali, uint8", "ours", "shards", _DALI_UINT8, "uint8"),
    Contender("ours-dali-uint8-again", "datapipe, backend dali, uint8 (the same again)", "ours", "shards", _DALI_UINT8, "uint8"),
    Contender("torch", "torch DataLoader + PIL", "torch_dataloader", "folder"),
    Contender("from-torch", "from_torch, ImageNet recipe", "from_torch", "folder"),
    Contender("from-torch-again", "from_torch, ImageNet recipe (the same again)", "from_torch", "folder"),
    Contender("torch-own-chain", "torch DataLoader, a function in the chain", "from_torch", "folder", _OWN_CHAIN | _AS_IT_IS),
    Contender("from-torch-own-chain", "from_torch, a function in the chain", "from_torch", "folder", _OWN_CHAIN),
    Contender("torch-own-dataset", "torch DataLoader, a Dataset of one's own", "from_torch", "folder", _OWN_DATASET | _AS_IT_IS),
    Contender("from-torch-own-dataset", "from_torch, a Dataset of one's own", "from_torch", "folder", _OWN_DATASET),
    Contender("webdataset", "webdataset + PIL", "webdataset_pil", "webdataset"),
    Contender("dali-file", "DALI on the CPU, file reader", "dali_cpu", "folder", {"reader": "file"}),
    Contender("dali-webdataset", "DALI on the CPU, webdataset reader", "dali_cpu", "webdataset", {"reader": "webdataset"}),
    Contender("dali-file-uint8", "DALI on the CPU, file reader, uint8", "dali_cpu", "folder", _FILE_UINT8, "uint8"),
    Contender("dali-webdataset-uint8", "DALI on the CPU, webdataset, uint8 out", "dali_cpu", "webdataset", _WDS_UINT8, "uint8"),
    Contender("ffcv", "FFCV", "ffcv_loader", "ffcv.beton", interpreter="ffcv"),
    Contender("spdl", "SPDL", "spdl_pipeline", "folder", interpreter="ffcv"),
    Contender("ffcv-raw", "FFCV, raw", "ffcv_loader", "ffcv-raw.beton", {"beton": "ffcv-raw.beton"}, interpreter="ffcv"),
    Contender("limit-whole", "limit: decode alone, whole image", "decode_only", "folder", {"decoder": "whole"}, "pixels"),
    Contender("limit-region", "limit: decode alone, the crop's region", "decode_only", "folder", {"decoder": "region"}, "pixels"),
    Contender(
        "limit-stages", "read, decode, resize, convert in plain threads, and no more", "stages_only", "shards", output="pixels"
    ),
    # Onto a GPU; `device` and settings are added by benchmarks.gpu.
    Contender("gpu-ours-kept", "datapipe, images kept on the GPU", "ours_kept", "shards"),
    Contender("gpu-ours-auto", "datapipe, the backend it chose itself", "ours_gpu", "shards"),
    Contender("gpu-ours-dali", "datapipe, DALI", "ours_gpu", "shards", {"dali": {}}),
    Contender("gpu-ours-cpu", "datapipe, decoded on the CPU", "ours_gpu", "shards", {"backend": "images_cpu"}),
    Contender("gpu-dali", "DALI on the GPU, by hand", "dali_gpu", "folder"),
    Contender("gpu-dali-smooth", "DALI on the GPU, by hand, chroma as Pillow", "dali_gpu", "folder", _SMOOTH),
    Contender("gpu-torchvision", "torchvision, decoded on the GPU", "torchvision_gpu", "folder"),
    Contender("gpu-torch", "torch DataLoader + PIL, pinned", "torch_gpu", "folder"),
    Contender("gpu-from-torch-dali", "from_torch, a Dataset of one's own, by DALI", "from_torch_gpu", "folder"),
    Contender("gpu-from-torch-cpu", "from_torch, a Dataset of one's own, by workers", "from_torch_gpu", "folder", _BY_WORKERS),
    Contender("gpu-synthetic", "limit: one batch, resident", "resident", "folder", {"kind": "synthetic"}),
    Contender("gpu-cached", "limit: cached set, resident", "resident", "folder", {"kind": "cached"}),
)
CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in _ALL}


def endlessly(epoch: Callable[[], Iterable[Sized]]) -> Iterator[Sized]:
    """Epoch after epoch."""
    while True:
        yield from epoch()
