"""Decoded images, kept in a device's memory from epoch to epoch, as far as a recipe treats them the same every time.

Kept for a sample is its image after the recipe's front, which is of one size for all samples: row by row in one tensor. What
is behind the front only moves pixels, and then changes their values, so that it runs on the device over a whole batch.

All work on that tensor is queued on one stream. A row is published after the copy that fills it is queued, so whoever finds it
reads it after that copy. Nothing is evicted, as in `datapipe.kinds.images.cache.store`, and for the same reason.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.printable import counted, size_text
from datapipe.errors import BackendError, OptionError
from datapipe.index.entries import Entries
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kinds.images.kept_images import CacheStats, shown_front, stamp_of
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import Windows, look_through, windows_of
from datapipe.transforms.geometry import RESAMPLES_NOTHING
from datapipe.transforms.recipe import Size

_SHARE = 4  # of the free memory that images take by default, one part of so many: the training allocates its own later
_ABSENT = -1


def check_recipe(recipe: Recipe, stored_size: Size | None) -> Size:
    """Return the (height, width) of the images to keep. Raises OptionError for a recipe whose images cannot be kept.

    `stored_size`: that of all images of the dataset; None if they differ.
    """
    remedy = "; pass cache='ram', which keeps any image"
    if recipe.rest:
        raise OptionError(f"cache='gpu': {recipe.rest_reason}: it runs per sample on the CPU{remedy}")
    front, behind = recipe.split_front()
    for _, op in behind.geometry:
        if not isinstance(op, RESAMPLES_NOTHING):
            raise OptionError(f"cache='gpu': {op!r} resamples each image in every epoch{remedy}")
    size = front.output_size(stored_size)
    if size is None:
        raise OptionError(
            "cache='gpu' keeps images of one size, and these would differ; begin the transforms with Resize((height, width)), or "
            f"with Resize(n) and CenterCrop(n){remedy}"
        )
    return size


class DeviceImages:
    """The kept images of a dataset on a device. Thread-safe.

    `shape`: (height, width) of the images. `num_samples`: as many as there are to keep. `nbytes`: the most that they may take;
    None: a quarter of what is free now. Raises OptionError if not even one image would fit, and if the free memory is unknown.
    """

    def __init__(
        self, recipe: Recipe, shape: Size, *, num_samples: int, nbytes: int | None, runtime: DeviceRuntime, stream: Any
    ) -> None:
        self.front, self._behind = recipe.split_front()
        self.stream = stream
        self.shape = shape
        self._runtime, self._num_samples = runtime, num_samples
        self._row_nbytes = shape[0] * shape[1] * 3
        limit = _share_of_free(runtime) if nbytes is None else nbytes
        self._num_places = min(num_samples, limit // self._row_nbytes)
        if num_samples and not self._num_places:
            raise OptionError(
                f"cache='gpu': an image takes {self._row_nbytes:,} bytes, and the cache may take {limit:,} on {runtime.device}; "
                "pass a larger cache=datapipe.Cache('gpu', nbytes), or cache='ram'"
            )
        self._images: torch.Tensor | None = None  # (num_places, h, w, 3) uint8, from the first batch on
        self._lock = threading.Lock()
        # Held while work is queued: a device that lacks an operation may carry it out on the host, over a copy of all images.
        self._queueing = threading.Lock()
        self._places: dict[int, int] = {}  # by sample id, of published rows
        self._stamps = np.zeros(self._num_places, np.uint64)
        self._sizes = np.zeros((self._num_places, 2), np.int64)
        self._reserved: set[int] = set()  # sample ids of rows that are being filled
        self._free: list[int] = []  # rows that were given back
        self._num_taken = 0  # rows handed out so far
        self._hits = self._misses = 0

    def stats(self) -> CacheStats:
        """Return the counts of the cache now."""
        with self._lock:
            num = len(self._places)
            return CacheStats(self._hits, self._misses, num, num * self._row_nbytes, self._num_places * self._row_nbytes)

    def describe(self) -> str:
        """Return a line that describes the cache, for people."""
        num, capacity = len(self._places), self._num_places
        fits = "all fit" if capacity == self._num_samples else f"{capacity:,} fit, the others are loaded in every epoch"
        return (
            f"{shown_front(self.front)}, on {self._runtime.device}: has {num:,} of {counted(self._num_samples, 'image')}; "
            f"{fits}, in {size_text(capacity * self._row_nbytes)}"
        )

    def find(self, entries: Entries) -> FoundRows:
        """Return where the images of these samples are kept. One whose file has changed since is not found."""
        num = len(entries)
        stamps = np.array([stamp_of(entries.extents, row) for row in range(num)], np.uint64)
        with self._lock:
            places = np.array([self._places.get(sample, _ABSENT) for sample in entries.ids.tolist()], np.int64)
            is_kept = places != _ABSENT
            is_kept[is_kept] = self._stamps[places[is_kept]] == stamps[is_kept]
            sizes = np.zeros((num, 2), np.int64)
            sizes[is_kept] = self._sizes[places[is_kept]]
            hits = int(is_kept.sum())
            self._hits, self._misses = self._hits + hits, self._misses + num - hits
        return FoundRows(self, np.where(is_kept, places, _ABSENT), stamps, sizes)

    def reserve(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) rows for the images of these samples; -1 where there is no room, or another thread fills one already."""
        rows = np.full(len(ids), _ABSENT, np.int64)
        with self._lock:
            for number, sample in enumerate(ids.tolist()):
                if sample in self._places or sample in self._reserved:
                    continue
                if self._free:
                    rows[number] = self._free.pop()
                elif self._num_taken < self._num_places:
                    rows[number] = self._num_taken
                    self._num_taken += 1
                else:
                    break
                self._reserved.add(sample)
        return rows

    def windows(self, draws: Draws) -> list[Windows]:
        """Return what the recipe shows of the images of a batch with these draws, window after window, in host memory."""
        sizes = np.tile(np.array([self.shape], np.int64), (len(draws), 1))
        windows, size = [], self.shape
        for cuts in self._behind.draw_cuts(draws, sizes) if len(draws) else []:
            moved = windows_of(cuts, size)
            if moved is not None:
                windows.append(moved)
            size = (int(cuts.window[0, 2]), int(cuts.window[0, 3]))
        return windows

    def complete(self, filling: Filling, loaded: torch.Tensor | None, moved: dict[str, Any]) -> torch.Tensor:
        """Keep the loaded images, and return those of the whole batch, (b, h', w', 3) as its windows show them.

        Call it under the stream of the images. `loaded`: (m, h, w, 3), or a row for each sample, as DALI makes them; may be
        returned itself, if all are new. `moved`: what `Filling.to_move` returned, on the device.
        """
        has_all = loaded is not None and len(loaded) != len(filling.fresh)
        fresh = loaded[moved["fresh"]] if loaded is not None and has_all else loaded
        with self._queueing:
            if fresh is not None:
                self._put(fresh, moved)
                self._publish(filling)
            return self._take(fresh, moved)

    def give_back(self, filling: Filling) -> None:
        """Give rows back that were reserved and that no `complete` has filled, after an error."""
        with self._lock:
            for sample, _, place in filling.reserved():
                if sample in self._reserved:
                    self._free.append(place)
                    self._reserved.discard(sample)

    def _put(self, fresh: torch.Tensor, moved: dict[str, Any]) -> None:
        images = self._memory()
        if len(moved["into"]):
            images.index_copy_(0, moved["into"], fresh if len(moved["kept"]) == len(fresh) else fresh[moved["kept"]])

    def _take(self, fresh: torch.Tensor | None, moved: dict[str, Any]) -> torch.Tensor:
        if fresh is not None and len(fresh) == len(moved["places"]):
            batch = fresh
        else:
            batch = self._memory()[moved["places"]]
            if fresh is not None and len(moved["apart"]):
                batch.index_copy_(0, moved["apart_rows"], fresh[moved["apart"]])
        for windows in moved["windows"]:
            batch = look_through(windows, batch)
        return batch

    def _publish(self, filling: Filling) -> None:
        """Let rows be found whose filling is queued."""
        with self._lock:
            for sample, row, place in filling.reserved():
                self._stamps[place], self._sizes[place] = filling.found.stamps[row], filling.found.sizes[row]
                self._places[sample] = place
                self._reserved.discard(sample)

    def _memory(self) -> torch.Tensor:
        if self._images is None:
            shape = (self._num_places, *self.shape, 3)
            try:
                self._images = torch.empty(shape, dtype=torch.uint8, device=self._runtime.device)
            except RuntimeError as exc:  # torch.OutOfMemoryError is one
                raise BackendError(
                    f"cache='gpu': {self._runtime.device} has no {size_text(self._num_places * self._row_nbytes)} for images "
                    f"({str(exc).strip():.120}); pass a smaller cache=datapipe.Cache('gpu', nbytes), or cache='ram'"
                ) from exc
        return self._images


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of the kept images that a batch needs, and those that it lacks; arrays change as samples are replaced."""

    images: DeviceImages
    places: NDArray[np.int64]  # (b,) rows of the kept images; -1: not kept
    stamps: NDArray[np.uint64]  # (b,) of the samples' sources
    sizes: NDArray[np.int64]  # (b, 2) height, width of the images as stored; 0: not known yet

    def missing(self) -> list[int]:
        """Return the rows of the batch whose image must be loaded."""
        return np.flatnonzero(self.places == _ABSENT).tolist()

    def kept(self, rows: range) -> set[int]:
        """Return which of these rows of the batch are kept, counted from the first of `rows`."""
        return set(np.flatnonzero(self.places[rows.start : rows.stop] != _ABSENT).tolist())

    def replace(self, row: int, entries: Entries) -> None:
        """Put another sample into a row of the batch: the only one of `entries`."""
        other = self.images.find(entries)
        self.places[row], self.stamps[row], self.sizes[row] = other.places[0], other.stamps[0], other.sizes[0]

    def begin(self, ids: NDArray[np.int64], good: NDArray[np.bool_]) -> Filling:
        """Reserve rows for the loaded images of the batch, whose samples are `ids`, as far as there is room.

        `complete` or `give_back` of it must follow.
        """
        fresh = np.flatnonzero((self.places == _ABSENT) & good)
        return Filling(self, ids, fresh, self.images.reserve(ids[fresh]))


@dataclass(frozen=True, slots=True)
class Filling:
    """A batch on its way to the device: which of its images are new there, and which rows they get."""

    found: FoundRows
    ids: NDArray[np.int64]  # (b,) of the samples
    fresh: NDArray[np.int64]  # (m,) rows of the batch that were loaded
    into: NDArray[np.int64]  # (m,) the rows of the kept images that these fill; -1: they are not kept

    def reserved(self) -> Iterator[tuple[int, int, int]]:
        """Yield the sample id, the row of the batch, and the row of the kept images, of each image to keep."""
        rows = zip(self.ids[self.fresh].tolist(), self.fresh.tolist(), self.into.tolist(), strict=True)
        return (one for one in rows if one[2] != _ABSENT)

    def loaded(self, images: torch.Tensor) -> torch.Tensor | None:
        """Return the images to move to the device, of a batch (b, h, w, 3) in host memory; None: there are none."""
        if not len(self.fresh):
            return None
        return images if len(self.fresh) == len(images) else images[torch.from_numpy(self.fresh)]

    def to_move(self, draws: Draws) -> dict[str, Any]:
        """Return the tensors that `DeviceImages.complete` needs on the device, in host memory. `draws`: those of the batch."""
        is_kept = self.into != _ABSENT
        kept, apart = np.flatnonzero(is_kept), np.flatnonzero(~is_kept)
        places = np.maximum(self.found.places, 0)
        places[self.fresh] = np.maximum(self.into, 0)
        tensors = {
            "fresh": self.fresh,
            "into": self.into[kept],
            "kept": kept,
            "places": places,
            "apart": apart,
            "apart_rows": self.fresh[apart],
        }
        windows = self.found.images.windows(draws)
        return {name: torch.from_numpy(values) for name, values in tensors.items()} | {"windows": windows}


def _share_of_free(runtime: DeviceRuntime) -> int:
    free = runtime.free_nbytes()
    if free is None:
        raise OptionError(
            f"cache='gpu': torch does not know the free memory of {runtime.device}; pass cache=datapipe.Cache('gpu', nbytes)"
        )
    return free // _SHARE
