"""Options: what is refused, and what a resumed run says has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import OptionError
from datapipe.training import TrainOptions


@pytest.mark.parametrize(("name", "value", "said"), [
    ("epochs", 0, "at least 1"), ("epochs", 1.5, "at least 1"), ("accumulate", 0, "at least 1"), ("log_every", -1, "at least 1"),
    ("accumulate", True, "at least 1"), ("patience", 0, "at least 1, or None"), ("save_every_steps", 0, "at least 1, or None"),
    ("lr", 0, "greater than 0"), ("lr", -1e-3, "greater than 0"), ("lr", float("nan"), "greater than 0"),
    ("lr", float("inf"), "greater than 0"), ("clip_norm", 0.0, "greater than 0"), ("save_every_minutes", 0, "greater than 0"),
    ("weight_decay", -0.1, "0 or more"), ("min_delta", -1, "0 or more"), ("warmup", 1, "less than 1"),
    ("warmup", -0.1, "a share"), ("final_lr", 1.1, "a share"), ("label_smoothing", 1.0, "less than 1"),
    ("momentum", 1, "less than 1"),
    ("precision", "fp8", "choose one of fp32, bf16, fp16"), ("watch", "f1", "choose one of accuracy, loss"),
    ("display", "loud", "choose one of lines, none"), ("seed", -1, "whole number"), ("seed", 0.5, "whole number"),
    ("resume", "auto", "pass out= as well"), ("optimizer", "adan", "choose one of adamw, sgd"),
])  # fmt: skip
def test_values_that_make_no_sense(name: str, value: Any, said: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name} is .*{said}"):
        TrainOptions(**{name: value})


def test_bounds_that_are_allowed() -> None:
    options = TrainOptions(warmup=0, final_lr=1, weight_decay=0, label_smoothing=0, save_every_minutes=None, seed=2**63 - 1)
    assert options.final_lr == 1


def test_differences_name_what_changes_the_outcome() -> None:
    saved = json.loads(json.dumps(TrainOptions(out=Path("runs/a"), lr=0.1, display="none").to_json()))
    now = TrainOptions(out=Path("runs/b"), lr=0.2, epochs=20, log_every=3, resume="auto")
    assert now.differences(saved) == ["epochs was 10 and is 20", "lr was 0.1 and is 0.2"]
