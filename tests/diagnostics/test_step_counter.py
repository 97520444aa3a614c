"""Operations of training steps counted: as torch counts them, without a difference to the training."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fixtures import timed
from report_documents import document
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from datapipe.cli.main import main
from datapipe.diagnostics.document import read_document
from datapipe.diagnostics.report.model_words import batch_size_lines, model_lines
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen
from datapipe.instruments.attach import step_counter
from datapipe.instruments.attach.step_counter import COUNT_FROM, COUNT_STEPS, StepCounter
from datapipe.instruments.measure.observed import ModelCost

COST = ModelCost(
    device="NVIDIA Test",
    dtype="bfloat16",
    flops=2e12,
    nbytes=1e10,
    num_operations=1000,
    peak_flops_per_s=5e14,
    peak_nbytes_per_s=2e12,
    launch_s=5e-6,
)


class Model(nn.Module):
    """A convolution, a matrix product and attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(36, 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.linear(self.conv(images).relu().flatten(2))
        return scaled_dot_product_attention(tokens, tokens, tokens)


def trained(counter: StepCounter | None, *, num_steps: int = COUNT_FROM + COUNT_STEPS + 2, model: Any = None) -> nn.Module:
    """Train for some steps, each begun as a meter does; in each next() there is a product that must not be counted."""
    model = Model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        if counter is not None:
            is_measured = counter(step)
            assert is_measured == (not COUNT_FROM <= step < COUNT_FROM + COUNT_STEPS)
        images = torch.randn(4, 3, 8, 8, generator=generator)
        torch.mm(torch.ones(50, 50), torch.ones(50, 50))
        if counter is not None:
            counter.begin_step()
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return model  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_counter, "_PEAK_S", 0.0)
    monkeypatch.setattr(step_counter, "_SIDES", {"cpu": 64})
    monkeypatch.setattr(step_counter, "_COPIED_NBYTES", 1 << 16)


def test_operations_are_those_of_torchs_counter_and_the_training_is_the_same() -> None:
    counter = StepCounter()
    model = trained(counter)
    found = counter.finish()
    alone = trained(None)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with FlopCounterMode(display=False) as expected:
        Model()(torch.randn(4, 3, 8, 8)).square().mean().backward()
    assert found is not None
    assert found.flops == expected.get_total_flops()
    assert (found.device, found.dtype, found.uncounted) == ("cpu", "float32", ())
    assert found.num_operations > 10
    assert found.nbytes > 3 * sum(one.nbytes for one in model.parameters())
    assert min(found.peak_flops_per_s, found.peak_nbytes_per_s, found.launch_s) > 0
    assert set(found.limits_s) == {"compute", "memory", "launches"}


def test_views_move_nothing() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                images = images.view(-1).view(4, 192)
            return images[:, :4] * self.weight

    counter = StepCounter()
    trained(counter, model=Views())
    assert counter._mode.num_operations / COUNT_STEPS < 20
    assert counter.finish() is None, "no operation has a formula"


def test_too_few_steps_count_nothing() -> None:
    for num_steps in (3, COUNT_FROM + 2):
        counter = StepCounter()
        trained(counter, num_steps=num_steps)
        assert counter.finish() is None
        torch.ones(2) + 1  # no mode is left


@pytest.mark.nightly
def test_compiled_models_are_counted_as_what_they_were_made_of() -> None:
    """Also with fullgraph=True, by which torch refuses to compile below a mode."""
    torch._dynamo.reset()
    counter, eager = StepCounter(), StepCounter()
    compiled: Any = torch.compile(Model(), backend="aot_eager", fullgraph=True)
    trained(counter, model=compiled)
    trained(eager)
    found, same = counter.finish(), eager.finish()
    assert found is not None
    assert same is not None
    assert found.flops == same.flops
    assert torch.compiler.is_compiling() is False


def _twice(images: torch.Tensor) -> torch.Tensor:
    return images * 2


