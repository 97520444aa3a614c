"""The contract of a kind of data: what a folder of `datapipe/kinds` implements, and all that the kernel knows of it.

`Data` is what users pass to a loader, and a `Kind` what one loader makes of it. For each pass a kind opens a `BatchMaker`, whose
methods make a batch in this order: `begin` looks it up, `fill` writes the rows of each of its `pieces`, a lane decodes it as a
whole if there are lanes, `finish` hands it over. Threads, order, prefetch, states, ranks and the treatment of bad samples are the
kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from datapipe.core.observe import Observer, Stage, StageEvent, null_observer
from datapipe.core.printable import printable
from datapipe.errors import DecodeError, IntegrityError, OptionError
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.options import MAX_BLOCK, LoaderOptions, Shuffle
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.samplers import SampledSource
from datapipe.order.plan import BatchSpan, Cursor, Picks, Plan
from datapipe.order.sample_order import Order

if TYPE_CHECKING:
    import torch

Source = Plan | SampledSource  # what says which samples make up which batch
Step = BatchSpan | Picks  # one rank's batch, before it is made; picks come from a sampler of the user's
Reason = DecodeError | IntegrityError  # what is wrong with a sample
_OPTIONAL = "called on a maker that has no lanes, or whose rows are never bad"


class BadRow(NamedTuple):
    """A row of a batch, or of a part of one, whose sample is bad."""

    row: int
    reason: Reason


class Piece(NamedTuple):
    """Rows of a batch that one thread fills at once."""

    rows: range  # of the batch
    keys: Sequence[Hashable] = ()  # of the shared pieces that they are filled from
    what: Any = None  # the kind's own


@dataclass(frozen=True, slots=True)
class LeftToConsumer:
    """A batch whose last step may draw from the training's random state, and so runs in the consumer's thread, at `next()`."""

    finish: Callable[[], Any]  # may be interrupted, and called again


@dataclass(frozen=True, slots=True)
class Pass:
    """The settings of one pass over the data: its order, seed, start, options, and where stages and bad samples are reported."""

    source: Source
    seed: int  # with the epoch and the sample's id, all that draws depend on
    start: Cursor  # where the pass begins
    options: LoaderOptions
    observer: Observer
    bad_samples: BadSampleLog

    def steps(self, start: Cursor) -> Iterator[Step]:
        """Yield the batches from `start` to the end of its epoch. Runs in the consumer's thread, as the user's sampler does."""
        return self.source.spans(start) if isinstance(self.source, Plan) else self.source.steps(start)

    def picks_of(self, step: Step) -> Picks:
        """Return the samples of a batch."""
        if isinstance(step, Picks):
            return step
        assert isinstance(self.source, Plan)  # samplers give picks
        return self.source.picks_of(step)


@dataclass(frozen=True, slots=True)
class PassFacts:
    """The pass that would begin now, for `explain`."""

    settings: Pass  # the seed is 0 there: it may not be drawn yet
    order: str  # the name of the order, as states have it; "sampler": that of a sampler of the user's
    seed: str  # the seed and its origin, in words
    num_ranks: int


def note_stage(
    observer: Observer,
    stage: Stage,
    step: int,
    start_ns: int,
    num_samples: int,
    *,
    took_ns: int | None = None,
    network_ns: int = 0,
    nbytes: int = 0,
) -> None:
    """Report a stage, and apart from it the time in it that the thread waited for a network. `took_ns`: None: it ends now."""
    if observer is null_observer:
        return
    took_ns = time.perf_counter_ns() - start_ns if took_ns is None else took_ns
    network_ns = min(network_ns, took_ns)
    if network_ns:
        observer(StageEvent(Stage.NETWORK, step, start_ns, network_ns, num_samples))
    observer(StageEvent(stage, step, start_ns + network_ns, took_ns - network_ns, num_samples, nbytes))


class SharedPieces(Protocol):
    """How to load what several batches are filled from: a window of rows, a group of pictures. Thread-safe.

    A shared piece is loaded once, in parts, by whichever threads are free, and dropped once no batch needs it. Where Ctrl-C comes
    in the caller's thread, a method may be called again for what it has done, and must give the same.
    """

    parts_at_once: int  # best given to one `load`; where that fails, each is tried alone

    def open(self, key: Hashable, step: int, /) -> tuple[Any, list[Any]]:
        """Return memory for the piece of this key, and the parts to load, at least one. `step`: the first that needs it."""

    def load(self, piece: Any, parts: Sequence[Any], worker: Any, /) -> None:
        """Load parts into the piece. DecodeError and IntegrityError make a part bad; other errors are the whole piece's."""

    def leave_out(self, piece: Any, part: Any, reason: Reason, /) -> None:
        """Note a bad part. Not called if bad samples are to be raised."""

    def complete(self, piece: Any, /) -> None:
        """Finish a piece whose parts are loaded or left out. Called by the thread that loaded the last one."""


class Lanes(NamedTuple):
    """Decoders of whole batches, such as DALI's pipelines. Each has a thread of its own."""

    num: int
    pool: ObjectPool[Any]


@dataclass(frozen=True, slots=True)
class Resources:
    """The options, workers, device and lanes with which the kernel runs a maker of batches."""

    options: LoaderOptions  # the loader's, perhaps with more batches ahead
    workers: ObjectPool[Any]  # with which threads load and fill, one each
    runtime: DeviceRuntime | None = None  # of the device that batches go to; None if they stay in host memory
    lanes: Lanes | None = None  # one of them decodes each batch between its last piece and `finish`; None if there are none
    shared: SharedPieces | None = None  # how shared pieces are loaded; None if no piece has keys


