"""`Loader`: torch's contract over any kind of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from datapipe.core.observe import Observer, check_observer
from datapipe.core.printable import get_logger
from datapipe.errors import StateError
from datapipe.kernel.bad_samples import BadSample
from datapipe.kernel.iteration import BatchIterator
from datapipe.kernel.kind import Data, Kind
from datapipe.kernel.options import SETTABLE, LoaderOptions, check_settable, parse_options
from datapipe.kernel.passes import Passes
from datapipe.kernel.ranks import resolve_device, resolve_rank
from datapipe.kernel.seeding import Seed, seed_source
from datapipe.kernel.shown import refuse_position, shown_loader
from datapipe.kernel.state import LoaderProgress
from datapipe.kernel.torch_compat import (
    EpochSetter,
    OwnBatches,
    SequentialEpochSetter,
    added_attributes,
    leave_random_state,
    names_of,
)
from datapipe.order.plan import Tail

logger = get_logger(__name__)


class Loader:
    """A loader of batches of one kind of data: what frameworks and scripts expect of torch's DataLoader, and saved states.

    `arguments`: those that the loader was made with. `open_loader(**arguments)`: opens another. `transform`: in place of theirs.
    """

    def __init__(
        self, data: Data, arguments: dict[str, Any], *, open_loader: Callable[..., Loader], transform: object = None
    ) -> None:
        seed = Seed(seed_source(arguments["seed"], arguments["generator"]))
        self._resolve_device = resolve_device(arguments["device"])
        self.dataset: Any = data
        meant = {**arguments, "transform": transform}
        self._open_loader = open_loader
        self._meant = meant
        kind = self._open_kind(data)
        options = parse_options(arguments, kind.block_sizes)
        self._passes = Passes(kind, LoaderProgress(seed, arguments["ranks"]))
        self.origin = ""  # what `from_torch` took over, and how
        self.strategy_lines: tuple[str, ...] = ()  # the lines of `explain` about how that was chosen
        # Attributes that frameworks and scripts read from a torch DataLoader.
        setter = EpochSetter if options.shuffle else SequentialEpochSetter
        sampler = arguments["sampler"]
        self.sampler = setter(self._progress.epochs, kind.num_in_epoch) if sampler is None else sampler
        self.batch_size = arguments["batch_size"]
        self.drop_last = options.tail is Tail.DROP
        self.generator = arguments["generator"]
        self.persistent_workers = arguments["persistent_workers"]
        self._apply(arguments, options)
        self._names = names_of(self)

    def _open_kind(self, data: Data) -> Kind:
        return data.open_kind(self._meant, device=self._resolve_device, open_loader=self._open_loader)

    def _apply(self, arguments: dict[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError, and changes nothing, if they do not fit."""
        self._passes.configure(arguments, options)
        self.options = options
        shown = {name: arguments[name] for name in SETTABLE & arguments.keys()} | {
            "num_workers": options.num_workers,
            "prefetch_factor": options.prefetch_factor,
            "worker_init_fn": arguments["worker_init_fn"] or leave_random_state,
        }
        vars(self).update(shown, _arguments=arguments)  # past `__setattr__`, which checks them from here on

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Torch's that may change take effect with the next pass; raises OptionError for other arguments."""
        arguments = vars(self).get("_arguments", {})
        if name not in arguments:
            super().__setattr__(name, value)
            return
        check_settable(name)
        changed = {**arguments, name: value}
        self._apply(changed, parse_options(changed, self._passes.kind.block_sizes))

    @property
    def _progress(self) -> LoaderProgress:
        return self._passes.progress

    _arguments: dict[str, Any]
    num_workers: int
    prefetch_factor: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None]

    def __repr__(self) -> str:
        size = self.batch_size if self._arguments["batch_sampler"] is None else None
        return shown_loader(type(self).__name__, self.dataset.shown, batch_size=size, device=self._arguments["device"])

    # -- torch's contract -----------------------------------------------------------------------

    __getitem__ = refuse_position

    def __iter__(self) -> BatchIterator:
        passes = self._passes
        passes.kind.check_unchanged()
        self._progress.check_still_alone(passes.num_steps)
        return BatchIterator(passes, self.worker_init_fn)

    def __len__(self) -> int:
        """Return batches per epoch on this rank; the same on all. Raises TypeError for a sampler without a length."""
        return self._passes.num_steps()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_arguments, (type(self), self._arguments, self._open_loader), added_attributes(self)

    # -- epochs, state, observation ---------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over this epoch. Without it epochs count up from 0.

        Also calls `set_epoch` of a `sampler` or `batch_sampler` of your own if it has one; at other times that is left
        to you, as with torch.
        """
        self._progress.epochs.set_epoch(epoch)
        own = self._arguments["batch_sampler"]
        own = self._arguments["sampler"] if own is None else own
        tell = getattr(own, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch delivered: small, JSON-safe. After a pass: the beginning of the next epoch."""
        versions = self.dataset.versions
        return self._passes.state() | ({"versions": dict(versions)} if versions else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there with the next pass, on any number of ranks as long as batch_size x world_size is the same.

        Where `Tokens` have `max_tokens`, that product may differ.

        Of data whose place has changed since, such as a branch or a table that grows, the loader takes what it was, and says so:
        its length and `dataset` are those of then.

        A state taken after the last batch, before the pass ended, leaves nothing: the next pass is empty, and the one after it
        is over the next epoch.
        Raises StateError for a state that this loader would not continue exactly.
        """
        data = self._as_saved(state)
        if data is self.dataset:
            self._passes.resume(state)
            return
        passes = Passes(self._open_kind(data), self._progress)
        passes.configure(self._arguments, self.options)
        passes.resume(state)
        passes.observer, passes.bad_samples = self._passes.observer, self._passes.bad_samples
        vars(self).update(dataset=data, _passes=passes, _arguments={**self._arguments, "dataset": data})

    def _as_saved(self, state: Mapping[str, Any]) -> Data:
        """Return the data at the versions of its places of a saved state. Raises StateError if they cannot be opened again."""
        saved = state.get("versions") if isinstance(state, Mapping) else None
        data: Data = self.dataset
        now = data.versions
        if not isinstance(saved, Mapping) or saved.keys() != now.keys() or saved == now or self._passes.is_of_this_data(state):
            return data
        moved = "; ".join(f"{place} was at {saved[place]}, and is at {now[place]}" for place in now if saved[place] != now[place])
        found = data.at({str(place): str(version) for place, version in saved.items()})
        if found is None:
            raise StateError(f"the state was saved with other data: {moved}; open it at what it was, and select or mix that")
        logger.warning("%s: training continues with what it was", moved)
        return found

    @property
    def observer(self) -> Observer:
        """The function to which stages are reported; `observe` sets it."""
        return self._passes.observer

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        check_observer(observer)
        self._passes.observer = observer

    @property
    def seed(self) -> int | None:
        """The seed of order and augmentation; None until it is drawn, when the first pass begins."""
        return self._progress.seed.value

    @property
    def batch_sampler(self) -> Iterable[list[int]]:
        """The batch sampler passed, or a stand-in as long as the loader, without positions."""
        own: Iterable[list[int]] | None = self._arguments["batch_sampler"]
        return OwnBatches(self) if own is None else own

    @property
    def device(self) -> torch.device:
        """The device on which batches are delivered."""
        return self._resolve_device()

    @property
    def choice(self) -> Any:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring. None if there is one."""
        return self._passes.kind.choice

    @property
    def elsewhere(self) -> Any:
        """The workers of other machines, and what they have made; None: they cannot make this kind of data."""
        return self._passes.kind.elsewhere

    @property
    def cache_stats(self) -> Any:
        """The cache's hits in this process, and what it holds; None without a cache."""
        return self._passes.kind.cache_stats

    @property
    def bad_samples(self) -> list[BadSample]:
        """The bad samples skipped or replaced, the latest 1,000."""
        return list(self._passes.bad_samples.latest)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise OptionError for arguments that make no sense, whatever the data is."""
    parse_options(arguments)
    seed_source(arguments["seed"], arguments["generator"])
    resolve_device(arguments["device"])
    resolve_rank(arguments["ranks"])


def _from_arguments(cls: type[Loader], arguments: dict[str, Any], open_loader: type[Loader]) -> Loader:
    loader = cls.__new__(cls)
    open_loader.__init__(loader, **arguments)
    return loader
