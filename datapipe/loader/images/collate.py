"""Collate the rows of a batch into what the user gets, on the host or on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from datapipe.backends.device import Uploader
from datapipe.core.errors import OptionError
from datapipe.loader.images.batch_fields import ADDED, IMAGE, LABEL, BatchFields
from datapipe.loader.images.columns import column_of
from datapipe.loader.images.rows import Batch
from datapipe.loader.images.sizes import stack
from datapipe.loader.options import LoaderOptions
from datapipe.order.draws import Draws
from datapipe.order.plan import Rank, Tail
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import described


@dataclass(frozen=True)
class Collator:
    """Collates batches. Thread-safe as far as the user's functions are."""

    recipe: Recipe
    options: LoaderOptions
    seed: int
    rank: Rank
    fields: BatchFields
    memory_format: torch.memory_format
    uploader: Uploader | None  # None: batches stay in host memory

    @property
    def finishes_pixels(self) -> bool:
        """Whether the collator runs the pixel operations, which it does on the device."""
        return self.uploader is not None and self.options.collate_fn is None

    def collate(self, batch: Batch) -> Any:
        """Return what the user gets, or an `Arrival` of it if it is for a device."""
        if self.uploader is None:
            return self._transformed(self._put_together(batch, batch.images, self._other_columns(batch)))
        about = {"step": batch.picks.step, "num_samples": len(batch)}
        if self.options.collate_fn is not None or isinstance(batch.images, list):
            result = self._put_together(batch, batch.images, self._other_columns(batch))
            return self.uploader.upload(result, then=self._transformed, **about)
        host = {"others": self._other_columns(batch), "images": None if batch.is_on_device else batch.images, **_rows(batch)}

        def finish(moved: dict[str, Any]) -> Any:
            images = self._on_device(batch, moved)
            return self._transformed(self._put_together(batch, images, moved["others"], good=moved["good"]))

        return self.uploader.upload(host, then=finish, keep=(batch.images, batch.kept), **about)

    # -- the images -----------------------------------------------------------------------------

    def _on_device(self, batch: Batch, moved: Mapping[str, Any]) -> torch.Tensor:
        """Run the pixel operations over the whole batch. Returns (b, h, w, 3) of the recipe's dtype, in torch's own memory."""
        block: Any = batch.images if moved["images"] is None else moved["images"]
        if moved["patches"] is not None:
            block[moved["patched"]] = moved["patches"]
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
            columns[spec.name] = values if apart else column_of(spec, values, boxes=self.options.boxes)
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
            draws = Draws(self.seed, batch.picks.after.epoch, key)
            columns[IMAGE], columns[LABEL] = self.recipe.run_batch(columns[IMAGE], columns[LABEL], draws)
        return columns

    def _output(self, columns: Mapping[str, Any]) -> Any:
        """Return the columns of a batch, or the values of a sample, in the order of the fields."""
        names = [name for name in (*self.fields.names, *ADDED) if name in columns]
        if self.options.output == "dict":
            return {self.options.rename.get(name, name): columns[name] for name in names}
        return tuple(columns[name] for name in names)

    def _transformed(self, result: Any) -> Any:
        return result if self.options.batch_transform is None else self.options.batch_transform(result)


def _rows(batch: Batch) -> dict[str, torch.Tensor | None]:
    """Return indices of good rows unless all are, and the rows that images_cpu made for a batch on the device."""
    good = None if batch.good.all() else torch.from_numpy(np.flatnonzero(batch.good))
    if not batch.by_hand:
        return {"good": good, "patched": None, "patches": None}
    rows = torch.tensor(list(batch.by_hand), dtype=torch.int64)
    patches = torch.from_numpy(np.stack(list(batch.by_hand.values())))
    return {"good": good, "patched": rows, "patches": patches}
