"""Make samples by the user's code alone, with no seeds but those that they need, and notice what recording would change.

Recording computes resizes of JPEGs, and some colours, within a tolerance of Pillow's. What a sample's values are must not depend
on whether recording pays. So where the user's code alone comes to such an operation, its batch is recorded after all. An alarm in
these operations tells, which costs nothing where there are none. Once it has rung, images are traced from their files on, as most
such operations are on images from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from datapipe.deferral import pillow_seams, torchvision_seams
from datapipe.deferral.recorder import Fetch, recording
from datapipe.deferral.requests import BatchRequest, SeedNeed
from datapipe.deferral.rules import are_exact
from datapipe.kernel.bad_samples import MAX_ATTEMPTS
from datapipe.kernel.options import OnError
from datapipe.kernel.random_state import random_mark, reseed
from datapipe.order.draws import key64


def reads_batches(dataset: Any) -> bool:
    """Return whether torch would ask the dataset for whole batches, rather than for samples one by one."""
    if type(dataset) is torch.utils.data.Subset:
        return reads_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


@dataclass(slots=True)
class Call:
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
class Bad:
    """In the place of a sample whose `__getitem__` raised."""

    key: Any
    reason: Exception


@dataclass(frozen=True, slots=True)
class OwnCode:
    """The user's Dataset, as it is called in this process. `on_error`: what becomes of a sample whose `__getitem__` raises."""

    dataset: Any
    on_error: OnError
    need: SeedNeed

    def samples(self, request: BatchRequest) -> Any:
        """Return the samples of a request, or what `__getitems__` returns; a `Bad` for each that raises and is not to."""
        if request.seeds is not None and self.on_error == "raise" and self.need.may_leave_out():
            made = self._with_few_seeds(request)
            if made is not None:
                return made
        calls = self.calls(request)
        made = [self.sample(call) for call in calls]
        return made[0] if calls and calls[0].is_batch and type(made[0]) is not Bad else made

    def calls(self, request: BatchRequest) -> list[Call]:
        """Return the calls that make the samples of a request, each with its seed."""
        keys, seeds = request.keys, request.seeds
        told = self.need if seeds is not None and self.need.is_watching else None
        if reads_batches(self.dataset):
            return [Call(self.dataset.__getitems__, keys, seeds[0] if seeds else None, told, is_batch=True)]
        make = self.dataset.__getitem__
        return [Call(make, key, seeds[number] if seeds else None, told) for number, key in enumerate(keys)]

    def sample(self, call: Call) -> Any:
        """Return what a call returns; a `Bad` if it raises and is not to."""
        try:
            return call()
        except Exception as exc:
            return self.raised(call, exc)

    def raised(self, call: Call, exc: Exception) -> Bad:
        """Raise what the user's code raised, or return what stands for a bad sample."""
        if self.on_error == "raise":
            raise exc
        return Bad(call.key, exc)

    def settled(self, made: list[Any], request: BatchRequest) -> Any:
        """Return the samples without the bad ones, or others in their places. Raises what the last raised if none is left."""
        bad = [number for number, sample in enumerate(made) if type(sample) is Bad]
        if not bad:
            return made
        if self.on_error == "replace":
            calls = self.calls(request)
            for number in bad:
                made[number] = self._replacement(calls[number], made[number])
            return made
        kept = [sample for sample in made if type(sample) is not Bad]
        if not kept:
            raise made[-1].reason
        return kept

    def _replacement(self, call: Call, bad: Bad) -> Any:
        """A sample for a bad one, by a function of its seed and the attempt."""
        assert call.seed is not None
        for attempt in range(MAX_ATTEMPTS):
            word = int(key64(call.seed, attempt))
            sample = self.sample(Call(call.function, word % len(self.dataset), word >> 1))
            if type(sample) is not Bad:
                return sample
        raise bad.reason

    def _with_few_seeds(self, request: BatchRequest) -> Any:
        """The samples, made with seeds of those states alone from which samples have drawn; None if they draw from others too."""
        need, before = self.need, random_mark()
        if before is None:
            return None
        try:
            made = self._as_torch(request.keys, request.seeds or (), need.drawn)
        except Exception:
            if before.changed(random_mark()) <= need.drawn:
                raise
            made = None
        changed = before.changed(random_mark())
        if made is not None and changed <= need.drawn:
            return made
        need.drawn |= changed
        return None

    def _as_torch(self, keys: Any, seeds: Sequence[int], drawn: frozenset[str]) -> Any:
        """The samples, asked for as torch's workers do."""
        dataset = self.dataset
        if reads_batches(dataset):
            if drawn:
                reseed(seeds[0], drawn)
            return dataset.__getitems__(keys)
        if not drawn:
            return [dataset[key] for key in keys]
        made = []
        for key, seed in zip(keys, seeds, strict=True):
            reseed(seed, drawn)
            made.append(dataset[key])
        return made


def bad_among(made: Any) -> tuple[tuple[str, str], ...]:
    """Return (sample, reason) of each bad one, as they are told."""
    bad = [sample for sample in made if type(sample) is Bad] if type(made) is list else []
    return tuple((f"sample {one.key!r}", f"{type(one.reason).__name__}: {one.reason}") for one in bad)


# -- whether recording would have given other values -----------------------------------------------------


def unless_alarmed(make: Callable[[], Any]) -> Any:
    """Return `make()`; None if recording might have given other values."""
    num_known = len(torchvision_seams.TENSOR_STEPS)
    pillow_seams.listen()
    torchvision_seams.listen()
    with pillow_seams.alarm as alarm:
        made = make()
    torchvision_seams.prepare()
    return None if alarm.has_rung or num_known != len(torchvision_seams.TENSOR_STEPS) else made


def unless_changed(make: Callable[[], Any]) -> tuple[Any, bool]:
    """Return `make()`, or None if recording gives other values; and whether there was an image that it would record."""
    num_known, watched = len(torchvision_seams.TENSOR_STEPS), Fetch(is_plain=True)
    with recording(watched):
        made = make()
    watched.end_sample()
    torchvision_seams.install()
    is_same = num_known == len(torchvision_seams.TENSOR_STEPS) and are_exact(watched.doubtful)
    return (made if is_same else None), watched.has_traced
