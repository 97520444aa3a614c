"""Run the user's Dataset unchanged in torch's workers, and make its images together when a fetch ends."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from datapipe.adapt.deferral import pillow_seams, tensors, torchvision_seams
from datapipe.adapt.deferral.blocks import COUNTED_BY_ASKING, Block, holds_its_tensors
from datapipe.adapt.deferral.encoded_rows import blocks_of
from datapipe.adapt.deferral.engine import Engine, Wanted
from datapipe.adapt.deferral.paying import Cost
from datapipe.adapt.deferral.recorder import Fetch, PendingPixels, place_of, recording
from datapipe.adapt.deferral.reports import FetchReport, OperationCount, leave_report
from datapipe.adapt.deferral.requests import BatchRequest, SeedNeed
from datapipe.kernel.bad_samples import MAX_ATTEMPTS
from datapipe.kernel.options import OnError
from datapipe.kernel.random_state import RandomMark, RandomStates, random_mark, reseed
from datapipe.order.draws import key64

_HELD_BY_US = 2 + COUNTED_BY_ASKING  # references to a tensor that is still wanted: its holder's, the loop's name
_MOST_FAILURES = 5  # samples of a process that raised only because they were recorded; then tensors are made at once
_FETCHES_WITH_SITES = 2  # first fetches of a process, whose steps record their call sites


def is_switched_off() -> bool:
    """Return whether DATAPIPE_DEFER=0 is set."""
    return os.environ.get("DATAPIPE_DEFER", "1") == "0"


class DeferringDataset(torch.utils.data.Dataset[Any]):
    """A wrapper of `dataset` that is read by `BatchRequest`, or by bare keys. Every other attribute is the dataset's.

    `defers`: whether images are deferred; if not, samples are only seeded. `on_error`: what becomes of a sample whose
    `__getitem__` raises. `encodes`: whether images that DALI can make are left to it. Engine and seams are made in each process.
    """

    def __init__(self, dataset: Any, *, defers: bool, on_error: OnError = "raise", encodes: bool = False) -> None:
        self.dataset = dataset
        self.defers = defers
        self.on_error = on_error
        self.encodes = encodes
        self.stacks = False  # whether default_collate will stack the samples
        self._engine: Engine | None = None
        self._process = 0  # whose engine that is, as decoders do not survive a fork
        self.seed_need = SeedNeed()  # what is known of draws in this process
        self._watched_fetch: Fetch | None = None  # one that has seen nothing, to be used again
        self._has_images = False  # whether the latest fetch without recording had an image that would have been recorded
        self._num_recorded = self._num_plain = self._num_failures = 0  # fetches of this process, and samples
        self._first_failure = ""

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(DeferringDataset, defers=self.defers, on_error=self.on_error, encodes=self.encodes)
        return make, (self.dataset,), {"stacks": self.stacks, "seed_need": self.seed_need}

    @property
    def may_leave_out(self) -> bool:
        """Whether requests may say that nothing is recorded."""
        return self.defers and not self.encodes

    def prepare(self) -> None:
        """Find out in the training process what each of its workers would find out, before they are forked."""
        self.seed_need.look_at(self.dataset)
        if self.defers:
            torchvision_seams.prepare()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def __getitems__(self, request: Any) -> Any:
        """Return the samples of a batch. Raises what the user's code raises, as without deferral."""
        request = BatchRequest.of(request)
        if request.seeds is None:
            return self._fetch(request)
        states = RandomStates() if torch.utils.data.get_worker_info() is None else None
        try:
            before = None if not self._may_leave_seeds_out(request) else random_mark() if states is None else states.mark
            return self._fetch(request) if before is None else self._with_seeds_as_needed(request, before)
        finally:
            if states is not None:
                states.restore()

    def _with_seeds_as_needed(self, request: BatchRequest, before: RandomMark) -> Any:
        """Return the samples made with seeds of those states alone from which samples have drawn; with all if others changed.

        `before`: the mark of the states as they are.
        """
        need = self.seed_need
        try:
            made = self._with_few_seeds(request)
        except Exception:
            if before.changed(random_mark()) <= need.drawn:
                raise
            made = None
        changed = before.changed(random_mark())
        if made is not None and changed <= need.drawn:
            return made
        need.drawn |= changed
        return self._fetch(request)

    def _may_leave_seeds_out(self, request: BatchRequest) -> bool:
        is_recorded = self.defers and (request.is_recorded or self._has_images)
        return self.on_error == "raise" and not is_recorded and self.seed_need.may_leave_out()

    def _with_few_seeds(self, request: BatchRequest) -> Any:
        """Return the samples as the user's code makes them, as fast as torch does; None if an image is to be recorded."""
        dataset, keys, seeds, drawn = self.dataset, request.keys, request.seeds or (), self.seed_need.drawn
        watched, self._watched_fetch = self._watched_fetch or Fetch(is_plain=True), None
        num_replaced = len(torchvision_seams.TENSOR_STEPS)
        watches = self.defers and pillow_seams.is_available()
        if watches:
            pillow_seams.install()
        with recording(watched) if watches else contextlib.nullcontext():
            if reads_batches(dataset):
                if drawn:
                    reseed(seeds[0], drawn)
                made = dataset.__getitems__(keys)
            elif drawn:
                made = []
                for key, seed in zip(keys, seeds, strict=True):
                    reseed(seed, drawn)
                    made.append(dataset[key])
            else:
                made = [dataset[key] for key in keys]
        self._has_images = watched.has_traced
        self._watched_fetch = None if watched.has_traced or not watched.is_exact else watched
        if watches:
            torchvision_seams.install()
            watched.end_sample()
            if not watched.is_exact or num_replaced != len(torchvision_seams.TENSOR_STEPS):
                return None
        num = len(request)
        cost = Cost(True, True, num, has_images=watched.has_traced) if watches else None
        leave_report(FetchReport((), num, cost=cost, collation=request.collation))
        return made

    def _fetch(self, request: BatchRequest) -> Any:
        began = time.thread_time()
        calls = self._calls(request)
        if not self.defers or not pillow_seams.is_available():
            made = [self._plainly(call) for call in calls]
            leave_report(FetchReport((), len(calls), bad=_bad_among(made), collation=request.collation))
            return self._settled(made, calls)
        pillow_seams.install()
        torchvision_seams.install()
        tensors.install()
        if self._process != os.getpid():
            self._engine, self._process, self._num_recorded, self._num_plain = None, os.getpid(), 0, 0
        collation, num = request.collation, len(request)
        if not request.is_recorded:
            watched = Fetch(is_plain=True)
            made = self._watched(calls, watched)
            if watched.is_exact:
                self._has_images = watched.has_traced
                cost, since = Cost(True, True, num, has_images=watched.has_traced), began if self._num_plain else None
                self._num_plain += 1
                leave_report(FetchReport((), num, bad=_bad_among(made), cost=cost, began=since, collation=collation))
                return self._settled(made, calls)
        since, self._num_recorded = began if self._num_recorded else None, self._num_recorded + 1
        engine = self._engine = self._engine or Engine()
        fetch = Fetch(notes_sites=self._num_recorded <= _FETCHES_WITH_SITES, engine=engine)
        fetch.mode = tensors.TensorMode(fetch)
        made = []
        try:
            self._make(calls, fetch, made)
        except Exception:
            _finish(engine, fetch)  # finish what the user's code kept of samples before the one that failed
            raise
        blocks: list[Block] = []
        if self.stacks and not calls[0].is_batch:
            may_encode = self.encodes and request.may_be_encoded
            blocks = blocks_of(made, fetch.tensors, engine, request if may_encode else None)
        encoded = {key: fetch.tensors.pop(key) for block in blocks for key in block.ids if not block.rows}
        again = _finish(engine, fetch, blocks)
        if again and encoded:  # the others of such a batch need values
            fetch.tensors, encoded = encoded, {}
            again = sorted({*again, *_finish(engine, fetch)})
        if again:
            for block in blocks:
                block.ids.clear()  # ids of freed tensors are reused; the rows stay where they are
        for number in again:
            made[number] = self._plainly(calls[number])
        make_again = functools.partial(self.__getitems__, request.with_values()) if encoded else None
        counts = (*_counts(engine, fetch, len(again)), *self._counts_of_failures(num))
        cost = Cost(False, fetch.is_exact, num)
        leave_report(FetchReport(counts, num, blocks, _bad_among(made), make_again, cost, since, collation))
        return self._settled(made, calls)

    def _watched(self, calls: list[_Call], watched: Fetch) -> list[Any]:
        """The samples without deferral, and in `watched` whether one would have other values with it."""
        made: list[Any] = []
        with recording(watched):
            for number, call in enumerate(calls):
                watched.begin_sample(number)
                made.append(self._plainly(call))
                torchvision_seams.install()  # the sample may have imported it
                watched.end_sample()
        return made

    def _plainly(self, call: _Call) -> Any:
        """The sample without deferral; a `_Bad` for one that raises and is not to."""
        try:
            return call()
        except Exception as exc:
            return self._raised(call, exc)

    def _raised(self, call: _Call, exc: Exception) -> _Bad:
        """Raise what the user's code raised, or return what stands for a bad sample."""
        if self.on_error == "raise":
            raise exc
        return _Bad(call.key, exc)

    def _settled(self, made: list[Any], calls: list[_Call]) -> Any:
        """The samples without the bad ones, or with others in their places. Raises what the last one raised if none is left."""
        bad = [number for number, sample in enumerate(made) if type(sample) is _Bad]
        if not bad:
            return made[0] if calls and calls[0].is_batch else made
        if self.on_error == "replace":
            for number in bad:
                made[number] = self._replacement(calls[number], made[number])
            return made
        kept = [sample for sample in made if type(sample) is not _Bad]
        if not kept:
            raise made[-1].reason
        return kept

    def _replacement(self, call: _Call, bad: _Bad) -> Any:
        """A sample for a bad one, by a function of its seed and the attempt."""
        assert call.seed is not None
        for attempt in range(MAX_ATTEMPTS):
            word = int(key64(call.seed, attempt))
            sample = self._plainly(_Call(call.function, word % len(self.dataset), word >> 1))
            if type(sample) is not _Bad:
                return sample
        raise bad.reason

    def _make(self, calls: list[_Call], fetch: Fetch, made: list[Any]) -> None:
        """Append the samples, with stand-ins in them, to `made`."""
        for number, call in enumerate(calls):
            made.append(self._sample(call, fetch, number))
            fetch.end_sample()
            if not fetch.has_shared_tensors and fetch.tensors:
                fetch.has_shared_tensors = not holds_its_tensors(made, fetch.tensors, number)
            torchvision_seams.install()  # the first sample may have imported it

    def _sample(self, call: _Call, fetch: Fetch, number: int) -> Any:
        """Return a sample with stand-ins in it. One that fails while it is recorded is made again.

        Where stand-ins of tensors may be what failed, it is made with true tensors. They have the same values, so that
        a sample does not depend on what failed before in this process.
        """
        is_eager = self._num_failures >= _MOST_FAILURES
        made = self._attempt(call, fetch, number, is_eager=is_eager)
        if type(made) is _Failed and not is_eager and fetch.has_recorded_tensors and not fetch.has_failed:
            _forget_sample(fetch)
            failure, made = made.reason, self._attempt(call, fetch, number, is_eager=True)
            if type(made) is _Failed and not fetch.has_failed:  # the error is the user's own
                made = self._raised(call, made.reason)
            if type(made) not in (_Failed, _Bad):
                self._num_failures += 1
                where = f"{type(failure).__name__} at {place_of(failure)}"
                self._first_failure = self._first_failure or f"{where}: {str(failure).strip().partition(os.linesep)[0]}"
        if type(made) is not _Failed:
            return made
        _forget_sample(fetch)
        return self._plainly(call)

    def _attempt(self, call: _Call, fetch: Fetch, number: int, *, is_eager: bool) -> Any:
        """Return a sample that is recorded while it is made, or a `_Failed`. Raises what comes before anything is recorded."""
        fetch.begin_sample(number, is_eager=is_eager)
        try:
            fetch.mode.begin_sample(opens=fetch.has_shared_tensors)
            try:
                with recording(fetch):
                    sample = call()
            finally:
                fetch.mode.end_sample()
        except Exception as exc:
            if fetch.has_recorded:
                return _Failed(exc)
            return self._raised(call, exc)
        return _Failed(RuntimeError("bytes that do not decode")) if fetch.has_failed else sample

    def _counts_of_failures(self, num: int) -> list[OperationCount]:
        if self._num_failures < _MOST_FAILURES:
            return []
        what = "samples whose tensors are made at once, not at the end of the batch"
        return [OperationCount(what, f"recording them failed: {self._first_failure}", num, num)]

    def _calls(self, request: BatchRequest) -> list[_Call]:
        dataset, keys, seeds = self.dataset, request.keys, request.seeds
        need = self.seed_need if seeds is not None and self.seed_need.is_watching else None
        if reads_batches(dataset):
            return [_Call(dataset.__getitems__, keys, seeds[0] if seeds else None, need, is_batch=True)]
        return [_Call(dataset.__getitem__, key, seeds[number] if seeds else None, need) for number, key in enumerate(keys)]


