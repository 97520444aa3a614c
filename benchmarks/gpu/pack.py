"""Gather what a bare GPU machine lacks in a file small enough to be carried: `python -m benchmarks.gpu.pack [SET]`.

The machine is taken to have PyTorch for CUDA 13, torchvision, numpy, pyarrow, h5py, filelock, tqdm, Pillow and
nvidia-ml-py, and no network. Wheels are downloaded here for its Python, unpacked beside each other, freed of what is not
needed there (tests, headers, other Pythons, codecs of other forms than JPEG, device code of other GPUs), and packed. The stages
of images need `.gpu/payload.tar.xz` (the set `images`), with `site/` for PYTHONPATH; the stage `tables` needs
`.gpu/tables.tar.xz`, with cuDF in `site/`, and `clips` needs `.gpu/clips.tar.xz`; `.gpu/spare.tar.xz` has `nvimgcodec-0.8/`,
another nvImageCodec to be asked by itself, and may be left out. To unpack there, with nothing but Python:

    python3 -m tarfile -e .gpu/payload.tar.xz DIRECTORY

Metadata travel along, so `importlib.metadata` finds versions. Needs pip, xz and tar; takes about five minutes and 1.5 GB of
scratch. Prints the size, and fails if it is above the limit.
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

_OURS = ("simplejpeg", "crc32c", "isal", "platformdirs", "msgspec")  # what datapipe imports and the machine lacks
# Of `pytest -m gpu`; later releases need a megabyte more: Pygments, and a compiled part of hypothesis.
_TESTS = ("pytest<8.4", "pluggy", "iniconfig", "hypothesis<6.140", "attrs", "sortedcontainers")
# Downloads go without dependency resolution, so every wheel is named. Folder of the payload -> wheels.
IMAGES: dict[str, tuple[str, ...]] = {
    # DALI's CUDA 13 build and what it imports: nvtx and libcst are for its dynamic mode alone, nvCOMP for `inflate`.
    "site": (
        "nvidia-dali-cuda130==2.4.0", "nvidia-nvimgcodec-cu13>=0.9,<0.10", "nvidia-nvjpeg>=13.2.3,<14", "astunparse",
        "gast<=0.7", "six<=1.17", "optree", "packaging", "makefun", *_OURS, *_TESTS,
    ),
}  # fmt: skip
# DALI 2.4 refuses nvImageCodec before 0.9. Whether this one decodes regions where 0.9 does not is worth knowing.
SPARE: dict[str, tuple[str, ...]] = {"nvimgcodec-0.8": ("nvidia-nvimgcodec-cu13==0.8.0.22",)}
# pylibcudf and what it loads, but for nvJitLink and cuFile, which come with torch for CUDA 13. cudf itself needs numba.
TABLES: dict[str, tuple[str, ...]] = {
    "site": (
        "pylibcudf-cu13==26.10.*", "libcudf-cu13==26.10.*", "rmm-cu13==26.10.*", "librmm-cu13==26.10.*",
        "libkvikio-cu13==26.10.*", "rapids-logger==0.3.*",
        "nvidia-libnvcomp-cu13==5.3.0.16", "cuda-bindings<14", "cuda-pathfinder<2",
        *_OURS,
    ),
}  # fmt: skip
# Videos, and `pytest -m gpu` with them. PyNvVideoCodec brings the source of its FFmpeg, which is left out.
CLIPS: dict[str, tuple[str, ...]] = {"site": ("av==18.*", "PyNvVideoCodec>=2.2", *_OURS, *_TESTS)}
SETS = {
    "images": ("payload.tar.xz", IMAGES),
    "spare": ("spare.tar.xz", SPARE),
    "tables": ("tables.tar.xz", TABLES),
    "clips": ("clips.tar.xz", CLIPS),
}
MIB = 1 << 20

_DROPPED_SUFFIXES = (".a", ".h", ".hpp", ".cuh", ".inl", ".pyx", ".pxd", ".pxi", ".pyi", ".cc")
_DROPPED_FOLDERS = frozenset(("tests", "test", "include", "src", "docs", "examples", "sboms"))
_DROPPED_NAMES = ("Acknowledgements.txt", "RECORD")
# Parts of packages that nothing here imports or loads, by the beginning of their path.
_DROPPED = (
    "nvidia/nvimgcodec/tools", "nvidia/nvimgcodec/extensions/libnvjpeg2k", "nvidia/nvimgcodec/extensions/libnvtiff",
    "nvidia/nvimgcodec/extensions/libtiff", "nvidia/nvimgcodec/extensions/libopencv", "nvidia/libnvcomp/bin",
    "nvidia/libnvcomp/lib64/libnvcomp_cpu", "libkvikio/share", "bin/",
    "PyNvVideoCodec/PyNvVideoCodec_121", "samples/", "benchmarks/",
    "cuda/bindings/_v2", "cuda/bindings/nvml", "cuda/bindings/cufile", "cuda/bindings/cudla",
)  # fmt: skip
_WITH_DEVICE_CODE = 500_000  # bytes; smaller libraries hold none worth the trouble
_PLATFORMS = (
    "manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(17, 40)),
)  # fmt: skip


def main() -> None:
    arguments = _parse()
    for program in ("xz", "tar"):
        if shutil.which(program) is None:
            raise SystemExit(f"packing needs the program {program}; apt install xz-utils tar")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        tree = Path(scratch, "payload")
        name, wheels_of = SETS[arguments.set]
        for folder, names in wheels_of.items():
            wheels = download(names, arguments.python, Path(scratch, f"wheels-{folder}"))
            for wheel in wheels:
                shutil.unpack_archive(wheel, tree / folder, "zip")
            dropped = drop_unneeded(tree / folder, arguments.python)
            blanked = sum(blank_others(path, arguments.arch) for path in libraries(tree / folder))
            nbytes = sum(path.stat().st_size for path in (tree / folder).rglob("*") if path.is_file())
            print(
                f"{folder}: {', '.join(_shortly(wheel) for wheel in wheels)}; {dropped / MIB:.0f} MiB dropped, "
                f"{nbytes / MIB:.0f} MiB left, of which {blanked / MIB:.0f} MiB other GPUs' code, now zeros"
            )
        archive = pack(tree, arguments.out / name, filters=arguments.xz.split())
    size = archive.stat().st_size
    print(
        f"{archive}: {size / MIB:.2f} MiB ({size} bytes) of at most {arguments.limit_mib} MiB; {time.monotonic() - started:.0f} s"
    )
    if size > arguments.limit_mib * MIB:
        raise SystemExit(f"{archive} is larger than {arguments.limit_mib} MiB; leave out wheels, or raise --limit-mib")


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
        if for_others or is_unused or path.name in _DROPPED_NAMES or _DROPPED_FOLDERS & set(inner.parts[1:-1]):
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


def pack(tree: Path, archive: Path, *, filters: list[str]) -> Path:
    """A compressed tar of what is in `tree`: the same bytes for the same files. `filters`: options of xz."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f"{archive.name}.part")
    tar = subprocess.Popen(
        ["tar", "-C", str(tree), "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-cf", "-", "."],
        stdout=subprocess.PIPE,
    )
    with unfinished.open("wb") as file:
        xz = subprocess.Popen(["xz", *filters, "-c"], stdin=tar.stdout, stdout=file)
        assert tar.stdout is not None
        tar.stdout.close()
        if xz.wait() or tar.wait():
            raise SystemExit(f"packing {archive} failed: tar ended with {tar.returncode}, xz with {xz.returncode}")
    unfinished.replace(archive)
    return archive


def _shortly(wheel: Path) -> str:
    return " ".join(wheel.name.split("-")[:2])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.pack", description="What a bare GPU machine lacks, in a file."
    )
    parser.add_argument(
        "set",
        nargs="?",
        choices=list(SETS),
        default="images",
        help="for the stages of images, another nvImageCodec, or a stage",
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu", help="folder for the payload")
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine")
    parser.add_argument("--arch", type=int, default=90, help="compute capability to keep: 80 for A100, 90 for H100 and H200")
    parser.add_argument("--limit-mib", type=int, default=56, help="largest payload, MiB of 2^20 bytes")
    parser.add_argument("--xz", default="-T0 --x86 --lzma2=preset=9e", help="options of xz")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files (1.5 GB)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
