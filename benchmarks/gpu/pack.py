"""Gather what a bare GPU machine lacks, in parts small enough to be carried: `python -m benchmarks.gpu.pack`.

The machine is taken to have PyTorch for CUDA 13, torchvision and numpy, and no network. Wheels are downloaded here
for its Python, unpacked beside each other, freed of what is not needed there (tests, headers, other Pythons,
device code of other GPUs), and packed: `.gpu/dali.tar.xz.00`, `.gpu/base.tar.xz.00`, ... To unpack there:

    mkdir -p /tmp/site && for s in base dali; do cat .gpu/$s.tar.xz.* | xz -dc -T0 | tar -x -C /tmp/site; done
    export PYTHONPATH=/tmp/site

Metadata travel along, so `importlib.metadata` finds versions. Needs pip, xz and tar.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.gpu.device_code import blank_others

# Downloads go without dependency resolution, so every wheel is named.
SETS: dict[str, tuple[str, ...]] = {
    # What datapipe and its tests of bad input import, but for torch and numpy.
    "base": (
        "pyarrow", "simplejpeg", "crc32c", "filelock", "platformdirs", "tqdm", "h5py", "pillow", "nvidia-ml-py",
    ),
    # CUDA 13 builds. nvCOMP, of which DALI needs `inflate` alone, stays at home.
    "dali": (
        "nvidia-dali-cuda130==2.4.0", "nvidia-nvimgcodec-cu13>=0.9,<0.10", "nvidia-nvjpeg>=13.2.3,<14", "nvidia-nvjpeg2k-cu13",
        "nvidia-nvtiff-cu13", "astunparse", "gast<=0.7", "six<=1.17", "optree", "packaging", "makefun", "nvtx",
        "typing-extensions",
    ),
}  # fmt: skip

_DROPPED_SUFFIXES = (".a", ".h", ".hpp", ".cuh", ".inl", ".pyx", ".pxd", ".pxi", ".pyi", ".cc")
_DROPPED_FOLDERS = frozenset(("tests", "test", "include", "src", "docs", "examples"))
# Parts of packages that nothing here imports, by the beginning of their path.
_DROPPED = (
    "pyarrow/libarrow_flight", "pyarrow/_flight", "pyarrow/libarrow_s3",
    "pyarrow/_s3fs", "nvidia/nvimgcodec/tools", "bin/",
)  # fmt: skip
_WITH_DEVICE_CODE = 500_000  # bytes; smaller libraries hold none worth the trouble
_PLATFORMS = (
    "manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(17, 40)),
)  # fmt: skip


def main() -> None:
    arguments = _parse()
    out: Path = arguments.out
    if shutil.which("xz") is None or shutil.which("tar") is None:
        raise SystemExit("packing needs the programs xz and tar; apt install xz-utils tar")
    out.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets or sorted(SETS):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            wheels = download(SETS[name], arguments.python, Path(scratch, "wheels"))
            site = Path(scratch, "site")
            for wheel in wheels:
                shutil.unpack_archive(wheel, site, "zip")
            dropped = drop_unneeded(site, arguments.python)
            blanked = sum(blank_others(path, arguments.arch) for path in libraries(site))
            nbytes = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
            parts = pack(site, out / f"{name}.tar.xz", part_nbytes=arguments.part_mb * 1_000_000, level=arguments.level)
        print(
            f"{name}: {len(wheels)} wheels, {dropped / 1e6:.0f} MB dropped, {nbytes / 1e6:.0f} MB left, of which "
            f"{blanked / 1e6:.0f} MB other GPUs' code, now zeros; {time.monotonic() - started:.0f} s"
        )
        for part in parts:
            print(f"  {part}  {part.stat().st_size / 1e6:.1f} MB")


def download(names: tuple[str, ...], python: str, folder: Path) -> list[Path]:
    """Wheels for CPython of that version on Linux x86-64. Raises SystemExit with pip's words."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, "-d", str(folder)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, *names], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"pip download failed:\n{done.stderr[-2000:]}")
    return sorted(folder.glob("*.whl"))


def drop_unneeded(site: Path, python: str) -> int:
    """Delete what the machine has no use for; bytes deleted."""
    tag = "cpython-" + python.replace(".", "")
    num_bytes = 0
    for path in sorted(site.rglob("*")):
        if path.is_dir() or path.is_symlink():
            continue
        inner = path.relative_to(site)
        for_others = ".cpython-" in path.name and f".{tag}-" not in path.name
        is_unused = inner.suffix in _DROPPED_SUFFIXES or any(str(inner).startswith(start) for start in _DROPPED)
        if for_others or is_unused or _DROPPED_FOLDERS & set(inner.parts[1:-1]):
            num_bytes += path.stat().st_size
            path.unlink()
    return num_bytes


def libraries(site: Path) -> list[Path]:
    """The shared libraries that are large enough to hold device code."""
    return [
        path
        for path in sorted(site.rglob("*.so*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size >= _WITH_DEVICE_CODE
    ]


def pack(site: Path, archive: Path, *, part_nbytes: int, level: str) -> list[Path]:
    """`archive.00`, `archive.01`, ...: a compressed tar of what is in `site`, in parts."""
    for old in archive.parent.glob(f"{archive.name}.*"):
        old.unlink()
    tar = subprocess.Popen(
        ["tar", "-C", str(site), "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-cf", "-", "."],
        stdout=subprocess.PIPE,
    )
    xz = subprocess.Popen(["xz", "-T0", f"-{level}", "-c"], stdin=tar.stdout, stdout=subprocess.PIPE)
    assert tar.stdout is not None
    assert xz.stdout is not None
    tar.stdout.close()
    parts: list[Path] = []
    while data := xz.stdout.read(part_nbytes):
        parts.append(archive.with_name(f"{archive.name}.{len(parts):02d}"))
        parts[-1].write_bytes(data)
    if tar.wait() or xz.wait():
        raise SystemExit(f"packing {archive} failed: tar ended with {tar.returncode}, xz with {xz.returncode}")
    return parts


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description="What a bare GPU machine lacks, in parts.")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(sorted(SETS))} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu", help="folder for the parts")
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine")
    parser.add_argument("--arch", type=int, default=90, help="compute capability to keep: 80 for A100, 90 for H100 and H200")
    parser.add_argument("--part-mb", type=int, default=60, help="largest part, MB of 1e6 bytes")
    parser.add_argument("--level", default="9e", help="of xz")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files (1.5 GB)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.sets) - set(SETS))
    if unknown:
        parser.error(f"no set named {', '.join(unknown)}; there are {', '.join(sorted(SETS))}")
    return arguments


if __name__ == "__main__":
    main()
