"""Say in one line what a loader is, for `repr`. Nothing is opened, drawn, measured or put on a device for it."""

from __future__ import annotations

from typing import NoReturn

import torch

from datapipe.core.printable import printable
from datapipe.kernel.accelerators import accelerator


def shown_loader(name: str, data: str, *, batch_size: int | None, device: str | torch.device) -> str:
    """Return the `repr` of a loader over `data`, as the functions below describe it."""
    batches = "batches of its batch_sampler" if batch_size is None else f"batch_size={batch_size}"
    return printable(f"<datapipe.{name}: {data}; {batches}, on {shown_device(device)}>")


def shown_device(device: str | torch.device) -> str:
    """Return the device of an argument. Makes no CUDA context, which would forbid forking: "auto" may stay undecided."""
    if device != "auto":
        return str(device)
    return "this rank's accelerator" if accelerator() is not None else "cpu"


def refuse_position(loader: object, position: object) -> NoReturn:
    """Raise TypeError for `loader[position]`: loaders take it as their `__getitem__`, since frameworks subscript datasets."""
    raise TypeError(
        f"a {type(loader).__qualname__} of datapipe is not subscriptable: it gives batches, in the order of an epoch. Something "
        "takes it for a dataset: pass it where a DataLoader is expected. Hugging Face's Trainer takes loaders as "
        "class MyTrainer(LoaderMixin, Trainer), with LoaderMixin from datapipe.adapt.hosts.trainer (docs/hosts.md). "
        "Single samples are loader.dataset[i]"
    )
