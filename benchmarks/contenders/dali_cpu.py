"""DALI without a GPU: its own reader, region decode, antialiased resize."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch.utils.dlpack
from nvidia.dali import fn, pipeline_def, types

from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task


def _read(reader: str, data: Path, task: Task) -> Any:
    """(encoded, label) nodes."""
    common: dict[str, Any] = {"random_shuffle": True, "seed": task.seed, "prefetch_queue_depth": 2}
    if reader == "file":
        return fn.readers.file(file_root=str(data / "folder"), initial_fill=4096, **common)
    shards = sorted(str(path) for path in (data / "webdataset").glob("*.tar"))
    indexes = [shard.removesuffix(".tar") + ".idx" for shard in shards]
    return fn.readers.webdataset(paths=shards, index_paths=indexes, ext=["jpg", "cls"], initial_fill=1000, **common)


@pipeline_def  # type: ignore[untyped-decorator]
def _pipeline(reader: str, data: Path, task: Task, dtype: str) -> Any:
    encoded, label = _read(reader, data, task)
    images = fn.decoders.image_random_crop(encoded, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
    images = fn.resize(images, size=[CROP, CROP], interp_type=types.INTERP_LINEAR, antialias=True)
    if dtype == "uint8":
        return fn.flip(images, horizontal=fn.random.coin_flip()), label
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="HWC",
        mean=[mean * 255 for mean in IMAGENET_MEAN],
        std=[std * 255 for std in IMAGENET_STD],
        mirror=fn.random.coin_flip(),
    )
    return images, label


def make(task: Task, *, reader: str, dtype: str = "float32") -> Iterator[Sized]:
    """Batches as torch tensors without a copy; the pipeline runs ahead by its default of two."""
    pipeline = _pipeline(
        reader,
        Path(task.data),
        task,
        dtype,
        batch_size=task.batch_size,
        num_threads=task.num_threads,
        device_id=None,
        seed=task.seed,
    )
    pipeline.build()
    while True:
        images, _ = pipeline.run()
        yield torch.utils.dlpack.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)
