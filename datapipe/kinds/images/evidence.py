"""Look at some samples of a dataset: whether images have one size, which of them DALI decodes, and how fast backends are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.codecs.decode import checked_header
from datapipe.codecs.probe import ImageHeader
from datapipe.core.ranges import spread
from datapipe.errors import DatapipeError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex
from datapipe.kernel.calibration import power_of_two, rates_of
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.processes import await_launcher, wanted
from datapipe.kinds.images.dali.gate import can_decode
from datapipe.kinds.images.dali.installation import release_memory
from datapipe.kinds.images.dali.region_trial import DISTRIBUTIONS
from datapipe.kinds.images.dali.settings import Dali
from datapipe.kinds.images.fields import IMAGE
from datapipe.kinds.images.process_workers import IMPORTS
from datapipe.kinds.images.samples import BatchSamples
from datapipe.transforms import Recipe
from datapipe.transforms.recipe import Size

CANDIDATES: tuple[Dali | None, ...] = (
    None,
    Dali(),
    Dali(num_pipelines=3),
    Dali(hybrid_huffman_threshold=0),
    Dali(hybrid_huffman_threshold=0, num_pipelines=3),
    Dali(hw_decoder_load=0.65),
)
_LOOKED_AT, _LOOKED_AT_FOR_SIZES = 64, 16  # samples, spread over the dataset

_PACKAGES = ("gpu-datapipe", "torch", *DISTRIBUTIONS)


@dataclass(frozen=True, slots=True)
class Measured:
    """The rate of a backend on this machine with this data."""

    dali: Dali | None  # None: images_cpu
    images_per_s: float


@dataclass(frozen=True, slots=True)
class DataEvidence:
    """Facts about the data of a loader, found out only if a choice needs them.

    `open_measured`: opens a loader of the same images and labels, by its options.
    """

    samples: BatchSamples
    files: Files
    recipe: Recipe
    arguments: Mapping[str, Any]
    options: LoaderOptions
    device: torch.device
    open_measured: Callable[..., Iterable[Any]]

    def share_for_dali(self) -> float:
        """Return the share of some samples that DALI decodes: 0 to 1."""
        found = [can_decode(data, header) for _, data, header in _some_samples(self.samples.index, self.files, _LOOKED_AT)]
        return sum(found) / max(1, len(found))

    def rates(self) -> list[Measured]:
        """Return the rates of the backends here, at least one of them DALI's."""
        if not len(self.samples):
            return [Measured(Dali(), 0.0)]  # nothing to measure with, and nothing to load
        looked_at = _some_samples(self.samples.index, self.files, _LOOKED_AT)
        sizes = [(len(data), header.height * header.width) for _, data, header in looked_at]
        nbytes, pixels = np.median(np.array(sizes or [(1, 1)]), axis=0)
        rates = rates_of(
            CANDIDATES,
            self._open_loader,
            device=self.device,
            packages=_PACKAGES,
            circumstances={
                "num_workers": self.options.num_workers,
                "processes": wanted(self.options.num_workers),
                "batch_size": self.options.batch_size,
                "transform": repr(self.recipe),
                "sample_nbytes": power_of_two(nbytes),
                "sample_pixels": power_of_two(pixels),
            },
            release=release_memory,
        )
        return list(map(Measured, CANDIDATES, rates))

    def _open_loader(self, candidate: Dali | None) -> Iterable[Any]:
        if candidate is None:
            await_launcher(IMPORTS, self.options.num_workers)
        return self.open_measured(
            batch_size=min(self.options.batch_size, len(self.samples)),
            shuffle=True,
            num_workers=self.arguments["num_workers"],
            prefetch_factor=self.arguments["prefetch_factor"],
            transform=self.recipe,
            backend="images_cpu" if candidate is None else candidate,
            device=self.device,
            on_error="skip",
            seed=0,
            ranks=(0, 1),
        )


def check_sizes(recipe: Recipe, stored_size: Size | None, *, index: AnyIndex, files: Files) -> None:
    """Raise OptionError if batches could not be made because images would differ in size.

    `stored_size`: that of all images, if the dataset knows it. Otherwise the headers of some are read, unless the recipe makes
    all images equal: if these leave the recipe in one size, the others are assumed to do so too; collation raises if not.
    """
    if recipe.output_size(stored_size) is not None:
        return
    left = {
        recipe.output_size((header.height, header.width)): f"{index.describe(sample)} is {header.height} x {header.width}"
        for sample, _, header in _some_samples(index, files, _LOOKED_AT_FOR_SIZES)
    }
    if len(left) != 1:
        recipe.check_equal_sizes(None, such_as=" and ".join(list(left.values())[:2]))


def _some_samples(index: AnyIndex, files: Files, num: int) -> Iterator[tuple[int, bytes, ImageHeader]]:
    """Yield the id, the bytes and the header of some samples; bad ones are left to the policy, when they are loaded."""
    if not len(index):
        return
    ids = index.ids(np.array(spread(len(index), num), np.int64))
    entries = index.look_up(ids, IMAGE)
    on_their_way = files.will_need(entries.extents)
    for row, sample in enumerate(ids.tolist()):
        try:
            data = files.read(entries.extents, row)
            yield sample, data, checked_header(data)
        except DatapipeError:
            continue
    del on_their_way
