"""The rows of a batch in the making, and their collation into what the user gets, on the host or on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.errors import OptionError
from datapipe.index.entries import Entries, Extents
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.options import LoaderOptions
from datapipe.kinds.images.dali_stage import Fetched
from datapipe.kinds.images.device_images import FoundRows
from datapipe.kinds.images.fields import ADDED, IMAGE, LABEL, BatchFields, Values
from datapipe.order.draws import Draws
from datapipe.order.plan import Picks, Rank, Tail
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import described

BoxesForm = Literal["list", "padded"]
NO_BOX = -1.0  # the label in padding rows of boxes


@dataclass(slots=True)
class Batch:
    """One batch in the making. Several threads may load blocks of it at once: each writes rows of its own."""

    picks: Picks
    entries: Entries
    extents: dict[str, Extents]  # of the further fields of the samples as picked
    picked: NDArray[np.int64]  # (b,) ids of the samples as picked
    draws: Draws  # of the samples as picked
    labels: NDArray[np.int64]  # (b,)
    ids: NDArray[np.int64]  # (b,) of the samples in their rows, replacements included
    good: NDArray[np.bool_]  # (b,) False for rows to be left out
    # (b, h, w, 3); or one (h, w, 3) tensor a sample if sizes differ, or the results of the user's transforms; or encoded samples
    # for DALI
    images: torch.Tensor | list[Any] | Fetched
    values: list[Values | None]  # (b,) of the further fields, by row; None until they are loaded
    found: FoundRows | None = None  # the images that the device has, which are not loaded
    by_hand: dict[int, NDArray[np.uint8]] = field(default_factory=dict)  # rows to be put into images on a device
    kept: object = None  # kept alive until the device is done with the batch
    announced: list[object] = field(default_factory=list)  # results of `Files.will_need`: reads in flight

    def __len__(self) -> int:
        return len(self.ids)

    def draws_of_ids(self) -> Draws:
        """Return the draws of the samples that are in the rows now."""
        if np.array_equal(self.ids, self.picked):
            return self.draws
        return Draws(self.draws.seed, self.draws.epoch, np.where(self.ids == self.picked, self.draws.ids, self.ids))

    @property
    def is_on_device(self) -> bool:
        return isinstance(self.images, torch.Tensor) and self.images.device.type != "cpu"


@dataclass(frozen=True)
class Collator:
    """Collates batches. Thread-safe as far as the user's functions are."""

    recipe: Recipe
    options: LoaderOptions
    rank: Rank
    fields: BatchFields
    memory_format: torch.memory_format
    boxes: BoxesForm
    delivery: Delivery

    @property
    def finishes_pixels(self) -> bool:
        """Whether the collator runs the pixel operations, which it does on the device."""
        return self.delivery.uploader is not None and self.options.collate_fn is None

    def collate(self, batch: Batch) -> Any:
        """Return what the user gets, or an `Arrival` of it if it is for a device."""
        about: dict[str, Any] = {"step": batch.picks.step, "num_samples": len(batch)}
        if not self.finishes_pixels or isinstance(batch.images, list):
            return self.delivery.deliver(self._put_together(batch, batch.images, self._other_columns(batch)), **about)
        host = {"others": self._other_columns(batch), "images": None if batch.is_on_device else batch.images, **_rows(batch)}
        filling = None if batch.found is None else batch.found.begin(batch.ids, batch.good)
        if filling is not None:
            host["filling"] = filling.to_move(batch.draws_of_ids())
            if not batch.is_on_device:
                assert isinstance(batch.images, torch.Tensor)
                host["images"] = filling.loaded(batch.images)

        def finish(moved: dict[str, Any]) -> Any:
            block: Any = batch.images if batch.is_on_device else moved["images"]
            if moved["patches"] is not None:
                block[moved["patched"]] = moved["patches"]
            if filling is not None:
                block = filling.found.images.complete(filling, block, moved["filling"])
            images = self._with_pixels(batch, block)
            return self._put_together(batch, images, moved["others"], good=moved["good"])

        try:
            return self.delivery.deliver(host, then=finish, keep=(batch.images, batch.kept), **about)
        finally:
            if filling is not None:
                filling.found.images.give_back(filling)  # what an error left

    # -- the images -----------------------------------------------------------------------------

    def _with_pixels(self, batch: Batch, block: torch.Tensor) -> torch.Tensor:
        """Run the pixel operations over the whole batch. Returns (b, h, w, 3) of the recipe's dtype, in torch's own memory."""
        out = torch.empty(block.shape, dtype=self.recipe.output_dtype, device=block.device)
        self.recipe.run_pixels(block, batch.draws_of_ids(), out)
        return out

    # -- the batch as a whole -------------------------------------------------------------------

    def _other_columns(self, batch: Batch) -> dict[str, Any]:
        """Return the columns besides the images, by name, without the rows of bad samples: tensors, or lists for a collate_fn."""
        good = batch.good
        others: dict[str, NDArray[Any]] = {}
        apart = self.options.collate_fn is not None
        if self.fields.has_label:
            others[LABEL] = batch.labels[good]
        if self.options.tail is Tail.MASK:
            others["real"] = batch.picks.real[good]
        if self.options.output == "dict":
            others["id"] = batch.ids[good]
        columns: dict[str, Any] = {
            name: values.tolist() if apart else torch.from_numpy(values) for name, values in others.items()
        }
        for spec in self.fields.further:
            values = [value[spec.name] for value, is_good in zip(batch.values, good, strict=True) if value and is_good]
            columns[spec.name] = values if apart else column_of(spec, values, boxes=self.boxes)
        return columns

    def _put_together(self, batch: Batch, images: Any, others: dict[str, Any], *, good: torch.Tensor | None = None) -> Any:
        """Return the batch. `good`: the rows to keep, if some are left out and `images` is not on the host."""
        columns = dict(others)
        if self.fields.has_image:
            columns[IMAGE] = self._kept(batch, images, good)
        if self.options.collate_fn is not None:
            if self.fields.has_image and not self.recipe.rest and self.memory_format is not torch.channels_last:
                columns[IMAGE] = [image.contiguous() for image in columns[IMAGE]]
            rows = zip(*columns.values(), strict=True)
            return self.options.collate_fn([self._output(dict(zip(columns, row, strict=True))) for row in rows])
        if self.fields.has_image:
            columns[IMAGE] = self._stacked(columns[IMAGE], batch)
        return self._output(self._mixed(batch, columns))

    def _kept(self, batch: Batch, images: Any, good: torch.Tensor | None) -> Any:
        """Return the images of good samples, channels first, or what the user's transforms made of them."""
        if isinstance(images, list) and self.recipe.rest:
            return [image for image, is_good in zip(images, batch.good, strict=True) if is_good]
        if isinstance(images, list):
            return [image.permute(2, 0, 1) for image, is_good in zip(images, batch.good, strict=True) if is_good]
        if not batch.good.all():
            images = images[torch.from_numpy(batch.good) if good is None else good]
        return images.permute(0, 3, 1, 2)

    def _stacked(self, images: Any, batch: Batch) -> Any:
        if self.recipe.rest:
            return self._collated(images)
        if isinstance(images, list):  # empty if every sample was bad
            none = torch.empty((0, 3, 0, 0), dtype=self.recipe.output_dtype)
            images = stack(images, batch.ids[batch.good]) if images else none
        stacked: torch.Tensor = images
        return stacked if self.memory_format is torch.channels_last else stacked.contiguous(memory_format=self.memory_format)

    def _collated(self, values: list[Any]) -> Any:
        """Collate the results of the user's transforms as torch does. Raises OptionError if no batch can be made of them."""
        try:
            return torch.utils.data.default_collate(values)
        except (TypeError, RuntimeError) as exc:
            last, kind = described(self.recipe.rest[-1]), type(values[0]).__qualname__
            what = "PIL images" if isinstance(values[0], Image.Image) else f"values of type {kind}"
            reason = "" if isinstance(values[0], Image.Image) else f" ({next(iter(str(exc).splitlines()), '')})"
            raise OptionError(
                f"the last transform, {last}, gives {what}, which torch's default_collate cannot collate{reason}; end the "
                "transforms with one that gives tensors of one size, such as torchvision's ToTensor(), or pass a collate_fn"
            ) from exc

    def _mixed(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Apply MixUp and CutMix, drawn once per batch, keyed by (seed, epoch, step, rank)."""
        if self.recipe.batch:
            key = np.array([batch.picks.step * self.rank.world_size + self.rank.rank], np.int64)
            draws = Draws(batch.draws.seed, batch.draws.epoch, key)
            columns[IMAGE], columns[LABEL] = self.recipe.run_batch(columns[IMAGE], columns[LABEL], draws)
        return columns

    def _output(self, columns: Mapping[str, Any]) -> Any:
        """Return the columns of a batch, or the values of a sample, in the order of the fields."""
        names = [name for name in (*self.fields.names, *ADDED) if name in columns]
        if self.options.output == "dict":
            return {self.options.rename.get(name, name): columns[name] for name in names}
        return tuple(columns[name] for name in names)


def _rows(batch: Batch) -> dict[str, torch.Tensor | None]:
    """Return indices of good rows unless all are, and the rows that images_cpu made for a batch on the device."""
    good = None if batch.good.all() else torch.from_numpy(np.flatnonzero(batch.good))
    if not batch.by_hand:
        return {"good": good, "patched": None, "patches": None}
    rows = torch.tensor(list(batch.by_hand), dtype=torch.int64)
    patches = torch.from_numpy(np.stack(list(batch.by_hand.values())))
    return {"good": good, "patched": rows, "patches": patches}


def stack(images: Sequence[torch.Tensor], ids: NDArray[np.int64]) -> torch.Tensor:
    """Return (b, 3, h, w) of b images of that size. `ids`: those of the samples. Raises OptionError if they differ in size."""
    sizes = {(int(image.shape[1]), int(image.shape[2])): int(sample) for image, sample in zip(images, ids, strict=True)}
    if len(sizes) > 1:
        (size, first), (other_size, other) = list(sizes.items())[:2]
        raise OptionError(
            f"the images of a batch differ in size: sample {first} is {size[0]} x {size[1]}, sample {other} "
            f"{other_size[0]} x {other_size[1]}; end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w)), "
            "or pass a collate_fn"
        )
    return torch.stack(list(images))


def column_of(spec: FieldSpec, values: list[Any], *, boxes: BoxesForm) -> Any:
    """Return the values of one field, as a batch has them.

    MASK (b, h, w), ARRAY (b, ...) and IMAGE (b, 3, h, w), in channels_last memory, are stacked; masks of which some are
    uint8 and some int32 become int32. BOXES are a list of (k, 5), or with `boxes="padded"` one (b, largest k, 5) whose
    padding rows are 0, 0, 0, 0, -1. Other kinds are lists. Raises OptionError if shapes or dtypes differ.
    """
    if spec.kind is FieldKind.BOXES and boxes == "padded":
        return _padded(values)
    stack = _STACKED.get(spec.kind)
    if stack is None:
        return values
    if not values:  # every sample of the batch was bad
        return torch.empty((0, *_EMPTY[spec.kind]), dtype=torch.uint8)
    shapes = {tuple(value.shape) for value in values}
    dtypes = {value.dtype for value in values}
    if len(shapes) > 1 or (len(dtypes) > 1 and spec.kind is not FieldKind.MASK):
        differ = shapes if len(shapes) > 1 else dtypes
        raise OptionError(
            f"field {spec.name!r} differs within a batch ({', '.join(map(str, sorted(differ, key=str)[:3]))}), so it cannot be "
            "stacked; pass a collate_fn, batch_size=1, or leave it out by fields="
        )
    return stack(values)


def _padded(values: list[torch.Tensor]) -> torch.Tensor:
    table = torch.zeros((len(values), max((len(value) for value in values), default=0), 5))
    table[:, :, 4] = NO_BOX
    for row, value in enumerate(values):
        table[row, : len(value)] = value
    return table


def _masks(values: list[torch.Tensor]) -> torch.Tensor:
    dtype = torch.int32 if any(value.dtype == torch.int32 for value in values) else values[0].dtype
    return torch.stack([value.to(dtype) for value in values])


def _images(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.from_numpy(np.stack([value.permute(1, 2, 0).numpy() for value in values])).permute(0, 3, 1, 2)


_STACKED: dict[FieldKind, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    FieldKind.MASK: _masks, FieldKind.ARRAY: torch.stack, FieldKind.IMAGE: _images,
}  # fmt: skip
_EMPTY: dict[FieldKind, tuple[int, ...]] = {FieldKind.MASK: (0, 0), FieldKind.ARRAY: (), FieldKind.IMAGE: (3, 0, 0)}
