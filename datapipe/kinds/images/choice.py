"""Choose which backend decodes, on which device, and say why.

A backend that a user names is used or refused. With "auto" the CPU path serves a CPU; for a GPU DALI and the CPU
path are measured on the data at hand, unless one of them is ruled out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from datapipe.codecs.decode import Decode
from datapipe.core.printable import counted
from datapipe.errors import DependencyError, OptionError
from datapipe.kinds.images.dali.gate import choose_cut_form
from datapipe.kinds.images.dali.installation import installation
from datapipe.kinds.images.dali.settings import HUFFMAN_THRESHOLD, Dali
from datapipe.kinds.images.evidence import DataEvidence, Measured
from datapipe.transforms import Recipe
from datapipe.transforms.recipe import Size

Backend = str | Dali  # what a user passes: "auto", "images_cpu", "dali", or DALI's settings
BACKENDS = ("auto", "images_cpu", "dali")
_ENOUGH = 0.5  # share of samples that DALI must be able to decode to be worth measuring
_DALI_LEAD = 2.0  # how much faster DALI must be: it takes part of the GPU from the network that trains there


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen backend and device. Raises ValueError for a CUDA device without an index: DALI would take it for the CPU."""

    device: torch.device
    dali: Dali | None  # None: images_cpu
    reason: str
    share_for_dali: float = 1.0  # of some samples, that DALI decodes as Pillow does

    def __post_init__(self) -> None:
        if self.device.type != "cpu" and self.device.index is None:
            raise ValueError(f"a choice of a backend for {str(self.device)!r}, which names no GPU; resolve the device first")

    @property
    def backend(self) -> str:
        return "images_cpu" if self.dali is None else "dali"


def problem_with_device(device: torch.device) -> str | None:
    """Return why DALI cannot make batches for the device; None if it can."""
    if device.type in ("cpu", "cuda"):
        return None
    return f"DALI decodes for NVIDIA GPUs and for CPUs, and device is {device}; images_cpu decodes, and batches are copied there"


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """The part of a loader's arguments that decides which backend can serve it.

    Raises OptionError for a combination that no backend can serve, and DependencyError if DALI is requested but not installed.
    """

    backend: Backend
    recipe: Recipe
    stored_size: Size | None  # (height, width) of all images, if they have one size
    has_collate_fn: bool
    has_image: bool = True
    has_cache: bool = False  # of decoded images
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        if asks_for_dali(self.backend):
            installation()
            self._refuse(self.problem_for_dali())

    def problem_for_dali(self, device: torch.device | None = None) -> str | None:
        """Return why DALI cannot serve the loader (on that device); None if it can."""
        if not self.has_image:
            return "batches have no images"
        if self.recipe.rest:
            return f"{self.recipe.rest_reason}: it runs per sample on the CPU"
        if self.has_cache:
            return "a cache keeps decoded images, and DALI is there to decode; leave out cache, or pass backend='images_cpu'"
        if self.decode == "scaled":
            return "decode='scaled' is for libjpeg on the CPU; leave out decode, or pass backend='images_cpu'"
        if self.recipe.output_size(self.stored_size) is None:
            return (
                "images would differ in size, and DALI's graph makes images of one; "
                "end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w))"
            )
        if device is not None and (problem := problem_with_device(device)) is not None:
            return problem
        if self.has_collate_fn and device is not None and device.type == "cuda":
            return (
                "collate_fn takes samples in host memory, where DALI's are on the GPU; "
                "pass a batch_transform for what is to be done there, or backend='images_cpu'"
            )
        try:
            choose_cut_form(self.recipe, self.stored_size)
        except OptionError as exc:
            return str(exc)
        return None

    def choose(self, device: torch.device, evidence: DataEvidence) -> Choice:
        """Decide. Warns if a GPU would be served by DALI and DALI is not installed."""
        if self.backend == "images_cpu":
            return Choice(device, None, "asked for")
        is_asked_for = asks_for_dali(self.backend)
        if device.type == "cpu" and not is_asked_for:
            return Choice(device, None, "on a CPU it is the faster one")
        problem = self.problem_for_dali(device)
        if is_asked_for:
            self._refuse(problem)
            share = evidence.share_for_dali()
            if isinstance(self.backend, Dali):
                return Choice(device, self.backend, "asked for, with these settings", share)
            if device.type == "cpu":
                return Choice(device, Dali(), "asked for", share)
            return _fastest([measured for measured in evidence.rates() if measured.dali is not None], device, share)
        if problem is not None:
            return Choice(device, None, problem)
        try:
            installation()
        except DependencyError as exc:
            warnings.warn(f"images are decoded on the CPU: {exc}", RuntimeWarning, stacklevel=4)
            return Choice(device, None, f"the GPU would need DALI: {exc}")
        share = evidence.share_for_dali()
        if share < _ENOUGH:
            return Choice(device, None, f"DALI decodes {share:.0%} of these samples as Pillow does")
        return _fastest(evidence.rates(), device, share)

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            raise OptionError(f"backend={self.backend!r}: {problem}")


def asks_for_dali(backend: Backend) -> bool:
    """Return whether DALI is asked for. Raises OptionError for a backend that does not exist."""
    if isinstance(backend, Dali) or backend == "dali":
        return True
    if backend not in BACKENDS:
        raise OptionError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}, or pass datapipe.Dali(...)")
    return False


def _fastest(rates: list[Measured], device: torch.device, share_for_dali: float) -> Choice:
    """Return the fastest, with the rate of images_cpu multiplied by `_DALI_LEAD`."""
    ranked = sorted(rates, key=lambda measured: -measured.images_per_s * (_DALI_LEAD if measured.dali is None else 1.0))
    figures = ", ".join(f"{_name(measured.dali)} {measured.images_per_s:.0f}" for measured in ranked)
    reason = f"measured here, images/s: {figures}"
    if any(measured.dali is None for measured in rates):
        reason += f"; DALI must be {_DALI_LEAD:g} times as fast, as it takes the GPU's time from the network"
    return Choice(device, ranked[0].dali, reason, share_for_dali)


def _name(dali: Dali | None) -> str:
    if dali is None:
        return "images_cpu"
    how = [counted(dali.num_pipelines, "pipeline")]
    if dali.hw_decoder_load:
        how.append(f"{dali.hw_decoder_load:.0%} on JPEG engines")
    if dali.hybrid_huffman_threshold != HUFFMAN_THRESHOLD:
        how.append(f"Huffman on the GPU above {dali.hybrid_huffman_threshold} pixels")
    return f"dali ({', '.join(how)})"
