"""Stage `look`: what the machine is, what is installed, what decodes where, and whether the carried kernels load."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Outcome, run_job
from benchmarks.gpu.libraries import can_load
from benchmarks.gpu.parity import OURS, compare_ways, some_files, ways
from benchmarks.gpu.parity_job import RECIPES
from benchmarks.gpu.rates import Variant
from benchmarks.gpu.report import Report
from benchmarks.gpu.sets import image_set
from benchmarks.gpu.settings import Check, Deadline, num_cores
from benchmarks.gpu.sweep import OURS as OUR_DALI

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


def run(check: Check, report: Report, deadline: Deadline) -> None:
    with report.attempt("machine"):
        report.add("machine", machine(check))
    with report.attempt("decoders"):
        _decoders(check, report)
    folder = some_files(check, image_set(check, "photos") / "folder", check.pick(16, 6))
    with report.attempt("kernels"):
        _kernels(check, report, folder)
    with report.attempt("engines"):
        _engines(check, report)
    report.note(left_s=round(deadline.left_s))


def machine(check: Check) -> dict[str, Any]:
    """Facts, each gathered for itself: what cannot be had is said in its place."""
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


def _decoders(check: Check, report: Report) -> None:
    """nvImageCodec by itself, one engine at a time."""
    outcome = run_job(check, "decoders_job", {}, limit_s=90, environment={"PYNVIMGCODEC_VERBOSITY": "3"})
    if outcome.problem is not None:
        report.fail("decoders", outcome.problem)
    table = [result for result in outcome.results if "engine" in result]
    report.add("decoders", {"engines": table, "log": telling_lines(outcome.log)})
    for result in outcome.results:
        if "libraries" in result:
            report.add("decoders: libraries", result)
    if check.device == "cpu":
        report.skip("decoders HW_GPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU", "they are a GPU's")
        return
    engines = [result for result in table if result.get("form") == "4:2:0" and result["smooth_chroma"]]
    for result in engines:
        what = f"{result['engine']}, 4:2:0 with smooth chroma, {result['view']}"
        if not result["is_decoded"] and result["engine"] != "CPU_ONLY":
            report.skip(what, "this engine does not take it, so it falls to another")
    nvjpeg = next((result["nvjpeg"] for result in outcome.results if result.get("nvjpeg")), None)
    numbers = tuple(int(part) for part in (nvjpeg or "0").split(".")[:2])
    report.expect("nvJPEG", numbers >= _NEEDED_NVJPEG, f"{nvjpeg} is what loads, from 13.2 on regions are decoded smoothly")


def _kernels(check: Check, report: Report, folder: Path) -> None:
    """A few images through every kind of graph on the device, against the CPU path: kernels that do not load fail here."""
    made: dict[str, dict[str, Any]] = {}
    for number, way in enumerate((ways(check.device)[0], ways(check.device)[3])):
        arguments = {
            **{name: getattr(way, name) for name in ("backend", "device", "dali", "older_nvjpeg")},
            "data": str(folder),
            "out": str(check.data / "look-pixels" / str(number)),
            "recipes": list(RECIPES),
            "batch_size": 4,
        }
        outcome = run_job(check, "parity_job", arguments, limit_s=120, environment={"DALI_NVIMGCODEC_LOG_LEVEL": "3"})
        if outcome.problem is not None:
            report.fail(f"kernels, {way.name}", outcome.problem)
        made[way.name] = {result["recipe"]: result for result in outcome.results if "recipe" in result}
        if way.name != OURS:
            compare_ways(report, made[OURS], made[way.name], way)
            _note_libraries(report, outcome)
    shutil.rmtree(check.data / "look-pixels", ignore_errors=True)


def _note_libraries(report: Report, outcome: Outcome) -> None:
    found = next((result for result in outcome.results if "libraries" in result), {})
    report.add("DALI: libraries", {**found, "log": telling_lines(outcome.log)})


def _engines(check: Check, report: Report) -> None:
    """How busy the JPEG engines are as more is given to them: no change means that there are none, or none that DALI uses."""
    root = image_set(check, "photos")
    variants = [
        Variant(OUR_DALI, {"dali": {"hw_decoder_load": load}}, check.pick(256, 8), num_cores()).to_json()
        for load in check.pick((0.0, 0.65, 1.0), (0.65,))
    ]
    arguments = {"data": str(root), "variants": variants, "seconds": check.pick(2.0, 0.1), "warmup_s": check.pick(1.0, 0.0)}
    outcome = run_job(check, "rates", arguments, limit_s=90)
    if outcome.problem is not None:
        report.fail("engines", outcome.problem)
    for result in outcome.results:
        if "error" in result:
            report.fail("engines", result["error"])
        else:
            report.add(f"engines at load {result['options']['dali']['hw_decoder_load']}", result)
    if not any("jpeg_engine_percent" in result for result in outcome.results):
        report.skip("use of the JPEG engines", "NVML does not tell it here")


def telling_lines(log: str) -> list[str]:
    """Lines about versions, hardware and what went wrong, each once."""
    lines = (_COLOURS.sub("", line).strip() for line in log.splitlines())
    return list(dict.fromkeys(line for line in lines if _TELLING.search(line)))[:_MOST_LINES]


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
