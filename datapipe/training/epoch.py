"""One pass over the loader: train on each batch, measure the share of the time spent waiting for data, and stop where asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import LRScheduler

from datapipe.errors import StateError
from datapipe.instruments.measure.bracket import ThreadBracket
from datapipe.instruments.measure.clock import open_clock
from datapipe.training.checkpoint import Place, TrainingState
from datapipe.training.evaluation import checked, means_of
from datapipe.training.learner import ends_step, labelled_batch
from datapipe.training.record import RunLogger, StepMetrics
from datapipe.training.stop_signals import Stopping


class Bracket(Protocol):
    """A measurement around each `next()` of one pass over a loader. Called from one thread."""

    def begin(self) -> None:
        """Note that the loop is about to request a batch."""

    def end(self) -> None:
        """Note that the loop has the batch."""

    def stop(self) -> None:
        """Note that the pass has ended or was abandoned."""

    @property
    def starvation(self) -> float | None:
        """Time waiting for data / time of the steps, so far in this pass; None if nothing was measured yet."""


class ClockBracket:
    """A measurement by the GPU's clock: how long the GPU was idle while the loop was in `next()`. Without a GPU, by the host's.

    The host's clock gives the time in `next()`. Only steps that are over, and that the device has passed, count, so the figure
    lags a few steps. Until there is one that the device has passed, and if the device cannot tell, the figure is the host's.
    `device`: where the loop trains; by default the thread's current GPU.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        clock = open_clock()
        if device is not None and device.index is not None:
            clock.follow(device.index)
        self._bracket = ThreadBracket(clock)
        self._pass = self._bracket.open_pass()

    def begin(self) -> None:
        self._pass.begin()

    def end(self) -> None:
        self._pass.end()

    def stop(self) -> None:
        self._pass.stop()
        self._bracket.finish()

    @property
    def starvation(self) -> float | None:
        totals = self._bracket.timeline.training
        if totals.num_on_device:
            waited_s, worked_s = totals.gap_s + totals.copy_s, totals.work_s
        else:
            waited_s, worked_s = totals.host_wait_s, totals.host_work_s
        return waited_s / max(waited_s + worked_s, 1e-9) if totals.num_steps else None


def train_epoch(
    state: TrainingState, *, scheduler: LRScheduler, num_batches: int, bracket: Bracket, logger: RunLogger, stopping: Stopping
) -> float | None:
    """Train the rest of the epoch that `state.place` is in; return its images per second over all ranks, None for no rest.

    Afterwards `state.total` holds the sums of the whole epoch. Raises InterruptedRun, DivergenceError, what the loader raises,
    and StateError for a loader that ends before its length.
    """
    epoch, first = state.place.epoch, state.place.batches_done
    _tell_epoch(state.loader, epoch)
    if first >= num_batches:
        return None
    options, learner = state.options, state.learner
    started_s = since_s = time.perf_counter()
    num_images = 0
    with contextlib.closing(_watched(state.loader, bracket, num_batches - first)) as batches:
        for number, raw in enumerate(batches, first):
            batch = labelled_batch(raw, state.device, channels_last=options.channels_last)
            is_last = ends_step(number, num_batches=num_batches, accumulate=options.accumulate)
            losses, outputs = learner.learn(batch, ends_step=is_last)
            state.interval.add(losses, outputs, batch.labels, batch.real)
            num_images += len(batch) * state.ranks.world_size
            if not is_last:
                continue
            lr = scheduler.get_last_lr()[0]
            learner.step()
            scheduler.step()
            state.place = Place(state.place.step + 1, epoch, number + 1)
            if state.place.step % options.log_every == 0 or number + 1 == num_batches:
                metrics = _interval(state, lr=float(lr), bracket=bracket, since_s=since_s)
                since_s = time.perf_counter()
                logger.step(metrics)
            stopping.after_step()
    if state.place.batches_done < num_batches:
        done = state.place.batches_done
        raise StateError(f"the loader ended after {done} batches of epoch {epoch} or soon after; its length says {num_batches}")
    return num_images / (time.perf_counter() - started_s)


def _interval(state: TrainingState, *, lr: float, bracket: Bracket, since_s: float) -> StepMetrics:
    """Return the figures since the last such call, and add them to those of the epoch."""
    total = state.interval.over(state.ranks)
    means = checked(means_of(total), step=state.place.step)
    state.total += total
    state.interval.clear()
    return StepMetrics(
        step=state.place.step,
        epoch=state.place.epoch,
        loss=means.loss,
        accuracy=means.accuracy,
        lr=lr,
        images_per_s=means.num_samples / (time.perf_counter() - since_s),
        starvation=bracket.starvation,
    )


def _watched(loader: Iterable[Any], bracket: Bracket, num: int) -> Generator[Any, None, None]:
    """Yield at most the next `num` batches. One more is never requested, since the loader's state is that of its last batch."""
    batches = iter(loader)
    try:
        for _ in range(num):
            bracket.begin()
            try:
                batch = next(batches)
            except StopIteration:
                return
            bracket.end()
            yield batch
    finally:
        bracket.stop()


def _tell_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` as torch's users do; a loader that resumes in this epoch keeps its position."""
    for teller in (loader, getattr(loader, "sampler", None)):
        tell = getattr(teller, "set_epoch", None)
        if callable(tell):
            tell(epoch)
            return
