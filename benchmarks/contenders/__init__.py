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
    interpreter: str = "here"  # "ffcv": runs in FFCV's own environment

    def make(self, task: Task) -> Iterator[Sized]:
        maker: Maker = importlib.import_module(f"benchmarks.contenders.{self.module}").make
        return maker(task, **self.options)


_ALL = (
    Contender("ours", "datapipe, shards", "ours", "shards"),
    Contender("ours-again", "datapipe, shards (the same again)", "ours", "shards"),
    Contender("ours-folder", "datapipe, folder", "ours", "folder", {"part": "folder"}),
    Contender("ours-uint8", "datapipe, shards, uint8 out", "ours", "shards", {"dtype": "uint8"}, "uint8"),
    Contender("ours-raw", "datapipe, raw shards", "ours", "raw", {"part": "raw"}),
    Contender("ours-raw-uint8", "datapipe, raw shards, uint8 out", "ours", "raw", {"part": "raw", "dtype": "uint8"}, "uint8"),
    Contender("torch", "torch DataLoader + PIL", "torch_dataloader", "folder"),
    Contender("webdataset", "webdataset + PIL", "webdataset_pil", "webdataset"),
    Contender("dali-file", "DALI on the CPU, file reader", "dali_cpu", "folder", {"reader": "file"}),
    Contender("dali-webdataset", "DALI on the CPU, webdataset reader", "dali_cpu", "webdataset", {"reader": "webdataset"}),
    Contender("ffcv", "FFCV", "ffcv_loader", "ffcv.beton", interpreter="ffcv"),
    Contender("ffcv-raw", "FFCV, raw", "ffcv_loader", "ffcv-raw.beton", {"beton": "ffcv-raw.beton"}, interpreter="ffcv"),
    Contender("limit-whole", "limit: decode alone, whole image", "decode_only", "folder", {"decoder": "whole"}, "pixels"),
    Contender("limit-region", "limit: decode alone, the crop's region", "decode_only", "folder", {"decoder": "region"}, "pixels"),
)
CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in _ALL}


def endlessly(epoch: Callable[[], Iterable[Sized]]) -> Iterator[Sized]:
    """Epoch after epoch."""
    while True:
        yield from epoch()
