"""datapipe's DataLoader with decoded images kept on the GPU: epochs from the second on.

Another recipe than elsewhere, as images that are kept are not resampled: 256 x 256, of which 224 x 224 are cut out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

from benchmarks.contenders.ours import open_loader
from benchmarks.task import CROP, Task
from datapipe import transforms as T

_SIDE = 256


def make(task: Task, *, device: str = "cuda", part: str = "shards") -> Iterator[Sized]:
    """Batches for ever, after an epoch that fills the cache. Raises RuntimeError if not all images fit."""
    loader = open_loader(
        task,
        part=part,
        dtype="float32",
        device=device,
        backend="auto",
        cut=[T.Resize((_SIDE, _SIDE)), T.RandomCrop(CROP)],
        cache="ram" if device == "cpu" else "gpu",  # on the CPU for a dry run
        drop_last=False,  # so that one epoch keeps every image
    )
    for _ in loader:
        pass
    stats = loader.cache_stats
    if stats is None or stats.num_kept < len(loader.dataset):
        raise RuntimeError(f"not all images are kept: {stats}")
    while True:
        yield from (images for images, _ in loader)
