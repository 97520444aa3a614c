"""Give a torch DataLoader a place in its epoch that can be saved, for datasets that only their own code can read.

torch's workers, collation and pinning are used unchanged. Only the batch sampler is datapipe's: it begins where a saved
state says, and records the place after every batch that is delivered.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.data

from datapipe.adapt.array_rows import ArrayRows
from datapipe.adapt.elsewhere import CodeElsewhere
from datapipe.adapt.explaining import lines_about, lines_about_rows
from datapipe.adapt.keys import KeyPass, KeySource, SampleDataset
from datapipe.adapt.loaders import TorchDataLoader, batch_size_of, length_of, rebuilt_loader, sampler_of
from datapipe.adapt.number_rows import WHOLE_BATCHES, NumberRows
from datapipe.adapt.torch_iteration import TorchIterator
from datapipe.core.printable import counted
from datapipe.core.readahead import announced
from datapipe.deferral.dataset import DeferringDataset, WorkerStart
from datapipe.deferral.paying import paying_of
from datapipe.deferral.reports import DeliveringCollate, Tally
from datapipe.deferral.requests import BatchRequest, calculated
from datapipe.errors import OptionError
from datapipe.kernel.bad_samples import BadSample
from datapipe.kernel.options import FIXED, SETTABLE
from datapipe.kernel.samplers import SamplerChecksum
from datapipe.kernel.seeding import Seed, SeedSource
from datapipe.kernel.shown import refuse_position, shown_loader
from datapipe.kernel.state import Epochs, LoaderState
from datapipe.kernel.torch_compat import OwnBatches, added_attributes, names_of
from datapipe.kinds.images.choice import Choice
from datapipe.remote_workers.settings import Workers


class TorchLoader:
    """A loader of torch's batches, with epochs, `state_dict` and `load_state_dict` as in `datapipe.DataLoader`.

    `inner`: the loader whose arguments are taken over. `dataset`: read in place of its own, if not the same. `open_source`:
    called for each pass, as the dataset may have another length by then. Attributes may be assigned as with
    torch: batch_size, batch_sampler, sampler, drop_last, dataset and persistent_workers raise ValueError, others take effect
    with the next pass. Do not share it between threads. Two passes at once work as with torch: not if workers
    persist. Pickles as its arguments, with the attributes that were set on it.
    """

    def __init__(
        self,
        inner: TorchDataLoader,
        *,
        dataset: Any,
        open_source: Callable[[SamplerChecksum], KeySource],
        seed: SeedSource,
        fingerprint: str,
        origin: str = "",
        strategy_lines: tuple[str, ...] = (),
        is_seeded: bool = True,
        decoding: Choice | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._inner = inner
        self._workers = workers  # of other machines
        self.decoding = decoding  # which backend makes deferred images; None if none are deferred
        self._is_seeded = is_seeded  # whether the draws of samples depend on the seed alone
        self._dataset = dataset
        self._checksum = SamplerChecksum()  # of a user's sampler
        self._open_source = open_source
        self._seed = Seed(seed)
        self._fingerprint = fingerprint
        self.origin = origin  # what was taken over, and how, for `explain`
        self.strategy_lines = strategy_lines  # the lines of `explain` about how that was chosen
        self._epochs = Epochs()
        self._batches = _Batches(open_source, self._checksum, batch_size=batch_size_of(inner))
        changes = WHOLE_BATCHES if isinstance(dataset, NumberRows | ArrayRows) else {}
        self._tally = Tally()
        if isinstance(dataset, DeferringDataset):
            self._tally = Tally(paying=paying_of(dataset.dataset, inner.collate_fn), seed_need=dataset.seed_need)
        self._loader = rebuilt_loader(inner, dataset=dataset, batch_sampler=self._batches, changes=changes)
        if isinstance(dataset, DeferringDataset):
            for name in ("collate_fn", "worker_init_fn"):
                setattr(self._loader, name, self._as_read(name, getattr(inner, name)))
        self._elsewhere = self._open_elsewhere()
        self._names = names_of(self)

    def __repr__(self) -> str:
        num, kind = length_of(self._inner.dataset), type(self._inner.dataset).__qualname__
        samples = "samples" if num is None else counted(num, "sample")
        way = "gathered in whole batches" if isinstance(self._dataset, NumberRows | ArrayRows) else "read by torch's workers"
        size = self._inner.batch_size
        return shown_loader("from_torch", f"{samples} of {kind}, {way}", batch_size=size, device=self.device)

    __getitem__ = refuse_position

    def __iter__(self) -> TorchIterator:
        return TorchIterator(self._begin, self.__len__, self._epochs, self._tally)

    def __len__(self) -> int:
        """Return batches of an epoch. Raises TypeError for a sampler without a length."""
        return self._source.num_steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'TorchLoader' object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in FIXED | SETTABLE | {"generator"}:
            super().__setattr__(name, value)
            return
        if name == "in_order" and not value:
            raise OptionError("in_order=False is not available: a place that can be saved needs batches in order; leave it out")
        gathers = isinstance(self._dataset, NumberRows | ArrayRows) and name in WHOLE_BATCHES
        if gathers and name == "collate_fn":
            raise OptionError("collate_fn cannot be set: batches are gathered whole; give it to torch's loader before from_torch")
        setattr(self._inner, name, value)  # torch refuses what may not change
        if not gathers:
            setattr(self._loader, name, self._as_read(name, value))
            self._elsewhere = self._open_elsewhere()

    def _open_elsewhere(self) -> CodeElsewhere | None:
        return None if self._workers is None else CodeElsewhere(self._loader, self._workers)

    def _as_read(self, name: str, value: Any) -> Any:
        """Return the value of an attribute for the loader that reads `self._dataset`."""
        if not isinstance(self._dataset, DeferringDataset):
            return value
        if name == "collate_fn":
            self._dataset.stacks = value is torch.utils.data.default_collate
            return DeliveringCollate.of(value)
        return WorkerStart(value) if name == "worker_init_fn" else value

    @property
    def _source(self) -> KeySource:
        """The keys of a pass that begins now."""
        return self._open_source(self._checksum)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(
            TorchLoader,
            dataset=self._dataset,
            open_source=self._open_source,
            seed=self._seed.source,
            fingerprint=self._fingerprint,
            origin=self.origin,
            strategy_lines=self.strategy_lines,
            is_seeded=self._is_seeded,
            decoding=self.decoding,
            workers=self._workers,
        )
        return make, (self._inner,), added_attributes(self)

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler of the script, if it made one; else a stand-in as long as the loader, without positions."""
        return self._inner.batch_sampler if self._inner.batch_size is None else OwnBatches(self)

    @property
    def bad_samples(self) -> list[BadSample]:
        """The samples skipped or replaced as their `__getitem__` raised, the latest 1,000. Steps count from the pass's first."""
        return list(self._tally.bad.latest)

    @property
    def read_dataset(self) -> Any:
        """What torch's workers read in place of `dataset`, which is the user's."""
        return self._dataset

    @property
    def device(self) -> torch.device:
        """The device on which batches come: `prefetch` takes them further."""
        return torch.device("cpu")

    @property
    def seed(self) -> int | None:
        """The seed of datapipe's part of order and augmentation; None until it is drawn, when the first pass begins."""
        return self._seed.value

    @property
    def explanation(self) -> list[str]:
        """The lines of `explain`: which part runs where."""
        read = self._dataset.dataset if isinstance(self._dataset, DeferringDataset) else self._dataset
        recipe = read.recipe if isinstance(read, SampleDataset) else None
        seed = [] if self._source.rank is None else [f"seed      {self._seed.describe()}"]
        if isinstance(self._dataset, NumberRows | ArrayRows):
            return [*seed, *lines_about_rows(self._dataset)]
        deferral = self._tally if isinstance(self._dataset, DeferringDataset) and self._dataset.defers else None
        elsewhere = [] if self._elsewhere is None else self._elsewhere.explain()
        return [*seed, *lines_about(self._inner, recipe, deferral, self.decoding), *elsewhere]

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over this epoch. Calls `set_epoch` of a sampler that has one."""
        self._epochs.set_epoch(epoch)
        tell = getattr(sampler_of(self._inner), "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch delivered: small, JSON-safe. After a pass: the beginning of the next epoch."""
        return self._state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there with the next pass. Raises StateError for a state that this loader would not continue exactly."""
        cursor = self._state().cursor_from(state)
        self._source.check(cursor)
        self._seed.resume(state["seed"])
        self._checksum.resume(cursor, str(state.get("trail", "")))
        self._epochs.resume(cursor)
        if cursor.samples_done and not self._is_seeded:
            warnings.warn(
                f"the place in the epoch is resumed, the random state is not: what {type(self._inner.dataset).__qualname__} "
                "draws for the rest of the epoch, such as crops, differs from an uninterrupted run; leave "
                "faithful=True out",
                stacklevel=2,
            )

    def remaker(self, *, step: int) -> Callable[[BatchRequest], Any]:
        """Return what makes the batch that came last again: in this process, from its request, with all of its images.

        `step`: within the pass, for samples that turn out bad. The function raises what the user's code raises.
        """
        epoch = self._epochs.last.epoch

        def make_again(request: BatchRequest) -> Any:
            made = self._loader.collate_fn(self._dataset.__getitems__(request.with_values()))
            return self._tally.take(dataclasses.replace(made, num_samples=0), epoch=epoch, step=step)

        return make_again

    def _begin(self) -> tuple[Iterator[Any], KeyPass]:
        """Return torch's iterator of a pass that begins now, and its keys."""
        source = self._source
        rank = source.rank
        seed = 0 if rank is None else self._seed.settle(rank, self._fingerprint)
        start = self._epochs.claim()
        keys = source.keys(start, seed)
        if isinstance(self._dataset, DeferringDataset):
            self._dataset.prepare(decodes=any(one.is_deferred for one in self._tally.counts.values()))
            keys = calculated(keys) if self._dataset.seed_need.drawn else keys
            if self._dataset.may_leave_out:
                self._tally.paying.begin(self._most_samples(source), self._num_fresh_workers())
                keys = self._tally.paying.marked(keys)
        if isinstance(self._dataset, NumberRows | ArrayRows) and self._inner.num_workers:
            tell, num_ahead = self._dataset.announce, self._inner.num_workers * (self._inner.prefetch_factor or 2)
            keys = announced(keys, lambda pair: tell(pair[0]), num_ahead=num_ahead)
        walk = self._batches.walk = KeyPass(keys, start.epoch)
        return iter(self._loader) if self._elsewhere is None else self._elsewhere.fetch_all(iter(walk)), walk

    def _most_samples(self, source: KeySource) -> float:
        """Return how many samples a pass has at most, as far as that is known."""
        try:
            return source.num_steps * (self._batches.batch_size or 1)
        except TypeError:  # a sampler without a length
            return math.inf

    def _num_fresh_workers(self) -> int:
        """Return how many workers each pass starts."""
        return 0 if self._inner.persistent_workers else self._inner.num_workers

    def _state(self) -> LoaderState:
        source = self._source
        return LoaderState(
            epoch=self._epochs.last.epoch,
            samples_done=self._epochs.last.samples_done,
            global_batch=source.global_batch,
            num_samples=_length(self._inner.dataset),
            order=source.order,
            seed=self._seed.value,
            tail="drop" if self._inner.drop_last else "pad",
            dataset=self._fingerprint,
            trail=self._checksum.at(self._epochs.last),
        )


class _Batches:
    """The batch sampler of torch's loader: gives the keys of the pass that begins."""

    def __init__(
        self, open_source: Callable[[SamplerChecksum], KeySource], checksum: SamplerChecksum, *, batch_size: int | None
    ) -> None:
        self._open_source, self._checksum = open_source, checksum
        self.batch_size = batch_size  # read by those who watch torch's loader, as a diagnosis does; None: it varies
        self.walk = KeyPass(iter(()), 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.walk)

    def __len__(self) -> int:
        return self._open_source(self._checksum).num_steps


def _length(dataset: Any) -> int:
    length = length_of(dataset)
    if length is None:
        raise OptionError(f"dataset is a {type(dataset).__qualname__} without a length, so no place in it can be saved")
    return length
