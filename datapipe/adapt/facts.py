"""The facts of a torch DataLoader, computed once, and the settings of `from_torch`: a strategy is chosen from these values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from datapipe.adapt.loaders import (
    TorchDataLoader,
    has_collate_fn,
    inside_of_stages,
    is_plain_shuffle,
    sampler_of,
    unwrap_torch_loader,
)
from datapipe.datasets import DatasetFiles, see_through, webdataset_stream
from datapipe.deferral.dataset import is_switched_off
from datapipe.errors import OptionError
from datapipe.kernel.drawing import may_draw
from datapipe.kernel.options import OnError
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.seeding import SeedSource
from datapipe.kinds.images.choice import Backend
from datapipe.remote_workers.settings import Workers
from datapipe.transforms import Recipe

_STAGES = "its WebLoader has stages or epochs of its own, which run after its batches; in the dataset they could be seen"
_DEFAULTS = {"data": None, "backend": "auto", "on_error": "raise"}


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The facts of a torch loader, and those that datapipe sees in its Dataset."""

    given: Any  # what was passed: torch's loader, or one of another library around it
    loader: TorchDataLoader  # torch's loader in it
    has_stages: bool  # whether batches go through stages of `given`
    is_stream: bool  # whether its workers are not asked for the samples of batches by their keys
    is_pipeline: bool  # whether its Dataset is a webdataset pipeline
    is_shuffle: bool  # whether each sample comes once, in random order
    collates: bool  # whether a function of the user's collates batches
    draws: str | None  # what of that function may draw random numbers, where the files are seen; None: nothing does
    files: DatasetFiles | str  # that its Dataset reads, or why datapipe cannot read them in its place
    recipe: Recipe | None  # what becomes of an image of these files

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def name(self) -> str:
        """The name of the Dataset's class."""
        return type(self.dataset).__qualname__

    def origin(self, *parts: str) -> str:
        """Return what was taken over, and how: `parts`, and what became of the order."""
        told = list(parts)
        if not isinstance(self.dataset, IterableDataset):
            replaced = ", replaced by a shuffle that resumes exactly" if self.is_shuffle else ""
            told.append(f"{type(sampler_of(self.loader)).__qualname__}{replaced}")
        if not getattr(self.loader, "in_order", True):
            told.append("in_order=False is left out: batches come in order")
        return f"{self.name}: {'; '.join(told)}"


def facts_of(given: Any) -> LoaderFacts:
    """Return the facts of a loader. No sample is read.

    Raises OptionError, with the remedy, for what is no loader of torch's, and for a subclass that itself decides its batches.
    """
    inner = inside_of_stages(given)
    loader = unwrap_torch_loader(given) if inner is None else inner
    is_of_webdataset = inner is None and type(loader.dataset).__module__.startswith("webdataset.")
    stream = webdataset_stream(loader.dataset) if is_of_webdataset else None
    files = _STAGES if inner is not None else _files_of(loader) if stream is None else stream
    is_seen, collates = isinstance(files, DatasetFiles), has_collate_fn(loader)
    return LoaderFacts(
        given=given,
        loader=loader,
        has_stages=inner is not None,
        is_stream=inner is not None or isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None,
        is_pipeline=stream is not None,
        is_shuffle=is_plain_shuffle(loader),
        collates=collates,
        draws=may_draw(loader.collate_fn) if is_seen and collates else None,
        files=files,
        recipe=Recipe.of(files.transform, input_kind="pil") if isinstance(files, DatasetFiles) else None,
    )


def _files_of(loader: TorchDataLoader) -> DatasetFiles | str:
    """Return the files of a Dataset that is asked for samples by their keys, or why datapipe cannot read them in its place."""
    if isinstance(loader.dataset, IterableDataset):
        return "it is an IterableDataset, which has no place that could be saved"
    if loader.batch_sampler is None:
        return "batch_size=None asks for single samples"
    files = see_through(loader.dataset)
    if isinstance(files, DatasetFiles) and not files.gives_tuples:
        return "its samples are dicts of PIL images, meant for its collate_fn"
    return files


@dataclass(frozen=True, slots=True)
class TakeoverSettings:
    """The arguments of a call of `from_torch`, without the loader."""

    device: str | torch.device
    backend: Backend
    seed: SeedSource  # what was given, or the loader's generator
    on_error: OnError
    shares: bool
    data: Any
    is_faithful: bool
    workers: Workers | None = None

    @property
    def reseeds(self) -> bool:
        """Whether random numbers are seeded for each sample."""
        return not self.is_faithful

    @property
    def defers(self) -> bool:
        """Whether images that a dataset's own code opens by Pillow are made at the end of a fetch."""
        return not self.is_faithful and not is_switched_off()

    @property
    def place(self) -> torch.device:
        """The device on which batches are to come."""
        return resolve_device(self.device)()

    def differs(self, *names: str) -> list[str]:
        """Return those of these arguments that are not at their defaults; without names: of all that not every loader has."""
        return [name for name in names or _DEFAULTS if getattr(self, name) != _DEFAULTS[name]]

    def refuse(self, why: str, *names: str) -> None:
        """Raise OptionError for the first of these arguments that is not its default. `why`: torch's workers make the samples."""
        for name in self.differs(*names):
            raise OptionError(
                f"{name}={getattr(self, name)!r}: torch's workers make the samples ({why}); "
                "leave it out, or use transforms and datasets that datapipe can see through"
            )
