"""Models by name."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from datapipe.errors import DependencyError, OptionError
from datapipe.training import make_model


def test_ours() -> None:
    model = make_model("cnn", 10)
    assert model(torch.zeros(2, 3, 48, 64)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(139_800, rel=0.01)


def library(name: str, names: list[str]) -> types.ModuleType:
    """A stand-in that makes linear networks."""
    module = types.ModuleType(name)

    def make(asked: str, *, num_classes: int) -> nn.Module:
        if asked not in names:
            raise ValueError(f"Unknown model {asked}")
        return nn.Linear(len(asked), num_classes)

    module.__dict__.update(get_model=make, create_model=make)
    return module


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = types.ModuleType("torchvision")
    models = library("torchvision.models", ["resnet18"])
    vision.__dict__["models"] = models
    monkeypatch.setitem(sys.modules, "torchvision", vision)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setitem(sys.modules, "timm", library("timm", ["resnet18", "convnext_tiny"]))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["resnet18", "torchvision:resnet18", "timm:resnet18", "timm:convnext_tiny"])
def test_of_libraries(name: str) -> None:
    model = make_model(name, 7)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (len(name.rpartition(":")[2]), 7)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("name", "said"), [
    ("resnet19", r"torchvision makes no such network \(Unknown model resnet19\); ours is cnn"),
    ("timm:resnet9", r"timm makes no such network.*timm.list_models\(\) work too"), ("keras:x", "no library 'keras'"),
])  # fmt: skip
def test_unknown_names(name: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make_model(name, 7)


def test_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.models", "timm"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, missing in (("resnet18", "torchvision"), ("timm:resnet18", "timm")):
        with pytest.raises(
            DependencyError, match=rf"is not ours \(cnn\), and {missing} cannot be imported .*pip install .*\[train\]"
        ):
            make_model(name, 7)
