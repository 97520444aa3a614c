"""The schedule's values, and optimisers by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from datapipe.errors import OptionError
from datapipe.training import Learner, TrainOptions, make_optimizer, parameter_groups, warmup_cosine


def test_warm_up_then_half_a_cosine() -> None:
    share = warmup_cosine(10, warmup=0.4, final=0.1)
    assert [share(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert share(4) == 1.0
    assert share(7) == pytest.approx(0.1 + 0.9 / 2)
    assert share(9) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 5 / 6)))
    assert share(10) == share(99) == 0.1


def test_as_torchs_cosine() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30, eta_min=0.2)
    share = warmup_cosine(30, warmup=0, final=0.1)
    for step in range(30):
        assert 2.0 * share(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(("num_steps", "warmup", "rising"), [(100, 0.05, 5), (3, 0.05, 0), (10, 0.99, 10), (1, 0, 0)])
def test_warm_up_as_a_share(num_steps: int, warmup: float, rising: int) -> None:
    shares = [warmup_cosine(num_steps, warmup=warmup, final=0)(step) for step in range(num_steps)]
    assert all(0 < share <= 1 for share in shares)
    assert shares.index(1.0) == max(0, rising - 1)


def test_each_group_has_a_rate_of_its_own_and_a_run_that_goes_on_has_that_of_its_options() -> None:
    def rates(step: int, lr: float) -> list[float]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD([{"params": [model.weight], "lr": lr}, {"params": [model.bias], "lr": 10 * lr}])
        Learner(model, optimizer, nominal=1)
        LambdaLR(optimizer, warmup_cosine(10, warmup=0.4, final=0), last_epoch=step - 1)
        return [group["lr"] for group in optimizer.param_groups]

    assert rates(0, 0.2) == pytest.approx([0.05, 0.5])
    assert rates(2, 0.4) == pytest.approx([0.3, 3.0])


def make_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def test_norms_and_biases_do_not_decay() -> None:
    net = make_net()
    decayed, spared = parameter_groups(net, 0.1)
    assert [tuple(parameter.shape) for parameter in decayed["params"]] == [(4, 3, 3, 3), (2, 16)]
    assert [tuple(parameter.shape) for parameter in spared["params"]] == [(4,), (4,), (4,), (2,)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    net[0].weight.requires_grad_(False)
    net.no_weight_decay = lambda: {"3.weight"}  # type: ignore[assignment]
    (only,) = parameter_groups(net, 0.1)
    assert len(only["params"]) == 5
    assert only["weight_decay"] == 0.0


@pytest.mark.parametrize(("options", "kind", "lr", "decay"), [
    ({}, "AdamW", 1e-3, 0.05), ({"optimizer": "sgd"}, "SGD", 0.05, 1e-4),
    ({"optimizer": "adamw", "lr": 0.5, "weight_decay": 0.3}, "AdamW", 0.5, 0.3),
], ids=str)  # fmt: skip
def test_by_name(options: dict[str, object], kind: str, lr: float, decay: float) -> None:
    optimizer = make_optimizer(make_net(), TrainOptions(**options))  # type: ignore[arg-type]
    assert type(optimizer).__name__ == kind
    assert [group["lr"] for group in optimizer.param_groups] == [lr] * 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [decay, 0.0]
    if kind == "SGD":
        assert (optimizer.param_groups[0]["momentum"], optimizer.param_groups[0]["nesterov"]) == (0.9, True)


def test_nothing_to_train() -> None:
    with pytest.raises(OptionError, match="Flatten has no parameters that require gradients"):
        make_optimizer(nn.Flatten(), TrainOptions())
