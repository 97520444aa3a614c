"""Models by name, and weights from files."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from datapipe.core.errors import DependencyError, FormatError, MissingDataError, OptionError, StateError
from datapipe.training import load_pretrained, make_model


@pytest.mark.parametrize(("name", "num_weights"), [("cnn", 139_800), ("vit", 2_820_000)])
def test_ours(name: str, num_weights: int) -> None:
    model = make_model(name, 10)
    assert model(torch.zeros(2, 3, 48, 64)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(num_weights, rel=0.01)


def test_a_vision_transformer_knows_places_and_wants_whole_patches() -> None:
    torch.manual_seed(0)
    model = make_model("vit", 10)
    nn.init.normal_(model.head.weight)  # type: ignore[union-attr,arg-type]
    images = torch.randn(1, 3, 32, 32)
    assert not torch.allclose(model(images), model(images.roll(16, 3)), atol=1e-4)
    with pytest.raises(OptionError, match="30 x 32 pixels cannot be divided into patches of 16"):
        model(torch.zeros(1, 3, 30, 32))


def library(name: str, names: list[str]) -> types.ModuleType:
    """A stand-in that lists networks and makes linear ones."""
    module = types.ModuleType(name)

    def make(asked: str, *, num_classes: int, **size: int) -> nn.Module:
        if asked == "odd_one":
            raise ValueError("no num_classes here")
        if size and asked != "fixed_size":
            raise TypeError("unexpected keyword argument")
        return nn.Linear(size.get("img_size", len(asked)), num_classes)

    module.__dict__.update(list_models=lambda module=None: names, get_model=make, create_model=make)
    return module


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = types.ModuleType("torchvision")
    models = library("torchvision.models", ["resnet18", "odd_one"])
    vision.__dict__["models"] = models
    monkeypatch.setitem(sys.modules, "torchvision", vision)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setitem(sys.modules, "timm", library("timm", ["resnet18", "convnext_tiny", "fixed_size"]))


@pytest.mark.usefixtures("libraries")
def test_a_network_made_for_one_size_is_made_for_that_of_the_images() -> None:
    assert make_model("timm:fixed_size", 7, size=32).in_features == 32
    assert make_model("timm:resnet18", 7, size=32).in_features == len("resnet18")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["resnet18", "torchvision:resnet18", "timm:resnet18", "convnext_tiny"])
def test_of_libraries(name: str) -> None:
    model = make_model(name, 7)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (len(name.rpartition(":")[2]), 7)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("name", "said"), [
    ("resnet19", "did you mean resnet18"), ("timm:resnet9", "did you mean resnet18"), ("zzzz", "ours are cnn, vit"),
    ("help", r"ours are cnn, vit; names of torchvision.models and timm.list_models\(\) work too, such as resnet50 or timm:"),
    ("keras:x", "no library 'keras'"), ("odd_one", "cannot be made with num_classes=7: no num_classes here"),
])  # fmt: skip
def test_unknown_names(name: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make_model(name, 7)


def test_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.models", "timm"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DependencyError, match=r"not one of ours \(cnn, vit\), and torchvision is not installed.*timm is not"):
        make_model("resnet18", 7)
    monkeypatch.setitem(sys.modules, "timm", library("timm", ["convnext_tiny"]))
    assert isinstance(make_model("convnext_tiny", 7), nn.Linear)
    with pytest.raises(OptionError, match=r"no such network.*torchvision is not installed"):
        make_model("resnet18", 7)


def test_pretrained_weights_go_in_whole(tmp_path: Path) -> None:
    source, target = make_model("cnn", 5), make_model("cnn", 5)
    torch.save({"model": source.state_dict(), "epoch": 3}, tmp_path / "w.pt")
    loaded = load_pretrained(target, tmp_path / "w.pt", num_classes=5)
    assert (loaded.fresh, loaded.unused) == ((), ())
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)


def test_a_head_of_another_number_of_classes_is_left_and_named(tmp_path: Path) -> None:
    source, target = make_model("cnn", 9), make_model("cnn", 5)
    head = target.head.weight.clone()  # type: ignore[union-attr,operator]
    saved = {f"module.{name}": tensor for name, tensor in source.state_dict().items()}
    torch.save(saved | {"module.extra": torch.zeros(2)}, tmp_path / "w.pt")
    loaded = load_pretrained(target, tmp_path / "w.pt", num_classes=5)
    assert loaded.fresh == ("head.weight", "head.bias")
    assert str(loaded) == (
        "12 tensors loaded; left as initialised (the number of classes differs): head.weight, head.bias; only in the file: extra"
    )
    assert torch.equal(target.head.weight, head)  # type: ignore[union-attr,arg-type]
    assert torch.equal(target.stem.conv.weight, source.stem.conv.weight)  # type: ignore[union-attr,arg-type]
    del saved["module.head.weight"], saved["module.head.bias"]
    torch.save({"state_dict": saved}, tmp_path / "w.pt")
    assert load_pretrained(target, tmp_path / "w.pt", num_classes=5).fresh == ("head.weight", "head.bias")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


def test_files_that_are_no_weights_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.pt"
    model = make_model("cnn", 5)
    with pytest.raises(MissingDataError, match="no such file"):
        load_pretrained(model, path, num_classes=5)
    torch.save(make_model("vit", 5).state_dict(), path)
    with pytest.raises(StateError, match=r"weights of another network than ConvNet: \d+ of 14 tensors do not fit: stem.*--model"):
        load_pretrained(model, path, num_classes=5)
    torch.save([1, 2], path)
    with pytest.raises(FormatError, match="holds a list, not a dict of weights by name"):
        load_pretrained(model, path, num_classes=5)
    torch.save(Evil(), path)
    with pytest.raises(FormatError, match="not tensors and plain values"):
        load_pretrained(model, path, num_classes=5)
    path.write_bytes(b"weights")
    with pytest.raises(FormatError, match="not tensors and plain values"):
        load_pretrained(model, path, num_classes=5)
    assert "executed" not in capsys.readouterr().out
