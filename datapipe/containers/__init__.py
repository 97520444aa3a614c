"""Containers: a path to samples becomes a `SampleIndex`. Nothing later knows formats."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from pathlib import Path

from datapipe.containers.foreign import ForeignSet, open_foreign
from datapipe.containers.listing import held_apart_names
from datapipe.core.checks import path_name
from datapipe.core.errors import FormatError, MissingDataError, OptionError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest, refuse_unfinished
from datapipe.index.remote_set import open_set
from datapipe.index.sample_index import SampleIndex
from datapipe.stores.location import Location, is_url, parse_location

__all__ = ["container_of", "open_index"]

_FORMATS = {
    "tar": re.compile(r".+\.tar"),
    # `x.tfrecord`, `x.tfrecords`, `x.tfrecord.gz` (refused, with the reason), TFDS's `x.tfrecord-00000-of-00010`, and the
    # `train-00000-of-01024` of TensorFlow's own scripts
    "tfrecord": re.compile(r".+\.tfrecords?([.-].*)?|.+-\d{5}-of-\d{5}"),
    "hdf5": re.compile(r".+\.(h5|hdf5|he5)"),
    "parquet": re.compile(r".+\.parquet"),
    "arrow": re.compile(r"(?!.+\.index\.).+\.arrow"),
}
_OTHERS = re.compile(r".*\.(idx|index|json|txt|tmp|part)", re.IGNORECASE)  # what lies beside shards


def open_index(path: str | os.PathLike[str]) -> SampleIndex:
    """The samples at `path`: a converted dataset, on disk or in an object store; shards that others wrote; an image folder.

    Shards are WebDataset tars, TFRecord, HDF5, Parquet or Arrow files, given as a file, a directory or a glob pattern.
    Data that datapipe did not write is indexed on first use, which may take minutes for millions of
    samples. Raises MissingDataError where nothing is there, UnfinishedError for a half-made dataset,
    FormatError where the contents are not understood.
    """
    text = path_name(path, "the path to the dataset")
    if not text:
        raise OptionError("the path to the dataset is empty")
    if is_url(text):
        return _open_remote(parse_location(text))
    here = Path(text)
    if not here.exists() and glob.has_magic(text):
        return open_foreign(_shards(sorted(Path(match) for match in glob.glob(text)), text))
    if here.is_file():
        return open_foreign(_shards([here], text))
    if not here.is_dir():
        raise MissingDataError(f"{text}: no such file or directory{_remedy(text)}")
    if (here / MANIFEST_NAME).exists():
        manifest = read_manifest(here)
        if manifest.container == "folder":  # of loose files there is an index, but no dataset: its paths may lead anywhere
            raise FormatError(f"{here / MANIFEST_NAME}: of a folder, which no conversion writes; remove it to read the images")
        return SampleIndex(manifest, data_directory=here, sidecar_directory=here)
    refuse_unfinished(here)
    shards = sorted(path for path in here.iterdir() if container_of(path.name) and not path.is_dir())
    if shards:
        _refuse_several_sets(shards, here)
        return open_foreign(_shards(shards, text))
    sets = sorted(child.name for child in here.iterdir() if (child / MANIFEST_NAME).is_file())
    if sets:
        raise FormatError(f"{text}: holds the datasets {', '.join(sets)}; open one of them, e.g. {here / sets[0]}")
    return open_foreign(ForeignSet("folder", here.absolute()))


def _open_remote(location: Location) -> SampleIndex:
    manifest, remote = open_set(location)
    return SampleIndex(manifest, data_directory=remote.copies, sidecar_directory=remote.copies, remote=remote)


def _remedy(text: str) -> str:
    """For ways to name data that other libraries have."""
    if re.search(r"\{[^{}]*\.\.[^{}]*\}", text):
        return f"; braces are not expanded: write a pattern, such as {re.sub(r'{[^{}]*}', '*', text)}"
    return ""


def _shards(paths: list[Path], text: str) -> ForeignSet:
    """Shards of one format in one directory."""
    if not paths:
        raise MissingDataError(f"{text}: no file matches")
    for path in paths:
        if container_of(path.name) is None or not path.is_file():
            raise FormatError(
                f"{path}: not a regular .tar, .tfrecord, .h5, .parquet or .arrow file; datapipe reads such shards, converted sets"
                " and image folders"
            )
    containers = _grouped(paths, lambda path: container_of(path.name) or "")
    if len(containers) > 1:
        found = ", ".join(f"{name} ({group[0].name})" for name, group in containers.items())
        raise FormatError(f"{text}: shards of several formats: {found}; open those of one, by a pattern such as '{text}/*.tar'")
    directories = _grouped(paths, lambda path: str(path.absolute().parent))
    if len(directories) > 1:
        raise FormatError(f"{text}: matches shards in {len(directories)} directories; open the shards of one directory at a time")
    directory = Path(next(iter(directories)))
    refuse_unfinished(directory)
    return ForeignSet(next(iter(containers)), directory, tuple(path.name for path in paths))


def _refuse_several_sets(shards: list[Path], directory: Path) -> None:
    """`train-*` beside `test-*` are sets of their own, as on Hugging Face's hub."""
    names = _grouped(shards, lambda path: re.split(r"[^A-Za-z]", path.name, maxsplit=1)[0])
    sets = held_apart_names(names)
    if sets:
        first = names[sets[0]][0].name
        pattern = sets[0] + first[len(sets[0])] + "*"
        raise FormatError(f"{directory}: holds shards of {', '.join(sets)}; open one set of them, e.g. '{directory / pattern}'")


def _grouped(paths: list[Path], name_of: Callable[[Path], str]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(name_of(path), []).append(path)
    return groups


def container_of(name: str) -> str | None:
    """The format of a file of that name, None for a file that is no shard; hidden files, as macOS's `._x.tar`, are none."""
    if name.startswith(".") or _OTHERS.fullmatch(name):
        return None
    return next((container for container, pattern in _FORMATS.items() if pattern.fullmatch(name)), None)
