"""Make images that derive from one JPEG together: it is decoded once, and what several derive from is computed once.

What a node's pixels are does not depend on what else is made: sharing changes the time they take, never a bit of them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs import decode
from datapipe.deferral import execution
from datapipe.deferral.execution import as_batch, by_engine, by_pillow, planes_of
from datapipe.deferral.graph import Front, JpegSource, Node, Step, chain_of, fold
from datapipe.deferral.pillow_seams import replay
from datapipe.deferral.preparing import counted_once
from datapipe.deferral.rules import reason_against_decoding, reason_against_whole
from datapipe.transforms.execute import RESIZES, cut, refuse_large


class Decoding:
    """A decoder for one thread, opened at its first use. Each call overwrites what the one before returned."""

    def __init__(self) -> None:
        self.latest: NDArray[np.uint8] | None = None  # what the latest call returned
        self._decoder: decode.Decoder | None = None

    def __call__(self, source: JpegSource, region: list[int]) -> NDArray[np.uint8]:
        """Return (h, w, 3) of a region. Raises DecodeError."""
        if self._decoder is None:
            self._decoder = counted_once(decode.open_decoder)()
        self.latest = None  # its memory is written to, also by a call that fails
        self.latest = self._decoder(source.data, source.header, region)
        return self.latest


def whole_pixels(source: JpegSource) -> NDArray[np.uint8] | None:
    """Return (h, w, 3) RGB bit for bit as Pillow decodes it, in memory of its own; None where only Pillow does."""
    return _decoded(source, "RGB")


def whole_image(source: JpegSource) -> Image.Image:
    """Return the image as Pillow decodes it, in less time where that is known to give the same. Raises what Pillow raises."""
    pixels = _decoded(source, "RGBX") if source.mode == "RGB" else None
    return replay(source) if pixels is None else execution.image_over(pixels)


def _decoded(source: JpegSource, layout: str) -> NDArray[np.uint8] | None:
    """All pixels in a layout of simplejpeg's; None where only Pillow decodes them, or says what is damaged."""
    if reason_against_whole(source.kind) is not None:
        return None
    try:
        return simplejpeg.decode_jpeg(source.data, layout)  # type: ignore[no-any-return]
    except ValueError:
        return None


class Way(NamedTuple):
    """How chains are computed: what one cut replaces, and what carries out the rest."""

    fold: Callable[[JpegSource, Sequence[Step]], Front | None]
    apply: Callable[[Image.Image, list[Step]], Image.Image]


FAST = Way(fold, by_engine)  # resizes within their tolerance
EXACT = Way(functools.partial(fold, resizes=False), by_pillow)  # bit for bit as Pillow, which resizes
PILLOW = Way(lambda source, steps: None, by_pillow)  # which decodes too


