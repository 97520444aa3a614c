"""Execute recorded chains: datapipe's engine decodes regions and resizes, the original functions do the rest.

The first chain of each signature is executed both ways and compared. If the results do not agree, Pillow computes it and all
later chains of that signature in this process. One engine belongs to one thread.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from datapipe.adapt.deferral.execution import as_tensor, by_engine, by_pillow, finish, planes_of
from datapipe.adapt.deferral.graph import Front, JpegSource, Node, Step, chain_of, fold, signature_of
from datapipe.adapt.deferral.pillow_seams import replay
from datapipe.adapt.deferral.recorder import recording
from datapipe.adapt.deferral.reports import OperationCount
from datapipe.codecs.decode import Decoder, open_decoder
from datapipe.transforms.execute import RESIZES, cut, refuse_large
from datapipe.transforms.protocols import Interpolation

# Of 255. A bilinear resize differs by more than 1 in about one value of ten million, a bicubic one in one of a hundred thousand.
TOLERANCE: dict[Interpolation, int] = {"bilinear": 2, "bicubic": 5}
SHARE = 1e-4  # share of values that may differ by more than 1
COLOR_TOLERANCE = 17  # if colours are changed after a resize, which amplifies the resize's +-1
COLOR_SHARE = 1e-3  # share of values that may differ by more

Made = Mapping[int, Image.Image]  # images that already have pixels, by id of their node


@dataclass(slots=True)
class ChainVerdict:
    """The decision about the chains of one signature."""

    reason: str | None  # why Pillow computes them; None: the engine does
    line: str  # the operations, as `explain` shows them


@dataclass(slots=True)
class Engine:
    """Executes chains for one thread."""

    verdicts: dict[Hashable, ChainVerdict] = field(default_factory=dict)
    counts: Counter[Hashable] = field(default_factory=Counter)  # chains executed, by signature
    sent: Counter[Hashable] = field(default_factory=Counter)  # chains left to DALI, by signature
    made_here: dict[Hashable, str] = field(default_factory=dict)  # why chains were executed here instead, by signature
    _decoder: Decoder | None = None
    _planar: torch.Tensor | None = None

    def image(self, node: Node, made: Made) -> Image.Image:
        """Return a recorded image with its pixels. Raises DecodeError and what Pillow raises for bytes that do not decode."""
        with recording(None):
            source, steps, start = _from_made(node, made)
            if start is not None:
                return by_pillow(start, steps)
            signature = signature_of(source, steps)
            self.counts[signature] += 1
            verdict = self.verdict_on(signature, source, steps)
            return replay(node) if verdict.reason is not None else self._image(source, steps)

    def tensor(self, step: Step, made: Made, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return a recorded tensor with its values, laid out as the original functions would. Raises as `image`.

        `out`: contiguous memory of its shape and dtype, to be filled and returned.
        """
        values = self._tensor(step, made, out)
        return values if out is None or values is out else out.copy_(values)

    def _tensor(self, step: Step, made: Made, out: torch.Tensor | None) -> torch.Tensor:
        with recording(None):
            source, steps, start = _from_made(step, made)
            first = next(number for number, one in enumerate(steps) if one.mode == "tensor")
            on_image, on_tensor = steps[:first], steps[first:]
            if start is not None:
                return as_tensor(by_pillow(start, on_image), on_tensor)
            signature = signature_of(source, steps)
            self.counts[signature] += 1
            verdict = self.verdict_on(signature, source, steps)
            if verdict.reason is not None:
                return as_tensor(replay(on_image[-1] if on_image else source), on_tensor)
            front = fold(source, on_image)
            if front is not None and front.num_steps == len(on_image):
                return finish(self._planes(source, front), on_tensor, out)
            return finish(planes_of(self._image(source, on_image, front)), on_tensor, out)

    def verdict_on(self, signature: Hashable, source: JpegSource, steps: list[Step]) -> ChainVerdict:
        """Return the decision about chains of that signature, which the first of them brings about. Raises as `image`."""
        with recording(None):
            return self.verdicts.get(signature) or self._judge(signature, source, steps)

    def taken_counts(self) -> list[OperationCount]:
        """Return how many chains there were of each kind since the last call, those left to DALI apart."""
        counts, sent, self.counts, self.sent = self.counts, self.sent, Counter(), Counter()
        found = []
        for signature, num in counts.items():
            verdict, why = self.verdicts.get(signature), self.made_here.get(signature)
            if verdict is not None:
                apart = "" if why is None or verdict.reason is not None else f", not by DALI: {why}"
                found.append(OperationCount(f"{verdict.line}{apart}", verdict.reason, num))
        return found + [OperationCount(f"{self.verdicts[one].line}, by DALI", None, num) for one, num in sent.items()]

    # -- by the engine --------------------------------------------------------------------------

    def _decode(self, source: JpegSource, region: list[int]) -> Any:
        if self._decoder is None:
            self._decoder = open_decoder()
        return self._decoder(source.data, source.header, region)

    def _planes(self, source: JpegSource, front: Front) -> torch.Tensor:
        """Return (3, h, w) uint8 of a chain that the engine executes whole, in memory that the next call overwrites."""
        how = front.cut
        refuse_large((how,))
        pixels = self._decode(source, how.region)
        if front.resampled is None:
            planes = planes_of(pixels)
        else:
            height, width = how.size
            if self._planar is None or self._planar.shape[2:] != (height, width):
                self._planar = torch.empty((1, 3, height, width), dtype=torch.uint8)
            pixels = pixels if pixels.flags.carray else np.ascontiguousarray(pixels)
            batch = torch.from_numpy(_as_batch(pixels))
            RESIZES[front.resampled](batch, how.size, False, None, None, out=self._planar)
            planes = self._planar[0]
        top, left, height, width = how.window
        if planes.shape[1:] != (height, width):
            planes = planes[:, top : top + height, left : left + width]
        if how.flip[0] or how.flip[1]:
            planes = planes.flip([axis for axis, flips in ((1, how.flip[0]), (2, how.flip[1])) if flips])
        return planes

    def _image(self, source: JpegSource, steps: list[Step], front: Front | None = None) -> Image.Image:
        front = front or fold(source, steps)
        if front is None:
            return by_pillow(replay(source), steps)
        how = front.cut
        refuse_large((how,))
        out = np.empty((how.window[2], how.window[3], 3), np.uint8)
        cut(self._decode(source, how.region), how, out)
        return by_engine(Image.fromarray(out), steps[front.num_steps :])

    # -- verification ---------------------------------------------------------------------------

    def _judge(self, signature: Hashable, source: JpegSource, steps: list[Step]) -> ChainVerdict:
        """Execute a chain both ways and record whether the results agree."""
        on_image = [step for step in steps if step.mode != "tensor"]
        front, line = fold(source, on_image), _described(source, steps)
        reason: str | None = "the engine does not begin with these operations"
        if front is not None:
            reason = self._difference(source, front, on_image, steps[len(on_image) :])
            if reason is not None:
                warnings.warn(
                    f"datapipe computes {line} with Pillow, without deferring it: {reason} when both ways were compared",
                    stacklevel=2,
                )
        self.verdicts[signature] = verdict = ChainVerdict(reason, line)
        return verdict

    def _difference(self, source: JpegSource, front: Front, on_image: list[Step], on_tensor: list[Step]) -> str | None:
        """Return how the results of the two ways differ; None if they agree."""
        begun, rest = on_image[: front.num_steps], on_image[front.num_steps :]
        exact, ours = replay(begun[-1] if begun else source), self._image(source, begun, front)
        reason = disagreement(ours, exact, resampled=front.resampled, colored=False)
        if reason is None and rest:
            ours, exact = by_engine(ours, rest), by_pillow(exact, rest)
            reason = disagreement(ours, exact, resampled=front.resampled, colored=True)
        if reason is not None or not on_tensor:
            return reason
        planes = planes_of(ours) if rest else self._planes(source, front)
        if not torch.equal(planes, planes_of(ours)):
            return "the engine's planes differ from its pixels"
        theirs, finished = as_tensor(ours, on_tensor), finish(planes, on_tensor)
        agree = torch.equal(theirs, finished) and theirs.stride() == finished.stride()
        return None if agree else "the conversion to a tensor differs"


