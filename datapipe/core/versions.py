"""The versions of everything on which bytes and pixels may depend: machines that share work must have the same."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import platform
from pathlib import Path

from datapipe.core.environment import version_of

WRITING = ("pyarrow", "h5py", "numpy", "pillow", "simplejpeg", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")  # of shards
DECODING = (*WRITING, "torch", "av", "soundfile", "soxr", "tokenizers")  # of samples
_ABSENT = "not installed"


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions, on this machine, of these packages, of datapipe's own source, of the libraries in Pillow and h5py."""
    found = {name: _installed(name) for name in packages}
    found["datapipe"] = f"{_installed('gpu-datapipe')} (source {_source_digest()})"
    with contextlib.suppress(ImportError):
        found["HDF5"] = importlib.import_module("h5py").version.hdf5_version
    with contextlib.suppress(ImportError):
        features = importlib.import_module("PIL.features")
        for name in ("jpg", "libjpeg_turbo", "zlib", "webp"):
            found[f"pillow's {name}"] = str(features.version(name))
    found["processor"] = platform.machine()
    return found


def differing(machine: str, found: dict[str, str], expected: dict[str, str]) -> str | None:
    """Return how the versions of a machine differ from those expected, None if they do not."""
    names = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if not names:
        return None
    return f"{machine} has " + ", ".join(
        f"{name} {found.get(name, _ABSENT)} instead of {expected.get(name, _ABSENT)}" for name in names
    )


def _installed(package: str) -> str:
    """Return the version of a package; builds of torch for the CPU and for several versions of CUDA count as one."""
    return (version_of(package) or _ABSENT).partition("+")[0]


def _source_digest() -> str:
    """Return eight digits that stand for the text of the two packages, since a version may be that of many commits."""
    digest = hashlib.sha256()
    for package in ("converters", "datapipe"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            return "absent"
        top = Path(spec.origin).parent
        for path in sorted(top.rglob("*.py")):
            digest.update(os.fsencode(path.relative_to(top)) + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]
