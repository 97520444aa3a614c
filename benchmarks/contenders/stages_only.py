"""What our loader cannot pass on these threads: the work on each image alone, without order, batches or anything to hand over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from pathlib import Path

import numpy as np
import torch

from benchmarks.contenders.decode_only import in_threads
from benchmarks.stages import transforms_of_task
from benchmarks.task import CROP, Task
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import checked_header
from datapipe.containers.opening import open_index
from datapipe.fetch.local import LocalFiles
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import cut, row_cuts

_BLOCK = 8


def make(task: Task) -> Iterator[Sized]:
    """Lists as long as a batch, of numbers of images that were read, decoded, resized, flipped and made float32."""
    index, files = open_index(Path(task.data) / "shards"), LocalFiles()
    recipe = Recipe.of(transforms_of_task())
    ids = index.ids(np.random.default_rng(task.seed).permutation(len(index)).astype(np.int64))
    entries = index.look_up(ids, "image")

    def open_own() -> Callable[[list[int]], object]:
        decode = open_decoder()
        pixels = np.empty((_BLOCK, CROP, CROP, 3), np.uint8)
        out = torch.empty((_BLOCK, CROP, CROP, 3), dtype=torch.float32)

        def work(numbers: list[int]) -> None:
            for first in range(0, len(numbers), _BLOCK):
                block(numbers[first : first + _BLOCK])

        def block(numbers: list[int]) -> None:
            data = [files.read(entries.extents, number) for number in numbers]
            headers = [checked_header(one) for one in data]
            draws = Draws(0, 0, ids[numbers])
            (cuts,) = recipe.draw_cuts(draws, np.array([(header.height, header.width) for header in headers], np.int64))
            for place, row in enumerate(row_cuts(cuts)):
                cut(decode(data[place], headers[place], row.region), row, pixels[place])
            recipe.run_pixels(torch.from_numpy(pixels[: len(numbers)]), draws, out[: len(numbers)])

        return work

    return in_threads(task, range(len(ids)), open_own)
