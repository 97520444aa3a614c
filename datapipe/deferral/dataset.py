"""Run the user's Dataset unchanged in torch's workers, and make its images together when a fetch ends."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from datapipe.codecs.decode import default_decoder_name
from datapipe.deferral import pillow_seams, processor_seams, tensors, torchvision_seams
from datapipe.deferral.blocks import COUNTED_BY_ASKING, Block, holds_its_tensors
from datapipe.deferral.encoded_rows import blocks_of
from datapipe.deferral.engine import Engine, Wanted
from datapipe.deferral.own_code import Bad, Call, OwnCode, bad_among, unless_alarmed, unless_changed
from datapipe.deferral.paying import Cost
from datapipe.deferral.preparing import counted_once, taken_seconds
from datapipe.deferral.recorder import Fetch, PendingPixels, place_of, recording
from datapipe.deferral.reports import FetchReport, OperationCount, leave_report
from datapipe.deferral.requests import BatchRequest, SeedNeed, SeedsSeen
from datapipe.deferral.rules import are_exact
from datapipe.kernel.options import OnError
from datapipe.kernel.random_state import RandomStates, random_mark

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
        self._watches = False  # whether images are traced where nothing is recorded
        self._told: SeedsSeen | None = None  # what was told of draws
        self._num_recorded = self._num_alone = self._num_failures = 0  # fetches of this process, and samples
        self._first_failure = ""

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(DeferringDataset, defers=self.defers, on_error=self.on_error, encodes=self.encodes)
        return make, (self.dataset,), {"stacks": self.stacks, "seed_need": self.seed_need}

    @property
    def may_leave_out(self) -> bool:
        """Whether requests may say that nothing is recorded."""
        return self.defers and not self.encodes

    def prepare(self, *, decodes: bool) -> None:
        """Find out in the training process what each of its workers would find out, before they are forked.

        `decodes`: whether they are known to open decoders. Where they do not, these are not imported: OpenCV begins slower then.
        """
        self.seed_need.look_at(self.dataset)
        random_mark()
        if self.defers:
            torchvision_seams.prepare()
            if decodes:
                default_decoder_name()

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
        states = RandomStates() if request.seeds is not None and torch.utils.data.get_worker_info() is None else None
        try:
            if not self.defers or not pillow_seams.is_available():
                made = self._own_code.samples(request)
                self._leave_report(request, made)
                return self._settled(made, request)
            if self._process != os.getpid():
                self._engine, self._process, self._num_recorded, self._num_alone = None, os.getpid(), 0, 0
            made = None if request.is_recorded else self._alone(request)
            return self._recorded(request) if made is None else made
        finally:
            if states is not None:
                states.restore()

    @property
    def _own_code(self) -> OwnCode:
        return OwnCode(self.dataset, self.on_error, self.seed_need)

    @counted_once
    def _ready_engine(self) -> Engine:
        """Return the engine, after making ready what else this process needs to record, or to trace images."""
        pillow_seams.install()
        torchvision_seams.install()
        processor_seams.install()
        tensors.install()
        self._engine = self._engine or Engine()
        return self._engine

    def _alone(self, request: BatchRequest) -> Any:
        """The samples as the user's code makes them; None if they must be recorded, so that their values are always the same."""
        began = time.thread_time()
        make = functools.partial(self._own_code.samples, request)
        made, has_images = None, False  # is not known
        if not (self._watches or request.is_watched):
            made = unless_alarmed(make)
            self._watches = made is None
        if made is None:
            self._ready_engine()
            made, has_images = unless_changed(make)
        if made is None:
            return None
        since = began if self._num_alone else None
        self._num_alone += 1
        cost = Cost(True, True, len(request), has_images=has_images, is_watched=self._watches)
        self._leave_report(request, made, cost, since)
        return self._settled(made, request)

    def _leave_report(self, request: BatchRequest, made: Any, cost: Cost | None = None, began: float | None = None) -> None:
        """Leave the report of samples that were made by the user's code alone."""
        bad, seeds = bad_among(made), self._news_of_seeds()
        leave_report(FetchReport((), len(request), bad=bad, cost=cost, began=began, collation=request.collation, seeds=seeds))

    def _news_of_seeds(self) -> SeedsSeen | None:
        """Return what this process has seen of the samples' draws; None if it was told before."""
        seen = self.seed_need.seen
        if seen == self._told:
            return None
        self._told = seen
        return seen

    def _settled(self, made: Any, request: BatchRequest) -> Any:
        return self._own_code.settled(made, request) if self.on_error != "raise" else made

    def _recorded(self, request: BatchRequest) -> Any:
        """The samples, their images made together when the user's code is done with them."""
        began = time.thread_time()
        engine = self._ready_engine()
        own, num = self._own_code, len(request)
        calls = own.calls(request)
        since, self._num_recorded = began if self._num_recorded else None, self._num_recorded + 1
        fetch = Fetch(notes_sites=self._num_recorded <= _FETCHES_WITH_SITES, engine=engine)
        fetch.mode = tensors.TensorMode(fetch)
        made: list[Any] = []
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
            made[number] = own.sample(calls[number])
        make_again = functools.partial(self.__getitems__, request.with_values()) if encoded else None
        counts = (*_counts(engine, fetch, len(again)), *self._counts_of_failures(num))
        cost = Cost(False, are_exact(fetch.doubtful), num, has_images=fetch.has_images, setup=taken_seconds())
        bad, seeds = bad_among(made), self._news_of_seeds()
        leave_report(FetchReport(counts, num, blocks, bad, make_again, cost, since, request.collation, seeds))
        return made[0] if calls and calls[0].is_batch and type(made[0]) is not Bad else self._settled(made, request)

    def _make(self, calls: list[Call], fetch: Fetch, made: list[Any]) -> None:
        """Append the samples, with stand-ins in them, to `made`."""
        for number, call in enumerate(calls):
            made.append(self._sample(call, fetch, number))
            fetch.end_sample()
            if not fetch.has_shared_tensors and fetch.tensors:
                fetch.has_shared_tensors = not holds_its_tensors(made, fetch.tensors, number)
            torchvision_seams.install()  # the first sample may have imported it
            processor_seams.install()

    def _sample(self, call: Call, fetch: Fetch, number: int) -> Any:
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
                made = self._own_code.raised(call, made.reason)
            if type(made) not in (_Failed, Bad):
                self._num_failures += 1
                where = f"{type(failure).__name__} at {place_of(failure)}"
                self._first_failure = self._first_failure or f"{where}: {str(failure).strip().partition(os.linesep)[0]}"
        if type(made) is not _Failed:
            return made
        _forget_sample(fetch)
        return self._own_code.sample(call)

    def _attempt(self, call: Call, fetch: Fetch, number: int, *, is_eager: bool) -> Any:
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
            return self._own_code.raised(call, exc)
        return _Failed(RuntimeError("bytes that do not decode")) if fetch.has_failed else sample

    def _counts_of_failures(self, num: int) -> list[OperationCount]:
        if self._num_failures < _MOST_FAILURES:
            return []
        what = "samples whose tensors are made at once, not at the end of the batch"
        return [OperationCount(what, f"recording them failed: {self._first_failure}", num, num)]


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


@dataclass(frozen=True, slots=True)
class _Failed:
    """In the place of a sample that raised while it was recorded."""

    reason: Exception
