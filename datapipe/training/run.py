"""`fit` trains a model with a loader and reports the result."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from datapipe.adapt.loaders import length_of
from datapipe.errors import OptionError
from datapipe.training.checkpoint import Place, TrainingState, seed_generators
from datapipe.training.epoch import Bracket, ClockBracket, train_epoch
from datapipe.training.evaluation import Best, DivergenceError, Means, check_counts_once, evaluate, means_of
from datapipe.training.learner import Criterion, Learner, cross_entropy, warmup_cosine
from datapipe.training.options import TrainOptions
from datapipe.training.preparation import check_length, checkpoint_to_resume, device_for, make_optimizer, prepare_model
from datapipe.training.process_group import ProcessGroup
from datapipe.training.record import EpochMetrics, RunLogger, StepMetrics, environment
from datapipe.training.stop_signals import InterruptedRun, Stopping, note_signals, obey


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The result of a run."""

    status: str  # "finished" or "stopped early"
    step: int  # weight updates, over all processes that took part in the run
    epochs: tuple[EpochMetrics, ...]
    best: Best
    out: Path | None  # directory of last.pt, metrics.jsonl and run.json

    def to_json(self) -> dict[str, Any]:
        """Return JSON-safe values."""
        return {**dataclasses.asdict(self), "out": None if self.out is None else str(self.out)}


