"""Choose which backend makes the deferred images of a user's Dataset, and say why.

torch's workers make them (`images_cpu`), or DALI does, in the training process, of what workers send encoded.
"""

from __future__ import annotations

import torch

from datapipe.adapt.deferral import pillow_seams
from datapipe.adapt.deferral.dataset import reads_batches
from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn
from datapipe.backends.images_dali.installation import installation, mismatch
from datapipe.backends.images_dali.settings import Dali
from datapipe.core.errors import DependencyError, OptionError
from datapipe.loader.images.choice import Backend, Choice, asks_for_dali


def choose_decoder(loader: TorchDataLoader, backend: Backend, device: torch.device) -> Choice:
    """Return which backend makes the deferred images of a loader.

    Raises OptionError for a backend that does not exist or cannot serve it, DependencyError for DALI if it is not installed.
    """
    problem = _problem_for_dali(loader)
    if asks_for_dali(backend):
        installation()
        if problem is not None:
            raise OptionError(f"backend={backend!r}: {problem}; leave it out: torch's workers then make the images")
        return Choice(device, backend if isinstance(backend, Dali) else Dali(), "asked for")
    if backend == "images_cpu":
        return Choice(device, None, "asked for")
    if device.type == "cpu":
        return Choice(device, None, "on a CPU it is the faster one")
    if problem is None:
        try:
            installation()
            problem = mismatch()
        except DependencyError as exc:
            problem = f"the GPU would need DALI: {exc}"
    return Choice(device, Dali(), "the GPU decodes; not measured") if problem is None else Choice(device, None, problem)


def _problem_for_dali(loader: TorchDataLoader) -> str | None:
    if has_collate_fn(loader):
        return "a collate_fn takes samples whose tensors are made, and DALI makes those of a whole batch"
    if reads_batches(loader.dataset):
        return f"{type(loader.dataset).__qualname__} makes whole batches (__getitems__)"
    if not pillow_seams.is_available():
        return "this version of Pillow does not let its images be deferred"
    return None
