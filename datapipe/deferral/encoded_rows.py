"""Images of a batch on their way to DALI: encoded bytes and a cut each, in place of the tensor that they will become.

A worker sends a place of the batch so if each chain there is one cut of a JPEG and then a conversion to a tensor. The bytes
travel in lent memory, as tensors do; `device_decoding` makes the tensor in the training process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

from datapipe.codecs.probe import MAX_PIXELS, ImageHeader
from datapipe.deferral.blocks import Block, Held, block_of_rows, places_of
from datapipe.deferral.engine import Engine
from datapipe.deferral.graph import Front, JpegSource, Node, Step, chain_of, fold, signature_of
from datapipe.deferral.lending import Lent, lend
from datapipe.kinds.images.dali.gate import can_decode
from datapipe.kinds.images.images_cpu import EncodedSample
from datapipe.transforms.protocols import Cuts, Interpolation

_MIXED = "other images of its batch are not left to DALI"
_UNIT, _ONE = (1 / 255,) * 3, (1.0,) * 3


class PixelConversion(NamedTuple):
    """A conversion of uint8 pixels to `pixel * factor + shift` per channel, in float32; with no factor they stay uint8."""

    factor: tuple[float, ...] | None
    shift: tuple[float, ...]


@dataclass(slots=True, eq=False)
class EncodedRows:
    """The images in place of a tensor, (n, 3, height, width), of a batch.

    It has a `to`, so that what moves batches takes it for one thing and does not look into it.
    """

    encoded: Sequence[Any]  # bytes, or (k,) uint8 in memory that is lent for as long as it is held
    headers: Sequence[ImageHeader]
    cuts: Cuts  # all of one window size
    conversion: PixelConversion
    request: Any  # for the whole batch, from which it can be made again

    def __len__(self) -> int:
        return len(self.headers)

    def to(self, device: Any = None, *, non_blocking: bool = False) -> EncodedRows:
        """Return itself: only decoding moves it."""
        return self

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the tensor's images."""
        height, width = self.cuts.window[0, 2:].tolist()
        return height, width

    def samples(self) -> list[EncodedSample]:
        """Return the images as the backend takes them."""
        return [EncodedSample(row, *both) for row, both in enumerate(zip(self.encoded, self.headers, strict=True))]

    def release(self) -> None:
        """Let go of the bytes, so that the worker may have their memory again."""
        self.encoded = ()


class _PackedRows:
    """`EncodedRows` as a worker sends them: all bytes in one block, which is lent if it is not small."""

    def __init__(self, rows: EncodedRows) -> None:
        pieces = [np.frombuffer(data, np.uint8) for data in rows.encoded]
        self._ends = list(itertools.accumulate(map(len, pieces)))
        loan = lend((self._ends[-1],), torch.uint8)
        self._packed: Lent | torch.Tensor = torch.empty(self._ends[-1], dtype=torch.uint8) if loan is None else loan
        memory = self._packed if isinstance(self._packed, torch.Tensor) else self._packed.tensor
        np.concatenate(pieces, out=memory.numpy())
        self._others = rows.headers, rows.cuts, rows.conversion, rows.request

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._packed, self._ends, *self._others)


def _unpacked(packed: torch.Tensor, ends: list[int], *others: Any) -> EncodedRows:
    memory = packed.numpy()
    return EncodedRows([memory[first:end] for first, end in itertools.pairwise([0, *ends])], *others)


class _Row(NamedTuple):
    """An image that DALI can make."""

    source: JpegSource
    front: Front
    conversion: PixelConversion


def blocks_of(samples: list[Any], held: Held, engine: Engine, request: Any) -> list[Block]:
    """Return a block for each place of the batch that can have one. `request`: None if no images are to be left to DALI."""
    blocks: list[Block] = []
    for place in places_of(samples, held):
        block = None if request is None else _encoded_block(place, held, engine, request)
        if block is not None:
            blocks.append(block)
        else:
            blocks.append(block_of_rows(place))
    return blocks


