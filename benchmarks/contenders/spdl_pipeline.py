"""SPDL: a pipeline whose threads decode, crop and scale by FFmpeg; torch stacks and normalises.

Runs in an environment of its own. FFmpeg has no option that makes its bilinear filter the one of Pillow; it is antialiased, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.contenders import endlessly
from benchmarks.contenders.crops import random_resized_crop
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task


def make(task: Task) -> Iterator[Sized]:
    """Shuffled batches of (b, 3, 224, 224) float32."""
    files = [str(path) for path in sorted((Path(task.data) / "folder").glob("*/*"))]
    rng = random.Random(task.seed)
    # Raises here where FFmpeg's libraries are missing: the pipeline would leave every file out, and never end.
    spdl.io.demux_image(files[0])
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (IMAGENET_MEAN, IMAGENET_STD))

    def decoded(file: str) -> Any:
        packets = spdl.io.demux_image(file)
        top, left, height, width = random_resized_crop(rng, packets.height, packets.width)
        flip = ",hflip" if rng.random() < 0.5 else ""
        filters = f"crop={width}:{height}:{left}:{top},scale={CROP}:{CROP}:flags=bilinear{flip},format=rgb24"
        return np.asarray(spdl.io.convert_frames(spdl.io.decode_packets(packets, filter_desc=filters)))

    def batched(images: list[Any]) -> torch.Tensor:
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        return pixels.float().sub_(mean).div_(std)

    def epoch() -> Iterator[torch.Tensor]:
        order = random.sample(files, len(files))
        builder = PipelineBuilder().add_source(order).pipe(decoded, concurrency=task.num_threads)
        pipeline = (
            builder.aggregate(task.batch_size, drop_last=True).pipe(batched).add_sink(2).build(num_threads=task.num_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return endlessly(epoch)
