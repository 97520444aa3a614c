"""Which shared libraries a process really loaded: a machine may hold several of one name."""

from __future__ import annotations

import ctypes
from pathlib import Path

_TELLING = ("nvjpeg", "nvimgcodec", "nvcuvid", "libcuda.so", "libcudart", "libdali", "libnvtiff", "libtorch_cuda.so")


def loaded_libraries() -> list[str]:
    """Paths of those that decide how images are decoded, of this process."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:] or [""]
        if any(name in Path(path[0]).name for name in _TELLING):
            found.add(path[0])
    return sorted(found)


def nvjpeg_version(libraries: list[str]) -> str | None:
    """The version of the nvJPEG among them, as it says itself; None where there is none."""
    for path in libraries:
        if Path(path).name.startswith("libnvjpeg.so"):
            library, numbers = ctypes.CDLL(path), []
            for part in range(3):  # libraryPropertyType: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
                value = ctypes.c_int(-1)
                library.nvjpegGetProperty(ctypes.c_int(part), ctypes.byref(value))
                numbers.append(str(value.value))
            return ".".join(numbers)
    return None


def can_load(name: str) -> str:
    """Empty if the dynamic loader finds that library, else its words."""
    try:
        ctypes.CDLL(name)
    except OSError as exc:
        return str(exc)
    return ""