class Family:
    """The images of one source in one way. For one thread."""

    def __init__(self, source: JpegSource, way: Way, decoding: Decoding, uses: Uses) -> None:
        self.source, self.way, self._decode, self._uses = source, way, decoding, uses
        self._kept: dict[int, tuple[Node, Image.Image]] = {}  # by id of the node, which is kept too so that no other gets its id
        self._region: list[int] = []
        self._pixels: NDArray[np.uint8] | None = None  # of the region

    def image(self, node: Node) -> Image.Image:
        """Return the pixels of a node, which others may share. Raises DecodeError and what Pillow raises."""
        if self._uses.keeps(node):
            return self._used(node)
        return self._made(node)

    def own_image(self, node: Node) -> Image.Image:
        """Return the pixels of a node, which nothing else shares, so that they may be changed. Raises as `image`."""
        return self._used(node).copy() if self._uses.keeps(node) else self._made(node)

    def array(self, node: Node) -> NDArray[np.uint8] | None:
        """Return (h, w, 3) of a node that is one cut, which nothing else shares; None for another. Raises DecodeError."""
        if self._uses.keeps(node) or nearest_kept(node, self._uses)[0] is not None:
            return None
        source, steps = chain_of(node)
        front = self.way.fold(source, steps)
        if front is None or front.num_steps < len(steps) or front.resampled is not None:
            return None
        how = front.cut
        if self._pixels is None and self._uses.is_only_look(how.region):
            pixels = whole_pixels(source)
            if pixels is None:
                return None
            top, left, height, width = how.region
            pixels = pixels[top : top + height, left : left + width]
        else:
            if reason_against_decoding(source.kind) is not None:
                return None
            refuse_large((how,))
            pixels = self._region_of(front).copy()
        if how.flip[0] or how.flip[1]:
            pixels = pixels[:: -1 if how.flip[0] else 1, :: -1 if how.flip[1] else 1]
        return np.ascontiguousarray(pixels)

    def planes(self, node: Node, scratch: Scratch) -> torch.Tensor:
        """Return (c, h, w) uint8, perhaps in memory that the next call overwrites. Raises as `image`."""
        if not self._uses.keeps(node) and nearest_kept(node, self._uses)[0] is None:
            source, steps = chain_of(node)
            front = self.way.fold(source, steps)
            if front is not None and front.num_steps == len(steps):
                return _planes(self._region_of(front), front, scratch)
        return planes_of(self.image(node))

    def _used(self, node: Node) -> Image.Image:
        there = self._kept.get(id(node))
        if there is None:
            there = self._kept[id(node)] = (node, self._made(node))
        if self._uses.is_last(node):
            del self._kept[id(node)]
        return there[1]

    def _made(self, node: Node) -> Image.Image:
        base, steps = nearest_kept(node, self._uses)
        if base is not None:
            return self.way.apply(self._used(base), steps)
        front = self.way.fold(self.source, steps)
        if front is None:
            return self.way.apply(whole_image(self.source), steps)
        how = front.cut
        is_only_look = self._pixels is None and self._uses.is_only_look(how.region)
        if is_only_look or reason_against_decoding(self.source.kind) is not None:
            return self.way.apply(whole_image(self.source), steps)
        refuse_large((how,))
        out = np.empty((how.window[2], how.window[3], 3), np.uint8)
        cut(self._region_of(front), how, out)
        return self.way.apply(Image.fromarray(out), steps[front.num_steps :])

    def _region_of(self, front: Front) -> NDArray[np.uint8]:
        top, left, height, width = front.cut.region
        region = self._uses.region(front.cut.region)
        if self._pixels is None or self._pixels is not self._decode.latest or not _covers(self._region, front.cut.region):
            self._region = region
            self._pixels = self._decode(self.source, self._region)
        y, x = top - self._region[0], left - self._region[1]
        return self._pixels[y : y + height, x : x + width]


def nearest_kept(node: Node, uses: Uses) -> tuple[Node | None, list[Step]]:
    """Return the nearest node before this one that is kept, and the steps from it; None: those from the source."""
    steps: list[Step] = []
    while isinstance(node, Step):
        steps.append(node)
        node = node.parent
        if uses.keeps(node):
            return node, steps[::-1]
    return None, steps[::-1]


def _is_worth_keeping(node: Node, way: Way) -> bool:
    """Return whether to make a node again costs more than to cut it out of the decoded pixels."""
    if way is PILLOW:
        return True
    source, steps = chain_of(node)
    front = way.fold(source, steps)
    return front is not None and (front.num_steps < len(steps) or front.resampled is not None)


def _covers(outer: list[int], inner: list[int]) -> bool:
    return (
        outer[0] <= inner[0]
        and outer[1] <= inner[1]
        and outer[0] + outer[2] >= inner[0] + inner[2]
        and outer[1] + outer[3] >= inner[1] + inner[3]
    )


# -- uses: which pixels of a family to keep, and for how long ---------------------------------------------


