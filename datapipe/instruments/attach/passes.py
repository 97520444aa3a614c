"""One pass over a loader: measure `next()`, and match batches with their profiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from datapipe.core.environment import shared_memory
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.measure.watching import MeteredPass, Watch
from datapipe.instruments.torch_stages.patching import forget_us
from datapipe.instruments.torch_stages.profile import ARRIVALS, BatchProfile


def num_ready(iterator: Any) -> int | None:
    """Return the ready batches of an iterator of torch's with workers, or of datapipe's; None if unknown.

    If the awaited batch has not arrived, later ones count only while they are in the queue, where their numbers are not visible.
    """
    with suppress(Exception):
        tasks = getattr(iterator, "_task_info", None)
        if tasks is not None:
            num, next_index = 0, iterator._rcvd_idx
            while len(tasks.get(next_index + num, ())) == 2:
                num += 1
            return num + int(iterator._data_queue.qsize())
        ours = getattr(iterator, "_tasks", None)
        if ours is not None and getattr(iterator, "_board", None) is not None:
            num = 0
            for task in ours:
                if not task.done.is_set():
                    break
                num += 1
            return num
    return None


_local = threading.local()
_LARGE = 4 << 20  # bytes of a batch from which the time to free it matters
_HOLDS_EVERY = 4  # batches of which one is held, so that freeing it can be timed


def outermost() -> int | None:
    """Return the loader that this thread is calling, the outermost if there are several; None: none."""
    return getattr(_local, "outermost", None)


def enter(loader: int) -> int | None:
    """Record that this thread calls a loader; return the previous `outermost`."""
    before = outermost()
    if before is None:
        _local.outermost = loader
    return before


def leave(before: int | None) -> None:
    """End the call for which `enter` returned `before`."""
    _local.outermost = before


class OpenPass:
    """A pass in progress. `metered` is None for a pass inside another one, which is measured and whose `loader` it has."""

    def __init__(
        self, watch: Watch, metered: MeteredPass | None, *, loader: int, pass_id: int, iterator: tuple[int, int] | None
    ) -> None:
        self._watch = watch
        self._metered = metered
        self._loader = loader
        self._pass_id = pass_id
        self._iterator = iterator
        self._step = 0
        self._is_fresh = True
        self._is_inside = False
        self._held: Any = None  # a batch that is freed by the next() after the next one
        self._age = 0
        if iterator is not None:
            ARRIVALS.forget(iterator)  # left by an earlier pass over the same iterator

    def next(self, call: Callable[[Any], Any], iterator: Any) -> Any:
        """Return `call(iterator)`, measured if it is the outermost of its thread."""
        if self._is_inside:  # a class and its base class both measure
            return call(iterator)
        self._is_inside = True
        before = enter(self._loader)
        metered = self._metered if before is None else None
        if metered is not None:
            self._begin(metered, iterator)
        asked_ns = time.perf_counter_ns()
        freed_ns = None if self._held is None else self._free(asked_ns)
        try:
            batch = call(iterator)
        except BaseException as exc:
            leave(before)
            self._is_inside = False
            self._held = None
            if metered is not None:
                self.stop()
            forget_us(exc)
            raise
        taken_ns = time.perf_counter_ns()
        if metered is not None:
            self._end(metered)
        leave(before)
        self._is_inside = False
        if self._iterator is not None:
            self._note(batch, asked_ns, taken_ns, freed_ns)
        return batch

    def _free(self, asked_ns: int) -> int | None:
        """Let go of the held batch if the loop has done so; return how long that took."""
        self._age += 1
        if self._age < 2:  # the loop replaces its own reference when this call returns
            return None
        self._held = None
        return time.perf_counter_ns() - asked_ns

    def _begin(self, metered: MeteredPass, iterator: Any) -> None:
        try:
            if self._is_fresh:
                self._is_fresh = False
                metered.is_evaluation = not _grad_is_enabled()
            metered.begin(num_ready(iterator))
        except Exception as exc:
            self._give_up("a step could not be measured", exc)

    def _end(self, metered: MeteredPass) -> None:
        try:
            metered.end()
        except Exception as exc:
            self._give_up("a step could not be measured", exc)

    def stop(self) -> None:
        """End the pass, or abandon it. May be called again."""
        try:
            if self._metered is not None:
                self._metered.stop()
        except Exception as exc:
            self._give_up("the end of a pass could not be measured", exc)

    def _note(self, batch: Any, asked_ns: int, taken_ns: int, freed_ns: int | None) -> None:
        try:
            assert self._iterator is not None
            arrival = ARRIVALS.take(batch, self._iterator)
            step, self._step = self._step, self._step + 1
            if arrival is not None:
                made, moved, pinned = arrival.made, arrival.moved, arrival.pinned
                profile = BatchProfile(self._loader, self._pass_id, step, asked_ns, taken_ns, made, moved, pinned, freed_ns)
                self._watch.sink.note_profile(profile)
                is_due = step % _HOLDS_EVERY == 0 and self._held is None
                is_shared = moved is not None and pinned is None
                if is_due and is_shared and (made.nbytes or 0) >= _LARGE and _has_room(made.nbytes or 0):
                    self._held, self._age = batch, 0
        except Exception as exc:
            self._iterator = None
            complain("the stages of a loader could not be measured", exc)

    def _give_up(self, what: str, exc: Exception) -> None:
        self._metered = None
        complain(what, exc)

    def __del__(self) -> None:
        # the pass was abandoned, or ended long ago; a garbage collection may run this in the middle of another call
        if outermost() is None:
            self.stop()


def _has_room(nbytes: int) -> bool:
    """Return True if one more batch in shared memory harms nobody."""
    found = shared_memory()
    return found is not None and found.free_nbytes > 8 * nbytes


def _grad_is_enabled() -> bool:
    import torch

    return torch.is_grad_enabled()


class StandIn:
    """Behaves like `iterator` except for `type()`: the same attributes, also to set, and the same class for `isinstance`."""

    __slots__ = ("_datapipe_iterator", "_datapipe_run")

    def __init__(self, iterator: Any, run: OpenPass) -> None:
        object.__setattr__(self, "_datapipe_iterator", iterator)
        object.__setattr__(self, "_datapipe_run", run)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._datapipe_iterator.__class__

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._datapipe_run.next(next, self._datapipe_iterator)

    def __len__(self) -> int:
        return len(self._datapipe_iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._datapipe_iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._datapipe_iterator, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._datapipe_iterator, name)

    def __repr__(self) -> str:
        return repr(self._datapipe_iterator)
