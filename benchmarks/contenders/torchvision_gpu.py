"""torchvision alone on the GPU: files read by threads, a batch decoded by `decode_jpeg`, crops resized there.

Decodes whole images: torchvision's decoder knows no regions.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections import deque
from collections.abc import Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task

_AHEAD = 4  # batches whose files are being read


def make(task: Task, *, device: str = "cuda") -> Iterator[Sized]:
    """Shuffled in full; files are read ahead, batches decoded one by one in the caller's thread.

    Raises ImportError where torchvision's compiled part does not fit this torch.
    """
    import_torchvision()
    if not hasattr(torch.ops.image, "decode_jpeg"):
        raise ImportError("torchvision's compiled image part does not load beside this torch")
    io: Any = importlib.import_module("torchvision.io")
    crop: Any = importlib.import_module("torchvision.transforms").RandomResizedCrop
    torch.manual_seed(task.seed)
    mean = torch.tensor(IMAGENET_MEAN, device=device).view(1, 3, 1, 1) * 255
    scale = 1 / (torch.tensor(IMAGENET_STD, device=device).view(1, 3, 1, 1) * 255)

    def finish(encoded: list[torch.Tensor]) -> torch.Tensor:
        out = torch.empty((len(encoded), 3, CROP, CROP), device=device, memory_format=torch.channels_last)
        images = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB, device=device)
        for row, image in enumerate(images):
            top, left, height, width = crop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            region = image[:, top : top + height, left : left + width].unsqueeze(0).float()
            resized = F.interpolate(region, (CROP, CROP), mode="bilinear", antialias=True)
            out[row] = resized[0].flip(2) if random.random() < 0.5 else resized[0]
        return out.sub_(mean).mul_(scale)

    with ThreadPoolExecutor(task.num_threads) as readers:
        batches = _file_batches(Path(task.data) / "folder", task.batch_size, task.seed)
        ahead: deque[Any] = deque()
        while True:
            while len(ahead) < _AHEAD:
                ahead.append([readers.submit(_read, path) for path in next(batches)])
            yield finish([future.result() for future in ahead.popleft()])


def _read(path: Path) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def _file_batches(folder: Path, size: int, seed: int) -> Iterator[list[Path]]:
    files = sorted(folder.glob("*/*"))
    rng = random.Random(seed)
    while True:
        rng.shuffle(files)
        for start in range(0, len(files) - size + 1, size):
            yield list(itertools.islice(files, start, start + size))
