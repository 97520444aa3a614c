"""Open samples, wherever they lie, and check the settings by which they are read: values, which loaders are made of."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.data

from datapipe.codecs.decode import Decode
from datapipe.containers.form import Form, errors_in_python
from datapipe.datasets import DatasetFiles, Original, see_through, webdataset_stream
from datapipe.errors import OptionError
from datapipe.index.concat import AnyIndex
from datapipe.index.stored_order import StoredOrder, stored_order
from datapipe.kernel.cache_settings import Cache
from datapipe.kernel.mixing import Mixture
from datapipe.kernel.options import one_of
from datapipe.kinds.images.collate import BoxesForm
from datapipe.kinds.images.fields import BatchFields
from datapipe.opening.samples import open_index
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote
from datapipe.transforms import Recipe
from datapipe.transforms.buckets import Buckets

AnySource = str | os.PathLike[str] | torch.utils.data.Dataset[Any] | AnyIndex


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """The settings of `Images`, which documents each: fields and their form, and how they are read and kept."""

    fields: tuple[str, ...] | None = None
    boxes: BoxesForm = "list"
    memory_format: torch.memory_format = torch.channels_last
    cache: Cache | None = None
    decode: Decode = "exact"
    buckets: Buckets | None = None
    remote: Remote = field(default_factory=Remote)

    def __post_init__(self) -> None:
        one_of(BoxesForm, self.boxes, "boxes")
        one_of(Decode, self.decode, "decode")
        if self.buckets is not None and not isinstance(self.buckets, Buckets):
            raise OptionError(f"buckets is {self.buckets!r:.60}; pass datapipe.Buckets(area=1024**2), or None")
        if self.memory_format not in (torch.channels_last, torch.contiguous_format):
            raise OptionError(f"memory_format is {self.memory_format!r}; choose torch.channels_last or torch.contiguous_format")


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples behind `Images`: where they lie, how often they come, and what came with them."""

    index: AnyIndex
    mixture: Mixture | None = None
    original: Original | None = None  # the torch Dataset that they were made of
    recipe: Recipe | None = None  # its transforms
    fields: tuple[str, ...] | None = None  # those that it gives, if it is a webdataset pipeline

    def check_unchanged(self) -> None:
        """Raise LifecycleError if a torch Dataset that they were made of has changed since."""
        if self.original is not None:
            self.original.check_unchanged()

    @classmethod
    def open(cls, source: AnySource, remote: Remote, form: Form | str | None = None) -> Samples:
        """Open a source. Raises what `open_index` raises, and OptionError for an object whose files cannot be seen."""
        if isinstance(source, (str, os.PathLike)):
            if isinstance(source, str) and is_url(source):
                apply_settings(remote)  # for the opening too
            with errors_in_python():
                index = open_index(source, Form.of(form))
            if index.manifest.tokens is not None:
                what, reader = "token ids", f"Tokens({str(source)!r}, length=4096)"
                if index.manifest.tokens.image is not None:
                    what, reader = "conversations with images", f"Conversations({str(source)!r}, length=8192, processor=...)"
                raise OptionError(f"{index.where}: holds {what}; read them with datapipe.{reader}")
            return cls(index)
        if form is not None:
            raise OptionError(f"form={form!r:.60} says how a path is read, and source is {source!r:.60}; leave it out")
        if isinstance(source, AnyIndex):
            return cls(source)
        stream = webdataset_stream(source)
        if isinstance(stream, DatasetFiles):
            return cls(stream.index, recipe=_recipe_of(stream.transform), fields=stream.fields)
        seen = stream if stream is not None else see_through(source)
        if isinstance(seen, DatasetFiles):
            return cls(seen.index, original=Original.of(source), recipe=_recipe_of(seen.transform))
        if not is_dataset(source):
            raise OptionError(f"source is {source!r:.80}; pass a path, or a torch Dataset whose files can be seen")
        raise OptionError(
            f"dataset: {seen}; pass the path of a converted dataset, of WebDataset shards or of an image folder, or "
            "for a Dataset of your own datapipe.from_torch(torch.utils.data.DataLoader(dataset, ...))"
        )


@dataclass(frozen=True, eq=False)
class BatchSamples:
    """Samples, and what the batches of a loader have of them. Thread-safe."""

    samples: Samples
    settings: ImageSettings
    fields: BatchFields

    def __len__(self) -> int:
        return len(self.samples.index)

    @property
    def index(self) -> AnyIndex:
        return self.samples.index

    @property
    def mixture(self) -> Mixture | None:
        """How often the samples of each part come in an epoch, if this is a mixture."""
        return self.samples.mixture

    @functools.cached_property
    def stored_order(self) -> StoredOrder:
        """The shards and their rows, by which a shuffle in windows goes. Raises OptionError where there is no such order."""
        if self.mixture is not None:
            raise OptionError("shuffle='windows' of what mix() or repeat() made: its datasets are shuffled in full; pass True")
        found = stored_order(self.index, [spec.name for spec in self.fields.stored])
        if found is None:
            raise OptionError(f"{self.index.where}: shuffle='windows' goes by shards, and these are single files; pass True")
        return found


def is_dataset(source: object) -> bool:
    """Return whether this is one of torch's or of Hugging Face's."""
    return isinstance(source, torch.utils.data.Dataset) or type(source).__module__.startswith("datasets.")


def _recipe_of(transform: object) -> Recipe | None:
    return None if transform is None else Recipe.of(transform, input_kind="pil")