class Branches(Model):
    """With operations of higher order: a branch, and attention that would compile itself."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops import cond
        from torch.nn.attention.flex_attention import flex_attention

        found = super().forward(images)
        tokens = found.detach()[:, None]
        scaled: Any = cond(images.sum() > 0, _twice, torch.neg, (found.detach(),))
        return found + scaled + flex_attention(tokens, tokens, tokens)[:, 0]  # type: ignore[index]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_operations_of_higher_order_run_and_are_named() -> None:
    torch._dynamo.reset()
    counter = StepCounter()
    model = trained(counter, model=Branches())
    torch._dynamo.reset()
    for ours, theirs in zip(model.parameters(), trained(None, model=Branches()).parameters(), strict=True):
        assert torch.equal(ours, theirs)
    found = counter.finish()
    assert found is not None
    assert found.uncounted == ("cond", "flex_attention")
    (line,) = model_lines(
        read_document(document("data-bound") | {"model": msgspec.to_builtins(COST) | {"uncounted": ["flex_attention"]}})
    )
    assert line.endswith("flex_attention not counted.")


def test_counting_that_fails_is_said_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Any:
        raise ValueError("no such formula")

    monkeypatch.setattr(step_counter, "_tensors", fail)
    counter = StepCounter()
    trained(counter)
    assert counter.finish() is None, "the operations themselves are well"
    assert "what a step costs the device is not known: ValueError: no such formula" in capsys.readouterr().err
    monkeypatch.setattr(step_counter, "_mode", fail)
    again = StepCounter()
    assert [again(step) for step in range(COUNT_FROM + 3)] == [True] * COUNT_FROM + [True] * 3


@pytest.mark.parametrize(
    ("changed", "bound"),
    [
        ({}, "bound by none of these"),
        ({"flops": 2e13}, "bound by compute"),
        ({"nbytes": 1e11}, "bound by memory"),
        ({"num_operations": 9000}, "bound by launches"),
    ],
)
def test_what_bounds_a_step_is_said(changed: dict[str, float], bound: str) -> None:
    found = document("compute-bound") | {"model": msgspec.to_builtins(msgspec.structs.replace(COST, **changed))}
    (line,) = model_lines(read_document(found))
    assert bound in line
    assert bound in " ".join(screen(found).split())
    assert bound in page(found)


def test_data_that_bounds_a_step_is_said() -> None:
    found = document("data-bound") | {"model": msgspec.to_builtins(COST)}
    found["verdict"]["figures"]["data_s"] = 0.05
    (line,) = model_lines(read_document(found))
    assert line.startswith(
        "A step has 2 TFLOP: 6.0% of what large bfloat16 products reach on NVIDIA Test (500 TFLOP/s), and 200 per"
    )
    assert line.endswith("It is bound by waiting for data.")
    assert model_lines(read_document(document("data-bound"))) == []


def test_other_batch_sizes_are_compared_without_waiting() -> None:
    cost = msgspec.to_builtins(COST)
    rows = [
        {"batch_size": 512, "step_s": 0.2, "data_s": 0.1, "model": cost},
        {"batch_size": 4096, "reason": "the script ended with status 1"},
    ]
    now, other, failed = batch_size_lines(read_document(document("data-bound") | {"model": cost, "batch_sizes": rows}))
    assert now.startswith("batch_size=64: ")
    assert other.startswith("batch_size=512: 100 ms a step without waiting, 5,120 samples/s, bound by ")
    assert other.endswith(" of the peak, 200 operations per byte.")
    assert failed.endswith("batch_size=4096 was not measured: the script ended with status 1.")
    assert batch_size_lines(read_document(document("data-bound"))) == []


@pytest.mark.nightly
def test_the_command(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(torch.randn(1200, 64), batch_size=10):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    out = tmp_path / "out"
    assert main(["diagnose", "--flops", "--trials", "0", "--no-html", "--out", str(out), str(script)]) == 0
    model = json.loads((out / "diagnosis.json").read_text())["model"]
    assert model["flops"] == 2 * 2 * 10 * 64 * 32  # forward, and the gradient of the weights


@pytest.mark.nightly
@timed
def test_the_command_tries_batch_sizes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    for batch in DataLoader(torch.randn(1200, 64), batch_size=10, shuffle=True):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.003)  # what else runs on the machine makes steps less uneven then
"""
    )
    out = tmp_path / f"out{time.monotonic_ns()}"
    options = ["--batch-sizes", "20,5", "--trials", "0", "--no-html", "--out", str(out)]
    assert main(["diagnose", *options, str(script)]) == 0
    found = json.loads((out / "diagnosis.json").read_text())
    assert found["model"]["flops"] == 2 * 2 * 10 * 64 * 32
    assert [(row["batch_size"], row["reason"]) for row in found["batch_sizes"]] == [(20, None), (5, None)]
    assert [row["model"]["flops"] for row in found["batch_sizes"]] == [2 * 2 * size * 64 * 32 for size in (20, 5)]
    assert all(row["step_s"] > row["data_s"] >= 0 for row in found["batch_sizes"])
    assert "batch_size=20: " in capfd.readouterr().out
    for wrong in ("0", "8,", "x", "-4"):
        with pytest.raises(SystemExit):
            main(["diagnose", f"--batch-sizes={wrong}", str(script)])
        assert "is not one or more batch sizes" in capfd.readouterr().err


@pytest.mark.nightly
def test_batches_that_a_sampler_makes_keep_their_size(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from torch.utils.data import DataLoader

weight = torch.zeros(4, requires_grad=True)
batches = [list(range(4 * k, 4 * k + 4)) for k in range(100)]
for batch in DataLoader(torch.randn(400, 4), batch_sampler=batches):
    (batch @ weight).sum().backward()
"""
    )
    out = tmp_path / "out"
    assert main(["diagnose", "--batch-sizes", "8", "--trials", "0", "--no-html", "--out", str(out), str(script)]) == 0
    (row,) = json.loads((out / "diagnosis.json").read_text())["batch_sizes"]
    assert row["reason"] == "the loader's batches are made by code of its own, whose size cannot be set"


def test_the_screen_holds_as_many_sizes_as_fit() -> None:
    cost = msgspec.to_builtins(COST)
    rows = [{"batch_size": size, "step_s": 0.2, "data_s": 0.1, "model": cost} for size in range(100, 2100, 100)]
    for kind in ("data-bound", "compute-bound"):
        shown = screen(document(kind) | {"model": cost, "batch_sizes": rows}, page="out/diagnosis.html").splitlines()
        assert len(shown) <= 24
        assert shown[-1] == "Page: out/diagnosis.html"
        assert any("batch_size=100: " in line for line in shown)
