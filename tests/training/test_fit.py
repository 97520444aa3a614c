"""`fit` as a whole: it learns, stops early, keeps the books, and refuses what does not fit together."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import network
from torch import nn

import datapipe as dp
from datapipe import transforms as T
from datapipe.errors import OptionError, StateError, StorageError
from datapipe.training import (
    Best,
    ClockBracket,
    DivergenceError,
    EpochMetrics,
    StepMetrics,
    TrainOptions,
    evaluate,
    fit,
    make_model,
    training_recipe,
    validation_recipe,
)
from datapipe.training.checkpoint import Place, generator_states, restore_generators, seed_generators
from datapipe.training.evaluation import check_counts_once
from datapipe.training.process_group import ProcessGroup
from datapipe.training.record import RunLogger
from datapipe.training.stop_signals import note_signals

QUIET = TrainOptions(epochs=1, display="none")
SIZE = 64
ROOT = Path(__file__).resolve().parents[2]


def loader_of(path: Path, *, recipe: list[object], batch_size: int = 15, **changes: Any) -> dp.DataLoader:
    return dp.DataLoader(path, batch_size=batch_size, transform=recipe, device="cpu", num_workers=2, **changes)


def test_a_loader_without_a_seed_takes_that_of_the_run(photos: Path) -> None:
    def seed_under(seed: int) -> int | None:
        loader = loader_of(photos, recipe=training_recipe(SIZE), shuffle=True, batch_size=45)
        fit(make_model("cnn", 4), loader, options=TrainOptions(epochs=1, display="none", seed=seed))
        return loader.seed

    assert None not in (seed_under(1), seed_under(2))
    assert seed_under(1) == seed_under(1) != seed_under(2)


def points(num: int = 8, *, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of points whose class is the sign of their first coordinate."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num, 16, 5, generator=generator)
    return [(batch, (batch[:, 0] > 0).long()) for batch in values]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16", "clip_norm": 5.0},
        pytest.param({"label_smoothing": 0.1, "accumulate": 2}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_learns_photographs(photos: Path, others: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Four classes: 25% is chance. Five epochs of 90 images of 64 pixels."""
    torch.manual_seed(0)
    loader = loader_of(photos, recipe=training_recipe(SIZE), shuffle=True, seed=0)
    val_loader = loader_of(others, recipe=validation_recipe(SIZE), tail="mask")
    options = TrainOptions(epochs=5, lr=3e-3, out=tmp_path, log_every=2, display="none", **changes)
    lines: list[StepMetrics] = []
    report = fit(make_model("cnn", 4), loader, options=options, val_loader=val_loader, on_step=lines.append)
    assert report.status == "finished"
    assert report.step == 30 // options.accumulate
    last = report.epochs[-1]
    assert last.val_accuracy is not None
    assert last.val_accuracy > 0.8
    assert last.val_samples == 37
    assert last.train_loss < report.epochs[0].train_loss
    first = [line for line in lines if line.epoch == 0]
    num_images = [min(30 * options.accumulate, 90 - 30 * options.accumulate * number) for number in range(len(first))]
    assert sum(num_images) == 90
    mean = sum(line.loss * num for line, num in zip(first, num_images, strict=True)) / 90
    assert report.epochs[0].train_loss == pytest.approx(mean)
    for epoch in report.epochs:
        assert epoch.starvation is not None
        assert 0 < epoch.starvation < 1
        assert epoch.images_per_s is not None
        assert epoch.images_per_s > 0
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["data"]["fingerprint"] == loader.dataset.index.fingerprint
    assert record["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert record["epochs"] == [dataclasses.asdict(epoch) for epoch in report.epochs]
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert (best["epoch"], best["accuracy"]) == (report.best.epoch, report.best.value)
    again = make_model("cnn", 4)
    again.load_state_dict(best["model"])
    means = evaluate(again, val_loader)
    assert means is not None
    assert means.num_samples == 37
    assert json.loads(json.dumps(report.to_json()))["best"]["value"] == report.best.value


@pytest.mark.parametrize("mix", [T.MixUp(alpha=0.4, num_classes=4), T.CutMix(alpha=1.0, num_classes=4)], ids=repr)
def test_mixed_labels(photos: Path, mix: object) -> None:
    loader = loader_of(photos, recipe=[*training_recipe(32), mix], shuffle=True)
    report = fit(make_model("cnn", 4), loader, options=QUIET)
    assert report.epochs[0].train_accuracy is None, "shares of classes are neither right nor wrong"
    assert math.isfinite(report.epochs[0].train_loss)


def test_the_loaders_tail_weighs_what_it_holds(photos: Path) -> None:
    """With and without repeats that fill the last batch up: the same steps."""
    trained = []
    for tail in ("pad", "mask"):
        torch.manual_seed(0)
        model = make_model("cnn", 4)
        loader = loader_of(photos, recipe=training_recipe(32), shuffle=True, batch_size=40, tail=tail)
        report = fit(model, loader, options=dataclasses.replace(QUIET, accumulate=3))
        assert report.step == 1
        trained.append((report.epochs[0].train_loss, model))
    assert trained[0][0] == pytest.approx(trained[1][0], rel=1e-6)
    for mine, other in zip(trained[0][1].parameters(), trained[1][1].parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
def test_compiled_and_recomputed_as_plain() -> None:
    trained: list[list[torch.Tensor]] = []
    for changes in (
        {},
        {"compile": "eager"},
        {"activation_checkpointing": True},
        {"compile": "eager", "activation_checkpointing": True},
    ):
        torch.manual_seed(0)
        model = network("transformer", 3)
        generator = torch.Generator().manual_seed(0)
        batches = [(torch.randn(n, 3, 32, 32, generator=generator), torch.arange(n) % 3) for n in (4, 4, 2)]
        fit(model, batches, options=dataclasses.replace(QUIET, **changes))
        assert not any(name.startswith("_orig") for name in model.state_dict())
        trained.append(list(model.state_dict().values()))
    for other in trained[1:]:
        for mine, plain in zip(other, trained[0], strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("watch", ["loss", "accuracy"])
def test_stops_early_and_keeps_the_best(tmp_path: Path, watch: Any) -> None:
    """Labels drawn at random for validation: nothing that is learnt helps there."""
    generator = torch.Generator().manual_seed(3)
    val = [(images, torch.randint(0, 2, (16,), generator=generator)) for images, _ in points(4, seed=1)]
    options = TrainOptions(epochs=30, lr=0.05, patience=3, watch=watch, out=tmp_path, display="none")
    report = fit(nn.Linear(5, 2), points(), options=options, val_loader=val)
    assert report.status == "stopped early"
    assert report.best.epoch is not None
    assert len(report.epochs) == report.best.epoch + 1 + 3 < 30
    values = [getattr(epoch, f"val_{watch}") for epoch in report.epochs]
    assert report.best.value == (min if watch == "loss" else max)(values)
    again = fit(nn.Linear(5, 2), points(), options=dataclasses.replace(options, resume="auto"), val_loader=val)
    assert (again.status, again.step) == ("stopped early", report.step)


def test_best_is_a_value() -> None:
    best = Best().after(0, 0.5, higher_is_better=True)
    assert best == Best(0.5, 0, 0)
    assert best.after(1, 0.55, higher_is_better=True, min_delta=0.1) == Best(0.5, 0, 1)
    assert best.after(1, 0.7, higher_is_better=True, min_delta=0.1) == Best(0.7, 1, 0)
    assert best.after(1, float("nan"), higher_is_better=False).is_exhausted(1)
    assert best.after(1, 0.4, higher_is_better=False) == Best(0.4, 1, 0)
    assert not Best(0.5, 0, 99).is_exhausted(None)


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    options = TrainOptions(
        epochs=1, optimizer="sgd", lr=1e30, warmup=0, save_every_steps=1, log_every=100, out=tmp_path, display="none"
    )
    with pytest.raises(DivergenceError, match=r"the loss is (nan|inf) at step \d.*lower the learning rate"):
        fit(nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 2)), points(), options=options)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "diverged"
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    assert math.isfinite(float(saved["sums"][1][0]))


class Truncated(list[Any]):
    def __len__(self) -> int:
        return super().__len__() + 1


@pytest.mark.parametrize(("loader", "options", "error", "said"), [
    ((batch for batch in points()), QUIET, OptionError, "generator has no length"),
    ([], QUIET, OptionError, "no batches: fewer samples than"),
    (Truncated(points()), QUIET, StateError, "ended after 8 batches of epoch 0 or soon after; its length says 9"),
    (points(), dataclasses.replace(QUIET, patience=1), OptionError, "there is no validation data; pass val_loader"),
    (points(), dataclasses.replace(QUIET, compile="gcc"), OptionError, "compile is 'gcc'; choose one of .*inductor"),
    (points(), dataclasses.replace(QUIET, activation_checkpointing=True), OptionError, "no Sequential or ModuleList"),
    ([(torch.randn(2, 5), torch.tensor([0, 7]))], QUIET, OptionError, "labels run from 0 to 7 and the model has 2 outputs"),
    ([(torch.randn(2, 5),)], QUIET, OptionError, "are the samples labelled"),
], ids=[
    "a generator", "empty", "truncated", "no validation", "no compiler", "nothing to recompute", "labels", "unlabelled",
])  # fmt: skip
def test_what_does_not_fit_together(loader: Any, options: TrainOptions, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fit(nn.Linear(5, 2), loader, options=options)


def test_further_refusals(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="wrapped in DataParallel; pass the bare module"):
        fit(nn.DataParallel(nn.Linear(5, 2)), points(), options=QUIET)
    with pytest.raises(OptionError, match=r"criterion returned \(\); it must return one loss per sample, \(16,\)"):
        fit(nn.Linear(5, 2), points(), options=QUIET, criterion=nn.functional.cross_entropy)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        fit(nn.Linear(5, 2), points(), options=dataclasses.replace(QUIET, out=tmp_path / "file" / "run"))


def test_a_criterion_an_optimiser_and_a_bracket_of_ones_own() -> None:
    calls: list[str] = []

    class Loud(ClockBracket):
        def begin(self) -> None:
            calls.append("begin")
            super().begin()

        def end(self) -> None:
            calls.append("end")
            super().end()

        def stop(self) -> None:
            calls.append("stop")
            super().stop()

    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rates: list[float] = []
    report = fit(
        model,
        points(2),
        options=dataclasses.replace(QUIET, warmup=0, final_lr=1, log_every=1),
        criterion=lambda outputs, labels: (outputs[:, 0] - labels).square(),
        optimizer=optimizer,
        bracket=Loud,
        on_step=lambda metrics: rates.append(metrics.lr),
    )
    assert rates == [0.5, 0.5]
    assert calls == ["begin", "end", "begin", "end", "stop"]
    assert report.epochs[0].train_loss > 0


def test_evaluation_leaves_the_model_as_it_was_and_counts_once() -> None:
    model = nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.9))
    images, labels = points(1)[0]
    real = torch.arange(16) < 9
    means = evaluate(model, [(images, labels), (images, labels, real)])
    assert model.training
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model[0](images), labels, reduction="none")
        right = (model[0](images).argmax(1) == labels).float()
    assert means is not None
    assert means.num_samples == 25
    assert means.loss == pytest.approx(float(losses.sum() + losses[:9].sum()) / 25, rel=1e-5)
    assert means.accuracy == pytest.approx(float(right.sum() + right[:9].sum()) / 25)
    assert evaluate(model, points(), stop=lambda: True) is None


