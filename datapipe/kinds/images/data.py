"""`Images`: samples, mostly images, wherever they lie: one at a time, parts of them, and several mixed."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.utils.data

from datapipe.codecs.decode import Decode
from datapipe.codecs.field_values import NO_LABEL, NULL_LABEL
from datapipe.containers.form import Form
from datapipe.core.checks import positions_of, real_number, whole_number
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted, listed
from datapipe.datasets import Original
from datapipe.errors import DecodeError, IntegrityError, OptionError
from datapipe.fetch.files import open_files
from datapipe.fetch.row_groups import row_groups_of_windows
from datapipe.index.concat import AnyIndex, concatenated, select
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.bad_samples import located
from datapipe.kernel.cache_settings import Cache
from datapipe.kernel.kind import Data
from datapipe.kernel.mixing import Mixture, warn_of_classes
from datapipe.kernel.shown import shown_device
from datapipe.kinds.images.buckets import in_buckets, plan_of
from datapipe.kinds.images.collate import BoxesForm
from datapipe.kinds.images.fields import IMAGE, LABEL, BatchFields, FurtherFields
from datapipe.kinds.images.kind import ImageKind
from datapipe.kinds.images.samples import AnySource, BatchSamples, ImageSettings, Samples, is_dataset
from datapipe.order.draws import key64
from datapipe.order.sample_order import Permutation
from datapipe.order.sampling import MAX_MIXED
from datapipe.stores.places import opened_at_version
from datapipe.stores.settings import Remote, remote_settings
from datapipe.transforms import Recipe
from datapipe.transforms.buckets import Buckets


class Images(Data):
    """Samples, mostly images with labels: what a loader reads. Also a map-style dataset, as torch's. Thread-safe.

    >>> data = datapipe.Images("shards/coco", fields=["image", "boxes"], boxes="padded", cache="ram")
    >>> loader = datapipe.DataLoader(data, batch_size=64, shuffle=True, transform=[datapipe.transforms.Resize((224, 224))])
    >>> image, boxes = data[0]                 # (3, h, w) uint8, and (k, 5) float32

    source: a converted dataset, by its path or its URL in an object store; a directory, glob pattern or file of shards; whatever
      else `datapipe convert` reads, in place (an image folder, a zip, a list of files, image and mask pairs, COCO's annotations,
      an LMDB database, a folder of arrays); a torch Dataset whose files can be seen (`ImageFolder`, `Subset`, `ConcatDataset`, a
      Hugging Face Dataset), or the shards of a webdataset pipeline: loaders apply its transform, unless they have one; or other
      `Images`, whose settings are taken over where None is given here.
    form: how a path is read: a name, such as "pairs", or a `datapipe.Form(...)`, which also says where file names start, which
      column is what, and what names the class; None: that is recognised.
    version: of a Lance dataset, or of one on the Hub: a number, a tag or a branch; None: the latest. Saved states have it.
    fields: the fields that batches have, in this order; None: image and label of shards that others wrote, all of other data.
      Masks, boxes and further images are cut and flipped with the image.
    boxes: "list", a (k, 5) tensor for each sample, or "padded", one (b, k, 5) tensor, padding rows having the label -1; None:
      "list".
    memory_format: of the images of a batch, (b, 3, h, w): torch.contiguous_format, or torch.channels_last, which None means.
    cache: keep decoded images between epochs, after the leading transforms that draw nothing (Resize, CenterCrop, Pad): "ram",
      "disk", a directory, or a `Cache(...)`, which also has a capacity; or "gpu", for images of one size that are only cropped
      and flipped after that. Pixels are the same with and without. Decodes on the CPU, but for "gpu".
    decode: "exact", or "scaled": libjpeg makes JPEGs smaller while it decodes them, at least twice as large as the transforms
      resize them to. That takes a part of the time where photographs are large, and pixels differ a little. None: "exact".
    buckets: a `datapipe.Buckets(...)`: each image is resized and cut to the shape of its bucket before the transforms, which keep
      it, and a batch has images of one bucket. Decodes on the CPU, in threads.
    remote: a `datapipe.Remote(...)`: how samples are read if the source is the URL of an object store.

    `d[i]` is the decoded, untransformed sample, as a tuple of the fields that a loader's batches have: the image a (3, h, w)
    uint8 tensor, the label an int, other kinds as in `docs/loader.md`. It has the attributes of torchvision's folders.

    Raises OptionError for settings that do not fit the data, and what `open_index` raises.
    """

    def __init__(
        self,
        source: AnySource | Images,
        *,
        form: Form | str | None = None,
        version: int | str | None = None,
        fields: Iterable[str] | None = None,
        boxes: BoxesForm | None = None,
        memory_format: torch.memory_format | None = None,
        cache: Cache | str | os.PathLike[str] | None = None,
        decode: Decode | None = None,
        buckets: Buckets | None = None,
        remote: Remote | None = None,
    ) -> None:
        named: dict[str, Any] = {
            "fields": fields if fields is None else _names_of(fields),
            "boxes": boxes,
            "memory_format": memory_format,
            "cache": Cache.of(cache),
            "decode": decode,
            "buckets": buckets,
            "remote": remote if remote is None else remote_settings(remote),
        }
        given = {name: value for name, value in named.items() if value is not None}
        if isinstance(source, Images):
            if form is not None:
                raise OptionError("form says how a path is read, and source is Images already; leave it out")
            if version is not None:
                raise OptionError("version says how a path is opened, and source is Images already; leave it out")
            self._set(source._samples, replace(source.settings, **given), source.fields if fields is None else None)
            self._versions = source._versions
            if source._opened is not None:
                source, form, before = source._opened
                self._opened = source, form, {**before, **given}
        else:
            settings = ImageSettings(**given)
            with opened_at_version(source, version) as self._versions:
                samples = Samples.open(source, settings.remote, form)
            self._set(samples, settings, None)
            self._opened = source, form, given

    _opened: tuple[AnySource, Form | str | None, dict[str, Any]] | None = None  # as it was called; None: made of other data

    def at(self, versions: Mapping[str, str], /) -> Images | None:
        """Return the same samples at other versions of their place; None for what select() or mix() made."""
        if self._opened is None:
            return None
        source, form, given = self._opened
        with opened_at(versions):
            return Images(source, form=form, **given)

    def _set(self, samples: Samples, settings: ImageSettings, fields: BatchFields | None) -> None:
        """`fields`: None for those that the settings name."""
        self._samples, self.settings, self.index = samples, settings, samples.index
        names = samples.fields if settings.fields is None else settings.fields
        self.fields = BatchFields.of(self.index, names) if fields is None else fields
        if settings.cache is not None and not self.fields.has_image:
            raise OptionError("cache is for images, and batches have none; leave it out")
        self._batched = BatchSamples(samples, settings, self.fields)
        self._targets: list[int] | None = None

    @functools.cached_property
    def _stored(self) -> FurtherFields:
        files = open_files(self.index, remote=self.settings.remote)
        return FurtherFields(self.fields.stored, index=self.index, files=files, geometry=None)

    @classmethod
    def _of(cls, samples: Samples, settings: ImageSettings, fields: BatchFields | None) -> Images:
        images = cls.__new__(cls)
        images._set(samples, settings, fields)
        return images

    def __reduce__(self) -> tuple[Any, ...]:
        return Images._of, (replace(self._samples, original=None), self.settings, self.fields), {"_versions": self._versions}

    @property
    def mixture(self) -> Mixture | None:
        """How often the samples of each part come in an epoch, if this is a mixture."""
        return self._samples.mixture

    @property
    def shown(self) -> str:
        """The samples and where they lie, in words."""
        container = self.index.manifest.container
        form = "loose files" if container == "folder" else container
        text = f"{counted(len(self), 'sample')} ({listed(self.fields.names)}) in {form} at {self.index.where}"
        return text if self.mixture is None else f"{sum(self.mixture.counts):,} an epoch of {text}"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> tuple[Any, ...]:
        """Return the sample at a position. Raises IndexError, DecodeError or IntegrityError."""
        number = operator.index(position)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of a dataset of {len(self)}")
        ids = self.index.ids(np.array([number % len(self)], np.int64))
        try:
            values = self._stored.load_stored(self._stored.look_up(ids))
        except (DecodeError, IntegrityError) as exc:
            raise located(exc, self.index.describe(int(ids[0]))) from exc
        if self.fields.has_label:
            values[LABEL] = int(self.index.look_up(ids, self.fields.looked_up(self.index)).labels[0])
            if values[LABEL] == NO_LABEL:
                raise located(DecodeError(NULL_LABEL), self.index.describe(int(ids[0])))
        return tuple(values[name] for name in self.fields.names)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[position] for position in range(len(self)))

    @property
    def classes(self) -> list[str]:
        """Class names by label. Raises AttributeError if the data names none."""
        names = self.index.manifest.classes
        if names is None:
            raise AttributeError(f"{self.index.where}: no class names, or they differ between its parts")
        return list(names)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by class name. Raises AttributeError if the data names none."""
        labels = self.index.manifest.class_to_idx
        if labels is None:
            raise AttributeError(f"{self.index.where}: no class names, or they differ between its parts")
        return dict(labels)

    @property
    def targets(self) -> list[int]:
        """The label of every sample, in order, -1 for one that has none; read from the index once."""
        if self._targets is None:
            self._targets = np.maximum(self.index.labels(), -1).tolist()
        return self._targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The path and the label of every sample. Raises AttributeError if samples are not files of their own."""
        positions = np.arange(len(self), dtype=np.int64)
        entries = self.index.look_up(self.index.ids(positions), self.fields.looked_up(self.index))
        if not entries.extents.one_file_each:
            raise AttributeError(f"{self.index.where}: its samples lie in shards and are not files of their own")
        return list(zip(entries.extents.paths, np.maximum(entries.labels, -1).tolist(), strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`: torchvision's `ImageFolder` has both names."""
        return self.samples

    @property
    def root(self) -> str:
        """The path or URL of the data."""
        return self.index.where

    @property
    def transform(self) -> object:
        """The transform of the torch Dataset from which this was made; None if it was made from none. Read-only.

        `d[i]` is untransformed, and the loader has transforms of its own.
        """
        return None if self._samples.original is None else self._samples.original.transform

    @transform.setter
    def transform(self, value: object) -> None:
        raise OptionError("a dataset's transform is fixed once a loader has it; make a loader with transform=")

    def select(self, indices: Iterable[int]) -> Images:
        """Return a dataset of the samples at these positions, in this order. They keep their ids, and so their random crops."""
        if self.mixture is not None:
            raise OptionError("select() on a dataset of mix() or repeat(): select from each dataset first, then mix or repeat")
        index = select(self.index, positions_of(indices, "select()"))
        return self._part(Samples(index, recipe=self._samples.recipe))

    def take(self, num_samples: int) -> Images:
        """Return the first `num_samples` samples, or all if there are fewer."""
        return self.select(range(min(whole_number(num_samples, "num_samples", least=0), len(self))))

    def repeat(self, times: float) -> Images:
        """Return the same samples, each of which comes `times` times in an epoch, such as 3 or 0.1.

        All come once before any comes again, also across epochs; a sample that comes again in an epoch is augmented again.
        """
        count = round(len(self) * real_number(times, "times", most=MAX_MIXED / max(1, len(self))))
        if self.mixture is not None or count < 1:
            problem = "of what mix() or repeat() made" if self.mixture is not None else "makes an epoch of no samples"
            raise OptionError(f"repeat({times}) {problem}; pass num_samples to mix()")
        return self._part(Samples(self.index, Mixture((len(self),), (count,)), recipe=self._samples.recipe))

    def folds(self, num_folds: int, *, seed: int = 0) -> list[tuple[Images, Images]]:
        """Return `num_folds` pairs of training and validation samples, for cross-validation.

        Each sample is in the validation part of one pair; `seed` decides which. Parts keep the dataset's order.
        """
        seed = whole_number(seed, "seed")
        if not 2 <= whole_number(num_folds, "num_folds") <= len(self):
            raise OptionError(f"folds({num_folds}) of {len(self)} samples; pass at least 2 and at most the number of samples")
        fold_of = Permutation(len(self), int(key64(seed, num_folds)))(np.arange(len(self), dtype=np.int64)) % num_folds
        return [
            (self.select(np.flatnonzero(fold_of != fold)), self.select(np.flatnonzero(fold_of == fold)))
            for fold in range(num_folds)
        ]

    def mixed(self, others: Sequence[Images], *, weights: Sequence[float] | None, num_samples: int | None) -> Images:
        """Return these samples and others, of each of which an epoch has a fixed share. See `mix`."""
        parts = [self, *others]
        for part in parts:
            if part.mixture is not None:
                raise OptionError("mix() on a dataset of mix() or repeat(): pass all datasets to one mix()")
            for name in ("boxes", "memory_format", "cache", "decode", "buckets", "remote"):
                ours, theirs = getattr(self.settings, name), getattr(part.settings, name)
                if ours != theirs:
                    raise OptionError(
                        f"mix() of Images with {name}={ours!r} and {name}={theirs!r}; give it to the mixture: "
                        f"datapipe.Images(datapipe.mix([...]), {name}=...)"
                    )
            if part._samples.recipe != self._samples.recipe:
                raise OptionError(
                    "mix() of torch Datasets with different transforms; leave them out, and pass transform= to the loader"
                )
        indexes = [part.index for part in parts]
        mixture = Mixture.of(indexes, weights, num_samples)
        warn_of_classes([(index.where, index.manifest.classes) for index in indexes])
        index, fields = concatenated(indexes), self.fields if all(part.fields == self.fields for part in parts) else None
        samples = Samples(index, mixture, recipe=self._samples.recipe)
        mixed = Images._of(samples, replace(self.settings, fields=None), fields)
        mixed._versions = {place: version for part in parts for place, version in part.versions.items()}
        return mixed

    def _part(self, samples: Samples) -> Images:
        part = Images._of(samples, self.settings, self.fields)
        part._versions = self._versions
        return part

    # -- a loader's data --------------------------------------------------------------------------

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> ImageKind:
        recipe = Recipe.of(self._samples.recipe if arguments["transform"] is None else arguments["transform"])
        buckets = self.settings.buckets
        if buckets is not None:
            if self.mixture is not None or not self.fields.has_image:
                problem = "of what mix() or repeat() made" if self.mixture is not None else "of batches without images"
                raise OptionError(f"buckets {problem}: not possible; leave them out")
            recipe = in_buckets(recipe, buckets)
        self.fields.check_recipe(recipe)
        cache, where = self.settings.cache, arguments["device"]
        if cache is not None and cache.where == "gpu" and (accelerator() is None or str(where).startswith("cpu")):
            raise OptionError(f"cache='gpu' keeps images on a GPU, and device is {shown_device(where)}; pass cache='ram'")
        if arguments["shuffle"] == "windows":
            if buckets is not None:
                raise OptionError("shuffle='windows' goes by shards, and buckets by shapes; pass True")
            _ = self._batched.stored_order  # which raises here where there is none
        row_groups = row_groups_of_windows(len(self.fields.stored))
        files = open_files(self.index, row_groups=row_groups, remote=self.settings.remote)

        def open_measured(**options: Any) -> Iterable[Any]:
            return open_loader(self._measured(), **options)

        plan = None if buckets is None else plan_of(self.index, files, buckets)
        return ImageKind(self._batched, files=files, recipe=recipe, device=device, open_measured=open_measured, plan=plan)

    def _measured(self) -> Images:
        """Return the same samples as a backend is measured with them: image and label, kept nowhere, the torch Dataset aside."""
        names = [spec.name for spec in self.index.manifest.fields]
        fields = tuple(name for name in (IMAGE, LABEL) if name in names)
        samples = replace(self._samples, original=None, recipe=None)
        return Images._of(samples, replace(self.settings, fields=fields, cache=None), None)

    @property
    def own_transform(self) -> Recipe | None:
        """The transforms that came with a torch Dataset, which a loader applies unless it has others; None: there are none."""
        return self._samples.recipe

    def without_transform(self) -> Images:
        """Return the same samples without transforms of their own."""
        return Images._of(replace(self._samples, recipe=None), self.settings, self.fields)


