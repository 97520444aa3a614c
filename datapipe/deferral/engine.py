"""Execute recorded chains: datapipe's engine decodes regions and resizes, the original functions do the rest.

Which chains it may execute `rules` decide; Pillow computes the others. One engine belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.deferral import execution
from datapipe.deferral.families import EXACT, FAST, PILLOW, Decoding, Family, KnownUses, OpenUses, Scratch, Way
from datapipe.deferral.graph import JpegSource, Node, Step, chain_of, image_and_conversion, signature_of
from datapipe.deferral.recorder import recording
from datapipe.deferral.reports import OperationCount
from datapipe.deferral.rules import AMPLIFIED, NOT_BEGUN, RARE, reason_against, reason_against_whole
from datapipe.errors import DecodeError

UNDECODABLE = (DecodeError, OSError, SyntaxError, ValueError)  # what executing a chain raises for bytes that are bad


class Wanted(NamedTuple):
    """A node that is to be made when the fetch ends."""

    node: Node
    sample: int
    give: Callable[[Any], None]  # takes the image, or the tensor
    out: torch.Tensor | None = None  # contiguous memory for a tensor of that shape and dtype


@dataclass(slots=True)
class Engine:
    """Executes chains for one thread."""

    # the samples of chains executed, by signature and reason
    counts: dict[tuple[Hashable, str | None], list[int]] = field(default_factory=dict)
    sent: dict[Hashable, list[int]] = field(default_factory=dict)  # the samples of chains left to DALI, by signature
    made_here: dict[Hashable, str] = field(default_factory=dict)  # why chains were executed here instead, by signature
    _lines: dict[Hashable, str] = field(default_factory=dict)  # the operations as `explain` shows them, by signature
    # of this sample, by ids of source and way
    _open: dict[tuple[int, int], tuple[Family, OpenUses]] = field(default_factory=dict)
    _decodes_whole: bool = False  # at the first look at an image, as samples look at theirs more than once
    _decoding: Decoding = field(default_factory=Decoding)
    _scratch: Scratch = field(default_factory=Scratch)

    def reason_on(self, source: JpegSource, steps: list[Step]) -> str | None:
        """Return why Pillow computes a chain; None: the engine does."""
        signature = signature_of(source, steps)
        with recording(None):
            reason = reason_against(source, steps)
        if signature not in self._lines:
            self._lines[signature] = _described(source, steps)
        return reason

    # -- when the fetch ends --------------------------------------------------------------------

    def make(self, wanted: Iterable[Wanted]) -> set[int]:
        """Make images and tensors, those of one source together, and give them. Returns the samples whose bytes do not decode."""
        families: dict[tuple[int, int], tuple[JpegSource, Way, list[Wanted]]] = {}
        for one in wanted:
            source, steps = chain_of(one.node)
            way = self._way(source, steps, one.sample)
            families.setdefault((id(source), id(way)), (source, way, []))[2].append(one)
        bad: set[int] = set()
        with recording(None):
            while families:  # what was made can be freed once it is given
                self._make(*families.pop(next(iter(families))), bad)
        return bad

    def _make(self, source: JpegSource, way: Way, members: list[Wanted], bad: set[int]) -> None:
        family = Family(source, way, self._decoding, KnownUses([image_and_conversion(one.node)[0] for one in members], way))
        for one in members:
            if one.sample in bad:
                continue
            try:
                is_tensor = isinstance(one.node, Step) and one.node.mode == "tensor"
                one.give(self._tensor(family, one.node, one.out) if is_tensor else family.image(one.node))
            except UNDECODABLE:
                bad.add(one.sample)

    # -- while a sample is made -----------------------------------------------------------------

    def image_now(self, node: Node, needed: set[int]) -> Image.Image:
        """Return an image bit for bit as Pillow computes it. Raises what Pillow raises, or DecodeError.

        `needed`: the ids of nodes from which more may be derived.
        """
        with recording(None):
            source = chain_of(node)[0]
            return self._open_family(source, EXACT, needed).own_image(node)

    def array_now(self, node: Node, needed: set[int]) -> NDArray[np.uint8] | None:
        """Return (h, w, 3) of an image that is only cut out of its JPEG, as `image_now`; None for another."""
        with recording(None):
            source = chain_of(node)[0]
            return None if reason_against_whole(source.kind) else self._open_family(source, EXACT, needed).array(node)

    def tensor_now(self, step: Step, needed: set[int], sample: int) -> torch.Tensor:
        """Return a tensor with the values that it would have if it were made when the fetch ends. Raises as `image_now`."""
        with recording(None):
            source, steps = chain_of(step)
            return self._tensor(self._open_family(source, self._way(source, steps, sample), needed), step, None)

    def end_sample(self) -> None:
        """Forget what was made during a sample."""
        if self._open:
            self._decodes_whole = any(uses.num_looks > 1 for _, uses in self._open.values())
            self._open.clear()

    def _open_family(self, source: JpegSource, way: Way, needed: set[int]) -> Family:
        key = id(source), id(way)
        if key not in self._open:
            uses = OpenUses(source, way, whole=self._decodes_whole)
            self._open[key] = Family(source, way, self._decoding, uses), uses
        family, uses = self._open[key]
        uses.ask(needed)
        return family

    # -- both -----------------------------------------------------------------------------------

    def _way(self, source: JpegSource, steps: list[Step], sample: int) -> Way:
        reason = self.reason_on(source, steps)
        self.counts.setdefault((signature_of(source, steps), reason), []).append(sample)
        return FAST if reason is None else PILLOW

    def _tensor(self, family: Family, step: Node, out: torch.Tensor | None) -> torch.Tensor:
        image, conversion = image_and_conversion(step)
        if family.way is PILLOW:
            values = execution.as_tensor(family.image(image), conversion)
        else:
            values = execution.finish(family.planes(image, self._scratch), conversion, out)
        return values if out is None or values is out else out.copy_(values)

    def taken_counts(self) -> list[OperationCount]:
        """Return how many chains there were of each kind since the last call, those left to DALI apart."""
        counts, sent, self.counts, self.sent = self.counts, self.sent, {}, {}
        found = []
        for (signature, reason), samples in counts.items():
            why = self.made_here.get(signature)
            apart = "" if why is None or reason is not None else f", not by DALI: {why}"
            has_failed = reason not in (None, AMPLIFIED, NOT_BEGUN, RARE)
            what, num_samples = f"{self._lines[signature]}{apart}", len(set(samples))
            found.append(OperationCount(what, reason, len(samples), num_samples, has_failed=has_failed))
        for signature, samples in sent.items():
            found.append(OperationCount(f"{self._lines[signature]}, by DALI", None, len(samples), len(set(samples))))
        return found


def _described(source: JpegSource, steps: Sequence[Step]) -> str:
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
