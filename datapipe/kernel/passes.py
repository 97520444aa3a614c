"""Open the passes of a loader, one after the other, each from the place at which training stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipe.core.observe import Observer, null_observer
from datapipe.errors import StateError
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.kind import Kind, Pass, PassFacts, Source
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.samplers import SampledSource, SamplerChecksum, WeightedSampler
from datapipe.kernel.state import LoaderProgress, LoaderState
from datapipe.kernel.tasks import OpenPass
from datapipe.order.plan import Plan, Tail


class Passes:
    """The passes of one loader over the data of `kind`.

    Iterators refer to this, not to the loader. All calls come from the consumer's thread. `configure` must be called first.
    """

    def __init__(self, kind: Kind, progress: LoaderProgress) -> None:
        self.kind, self.progress = kind, progress
        self.bad_samples = BadSampleLog()
        self.observer: Observer = null_observer
        self._checksum = SamplerChecksum()
        self._latest: Source | None = None  # of the latest pass; another one may draw by other weights

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError, and changes nothing, if they do not fit."""
        self.kind.configure(arguments, options)
        self._arguments, self.options = arguments, options

    def num_steps(self) -> int:
        """Return the steps of a whole epoch on this rank."""
        return self.source().num_steps

    def begin(self) -> OpenPass:
        """Return a pass that begins now."""
        seed = self.progress.seed.settle(self.progress.rank, self.kind.fingerprint)
        settings = self.settings(seed)
        self._latest = settings.source
        return OpenPass.of(settings, self.kind.open_pass(settings))

    def settings(self, seed: int = 0) -> Pass:
        """Return what a pass with that seed would be that began now."""
        start = self.progress.epochs.upcoming
        return Pass(self.source(seed), seed, start, self.options, self.observer, self.bad_samples)

    def facts(self) -> PassFacts:
        """Return what `explain` says of a pass that would begin now."""
        settings, progress = self.settings(), self.progress
        return PassFacts(
            settings, _order_name(self._latest or settings.source), progress.seed.describe(), progress.rank.world_size
        )

    def source(self, seed: int = 0) -> Source:
        """Return what says which samples make up the batches of a pass with that seed; their number depends on no seed."""
        sampler, batch_sampler = self._arguments["sampler"], self._arguments["batch_sampler"]
        options, rank, num, checksum = self.options, self.progress.rank, self.kind.num_samples, self._checksum
        if batch_sampler is not None:
            return SampledSource(batch_sampler, None, rank, drop_last=False, num_samples=num, checksum=checksum)
        if isinstance(sampler, WeightedSampler):
            return Plan(sampler.order(seed), options.batch_size, rank, options.tail)
        if sampler is not None:
            drop_last = options.tail is Tail.DROP
            return SampledSource(sampler, options.batch_size, rank, drop_last=drop_last, num_samples=num, checksum=checksum)
        order = self.kind.order(seed, shuffle=options.shuffle, global_batch=options.batch_size * rank.world_size)
        return Plan(order, options.batch_size, rank, options.tail)

    def is_of_this_data(self, state: Mapping[str, Any]) -> bool:
        """Return whether a saved state is of the same data, or of what it was converted from."""
        return state.get("dataset") in {self.kind.fingerprint, self.kind.former_fingerprint} - {""}

    def state(self) -> dict[str, Any]:
        """Return the place after the last batch delivered, JSON-safe."""
        identity = self.kind.identity
        return self._state().to_json() | ({} if identity is None else {identity.name: identity.value})

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved state with the next pass. Raises StateError for one that would not be continued exactly."""
        present, identity = self._state(), self.kind.identity
        if isinstance(state, Mapping) and self.kind.former_fingerprint and state.get("dataset") == self.kind.former_fingerprint:
            state = {**state, "dataset": self.kind.fingerprint}
        if identity is not None and present.is_of_this_dataset(state) and state.get(identity.name) != identity.value:
            raise StateError(f"the state was saved with other {identity.means}; pass the same ones as then")
        cursor = present.cursor_from(state)
        self.source().step_at(cursor)
        self.progress.resume(cursor, state)
        self._checksum.resume(cursor, str(state.get("trail", "")))
        self._latest = None

    def _state(self) -> LoaderState:
        source, last = self._latest or self.source(), self.progress.epochs.last
        is_of_free_ranks = self.kind.has_free_ranks and isinstance(source, Plan)
        return LoaderState(
            epoch=last.epoch,
            samples_done=last.samples_done,
            global_batch=0 if is_of_free_ranks else source.global_batch,
            num_samples=self.kind.num_samples,
            order=_order_name(source),
            seed=self.progress.seed.value,
            tail=self.options.tail.value,
            dataset=self.kind.fingerprint,
            trail="" if isinstance(source, Plan) else self._checksum.at(last),
        )


def _order_name(source: Source) -> str:
    """Return the name of an order in states."""
    return source.order.kind if isinstance(source, Plan) else "sampler"
