"""The contract of a processor: what a vision-language model makes of an image."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Ints

Rope = Literal["plain", "grid"]


class Processor(Protocol):
    """How a model takes images: as units of pixels of one shape, and as tokens in its text. Thread-safe.

    Both are arithmetic on an image's size: no pixel is needed to know them. Methods take many images at once where they can. What
    has a body here is optional.
    """

    @property
    def name(self) -> str:
        """A text of all that decides grids, tokens and pixels: what was planned for one name is of no use to another."""
        return repr(self)

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of a unit of uint8: (3 * height * width,) of a patch, channels first, (3, height, width) of a tile."""

    @property
    def value(self) -> tuple[int, ...]:
        """The shape of the numbers that the model takes of a unit."""
        return self.unit

    @property
    def rope(self) -> Rope:
        """How its tokens are numbered: "plain", one after the other; "grid", by rows and columns, as in M-RoPE."""
        return "plain"

    @property
    def token_types(self) -> str:
        """The input of the model that is 1 for tokens of images and 0 for others; "" for a model that takes none."""
        return ""

    def grids(self, widths: Ints, heights: Ints) -> Ints:
        """Return (k, 2) into how many rows and columns images of these sizes, in pixels, are cut; -1 for what is refused."""

    def refusal(self, width: int, height: int) -> str:
        """Return why an image of this size is refused."""
        raise AssertionError(f"images of {width} x {height} pixels are not refused")

    def token_grids(self, grids: Ints) -> Ints:
        """Return (k, 2) the rows and columns of tokens of images of these grids, where they are numbered so."""
        return grids

    def num_units(self, grids: Ints) -> Ints:
        """Return (k,) the units of pixels of images of these grids."""

    def num_tokens(self, grids: Ints) -> Ints:
        """Return (k,) the tokens of images of these grids."""

    def tokens(self, rows: int, columns: int) -> Ints:
        """Return the ids of the tokens of an image of this grid."""

    def place(self, image: NDArray[np.uint8], rows: int, columns: int, out: torch.Tensor) -> None:
        """Write an image, (height, width, 3) RGB, into its units, uint8 of (units, *unit)."""

    def resized(self, rows: int, columns: int) -> tuple[int, int] | None:
        """Return (height, width), pixels, that an image of this grid is resized to; None: not known, so it is decoded in full."""
        return None

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the numbers that the model takes of (units, *unit) uint8: float32 of (units, *value), on any device.

        `out`: written and returned, if it is given.
        """

    def batched(self, values: torch.Tensor) -> torch.Tensor:
        """Return `pixel_values` of all values of a batch, in the shape that the model takes."""
        return values

    def inputs(self, grids: Ints) -> dict[str, NDArray[Any]]:
        """Return what else the model takes of the images of a batch, by name."""
        return {}