def of_torch_dataset(dataset: Any, index: AnyIndex, settings: ImageSettings, recipe: Recipe) -> Images:
    """Return the samples that `from_torch` saw in a dataset. Its transforms, the `recipe`, are left to the caller."""
    original = None if isinstance(dataset, torch.utils.data.IterableDataset) else Original.of(dataset, recipe)
    return Images._of(Samples(index, original=original), settings, None)


def make_data(source: Any, index: AnyIndex | None) -> Images | None:
    """Return the samples of a source: a path, whose index was claimed, or a torch Dataset. None for other objects."""
    if index is not None:
        images = Images._of(Samples(index), ImageSettings(), None)
        images._opened = source, None, {}
        with opened_at({}) as images._versions:
            return images
    if isinstance(source, torch.utils.data.IterableDataset):
        name = type(source).__qualname__
        raise OptionError(
            f"dataset: {name} is an IterableDataset; pass datapipe.from_torch(torch.utils.data.DataLoader(dataset, ...))"
        )
    return Images(source) if is_dataset(source) else None


def _names_of(fields: Iterable[str]) -> tuple[str, ...]:
    try:
        return (fields,) if isinstance(fields, str) else tuple(fields)
    except TypeError as exc:
        raise OptionError(f"fields is {fields!r:.60}; pass names of fields, such as ['image', 'label']") from exc
