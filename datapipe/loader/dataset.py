"""The samples behind a loader, one at a time: for looking, for torch's samplers, for evaluation scripts."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from datapipe.backends.images_cpu import checked_header
from datapipe.decode import Decoder, open_decoder
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.local import LocalFiles
from datapipe.index import SampleIndex
from datapipe.loader.policy import located


class Dataset:
    """A dataset as torch knows them: `len(d)`, `d[i]`, and what torchvision's folders have. Thread-safe.

    `d[i]` is the decoded, untransformed sample: a (3, h, w) uint8 tensor and its label (an int), or the
    tensor alone in a 1-tuple where samples have no label.
    """

    def __init__(self, index: SampleIndex) -> None:
        self.index = index
        self._files = LocalFiles()
        self._local = threading.local()
        self._targets: list[int] | None = None

    def __reduce__(self) -> tuple[type[Dataset], tuple[SampleIndex]]:
        return Dataset, (self.index,)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> tuple[Any, ...]:
        """Raises IndexError, DecodeError or IntegrityError."""
        number = operator.index(position)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of a dataset of {len(self)}")
        ids = self.index.ids(np.array([number % len(self)], np.int64))
        entries = self.index.look_up(ids, "image")
        try:
            data = self._files.read(entries.extents, 0)
            pixels = self._decoder()(data, checked_header(data)).copy()
        except (DecodeError, IntegrityError) as exc:
            raise located(exc, self.index, int(ids[0])) from exc
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        return (image, int(entries.labels[0])) if self.has_labels else (image,)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[position] for position in range(len(self)))

    @property
    def has_labels(self) -> bool:
        return any(field.name == "label" for field in self.index.manifest.fields)

    @property
    def classes(self) -> list[str]:
        """Class names by label. Raises AttributeError where the data names none."""
        names = self.index.manifest.classes
        if names is None:
            raise AttributeError(f"{self.index.data_directory}: the data does not name its classes")
        return list(names)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by class name. Raises AttributeError where the data names none."""
        labels = self.index.manifest.class_to_idx
        if labels is None:
            raise AttributeError(f"{self.index.data_directory}: the data does not name its classes")
        return dict(labels)

    @property
    def targets(self) -> list[int]:
        """The label of every sample, in order; read from the index once."""
        if self._targets is None:
            self._targets = self.index.labels().tolist()
        return self._targets

    def select(self, indices: Iterable[int]) -> Dataset:
        """The samples at these positions, in this order. They keep their ids, and so their random crops."""
        positions = np.fromiter((operator.index(position) for position in indices), np.int64)
        return Dataset(self.index.select(np.where(positions < 0, positions + len(self), positions)))

    def _decoder(self) -> Decoder:
        decoder: Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = open_decoder()
        return decoder
