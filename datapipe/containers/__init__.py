"""Containers: a path to samples becomes a `SampleIndex`. Nothing later knows formats."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from datapipe.containers.foreign import ForeignSet, open_foreign
from datapipe.errors import FormatError, MissingDataError
from datapipe.index import SampleIndex
from datapipe.manifest import MANIFEST_NAME, read_manifest, refuse_unfinished

__all__ = ["open_index"]


def open_index(path: str | os.PathLike[str]) -> SampleIndex:
    """The samples at `path`: a converted dataset, a tar, a directory or a glob pattern of tars, or an image folder.

    Data that datapipe did not write is indexed on first use, which may take minutes for millions of
    files. Raises MissingDataError where nothing is there, UnfinishedError for a half-made dataset,
    FormatError where the contents are not understood.
    """
    text = os.fspath(path)
    here = Path(text)
    if not here.exists() and glob.has_magic(text):
        return open_foreign(_shards(sorted(Path(match) for match in glob.glob(text)), text))
    if here.is_file():
        return open_foreign(_shards([here], text))
    if not here.is_dir():
        raise MissingDataError(f"{text}: no such file or directory")
    if (here / MANIFEST_NAME).is_file():
        return SampleIndex(read_manifest(here), data_directory=here, sidecar_directory=here)
    refuse_unfinished(here)
    tars = sorted(path for path in here.glob("*.tar") if not path.name.startswith("."))  # macOS's `._x.tar` are none
    if tars:
        return open_foreign(_shards(tars, text))
    sets = sorted(child.name for child in here.iterdir() if (child / MANIFEST_NAME).is_file())
    if sets:
        raise FormatError(f"{text}: holds the datasets {', '.join(sets)}; open one of them, e.g. {here / sets[0]}")
    return open_foreign(ForeignSet("folder", here.absolute()))


def _shards(paths: list[Path], text: str) -> ForeignSet:
    if not paths:
        raise MissingDataError(f"{text}: no file matches")
    strange = [path for path in paths if path.suffix != ".tar" or not path.is_file()]
    if strange:
        raise FormatError(f"{strange[0]}: not a regular .tar file; datapipe reads tar shards, converted sets and image folders")
    directories = {path.absolute().parent for path in paths}
    if len(directories) > 1:
        raise FormatError(f"{text}: matches shards in {len(directories)} directories; open the shards of one directory at a time")
    for path in paths:
        refuse_unfinished(path.absolute().parent)
    return ForeignSet("tar", directories.pop(), tuple(path.name for path in paths))
