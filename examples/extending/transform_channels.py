"""A new transform, worked out: torchvision's `RandomChannelPermutation`, as a pixel operation with a probability.

There are three kinds of transform (`datapipe/transforms/protocols.py`): geometry, which becomes boxes and is carried out with
the decoding; pixel operations, over blocks of images; and operations on batches. This is a pixel operation: `draw` turns
random numbers into parameters, one row per sample, before any pixel is read; `apply` carries them out on a block. Since
chance is drawn apart from the work, results do not depend on threads, blocks, ranks or the device.

In datapipe a transform of this kind goes to a module of `datapipe/transforms/pixels/`, its name to
`datapipe/transforms/__init__.py` and `datapipe/__init__.py`, its counterpart in torchvision to
`datapipe/transforms/lowering/of_torchvision.py`, and its distance from that to `benchmarks/parity_pixel_cases.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from datapipe.order.draws import Draws
from datapipe.transforms.options import check_probability
from datapipe.transforms.protocols import Locality, Params

_ORDERS = np.array(list(itertools.permutations(range(3))))  # (6, 3) channels


@dataclass(frozen=True)
class RandomChannels:
    """Put the channels of an image into a random order with probability `p`; all six orders are equally likely."""

    p: float = 1.0

    # A pixel of the result depends on that pixel alone, so crops and flips may be moved before this operation.
    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self, self.p))

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return channels (n, 3), the order of each sample. `operation` is the place in the recipe, with numbers of its own."""
        uniform = draws.uniform(operation, 2)  # (n, 2) in [0, 1)
        order = _ORDERS[(uniform[:, 1] * len(_ORDERS)).astype(np.int64)]
        return {"channels": np.where(uniform[:, :1] < self.p, order, np.arange(3))}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        """Return (n, 3, h, w) images, for images of any dtype, on any device."""
        channels = torch.from_numpy(np.ascontiguousarray(params["channels"])).to(images.device)
        index = channels[:, :, None, None].expand(-1, -1, *images.shape[2:])
        # `gather` makes a tensor; it is copied back because blocks lie in the memory of their batch.
        return images.copy_(images.gather(1, index))

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        """Return the same dtype: any is taken."""
        return dtype
