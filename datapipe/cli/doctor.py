"""`datapipe doctor`: show what this machine has, what the loader will use, and what would help."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import resource
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from datapipe.codecs.decode import default_decoder_name
from datapipe.core.environment import install_command, memory_nbytes, shared_memory, version_of
from datapipe.core.printable import counted, say_text, size_text
from datapipe.core.user_cache import HUB, IMAGES, INDEXES, REMOTE_INDEXES, user_cache
from datapipe.fetch.shard_cache.directory import known_cache_directories
from datapipe.kernel.accelerators import device_name, devices, torch_build
from datapipe.kernel.options import default_num_workers

_PACKAGES = (
    "gpu-datapipe", "torch", "numpy", "pyarrow", "pillow", "simplejpeg", "crc32c",
    "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-dali-cuda120", "nvidia-dali-cuda130",
    "cudf-cu12", "cudf-cu13", "webdataset", "h5py", "obstore", "huggingface_hub", "tokenizers", "av", "PyNvVideoCodec",
    "soundfile", "torchvision",
    "timm",
)  # fmt: skip
_MADE_FOR_A_TORCH = ("torchvision", "timm")  # may be installed and yet fail to import; timm imports torchvision

_SHARED_MEMORY_NBYTES = 1 << 30  # less holds few batches of images
_SOCKET_DIRECTORY_LENGTH = 75  # multiprocessing adds 32 bytes, and unix(7) allows 107
_ADVICE_NBYTES = 10e9  # size of a cache from which advice on how to remove it is given


def run(args: argparse.Namespace) -> int:
    """Print the facts of this machine. Returns 0."""
    if args.empty_shard_caches:
        _empty_shard_caches()
    facts = examine()
    say_text(json.dumps(facts, indent=1) if args.json else as_text(facts))
    return 0


def _empty_shard_caches() -> None:
    for directory in known_cache_directories():
        say_text(f"{directory.path}: {size_text(directory.clear())} freed", file=sys.stderr)


def examine() -> dict[str, Any]:
    """Return the facts of this machine, JSON-safe."""
    cuda = torch.version.cuda
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "decode_threads": default_num_workers(),
        "memory_gib": round(memory_nbytes() / 2**30, 1),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "shared_memory_nbytes": _shared_memory_nbytes(),
        "temporary_directory": tempfile.gettempdir(),
        "torch_cuda": cuda,
        "gpus": [device_name(one) for one in devices()],
        "decoder": default_decoder_name(),
        "caches": [kept for name in (INDEXES, IMAGES, REMOTE_INDEXES, HUB) if (kept := _kept(user_cache(name))) is not None],
        "shard_caches": [
            {"directory": str(one.path), "shards": one.held().num_shards, "nbytes": one.held().nbytes}
            for one in known_cache_directories()
        ],
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
    }
    facts["not_importable"] = {
        name: reason for name in _MADE_FOR_A_TORCH if name in facts["packages"] and (reason := _why_not(name)) is not None
    }
    facts["advice"] = _advise(facts)
    return facts


def _shared_memory_nbytes() -> int:
    """Return the size of /dev/shm; 0 if there is none."""
    found = shared_memory()
    return 0 if found is None else found.total_nbytes


def _why_not(package: str) -> str | None:
    """Return why an installed package cannot be imported, in one line; None if it can."""
    try:
        importlib.import_module(package)
    except Exception as exc:  # its compiled parts may raise anything if they were built for another torch
        return f"{type(exc).__name__}: {next(iter(str(exc).splitlines()), '')}"[:200]
    return None


def _kept(directory: Path) -> dict[str, Any] | None:
    """Return the entries of a cache directory and its size on disk; None if it does not exist."""
    if not directory.is_dir():
        return None
    nbytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # it may just have been removed
                nbytes += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return {"directory": str(directory), "entries": len(os.listdir(directory)), "nbytes": nbytes}


def _advise(facts: dict[str, Any]) -> list[str]:
    advice: list[str] = []
    if facts["decoder"] != "nvimgcodec":
        advice.append(f"{install_command('nvimgcodec')}: decodes only the region of a JPEG that a crop needs")
    advice += _advise_about_imports(facts)
    if facts["gpus"]:
        advice += _advise_about_dali(len(facts["gpus"]))
    if facts["open_files_limit"] < 1024:
        advice.append(f"ulimit -n is {facts['open_files_limit']}; 4096 keeps more shards open")
    if facts["decode_threads"] == 1:
        advice.append("one core for decoding: give the process more cores (taskset, SLURM_CPUS_PER_TASK, container quota)")
    if facts["shared_memory_nbytes"] < _SHARED_MEMORY_NBYTES:
        advice.append(
            f"/dev/shm has {size_text(facts['shared_memory_nbytes'])}, through which torch's worker processes hand batches over: "
            "docker run --shm-size=8g (datapipe's loader has threads and does not need it)"
        )
    if len(os.fsencode(facts["temporary_directory"])) > _SOCKET_DIRECTORY_LENGTH:
        advice.append(
            f"TMPDIR is {facts['temporary_directory']}: the names of sockets below it are too long, and torch's worker "
            f"processes fail or wait for ever; export TMPDIR=/tmp, or another of at most {_SOCKET_DIRECTORY_LENGTH} bytes"
        )
    for kept in facts["caches"]:
        if kept["nbytes"] > _ADVICE_NBYTES:
            advice.append(
                f"rm -r {shlex.quote(kept['directory'])} frees {size_text(kept['nbytes'])}; what is needed again is cached again"
            )
    if importlib.util.find_spec("PIL._imagingft") is None:
        advice.append("Pillow lacks FreeType: contact sheets will use a coarse font")
    return advice


def _advise_about_imports(facts: dict[str, Any]) -> list[str]:
    """Return which packages to install in place of those that were built for another torch."""
    broken, packages = facts["not_importable"], facts["packages"]
    torch, _, build = packages["torch"].partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    listed = "; ".join(f"{name} {packages[name]} ({reason})" for name, reason in broken.items())
    if "torchvision" in broken:
        remedy = f"install the two in matching versions, pip install --force-reinstall torch=={torch} torchvision{index}"
    else:
        remedy = " and ".join(f"pip install --upgrade {name}" for name in broken)
    effect = f"cannot be imported with torch {packages['torch']}, so their datasets, transforms and models are unavailable"
    return [f"{listed} {effect}: {remedy}"] if broken else []


def _advise_about_dali(num_gpus: int) -> list[str]:
    from datapipe.errors import DependencyError
    from datapipe.kinds.images.dali.installation import installation, mismatch
    from datapipe.kinds.images.dali.region_trial import region_problem

    try:
        installation()
        problem = mismatch()
    except DependencyError as exc:
        return [str(exc)]
    if problem is not None:
        return [problem]
    problems = [region_problem(number, hw_decoder_load=0.0) for number in range(num_gpus)]
    return [
        f"GPU {number} decodes whole JPEGs, not only the crop's region: {problem}; another release of nvJPEG (13.2 or newer) or "
        "nvImageCodec may change that"
        for number, problem in enumerate(problems)
        if problem is not None
    ]


def as_text(facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    gpus = ", ".join(facts["gpus"]) or "none visible to torch"
    lines = [
        f"python    {facts['python']} on {facts['platform']}",
        f"cores     {facts['cores_usable']} usable of {facts['cores']}; {facts['decode_threads']} decode threads by default",
        f"memory    {facts['memory_gib']} GiB; {facts['open_files_limit']} open files allowed",
        f"GPU       {gpus} (torch is {torch_build()})",
        f"decoder   {facts['decoder']}",
        *(f"cache     {size_text(kept['nbytes'])} in {kept['entries']} parts in {kept['directory']}" for kept in facts["caches"]),
        *(
            f"shards    {size_text(kept['nbytes'])} in {counted(kept['shards'], 'shard')} of object stores in {kept['directory']}"
            " (--empty-shard-caches removes those not in use)"
            for kept in facts["shard_caches"]
        ),
        "packages  " + ", ".join(_package(name, facts) for name in facts["packages"]),
    ]
    lines += [f"advice    {text}" for text in facts["advice"]] or ["advice    nothing to add"]
    return "\n".join(lines)


def _package(name: str, facts: dict[str, Any]) -> str:
    return f"{name} {facts['packages'][name]}" + (" (cannot be imported)" if name in facts["not_importable"] else "")
