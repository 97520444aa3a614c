"""The names and arguments of `datapipe` are few, those of torch keep their order, and importing them warns of nothing."""

from __future__ import annotations

import inspect
import warnings

import torch

import datapipe as dp


def test_there_are_few_names_and_arguments() -> None:
    assert len(dp.__all__) <= 30
    assert len(inspect.signature(dp.DataLoader).parameters) == 27
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    assert list(torchs)[1:] == [name for name in inspect.signature(dp.DataLoader).parameters if name in torchs][1:]


def test_names_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in dp.__all__:
            assert getattr(dp, name) is not None
    assert not hasattr(dp, "Recipe")
    assert not hasattr(dp, "MissingSampleError")