def fit(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    options: TrainOptions | None = None,
    val_loader: Iterable[Any] | None = None,
    criterion: Criterion | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    bracket: Callable[[], Bracket] | None = None,
    on_step: Callable[[StepMetrics], None] | None = None,
    about: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Train `model`, in place, on all ranks of torch.distributed if it is initialised.

    loader: anything with a length that yields (images, labels) batches on the device, or on the CPU; labels are (b,) classes
      or (b, num_classes) shares. To resume in mid-epoch it needs state_dict and load_state_dict.
    val_loader: the same for validation after each epoch; with several ranks, one with tail="mask".
    criterion: (outputs, labels) -> (b,) losses; cross-entropy by default.
    optimizer: your own, over parameters of `model` already on the device, in place of the one that options name.
    bracket: makes the measurement around `next()` in each epoch; by default the GPU's clock, or the host's without a GPU.
    on_step: called on rank 0 every `log_every` steps.
    about: further facts for run.json, JSON-safe.

    On SIGTERM and SIGINT, if called in the main thread, it finishes the step, saves the run, and then acts as usual
    (SystemExit(143), KeyboardInterrupt). It seeds the global generators of torch, numpy and Python. Raises OptionError and
    StateError for arguments that do not fit together, DivergenceError (an ArithmeticError) for a loss that is not finite,
    StorageError if `out` cannot be written.
    """
    options = TrainOptions() if options is None else options
    if val_loader is None and options.patience is not None:
        raise OptionError(f"patience is {options.patience} and there is no validation data; pass val_loader as well")
    with note_signals() as stop_signal:
        state, notes = _prepared(model, loader, options, criterion, optimizer, val_loader)
        run = _Run(state, val_loader, criterion or cross_entropy, Stopping(stop_signal, state))
        report, signal = run(bracket or functools.partial(ClockBracket, state.device), notes=notes, on_step=on_step, about=about)
        del run, state  # an exception's traceback would keep them alive, and with them the process group
    if signal:
        obey(signal)
    return report


def _prepared(
    model: nn.Module,
    loader: Any,
    options: TrainOptions,
    criterion: Criterion | None,
    optimizer: torch.optim.Optimizer | None,
    val_loader: Any,
) -> tuple[TrainingState, list[str]]:
    """Return the state of a run at its beginning, or at the checkpoint to resume from, and notes for the user."""
    ranks, device = ProcessGroup.join(), device_for(loader)
    check_length(loader, ranks)
    if val_loader is not None:
        check_counts_once(val_loader, ranks)
    resumed = checkpoint_to_resume(options)
    model = prepare_model(model, options, device)
    batch_size = getattr(loader, "batch_size", None)
    # Of a loader that does not say, 1: that changes the scale of losses, not of gradients.
    num_nominal = batch_size if isinstance(batch_size, int) and batch_size > 0 else 1
    learner = Learner(
        model,
        make_optimizer(model, options) if optimizer is None else optimizer,
        criterion=criterion or functools.partial(cross_entropy, label_smoothing=options.label_smoothing),
        precision=options.precision,
        ranks=ranks,
        nominal=num_nominal * options.accumulate,
        clip_norm=options.clip_norm,
    )
    state = TrainingState(learner, loader, options, ranks=ranks, device=device)
    if resumed is None:
        seed_generators(options.seed, ranks.rank)
        return state, []
    notes = [f"note: {note}" for note in state.resume(resumed)]
    return state, [f"resuming from {resumed}: epoch {state.place.epoch + 1}, after step {state.place.step}", *notes]


class _Run:
    """The epochs of a run, one after the other. Validation, if there is a loader for it, is without label smoothing."""

    def __init__(self, state: TrainingState, val_loader: Any, criterion: Criterion, stopping: Stopping) -> None:
        self._state, self._stopping = state, stopping
        self._val_loader, self._criterion = val_loader, criterion
        self._num_batches = len(state.loader)
        # Ranks whose validation loaders differ in length would wait for each other's messages forever.
        self._stops_between = len(set(state.ranks.gather(length_of(val_loader)))) == 1

    def __call__(
        self,
        make_bracket: Callable[[], Bracket],
        *,
        notes: list[str],
        on_step: Callable[[StepMetrics], None] | None,
        about: Mapping[str, Any] | None,
    ) -> tuple[TrainingReport, int]:
        """Train, and return the report and the signal that ended the run, or 0."""
        state, options = self._state, self._state.options
        num_steps = options.epochs * -(-self._num_batches // options.accumulate)
        leads, facts = state.ranks.leads, _facts(state, about)
        share = warmup_cosine(num_steps, warmup=options.warmup, final=options.final_lr)
        scheduler = LambdaLR(state.learner.optimizer, share, last_epoch=state.place.step - 1)
        logger = RunLogger(options, place=state.place, num_steps=num_steps, facts=facts, leads=leads, on_step=on_step)
        status, signal = "failed", 0
        try:
            for note in notes:
                logger.say(note)
            while state.place.epoch < options.epochs and not state.best.is_exhausted(options.patience):
                self._epoch(scheduler, make_bracket(), logger)
            status = "finished" if state.place.epoch >= options.epochs else "stopped early"
            self._stopping.close()
        except InterruptedRun as exc:
            status, signal = "interrupted", exc.signal
        except DivergenceError:
            status = "diverged"
            raise
        finally:
            logger.write(status, state.best)
            logger.close()
        out = None if options.out is None else Path(options.out)
        return TrainingReport(status, state.place.step, tuple(logger.epochs), state.best, out), signal

    def _epoch(self, scheduler: LambdaLR, bracket: Bracket, logger: RunLogger) -> None:
        state, stopping = self._state, self._stopping
        started_s = time.perf_counter()
        images_per_s = train_epoch(
            state, scheduler=scheduler, num_batches=self._num_batches, bracket=bracket, logger=logger, stopping=stopping
        )
        train, val = means_of(state.total), self._validate()
        epoch = state.place.epoch
        metrics = EpochMetrics(
            step=state.place.step,
            epoch=epoch,
            train_loss=train.loss,
            train_accuracy=train.accuracy,
            val_loss=None if val is None else val.loss,
            val_accuracy=None if val is None else val.accuracy,
            val_samples=None if val is None else val.num_samples,
            images_per_s=images_per_s,
            starvation=bracket.starvation,
            seconds=time.perf_counter() - started_s,
        )
        if val is not None:
            self._judge(val, epoch)
        logger.epoch(metrics, state.best)
        state.place = Place(state.place.step, epoch + 1)
        state.total.zero_()
        stopping.save()

    def _validate(self) -> Means | None:
        if self._val_loader is None:
            return None
        state = self._state
        means = evaluate(
            state.learner.model,
            self._val_loader,
            device=state.device,
            criterion=self._criterion,
            precision=state.learner.precision,
            ranks=state.ranks,
            stop=self._stopping.asks_to_stop if self._stops_between else None,
        )
        if means is None:
            self._stopping.end()
        return means

    def _judge(self, val: Means, epoch: int) -> None:
        state, options = self._state, self._state.options
        value = val.loss if options.watch == "loss" else val.accuracy
        if value is None:
            raise OptionError("watch is 'accuracy', but labels that are shares of classes have none; pass watch='loss'")
        before = state.best
        state.best = before.after(epoch, value, higher_is_better=options.watch == "accuracy", min_delta=options.min_delta)
        if state.best.num_worse == 0:
            state.save_best()


def _facts(state: TrainingState, about: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what run.json says about a run from its beginning."""
    model, loader = state.learner.model, state.loader
    optimizer = state.learner.optimizer
    dataset = getattr(loader, "dataset", None)
    index = getattr(dataset, "index", None)
    return {
        "options": state.options.to_json(),
        "model": {"class": type(model).__name__, "parameters": sum(parameter.numel() for parameter in model.parameters())},
        "optimizer": {
            "class": type(optimizer).__name__,
            "lr": [group["initial_lr"] for group in optimizer.param_groups],
        },
        "data": {
            "fingerprint": getattr(index, "fingerprint", None),
            "samples": length_of(dataset),
            "batch_size": getattr(loader, "batch_size", None),
            "batches": length_of(loader),
            "seed": getattr(loader, "seed", None),
        },
        "world_size": state.ranks.world_size,
        **environment(state.device),
        **dict(about or {}),
    }
