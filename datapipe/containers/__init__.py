"""Turn a path to samples into a `SampleIndex`. Code that uses the index does not depend on formats."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from datapipe.containers.foreign import ForeignSet, open_foreign
from datapipe.containers.formats import TEXT_SUFFIXES, container_of, only_format, refuse_several_sets
from datapipe.containers.remote_shards import named_shards, open_remote_shards, shards_under
from datapipe.core.checks import path_name
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest, refuse_unfinished
from datapipe.index.remote_set import open_set, read_manifest_text
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tables import TABLE_NAME
from datapipe.stores.location import is_url, parse_location

__all__ = ["container_of", "open_index"]


def open_index(path: str | os.PathLike[str]) -> SampleIndex:
    """Open the samples at `path`: a converted dataset, on disk or in an object store; shards of other tools; an image folder.

    Shards are WebDataset tars, TFRecord, HDF5, Parquet or Arrow files, given as a file, a directory or a glob pattern.
    Data that datapipe did not write is indexed on first use, which may take minutes for millions of
    samples. Raises MissingDataError if the path does not exist, UnfinishedError for an unfinished dataset,
    FormatError if the contents are not recognised.
    """
    text = path_name(path, "the path to the dataset")
    if not text:
        raise OptionError("the path to the dataset is empty")
    if is_url(text):
        return _open_remote(text)
    here = Path(text)
    if not here.exists() and glob.has_magic(text):
        return open_foreign(_shards(sorted(Path(match) for match in glob.glob(text)), text))
    if here.is_file():
        return open_foreign(_shards([here], text))
    if not here.is_dir():
        raise MissingDataError(f"{text}: no such file or directory{_remedy(text)}")
    if (here / MANIFEST_NAME).exists():
        manifest = read_manifest(here)
        if manifest.container == "folder":  # an index of loose files, but no dataset: its paths may lead anywhere
            raise FormatError(f"{here / MANIFEST_NAME}: of a folder, which no conversion writes; remove it to read the images")
        return SampleIndex(manifest, data_directory=here, sidecar_directory=here)
    refuse_unfinished(here)
    if (here / TABLE_NAME).is_file():
        raise FormatError(f"{text}: a converted table, which holds no samples; read it with datapipe.Table")
    shards = sorted(path for path in here.iterdir() if container_of(path.name) and not path.is_dir())
    if shards:
        refuse_several_sets([path.name for path in shards], text)
        return open_foreign(_shards(shards, text))
    sets = sorted(child.name for child in here.iterdir() if (child / MANIFEST_NAME).is_file())
    if sets:
        raise FormatError(f"{text}: holds the datasets {', '.join(sets)}; open one of them, e.g. {here / sets[0]}")
    return open_foreign(ForeignSet("folder", here.absolute()))


def _open_remote(text: str) -> SampleIndex:
    """What a URL names: shards of others, or a prefix with a converted dataset or such shards in it."""
    found = named_shards(text)
    if found is not None:
        return open_remote_shards(found)
    location = parse_location(text)
    manifest_text = read_manifest_text(location)
    if manifest_text is None:
        return open_remote_shards(shards_under(location))
    manifest, remote = open_set(location, manifest_text)
    return SampleIndex(manifest, data_directory=remote.copies, sidecar_directory=remote.copies, remote=remote)


def _remedy(text: str) -> str:
    """Return advice for notations of paths that other libraries have."""
    if re.search(r"\{[^{}]*\.\.[^{}]*\}", text):
        return f"; braces are not expanded: write a pattern, such as {re.sub(r'{[^{}]*}', '*', text)}"
    return ""


def _shards(paths: list[Path], text: str) -> ForeignSet:
    """Check that these are shards of one format in one directory, and return them as a set."""
    if not paths:
        raise MissingDataError(f"{text}: no file matches")
    for path in paths:
        if path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
            raise FormatError(
                f"{path}: a text, which no loader reads; convert what it lists: datapipe convert {path} DST --to webdataset (or"
                " --to parquet, for a table of numbers); or read it in a Dataset of your own, and pass that to"
                " datapipe.from_torch(torch.utils.data.DataLoader(dataset, ...))"
            )
        if container_of(path.name) is None or not path.is_file():
            raise FormatError(
                f"{path}: not a regular .tar, .tfrecord, .h5, .parquet or .arrow file; datapipe reads such shards, converted sets"
                " and image folders"
            )
    names = tuple(path.name for path in paths)
    container = only_format(names, text, pattern=f"{text}/*.tar")
    directories = {path.absolute().parent for path in paths}
    if len(directories) > 1:
        raise FormatError(f"{text}: matches shards in {len(directories)} directories; open the shards of one directory at a time")
    (directory,) = directories
    refuse_unfinished(directory)
    return ForeignSet(container, directory, names)
