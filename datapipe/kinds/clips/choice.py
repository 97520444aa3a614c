"""Choose what decodes the frames of clips, and say why.

A backend that a user names is used or refused. With "auto" the CPU decodes for a CPU; for a GPU, where PyNvVideoCodec is
installed, the CPU and the GPU's video engines are measured on the clips at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from datapipe.codecs.video.conversion import Resize
from datapipe.errors import DependencyError, OptionError
from datapipe.kernel.calibration import ranked
from datapipe.kinds.clips.nvdec.library import PACKAGE, import_nvdec

ClipBackend = Literal["auto", "clips_cpu", "clips_nvdec"]
CLIP_BACKENDS: tuple[ClipBackend, ...] = ("auto", "clips_cpu", "clips_nvdec")
MEASURED: tuple[ClipBackend, ...] = ("clips_cpu", "clips_nvdec")
PACKAGES = ("gpu-datapipe", "torch", "av", PACKAGE)  # whose versions decide the rates
_NOT_FAST = "resize='fast' looks at where the colour of a frame was sampled, which engines do not say"
_NVDEC_LEAD = 1.2  # how much faster the engines must be: what they give crosses the GPU's memory and its bus


@dataclass(frozen=True, slots=True)
class ClipChoice:
    """The chosen backend. `uses_nvdec`: clips_nvdec, else clips_cpu."""

    uses_nvdec: bool
    reason: str

    @property
    def backend(self) -> str:
        return "clips_nvdec" if self.uses_nvdec else "clips_cpu"


def choose_clip_backend(
    backend: ClipBackend, device: torch.device, *, resize: Resize, rates: Callable[[], list[float]]
) -> ClipChoice:
    """Decide. `rates`: measures clips/s of each of MEASURED; called only if the choice needs it.

    Raises OptionError or DependencyError if the engines are requested and cannot serve.
    """
    if backend == "clips_cpu":
        return ClipChoice(False, "asked for")
    if backend == "clips_nvdec":
        if device.type != "cuda":
            raise OptionError(
                f"backend='clips_nvdec' needs a GPU, and device is {device}; pass device='cuda', or leave out backend"
            )
        if resize is Resize.FAST:
            raise OptionError(f"backend='clips_nvdec': {_NOT_FAST}; pass resize='exact', or leave out backend")
        import_nvdec()
        return ClipChoice(True, "asked for")
    if device.type != "cuda":
        return ClipChoice(False, "NVDEC needs an NVIDIA GPU")
    if resize is Resize.FAST:
        return ClipChoice(False, _NOT_FAST)
    try:
        import_nvdec()
    except DependencyError as exc:
        return ClipChoice(False, f"NVDEC would need {PACKAGE}: {exc}")
    found = dict(zip(MEASURED, rates(), strict=True))
    reason = f"measured here, clips/s: {ranked(found)}; NVDEC must be {_NVDEC_LEAD:g} times as fast"
    return ClipChoice(found["clips_nvdec"] > _NVDEC_LEAD * found["clips_cpu"], reason)
