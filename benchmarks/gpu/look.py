"""What the machine is, what is installed, and which of nvImageCodec's engines decodes what."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from typing import Any

from benchmarks.gpu.decoders_job import ENGINES
from benchmarks.gpu.job import run_job
from benchmarks.gpu.libraries import can_load
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, num_cores

_DISTRIBUTIONS = (
    "torch", "torchvision", "numpy", "pillow", "pyarrow", "simplejpeg", "crc32c", "h5py", "nvidia-dali-cuda130",
    "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12", "nvidia-nvjpeg", "nvidia-nvjpeg-cu12",
    "nvidia-ml-py",
)  # fmt: skip
_LIBRARIES = ("libcuda.so.1", "libnvcuvid.so.1", "libnvidia-ml.so.1")
_NEEDED_NVJPEG = (13, 2)  # for regions of JPEGs with halved chroma, interpolated smoothly
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TELLING = re.compile(r"WARN|ERROR|FATAL|version|HW |not supported|hardware", re.IGNORECASE)
_MOST_LINES = 60


def tell_machine(check: Check, report: Report) -> None:
    """Hardware, driver, versions, and whether the driver's libraries load."""
    report.add("machine", machine(check))


def tell_decoders(check: Check, report: Report) -> None:
    """nvImageCodec by itself, a process for each engine; the spare one too, of regions with smooth chroma most of all."""
    spare = {
        "PYTHONPATH": _before("PYTHONPATH", check.spare),
        "LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", f"{check.spare}/nvidia/nvimgcodec"),
    }
    engines = ENGINES if check.device == "cuda" else ENGINES[-1:]
    for which, environment in (("installed", {}), ("spare", spare))[: 2 if check.spare else 1]:
        for engine in engines:
            _engine(check, report, which, engine, environment)
    if not check.spare:
        report.skip("another nvImageCodec", "there is none: --spare names its folder")
    if check.device == "cpu":
        report.skip("decoders HW_GPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU", "they are a GPU's")


def machine(check: Check) -> dict[str, Any]:
    """Facts, each gathered separately: an unavailable one is replaced by the reason."""
    import torch

    memory = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    found: dict[str, Any] = {
        "nvidia_smi": _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max",
                              "--format=csv,noheader"),
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "num_cores": num_cores(),
        "shared_memory_free_gb": round(memory.free / 1e9, 1) if memory else None,
        "scratch_free_gb": round(shutil.disk_usage(check.data).free / 1e9, 1) if check.data.exists() else None,
        "versions": {name: version for name in _DISTRIBUTIONS if (version := _version(name))},
        "libraries": {name: can_load(name) or "loads" for name in _LIBRARIES},
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
    }  # fmt: skip
    if check.device == "cuda" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
        }
    return found


def _engine(check: Check, report: Report, which: str, engine: str, environment: dict[str, str]) -> None:
    what = f"nvImageCodec, {which}, {engine}"
    outcome = run_job(
        check, "decoders_job", {"engine": engine}, limit_s=60, environment={"PYNVIMGCODEC_VERBOSITY": "3", **environment}
    )
    found = {
        key: value for result in outcome.results for key, value in result.items() if key in ("version", "libraries", "nvjpeg")
    }
    table = [result for result in outcome.results if "engine" in result]
    report.add(what, {"which": which, "engines": table, "log": telling_lines(outcome.log), **found})
    if outcome.problem is not None:
        report.fail(what, outcome.problem)
    if which == "installed" and "nvjpeg" in found and check.device == "cuda":
        numbers = tuple(int(part) for part in (found["nvjpeg"] or "0").split(".")[:2])
        why = f"{found['nvjpeg']} is what loads, from 13.2 on regions are decoded smoothly"
        report.expect("nvJPEG", numbers >= _NEEDED_NVJPEG, why)


def telling_lines(log: str) -> list[str]:
    """Lines about versions, hardware and what went wrong, each once."""
    lines = (_COLOURS.sub("", line).strip() for line in log.splitlines())
    return list(dict.fromkeys(line for line in lines if _TELLING.search(line)))[:_MOST_LINES]


def _before(variable: str, path: str) -> str:
    """The search path of that variable with another one in front of it."""
    return os.pathsep.join(part for part in (path, os.environ.get(variable, "")) if part)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{command[0]} did not answer: {exc}"
    return (done.stdout or done.stderr).strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