class BatchMaker(Protocol):
    """Makes the batches of one pass. Thread-safe. `batch` is the kind's own, from `begin` on.

    What has a body here is optional.
    """

    resources: Resources

    def begin(self, step: Any, /) -> Any:
        """Return a batch in the making, for a `Step`: looked up, its memory leased."""

    def pieces(self, batch: Any, /) -> list[Piece]:
        """Return what the batch is filled by, in the order in which threads should take it."""

    def ahead(self, batch: Any, /) -> Sequence[Hashable]:
        """Return the keys of shared pieces that the next steps need, for threads that have nothing else to do."""
        return ()

    def fill(self, batch: Any, piece: Piece, shared: Sequence[Any], worker: Any, /) -> Sequence[BadRow]:
        """Write the rows of a piece; return the bad ones. `shared`: what `SharedPieces.open` returned for each key, complete."""

    def locate(self, batch: Any, row: int, /) -> Description:
        """Return the sample that was picked for a row."""
        raise AssertionError(_OPTIONAL)

    def leave_out(self, batch: Any, row: int, /) -> None:
        """Leave a row out of the batch."""
        raise AssertionError(_OPTIONAL)

    def replace(self, batch: Any, row: int, attempt: int, worker: Any, /) -> bool:
        """Fill a row with another sample, chosen by seed, epoch, id and attempt alone. Return False if that one is bad."""
        raise AssertionError(_OPTIONAL)

    def decode(self, batch: Any, lane: Any, worker: Any, settle: Callable[[BadRow], None], /) -> None:
        """Decode a filled batch by a lane. Calls `settle` for bad rows; it may call `replace`, and raise."""
        raise AssertionError(_OPTIONAL)

    def finish(self, batch: Any, /) -> Any:
        """Return what the user gets, a `DeviceTransfer` of it, or `LeftToConsumer`."""


class Identity(NamedTuple):
    """What, besides the data, must be equal for a saved state to mean the same place."""

    name: str  # in states
    value: str
    means: str  # which arguments decide it, for people


class Kind(Protocol):
    """The data behind one loader: in which order samples come, and who makes batches of them.

    All calls come from the consumer's thread. What has a body here is optional.
    """

    fingerprint: str  # of the data: a state resumes on the same data only
    former_fingerprint: str = ""  # of what the data were converted from, with the same samples in the same order
    num_samples: int
    num_in_epoch: int  # samples; not `num_samples` where some come again, or are left out
    identity: Identity | None = None
    has_free_ranks: bool = False  # whether a state resumes on other ranks too if `batch_size` stays, with steps of other sizes
    block_sizes: tuple[int, int] = (1, MAX_BLOCK)  # the fewest and the most samples that are best filled at once
    elsewhere: Any = None  # the workers of other machines; None: they cannot make this kind of data

    @property
    def choice(self) -> Any:
        """The backend that makes batches, and why. None: there is one alone."""
        return None

    @property
    def cache_stats(self) -> Any:
        """The hits of the cache of decoded data in this process, and what it holds. None: there is none."""
        return None

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions, /) -> None:
        """Use these arguments of the loader from the next pass on. Raises OptionError and changes nothing if they do not fit."""
        return

    def check_unchanged(self) -> None:
        """Raise LifecycleError if the data is not any more what it was. Called when a pass is asked for."""
        return

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        """Return the order of samples in any epoch: arithmetic, the same on every rank. `global_batch`: samples of a step."""

    def open_pass(self, settings: Pass, /) -> BatchMaker:
        """Return the maker of a pass that begins now. What passes share is made when the first one needs it."""

    def explain(self, facts: PassFacts, /) -> list[str]:
        """Return the lines that `explain` prints about a loader of this data: a name of up to 9 letters, then text."""


class Data(Protocol):
    """A loader's `dataset`: what a sample is, and where samples lie. Immutable; several loaders may share one."""

    @property
    def shown(self) -> str:
        """The samples and where they lie, in words."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        kind = type(self)
        return printable(f"<{kind.__module__.partition('.')[0]}.{kind.__qualname__}: {self.shown}>")

    _versions: Mapping[str, str] = {}  # as `opened_at` notes them

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions at which places were opened that change, such as branches, by place."""
        return self._versions

    def at(self, versions: Mapping[str, str], /) -> Data | None:
        """Return the same data at other versions of its places; None if it is not opened from places alone."""
        return None

    @property
    def own_transform(self) -> object:
        """The transforms that came with a torch Dataset, which a loader applies unless it has others; None: there are none."""
        return None

    def without_transform(self) -> Data:
        """Return the same data without transforms of its own."""
        return self

    def open_kind(
        self, arguments: Mapping[str, Any], /, *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> Kind:
        """Return the kind behind a loader with these arguments. Raises OptionError for those that do not fit the data.

        `device`: says, in the consumer's thread, where batches are delivered. `open_loader`: opens another loader, for measuring.
        """

    def mixed(self, others: Sequence[Any], /, *, weights: Sequence[float] | None, num_samples: int | None) -> Data:
        """Return this data and others of its type, of each of which an epoch has a fixed share. See `mix` and `mixing`."""
        name = type(self).__qualname__
        raise OptionError(f"mix() of {name}: data of this kind is not mixed; pass one {name} that holds all of it")