def _encoded_block(place: Sequence[torch.Tensor], held: Held, engine: Engine, request: Any) -> Block | None:
    """Return the images of a place for DALI. None if one has to be made here; the engine then knows why."""
    found = [_row_of(held[id(tensor)][1].node, engine) for tensor in place]
    signatures = [signature for signature, _ in found]
    rows = [row for _, row in found if isinstance(row, _Row)]
    if len(rows) < len(found):
        engine.made_here |= {signature: row if isinstance(row, str) else _MIXED for signature, row in found}
        return None
    resampled = {row.front.resampled for row in rows if row.front.resampled is not None}
    if len(resampled) > 1 or len({row.conversion for row in rows}) > 1:
        engine.made_here |= dict.fromkeys(signatures, "the images of a batch are resized or normalised in different ways")
        return None
    for tensor, signature in zip(place, signatures, strict=True):
        engine.sent.setdefault(signature, []).append(held[id(tensor)][1].sample)
    cuts = _cuts([row.front for row in rows], next(iter(resampled), "bilinear"))
    sources = [row.source for row in rows]
    encoded = EncodedRows([one.data for one in sources], [one.header for one in sources], cuts, rows[0].conversion, request)
    in_worker = torch.utils.data.get_worker_info() is not None
    return Block([id(tensor) for tensor in place], _PackedRows(encoded) if in_worker else encoded)


def _row_of(step: Node, engine: Engine) -> tuple[Hashable, _Row | str]:
    """Return the signature of a chain, and what DALI needs for it; instead of that the reason if it does not make it."""
    source, steps = chain_of(step)
    signature = signature_of(source, steps)
    on_image = [one for one in steps if one.mode != "tensor"]
    front, conversion = fold(source, on_image), conversion_of(steps[len(on_image) :])
    if front is None or front.num_steps < len(on_image) or conversion is None:
        return signature, "the operations are more than one crop, resize and flip of an RGB image"
    reason = engine.reason_on(source, steps)
    if reason is not None:
        return signature, reason
    cut = front.cut
    if max(cut.size[0] * cut.size[1], cut.window[2] * cut.window[3]) > MAX_PIXELS:
        return signature, "it would be enlarged beyond the limit of pixels"
    if not can_decode(source.data, source.header):
        return signature, "NVIDIA's parser does not take it"
    return signature, _Row(source, front, conversion)


def conversion_of(steps: Sequence[Step]) -> PixelConversion | None:
    """Return the steps on a tensor of three channels as one conversion; None if they are something else."""
    factor: tuple[float, ...] | None = None
    shift: tuple[float, ...] = (0.0, 0.0, 0.0)
    for step in steps:
        if step.name in ("pil_to_tensor", "to_image"):
            continue
        if step.name in ("to_tensor", "v2 to_dtype"):
            factor = _UNIT
        elif step.name in ("normalize", "v2 normalize") and factor is not None:
            mean, std = step.args
            factor = tuple(value / by for value, by in zip(factor, std, strict=True))
            shift = tuple((value - less) / by for value, less, by in zip(shift, mean, std, strict=True))
        elif step.name in _LINEAR:
            by, more = _LINEAR[step.name](*step.args)
            factor = tuple(value * by for value in factor or _ONE)
            shift = tuple(value * by + more for value in shift)
        else:
            return None
    return PixelConversion(factor, shift)


# By names of steps: the factor and the summand that arithmetic with a number amounts to.
_LINEAR: dict[str, Callable[..., tuple[float, float]]] = {
    "float": lambda: (1.0, 0.0),
    "mul": lambda number: (number, 0.0),
    "div": lambda number: (1 / number, 0.0),
    "add": lambda number: (1.0, number),
    "sub": lambda number: (1.0, -number),
    "rsub": lambda number: (-1.0, number),
}


def _cuts(fronts: Sequence[Front], interpolation: Interpolation) -> Cuts:
    cuts = [front.cut for front in fronts]

    def ints(rows: list[list[int]]) -> NDArray[np.int64]:
        return np.array(rows, np.int64)

    return Cuts(
        region=ints([cut.region for cut in cuts]),
        size=ints([cut.size for cut in cuts]),
        window=ints([cut.window for cut in cuts]),
        flip=np.array([cut.flip for cut in cuts], np.bool_),
        interpolation=interpolation,
    )