# -- by Pillow and torchvision ----------------------------------------------------------------------


def replay_tensor(step: Step) -> torch.Tensor:
    """Return a recorded tensor by the original functions alone."""
    with recording(None):
        _, steps = chain_of(step)
        first = next(number for number, one in enumerate(steps) if one.mode == "tensor")
        return as_tensor(replay(steps[first].parent), steps[first:])


def _from_made(node: Node, made: Made) -> tuple[JpegSource, list[Step], Image.Image | None]:
    """Return the chain from its source, or from the last of its images that already has pixels."""
    steps: list[Step] = []
    while isinstance(node, Step) and id(node) not in made:
        steps.append(node)
        node = node.parent
    return chain_of(node)[0], steps[::-1], made.get(id(node))


def _described(source: JpegSource, steps: list[Step]) -> str:
    """Return the operations in one line, with the places of the user's calls if they are known."""
    parts, last = [f"JPEG ({source.mode})"], None
    for step in steps:
        what = step.name
        if step.name == "resize":
            what = f"resize ({Image.Resampling(step.args[1]).name.lower()})"
        elif step.name == "transpose":
            what = step.args[0].name.lower()
        elif step.name == "convert":
            what = f"convert({step.args[0]!r})"
        if step.site is not None and step.site != last:
            what, last = f"{what} at {step.site}", step.site
        parts.append(what)
    return " -> ".join(parts)


def _as_batch(pixels: Any) -> Any:
    height, width, _ = pixels.shape
    return np.ndarray((1, 3, height, width), np.uint8, pixels, 0, (3 * height * width, 1, 3 * width, 3))


# -- agreement ---------------------------------------------------------------------------------------


def disagreement(ours: Image.Image, exact: Image.Image, *, resampled: Interpolation | None, colored: bool) -> str | None:
    """Return how the images differ more than allowed; None if they agree.

    `resampled`: the interpolation of the engine's resize; None if it did not resize, which requires equal bits. `colored`:
    whether Pillow changed colours after that.
    """
    if ours.mode != exact.mode or ours.size != exact.size:
        return f"it gives a {ours.mode} image of {ours.size}, Pillow a {exact.mode} image of {exact.size}"
    difference = np.abs(np.asarray(ours).astype(np.int16) - np.asarray(exact))
    largest = int(difference.max(initial=0))
    if resampled is None and colored:
        return None if largest <= 1 else f"values differ by up to {largest} of 255 though nothing is resampled"
    if resampled is None:
        return None if largest == 0 else f"values differ by up to {largest} of 255 though nothing is resampled"
    if colored:
        share = float((difference > COLOR_TOLERANCE).mean())
        return None if share <= COLOR_SHARE else f"{share:.3%} of the values differ by more than {COLOR_TOLERANCE} of 255"
    share = float((difference > 1).mean())
    if largest <= TOLERANCE[resampled] and share <= max(SHARE, 2 / difference.size):
        return None
    return f"values differ by up to {largest} of 255, {share:.3%} of them by more than 1"