def test_a_validation_loader_that_would_count_twice(others: Path) -> None:
    padded = loader_of(others, recipe=validation_recipe(32))
    with pytest.raises(OptionError, match="pads 37 samples for 2 ranks, so some would count twice; pass tail='mask'"):
        check_counts_once(padded, ProcessGroup(0, 2))
    check_counts_once(padded, ProcessGroup())
    check_counts_once(loader_of(others, recipe=validation_recipe(32), tail="mask"), ProcessGroup(0, 2))


def test_the_generators_go_on_where_they_were() -> None:
    device = torch.device("cpu")

    def draw() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random(), float(np.random.standard_normal())]

    seed_generators(5, 1)
    first = draw()
    states = generator_states(device)
    buffer = io.BytesIO()
    torch.save(states, buffer)
    buffer.seek(0)
    expected = draw()
    restore_generators(torch.load(buffer, weights_only=True), device)
    assert draw() == expected
    seed_generators(5, 1)
    assert draw() == first
    seed_generators(5, 0)
    assert draw() != first


def test_lines_on_the_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("datapipe.training.record._LINE_EVERY_S", 0.0)
    step = StepMetrics(step=3, epoch=0, loss=1.5, accuracy=0.5, lr=0.1, images_per_s=1234.0, starvation=0.25)
    epoch = EpochMetrics(4, 0, 1.25, 0.5, 1.0, 0.75, 37, 1000.0, 0.2, 3.0)
    for display, leads in (("lines", True), ("lines", False), ("none", True)):
        options = TrainOptions(epochs=2, display=display)  # type: ignore[arg-type]
        logger = RunLogger(options, place=Place(2), num_steps=8, facts={}, leads=leads, on_step=None)
        logger.step(step)
        logger.epoch(epoch, Best())
        logger.close()
        said = capsys.readouterr().err
        if (display, leads) != ("lines", True):
            assert said == ""
            continue
        assert "epoch 1/2, step 3 of 8: loss 1.500, 1,234 images/s, starved 25%" in said
        assert "val loss 1.000  accuracy 75.0%  1,000 images/s  starved 20%  3.0 s" in said


def test_starvation_is_the_share_of_waiting() -> None:
    bracket = ClockBracket()
    assert bracket.starvation is None
    for _ in range(4):
        bracket.begin()
        time.sleep(0.02)
        bracket.end()
        time.sleep(0.02)
    bracket.stop()
    share = bracket.starvation
    assert share is not None
    assert 0.3 < share < 0.7
    time.sleep(0.05)
    assert bracket.starvation == share


def test_signals_are_noted_once_and_not_in_workers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with note_signals() as stop_signal:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # as a launcher passes one on
        assert stop_signal.number == signal.SIGTERM
        stop_signal._at_s -= 2
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with note_signals() as stop_signal:
        stop_signal._process += 1
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert stop_signal.number == 0
    found: list[int] = []

    def elsewhere() -> None:
        with note_signals() as stop_signal:
            found.append(stop_signal.number)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [0]
