"""DALI on the GPU as its documentation has it: file reader, decoder with a random crop, resize, normalise."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch
import torch.utils.dlpack
from nvidia.dali import fn, pipeline_def, types

from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task


@pipeline_def  # type: ignore[untyped-decorator]
def _pipeline(task: Task, on_gpu: bool, decodes_regions: bool, decoder: dict[str, Any]) -> Any:
    encoded, label = fn.readers.file(
        file_root=str(Path(task.data) / "folder"), random_shuffle=True, initial_fill=4096, seed=task.seed, name="reader"
    )
    how: dict[str, Any] = {"device": "mixed" if on_gpu else "cpu", **(decoder if on_gpu else {})}
    crop: dict[str, Any] = {"random_aspect_ratio": [3 / 4, 4 / 3], "random_area": [0.08, 1.0], "seed": task.seed}
    resize: dict[str, Any] = {"size": [CROP, CROP], "interp_type": types.INTERP_LINEAR, "antialias": True}
    if decodes_regions:
        images = fn.resize(fn.decoders.image_random_crop(encoded, **crop, **how), **resize)
    else:
        images = fn.random_resized_crop(fn.decoders.image(encoded, **how), **crop, **resize)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="HWC",
        mean=[mean * 255 for mean in IMAGENET_MEAN],
        std=[std * 255 for std in IMAGENET_STD],
        mirror=fn.random.coin_flip(seed=task.seed),
    )
    return images, label


def make(
    task: Task,
    *,
    device: str = "cuda",
    num_threads: int | None = None,
    prefetch_queue_depth: int = 2,
    decodes_regions: bool = True,
    **decoder: Any,
) -> Iterator[Sized]:
    """Batches in DALI's own memory, without a copy, ordered on the consumer's stream.

    `num_threads`: None for the task's. `decodes_regions`: else whole images are decoded, and cropped then. `decoder`: of the
    decoder on a GPU: `hw_decoder_load`, `jpeg_fancy_upsampling`, `affine`, ...; left alone they have DALI's defaults.
    """
    on_gpu = device == "cuda"
    pipeline = _pipeline(
        task,
        on_gpu,
        decodes_regions,
        decoder,
        batch_size=task.batch_size,
        num_threads=num_threads or task.num_threads,
        device_id=torch.cuda.current_device() if on_gpu else None,
        seed=task.seed,
        prefetch_queue_depth=prefetch_queue_depth,
    )
    pipeline.build()
    while True:
        stream = torch.cuda.current_stream() if on_gpu else None
        images, _ = pipeline.run(stream)
        yield torch.utils.dlpack.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)