def _forget_sample(fetch: Fetch) -> None:
    """Forget what the sample that runs now has recorded."""
    del fetch.images[fetch.num_images :]
    fetch.holders.clear()
    for number in [number for number, (_, pending) in fetch.tensors.items() if pending.sample == fetch.sample]:
        del fetch.tensors[number]


def _finish(engine: Engine, fetch: Fetch, blocks: Sequence[Block] = ()) -> list[int]:
    """Give everything that is still held its pixels and values. Returns the samples that must be made again."""
    rows = {number: row for block in blocks for number, row in block.rows.items()}
    wanted: list[Wanted] = []
    for reference in fetch.images:
        image = reference()
        deferred = None if image is None else pillow_seams.deferred_of(image)
        if image is not None and deferred is not None:
            wanted.append(Wanted(deferred.node, deferred.sample, functools.partial(_give_pixels, image)))
    held, fetch.tensors = fetch.tensors, {}
    by_memory: dict[int, list[tuple[torch.Tensor, PendingPixels]]] = {}
    for number in list(held):
        tensor, pending = held.pop(number)
        if sys.getrefcount(tensor) < _HELD_BY_US:
            continue
        if number in rows:
            give = functools.partial(tensors.give_values, tensor)
            wanted.append(Wanted(pending.node, pending.sample, give, rows[number]))
        else:
            by_memory.setdefault(id(pending.memory), []).append((tensor, pending))
    together = map(tensors.sharing, by_memory.values())
    wanted += [Wanted(shared.made.node, shared.made.sample, shared.give) for shared in together]
    return sorted(engine.make(wanted))


