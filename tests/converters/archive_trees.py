"""Archives as people download them, each made of the same small folder of classes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from source_trees import NUM, Made, image

CLASSES = ("n01440764", "n01443537", "n02093428")
Files = list[tuple[str, bytes]]


def files_of(row: int) -> tuple[str, bytes]:
    return f"{CLASSES[row // 4]}/{CLASSES[row // 4]}_{row:02d}.JPEG", image(row)


FILES: Files = [files_of(row) for row in range(NUM)]


def tar_bytes(files: Iterable[tuple[str, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def class_tars() -> Files:
    """(name, bytes) of a tar for each class, as in ILSVRC2012_img_train.tar."""
    return [
        (f"{name}.tar", tar_bytes((path.partition("/")[2], data) for path, data in FILES if path.startswith(name)))
        for name in CLASSES
    ]


def write_zip(path: Path, files: Files, method: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("photos/", b"")
        for name, data in files:
            archive.writestr(name, data)
    return path


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def made(source: Path) -> Made:
    return Made(source, [{"image": image(row)} for row in range(NUM)], [row // 4 for row in range(NUM)], CLASSES)


def in_tar(suffix: str, compress: Callable[[bytes], bytes]) -> Callable[[Path], Made]:
    return lambda root: made(
        write(root / f"photos{suffix}", compress(tar_bytes((f"./photos/{name}", data) for name, data in FILES)))
    )


def in_zip(method: int, folder: str = "") -> Callable[[Path], Made]:
    return lambda root: made(write_zip(root / "photos.zip", [(folder + name, data) for name, data in FILES[::-1]], method))


def folder_of_class_tars(root: Path) -> Made:
    for name, data in class_tars():
        write(root / name, data)
    return made(root)


def folder_in_zip(root: Path) -> Made:
    """`train/` beside `val/`: each is a set of its own."""
    files = [(f"data/{part}/{name}", data) for part in ("train", "val") for name, data in FILES]
    return made(write_zip(root / "data.zip", files) / "data" / "train")


ARCHIVE_SOURCES: dict[str, Callable[[Path], Made]] = {
    "archive, zip": in_zip(zipfile.ZIP_STORED),
    "archive, deflated zip": in_zip(zipfile.ZIP_DEFLATED, "Photos by me/"),
    "archive, folder in a zip": folder_in_zip,
    "archive, tar of class tars": lambda root: made(write(root / "ILSVRC2012_img_train.tar", tar_bytes(class_tars()))),
    "archive, class tars": folder_of_class_tars,
    "archive, tar of folders": in_tar(".tar", bytes),
    "archive, tar.gz": in_tar(".tar.gz", gzip.compress),
    "archive, tar.bz2": in_tar(".tar.bz2", bz2.compress),
    "archive, tar.xz": in_tar(".txz", lzma.compress),
    "archive, tar.zst": in_tar(".tar.zst", zstd),
}
