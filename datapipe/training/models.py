"""Models by name: two of our own, and those of torchvision and timm if they are installed."""

from __future__ import annotations

import difflib
import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from datapipe.core.errors import DependencyError, OptionError

_GROUP = 8  # channels per group of GroupNorm


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


class VisionTransformer(nn.Module):
    """A vision transformer with patches of `patch` pixels and `depth` blocks: (b, 3, h, w) -> (b, num_classes). 2.8 M weights.

    Positions are fixed sines and cosines, and the output is the mean over all patches (Beyer, Zhai and Kolesnikov, "Better
    plain ViT baselines for ImageNet-1k", 2022), so any size that `patch` divides works. Raises OptionError for other sizes.
    """

    def __init__(self, num_classes: int, *, patch: int = 16, width: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(_encoder_block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch:
            raise OptionError(
                f"images of {height} x {width} pixels cannot be divided into patches of {self.patch}; choose another size"
            )
        patches = self.embed(images)
        rows, columns, depth = patches.shape[2], patches.shape[3], patches.shape[1]
        tokens = patches.flatten(2).transpose(1, 2) + _positions(rows, columns, depth, patches.device).to(patches.dtype)
        return self.head(self.norm(self.blocks(tokens)).mean(1))  # type: ignore[no-any-return]


def _encoder_block(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


def _positions(rows: int, columns: int, width: int, device: torch.device) -> torch.Tensor:
    """Return (rows x columns, width) positions, a quarter each: sine and cosine of the column, sine and cosine of the row."""
    frequency = torch.exp(torch.arange(width // 4, device=device) * (-math.log(10_000.0) / (width // 4 - 1)))
    y = torch.arange(rows, device=device).repeat_interleave(columns)[:, None] * frequency
    x = torch.arange(columns, device=device).repeat(rows)[:, None] * frequency
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], 1)


BUILT_IN: dict[str, Callable[[int], nn.Module]] = {"cnn": ConvNet, "vit": VisionTransformer}
LIBRARIES = ("torchvision", "timm")
_THEIRS = "names of torchvision.models and timm.list_models() work too, such as resnet50 or timm:convnext_tiny"
_SIZE_ARGUMENTS = {"torchvision": "image_size", "timm": "img_size"}


def make_model(name: str, num_classes: int, *, size: int | None = None) -> nn.Module:
    """Return the network `name` with random weights and a head for `num_classes`.

    "cnn" and "vit" are ours. Any other name is looked up in torchvision and then in timm; "timm:resnet18" in timm alone.
    `size`: side of the images in pixels, for networks made for one size, such as most vision transformers.
    Raises OptionError for an unknown name, DependencyError if the library is not installed.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](num_classes)
    library, colon, bare = name.partition(":")
    if colon and library not in LIBRARIES:
        raise OptionError(f"model {name!r}: no library {library!r}; choose one of {', '.join(LIBRARIES)}")
    known: list[str] = list(BUILT_IN)
    missing: list[DependencyError] = []
    for candidate in [library] if colon else LIBRARIES:
        try:
            models = _library(candidate)
        except DependencyError as exc:
            missing.append(exc)
            continue
        if (bare if colon else name) in (names := _names(candidate, models)):
            return _made(candidate, models, bare if colon else name, num_classes, size)
        known += names
    if missing and (colon or len(missing) == len(LIBRARIES)):
        reasons = "; ".join([*map(str, missing), f"once one can be imported, {_THEIRS}"])
        raise DependencyError(f"model {name!r} is not one of ours ({', '.join(BUILT_IN)}), and {reasons}")
    near = difflib.get_close_matches(bare if colon else name, sorted(set(known)), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    ours = ", ".join(BUILT_IN)
    absent = "".join(f" ({exc})" for exc in missing)
    raise OptionError(f"model {name!r}: no such network; {hint}ours are {ours}; {_THEIRS}{absent}")


def _library(name: str) -> Any:
    """Import torchvision.models or timm, so that neither is needed until a model asks for it."""
    try:
        return importlib.import_module({"torchvision": "torchvision.models"}.get(name, name))
    except ImportError as exc:
        raise DependencyError(f"{name} is not installed (pip install 'gpu-datapipe[train]')") from exc
    except RuntimeError as exc:  # torchvision was built for another torch
        raise DependencyError(f"{name} does not work with this torch: {exc}") from exc


def _names(library: str, models: Any) -> list[str]:
    """Return the names of classifiers only: torchvision's detectors fetch weights from the network when they are created."""
    return list(models.list_models(module=models) if library == "torchvision" else models.list_models())


def _made(library: str, models: Any, name: str, num_classes: int, size: int | None) -> nn.Module:
    make = models.get_model if library == "torchvision" else models.create_model
    taken: dict[str, Any] = {"num_classes": num_classes}
    if size is not None:
        taken[_SIZE_ARGUMENTS[library]] = size
    try:
        try:
            model: nn.Module = make(name, **taken)
        except TypeError:  # most networks take images of any size and do not have this argument
            model = make(name, num_classes=num_classes)
    except (TypeError, ValueError, AssertionError) as exc:  # some networks do not take num_classes
        raise OptionError(f"model {name!r} of {library} cannot be made with num_classes={num_classes}: {exc}") from exc
    return model