class KnownUses:
    """The uses of nodes of which all that will be made is known, each of them once: nothing is kept after its last use."""

    def __init__(self, wanted: Iterable[Node], way: Way) -> None:
        users: dict[int, set[int]] = {}
        nodes: dict[int, Node] = {}
        wanted = list(wanted)
        for number, node in enumerate(wanted):
            users.setdefault(id(node), set()).add(-number - 1)
            nodes[id(node)] = node
            while isinstance(node, Step):
                users.setdefault(id(node.parent), set()).add(id(node))
                node = node.parent
                nodes[id(node)] = node
        self._kept = {key for key, by in users.items() if len(by) > 1 and _is_worth_keeping(nodes[key], way)}
        made = [*{id(node): node for node in wanted if id(node) not in self._kept}.values(), *(nodes[key] for key in self._kept)]
        self._left = Counter(id(node) for node in wanted if id(node) in self._kept)
        regions = []
        for node in made:
            base, steps = nearest_kept(node, self)
            if base is not None:
                self._left[id(base)] += 1
                continue
            front = way.fold(chain_of(node)[0], steps)
            if front is not None:
                regions.append(front.cut.region)
        self._region = _union(regions)

    def keeps(self, node: Node) -> bool:
        """Return whether the pixels of a node are kept once they are made."""
        return id(node) in self._kept

    def is_last(self, node: Node) -> bool:
        """Count a use of a node that is kept, and return whether it was the last."""
        self._left[id(node)] -= 1
        return self._left[id(node)] == 0

    def region(self, asked: list[int]) -> list[int]:
        """Count a look at a region, and return the one to decode and keep if its pixels are not there yet."""
        return self._region

    def is_only_look(self, asked: list[int]) -> bool:
        """Return whether most of the image is asked for, as far as is known for the only time: Pillow's images cost less then."""
        return False


class OpenUses:
    """The uses of nodes while more of them may come: what the user's code can still derive from is kept.

    `whole`: whether to decode all of the image at once.
    """

    def __init__(self, source: JpegSource, way: Way, *, whole: bool) -> None:
        self._source, self._way = source, way
        self._whole = whole
        self._needed: set[int] = set()
        self._kept: dict[int, Node] = {}
        self.num_looks = 0

    def ask(self, needed: set[int]) -> None:
        """Note what may be derived from after the image that is made next: ids of nodes."""
        self._needed = needed

    def keeps(self, node: Node) -> bool:
        """See `KnownUses`."""
        if id(node) in self._kept:
            return True
        if id(node) not in self._needed or not _is_worth_keeping(node, self._way):
            return False
        self._kept[id(node)] = node
        return True

    def is_last(self, node: Node) -> bool:
        """See `KnownUses`."""
        return False

    def region(self, asked: list[int]) -> list[int]:
        """See `KnownUses`."""
        self.num_looks += 1
        width, height = self._source.size
        return [0, 0, height, width] if self._whole or self.num_looks > 1 else asked

    def is_only_look(self, asked: list[int]) -> bool:
        """See `KnownUses`."""
        width, height = self._source.size
        if self._way is not EXACT or self._whole or self.num_looks or 2 * asked[2] * asked[3] < width * height:
            return False
        self.num_looks += 1
        return True


Uses: TypeAlias = KnownUses | OpenUses


def _union(regions: Sequence[list[int]]) -> list[int]:
    if len(regions) == 1:
        return regions[0]
    if not regions:
        return []
    top, left = (min(region[axis] for region in regions) for axis in (0, 1))
    bottom, right = (max(region[axis] + region[axis + 2] for region in regions) for axis in (0, 1))
    return [top, left, bottom - top, right - left]


# -- planes ----------------------------------------------------------------------------------------------


class Scratch:
    """Memory for the planes of one resized image."""

    def __init__(self) -> None:
        self._latest: torch.Tensor | None = None

    def lend(self, height: int, width: int) -> torch.Tensor:
        """Return (1, 3, height, width) uint8 in channels_last memory, which earlier calls may have returned too.

        torch's resize needs half of the time for it: it would unpack planes in the end.
        """
        if self._latest is None or self._latest.shape[2:] != (height, width):
            self._latest = torch.empty((1, height, width, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        return self._latest


def _planes(pixels: Any, front: Front, scratch: Scratch) -> torch.Tensor:
    """Return (3, h, w) uint8 of a chain that is one cut, of the (h, w, 3) pixels of its region."""
    how = front.cut
    refuse_large((how,))
    if front.resampled is None:
        planes = planes_of(pixels)
    else:
        resized = scratch.lend(*how.size)
        pixels = pixels if pixels.flags.carray else np.ascontiguousarray(pixels)
        RESIZES[front.resampled](torch.from_numpy(as_batch(pixels)), how.size, False, None, None, out=resized)
        planes = resized[0]
    top, left, height, width = how.window
    if planes.shape[1:] != (height, width):
        planes = planes[:, top : top + height, left : left + width]
    if how.flip[0] or how.flip[1]:
        planes = planes.flip([axis for axis, flips in ((1, how.flip[0]), (2, how.flip[1])) if flips])
    return planes
