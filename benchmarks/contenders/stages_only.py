"""The work on each image alone, in plain threads: no order, no batches, nothing handed over, as a loader must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from pathlib import Path

import numpy as np
import torch

from benchmarks.contenders.decode_only import in_threads
from benchmarks.stages import transforms_of_task
from benchmarks.task import CROP, Task
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import probe
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index
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
            data = [files.read(entries.extents, number) for number in numbers]
            headers = [probe(one) for one in data]
            sizes = np.array([(header.height, header.width) for header in headers], np.int64)
            (cuts,) = recipe.draw_cuts(Draws(0, 0, ids[numbers]), sizes)
            rows = row_cuts(cuts)
            for first in range(0, len(numbers), _BLOCK):
                places = range(first, min(first + _BLOCK, len(numbers)))
                for place in places:
                    cut(decode(data[place], headers[place], rows[place].region), rows[place], pixels[place - first])
                done = slice(0, len(places))
                recipe.run_pixels(torch.from_numpy(pixels[done]), Draws(0, 0, ids[numbers[first : first + _BLOCK]]), out[done])

        return work

    return in_threads(task, range(len(ids)), open_own)