def _give_pixels(image: Any, made: Any) -> None:
    image.im = made.im


def _counts(engine: Engine, fetch: Fetch, num_again: int) -> tuple[OperationCount, ...]:
    counts = engine.taken_counts()
    for (what, reason, needed_by), samples in fetch.materialised.items():
        counts.append(OperationCount(what, reason, len(samples), len(set(samples)), needed_by=needed_by))
    if num_again:
        what = "samples with bytes that do not decode"
        counts.append(OperationCount(what, "run again without deferral", num_again, num_again))
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """A `worker_init_fn` that puts the user's Dataset into `get_worker_info()`, and then calls the user's own."""

    worker_init_fn: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        info: Any = torch.utils.data.get_worker_info()
        if info is not None and isinstance(info.dataset, DeferringDataset):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch's class forbids assignment
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


def reads_batches(dataset: Any) -> bool:
    """Return whether torch would ask the dataset for whole batches, rather than for samples one by one."""
    if type(dataset) is torch.utils.data.Subset:
        return reads_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


@dataclass(slots=True)
class _Call:
    """One call of the user's code, in the random state of its seed, if it has one."""

    function: Any
    key: Any
    seed: int | None
    need: SeedNeed | None = None  # to be told whether it draws
    is_batch: bool = False

    def __call__(self) -> Any:
        if self.seed is not None:
            reseed(self.seed)
        return self.function(self.key) if self.need is None else self.need.watched(self.function, self.key)


@dataclass(frozen=True, slots=True)
class _Bad:
    """In the place of a sample whose `__getitem__` raised."""

    key: Any
    reason: Exception


@dataclass(frozen=True, slots=True)
class _Failed:
    """In the place of a sample that raised while it was recorded."""

    reason: Exception


def _bad_among(made: list[Any]) -> tuple[tuple[str, str], ...]:
    """(sample, reason) of each bad one, as they are told."""
    bad = [sample for sample in made if type(sample) is _Bad]
    return tuple((f"sample {one.key!r}", f"{type(one.reason).__name__}: {one.reason}") for one in bad)
