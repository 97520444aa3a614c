"""The installed DALI, its compatibility with this torch, the abilities of its decoder, and the nvJPEG that is loaded."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from datapipe.core.environment import install_command, version_of
from datapipe.errors import DependencyError

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
        raise DependencyError(f"DALI is not installed; {install_command(f'dali-cu{wanted}')}")
    if len(found) > 1:
        raise DependencyError(
            f"DALI is installed twice, for CUDA 12 and 13, in one place; pip uninstall nvidia-dali-cuda{25 - wanted}0 and "
            f"install nvidia-dali-cuda{wanted}0 again"
        )
    ((major, version),) = found.items()
    nvjpeg = version_of("nvidia-nvjpeg") if major == 13 else version_of("nvidia-nvjpeg-cu12")
    return Installation(version, major, nvjpeg)


def release_memory() -> None:
    """Give back the memory of DALI's pools that nothing uses, on GPUs and page-locked; nothing, if DALI was not imported.

    DALI itself never gives any back, and torch cannot use it. Pipelines may be running.
    """
    backend = sys.modules.get("nvidia.dali.backend")
    if backend is not None:
        backend.ReleaseUnusedMemory()


def mismatch() -> str | None:
    """Return a message if DALI and torch are built for different CUDA versions, else None."""
    found, torchs = installation(), cuda_major_of_torch()
    if torchs is None or torchs == found.cuda_major:
        return None
    return (
        f"DALI {found.version} is built for CUDA {found.cuda_major}, this torch for CUDA {torchs}; "
        f"pip uninstall nvidia-dali-cuda{found.cuda_major}0, then {install_command(f'dali-cu{torchs}')}"
    )


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A shared library of this process."""

    path: str
    version: str  # as the library itself says

    def __str__(self) -> str:
        return f"nvJPEG {self.version} ({self.path})"

    @property
    def decodes_regions(self) -> bool:
        """True if it decodes only the region of a JPEG as smoothly as the whole."""
        return _numbers(self.version)[:2] >= _REGION_NVJPEG


def loaded_nvjpeg() -> LoadedLibrary | None:
    """Return the nvJPEG that this process has loaded, which need not be that of the wheel; None if none is loaded."""
    paths = (line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines())
    for path in sorted({found[0] for found in paths if found}):
        if Path(path).name.startswith("libnvjpeg.so"):
            library = ctypes.CDLL(path)
            numbers = [ctypes.c_int(-1) for _ in range(3)]
            for part, number in enumerate(numbers):  # libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
                library.nvjpegGetProperty(ctypes.c_int(part), ctypes.byref(number))
            return LoadedLibrary(path, ".".join(str(number.value) for number in numbers))
    return None


def cuda_major_of_torch() -> int | None:
    """Return 12 or 13; None for a build without CUDA."""
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
