"""Optimisers by name, with weight decay where it belongs."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
from torch import nn

from datapipe.errors import OptionError
from datapipe.training.options import TrainOptions

_RATES = {"adamw": 1e-3, "sgd": 0.05}
_DECAYS = {"adamw": 0.05, "sgd": 1e-4}


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """The optimiser that the options name, over the model's parameters that want gradients.

    Raises OptionError for an unknown name, for one that needs a closure or sparse gradients, for weight decay where it has
    none, and for a model without parameters to train.
    """
    cls = _class(options.optimizer)
    name = cls.__name__.lower()
    takes = inspect.signature(cls).parameters
    decay = _DECAYS.get(name, 0.0) if options.weight_decay is None else options.weight_decay
    if decay and "weight_decay" not in takes:
        raise OptionError(f"weight_decay is {decay}; {cls.__name__} has none; pass 0")
    arguments: dict[str, Any] = {}
    rate = _RATES.get(name) if options.lr is None else options.lr
    if rate is not None:
        arguments["lr"] = rate
    if name == "sgd":
        arguments |= {"momentum": options.momentum, "nesterov": options.momentum > 0}
    groups = parameter_groups(model, decay)
    if not groups:
        raise OptionError(f"{type(model).__name__} has no parameters that want gradients; there is nothing to train")
    if "weight_decay" not in takes:
        groups = [{"params": group["params"]} for group in groups]
    optimizer: torch.optim.Optimizer = cls(groups, **arguments)
    return optimizer


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and filters with weight decay; norms, biases and other vectors without. Empty groups are left out.

    What `model.no_weight_decay()` names, if there is such a method (timm's models), goes without as well.
    """
    named = getattr(model, "no_weight_decay", None)
    spared = set(named()) if callable(named) else set()
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[parameter.ndim <= 1 or name in spared]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _class(name: str) -> Any:
    known = {
        cls.__name__.lower(): cls
        for cls in vars(torch.optim).values()
        if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=2) or ["adamw", "sgd"]
        raise OptionError(f"optimizer is {name!r}, which torch.optim does not have; did you mean {' or '.join(near)}?")
    if name.lower() in ("lbfgs", "sparseadam", "muon"):
        reason = {"lbfgs": "evaluates the loss several times a step", "sparseadam": "wants sparse gradients"}
        why = reason.get(name.lower(), "takes matrices only")
        raise OptionError(f"optimizer is {name!r}, which {why}; choose another, such as adamw")
    return known[name.lower()]
