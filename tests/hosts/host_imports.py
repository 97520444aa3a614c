"""Imported once by the server that the tests' processes fork from: the frameworks take seconds to import."""

from __future__ import annotations

import contextlib
import importlib
import warnings

import datapipe.kinds.loader

with contextlib.suppress(ImportError):
    # Lightning, Transformers and timm import torchvision, whose compiled part need not fit this torch.
    from benchmarks.contenders.torchvision_transforms import import_torchvision

    import_torchvision()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "accelerate", "transformers", "timm.data"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        from transformers import Trainer, ViTForImageClassification  # noqa: F401 (loaded late otherwise, by each process)

assert datapipe.kinds.loader
