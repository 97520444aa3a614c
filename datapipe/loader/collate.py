"""From the rows of a batch to what the user gets, on the host or on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.backends.device import Uploader
from datapipe.draws import Draws
from datapipe.loader.options import LoaderOptions
from datapipe.loader.rows import Batch
from datapipe.plan import Rank
from datapipe.transforms import Recipe


@dataclass(frozen=True)
class Collator:
    """Puts batches together. Thread-safe as far as the user's functions are."""

    recipe: Recipe
    options: LoaderOptions
    rank: Rank
    labelled: bool
    memory_format: torch.memory_format
    uploader: Uploader | None  # None: batches stay in host memory

    @property
    def finishes_pixels(self) -> bool:
        """Whether the pixel operations are left to it: it does them on the device."""
        return self.uploader is not None and self.options.collate_fn is None

    def collate(self, batch: Batch) -> Any:
        """What the user gets; an `Arrival` of it where it is for a device."""
        if self.uploader is None:
            return self._transformed(self._put_together(batch, batch.images, self._fields(batch)))
        about = {"step": batch.picks.step, "num_samples": len(batch)}
        if self.options.collate_fn is not None or isinstance(batch.images, list):
            result = self._put_together(batch, batch.images, self._fields(batch))
            return self.uploader.upload(result, then=self._transformed, **about)
        host = {"fields": self._fields(batch), "images": None if batch.is_on_device else batch.images, **_rows(batch)}

        def finish(moved: dict[str, Any]) -> Any:
            images = self._on_device(batch, moved)
            return self._transformed(self._put_together(batch, images, moved["fields"], good=moved["good"]))

        return self.uploader.upload(host, then=finish, keep=(batch.images, batch.kept), **about)

    # -- the images -----------------------------------------------------------------------------

    def _on_device(self, batch: Batch, moved: Mapping[str, Any]) -> torch.Tensor:
        """The pixel operations over the whole batch: (b, h, w, 3) of the recipe's dtype, in memory of torch's."""
        block: Any = batch.images if moved["images"] is None else moved["images"]
        if moved["patches"] is not None:
            block[moved["patched"]] = moved["patches"]
        out = torch.empty(block.shape, dtype=self.recipe.output_dtype, device=block.device)
        self.recipe.run_pixels(block, batch.draws_of_ids(), out)
        return out

    # -- the other fields -----------------------------------------------------------------------

    def _fields(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The fields beside the images, by name; rows of bad samples left out."""
        good, fields = batch.good, {}
        if self.labelled:
            fields["label"] = torch.from_numpy(batch.labels[good])
        if self.options.tail.value == "mask":
            fields["mask"] = torch.from_numpy(batch.picks.real[good])
        if self.options.output == "dict":
            fields["id"] = torch.from_numpy(batch.ids[good])
        return fields

    def _put_together(self, batch: Batch, images: Any, fields: dict[str, Any], *, good: torch.Tensor | None = None) -> Any:
        """`good`: the rows to keep, where some are left out and `images` is not on the host."""
        if isinstance(images, list):
            images = [image.permute(2, 0, 1) for image, is_good in zip(images, batch.good, strict=True) if is_good]
        else:
            if not batch.good.all():
                images = images[torch.from_numpy(batch.good) if good is None else good]
            images = images.permute(0, 3, 1, 2)
        fields = {"image": images, **fields}
        if self.options.collate_fn is not None:
            return self.options.collate_fn(self._samples(fields))
        if isinstance(images, list):  # none are left where every sample was bad
            fields["image"] = torch.stack(images) if images else torch.empty((0, 3, 0, 0), dtype=self.recipe.output_dtype)
        if self.memory_format is not torch.channels_last:
            fields["image"] = fields["image"].contiguous(memory_format=self.memory_format)
        return self._output(self._mixed(batch, fields))

    def _mixed(self, batch: Batch, fields: dict[str, Any]) -> dict[str, Any]:
        """MixUp and CutMix: drawn once per batch, keyed by (seed, epoch, step, rank)."""
        if self.recipe.batch:
            key = np.array([batch.picks.step * self.rank.world_size + self.rank.rank], np.int64)
            draws = Draws(self.options.seed, batch.picks.after.epoch, key)
            fields["image"], fields["label"] = self.recipe.run_batch(fields["image"], fields["label"], draws)
        return fields

    def _output(self, fields: dict[str, Any]) -> Any:
        if self.options.output == "dict":
            return {self.options.rename.get(name, name): value for name, value in fields.items()}
        return tuple(fields.values())

    def _samples(self, fields: dict[str, Any]) -> list[Any]:
        """The batch taken apart, as torch hands samples to a collate_fn: labels are ints."""
        columns = {name: value.tolist() if name != "image" else list(value) for name, value in fields.items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [self._output(row) for row in rows]

    def _transformed(self, result: Any) -> Any:
        return result if self.options.batch_transform is None else self.options.batch_transform(result)


def _rows(batch: Batch) -> dict[str, torch.Tensor | None]:
    """Which rows are good, where not all are, and those made by hand for a batch that is on the device already."""
    good = None if batch.good.all() else torch.from_numpy(np.flatnonzero(batch.good))
    if not batch.by_hand:
        return {"good": good, "patched": None, "patches": None}
    rows = torch.tensor(list(batch.by_hand), dtype=torch.int64)
    patches = torch.from_numpy(np.stack(list(batch.by_hand.values())))
    return {"good": good, "patched": rows, "patches": patches}
