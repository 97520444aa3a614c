"""The installed DALI, its compatibility with this torch, and the abilities of its decoder."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from datapipe.core.environment import version_of
from datapipe.core.errors import DependencyError

# Before 13.2 nvJPEG cannot decode a region of a JPEG with halved chroma and interpolate that chroma smoothly at the
# same time; nvImageCodec would silently fall back to the CPU.
_REGION_NVJPEG = (13, 2)


@dataclass(frozen=True, slots=True)
class Installation:
    """The installed DALI."""

    version: str
    cuda_major: int  # the CUDA that it is built for
    nvjpeg: str | None  # version of the nvJPEG wheel; None if there is none

    @property
    def decodes_regions(self) -> bool:
        """True if a GPU decodes only the region of a JPEG as smoothly as the whole."""
        return self.nvjpeg is not None and _numbers(self.nvjpeg)[:2] >= _REGION_NVJPEG


@functools.cache
def installation() -> Installation:
    """Return the installed DALI. Raises DependencyError, with the remedy, if there is none or more than one."""
    wanted = cuda_major_of_torch() or 13
    found = {major: version for major in (12, 13) if (version := version_of(f"nvidia-dali-cuda{major}0"))}
    if not found:
        raise DependencyError(f"DALI is not installed; pip install 'gpu-datapipe[dali-cu{wanted}]'")
    if len(found) > 1:
        raise DependencyError(
            f"DALI is installed twice, for CUDA 12 and 13, in one place; pip uninstall nvidia-dali-cuda{25 - wanted}0 and "
            f"install nvidia-dali-cuda{wanted}0 again"
        )
    ((major, version),) = found.items()
    nvjpeg = version_of("nvidia-nvjpeg") if major == 13 else version_of("nvidia-nvjpeg-cu12")
    return Installation(version, major, nvjpeg)


def mismatch() -> str | None:
    """Return a message if DALI and torch are built for different CUDA versions, else None."""
    found, torchs = installation(), cuda_major_of_torch()
    if torchs is None or torchs == found.cuda_major:
        return None
    return (
        f"DALI {found.version} is built for CUDA {found.cuda_major}, this torch for CUDA {torchs}; "
        f"pip uninstall nvidia-dali-cuda{found.cuda_major}0, then pip install 'gpu-datapipe[dali-cu{torchs}]'"
    )


def cuda_major_of_torch() -> int | None:
    """Return 12 or 13; None for a build without CUDA."""
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
