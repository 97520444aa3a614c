"""Models by name: a small one of our own, and those of torchvision and timm if they are installed."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch
from torch import nn

from datapipe.core.environment import install_command
from datapipe.errors import DependencyError, OptionError

_GROUP = 8  # channels per group of GroupNorm
_PLACES = {"torchvision": ("torchvision.models", "get_model"), "timm": ("timm", "create_model")}


class ConvNet(nn.Module):
    """Four convolutions, 24 to 96 channels wide: (b, 3, h, w) -> (b, num_classes). About 139,000 weights."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        widths = (24, 48, 96, 96)
        self.stem = _ConvBlock(3, widths[0], 7, stride=4)
        self.blocks = nn.Sequential(*(_ConvBlock(fan_in, fan_out, 3, stride=2) for fan_in, fan_out in itertools.pairwise(widths)))
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.blocks(self.stem(images)).mean((2, 3))
        return self.head(pooled)  # type: ignore[no-any-return]


class _ConvBlock(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, kernel: int, *, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.GroupNorm(fan_out // _GROUP, fan_out)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(images)))


def make_model(name: str, num_classes: int) -> nn.Module:
    """Return the network `name` with random weights and a head for `num_classes`.

    "cnn" is ours; "timm:resnet18" is timm's, and any other name one of torchvision's classifiers. Raises OptionError for an
    unknown name, DependencyError if the library is not installed.
    """
    if name == "cnn":
        return ConvNet(num_classes)
    library, _, bare = name.rpartition(":")
    library = library or "torchvision"
    if library not in _PLACES:
        raise OptionError(f"model {name!r}: no library {library!r}; choose one of {', '.join(_PLACES)}")
    module, function = _PLACES[library]
    try:
        models: Any = importlib.import_module(module)
    except (ImportError, RuntimeError) as exc:  # torchvision raises RuntimeError if it was built for another torch
        raise DependencyError(
            f"model {name!r} is not ours (cnn), and {library} cannot be imported ({exc}); {install_command('train')}"
        ) from exc
    try:
        model: nn.Module = getattr(models, function)(bare, num_classes=num_classes)
    except (RuntimeError, TypeError, ValueError) as exc:
        raise OptionError(
            f"model {name!r}: {library} makes no such network ({str(exc).splitlines()[0]:.160}); ours is cnn, and names of "
            "torchvision.models.list_models() and, after timm:, of timm.list_models() work too"
        ) from exc
    return model
