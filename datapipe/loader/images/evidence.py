"""Collect the facts for the choice of a backend: which samples DALI decodes, and how fast backends are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.backends.images_dali.gate import can_decode
from datapipe.backends.images_dali.settings import Dali
from datapipe.codecs.probe import checked_header
from datapipe.core.environment import version_of
from datapipe.core.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex
from datapipe.loader.calibration import CANDIDATES, Calibration
from datapipe.loader.images.batch_fields import IMAGE, LABEL
from datapipe.loader.images.choice import Measured
from datapipe.loader.options import LoaderOptions

_LOOKED_AT = 64  # number of samples, spread over the dataset

# Arguments of a loader that say how an image is processed; the others do not affect the measurement.
_MEASURED_ARGUMENTS = ("transform", "num_workers", "prefetch_factor", "memory_format")


@dataclass(frozen=True)
class DataEvidence:
    """`choice.Evidence` about the data of a loader. `open_loader`: makes a loader from such arguments."""

    index: AnyIndex
    files: Files
    arguments: Mapping[str, Any]
    options: LoaderOptions
    device: torch.device
    open_loader: Callable[..., Iterable[Any]]

    def share_for_dali(self) -> float:
        headers = list(self._samples())
        return sum(can_decode(data, header) for data, header in headers) / max(1, len(headers))

    def rates(self) -> list[Measured]:
        if not len(self.index):
            return [Measured(Dali(), 0.0)]  # nothing to measure with, and nothing to load
        return Calibration(self._open_batches, self._circumstances()).rates(CANDIDATES)

    def _samples(self) -> Iterator[tuple[bytes, Any]]:
        num = min(_LOOKED_AT, len(self.index))
        positions = np.linspace(0, len(self.index) - 1, num, dtype=np.int64)
        entries = self.index.look_up(self.index.ids(positions), "image")
        on_their_way = self.files.will_need(entries.extents)
        for row in range(len(entries)):
            try:
                data = self.files.read(entries.extents, row)
                yield data, checked_header(data)
            except (DecodeError, IntegrityError):
                continue
        del on_their_way

    def _open_batches(self, candidate: Dali | None) -> Iterator[Any]:
        names = [spec.name for spec in self.index.manifest.fields]
        loader = self.open_loader(
            self.arguments["dataset"],
            batch_size=min(self.options.batch_size, len(self.index)),
            shuffle=True,
            backend="images_cpu" if candidate is None else candidate,
            device=self.device,
            fields=[name for name in (IMAGE, LABEL) if name in names],
            on_error="skip",
            seed=0,
            rank=0,
            world_size=1,
            **{name: self.arguments[name] for name in _MEASURED_ARGUMENTS},
        )
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def _circumstances(self) -> dict[str, Any]:
        sizes = [(len(data), header.height * header.width) for data, header in self._samples()]
        nbytes, pixels = np.median(np.array(sizes or [(1, 1)]), axis=0)
        return {
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "num_workers": self.options.num_workers,
            "batch_size": self.options.batch_size,
            "transform": repr(self.arguments["transform"]),
            # rounded to a power of two, so that another part of the same data gives the same key
            "sample_nbytes": 2 ** round(float(np.log2(nbytes))),
            "sample_pixels": 2 ** round(float(np.log2(pixels))),
            "versions": {name: version_of(name) for name in _DISTRIBUTIONS},
        }


_DISTRIBUTIONS = ("gpu-datapipe", "torch", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvjpeg", "nvidia-nvjpeg-cu12")
