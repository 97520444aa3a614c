"""Turn a path to samples into a `SampleIndex`. Code that uses the index does not depend on formats."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path

from datapipe.containers.foreign import ForeignShards, open_foreign
from datapipe.containers.form import Form
from datapipe.containers.formats import container_of, entry_of, only_format, refuse_several_sets
from datapipe.containers.forms import AUTO, CONVERTED, FORMS, IMAGES
from datapipe.containers.remote_shards import listed_shards, open_remote_shards, shards_in_list
from datapipe.containers.shard_lists import ShardList, shard_list, tell_unlisted
from datapipe.core.checks import path_name
from datapipe.core.directories import matching, names_in
from datapipe.core.remembering import remembered
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest, refuse_unfinished
from datapipe.index.remote_set import nothing_there, open_set, read_manifest_text
from datapipe.index.sample_index import SampleIndex
from datapipe.opening.listed import ForeignPlace
from datapipe.opening.recognise import recognise
from datapipe.opening.unpacking import unpacked_shards
from datapipe.sources.archives.members import split_archive_path
from datapipe.sources.spool import compressed_tar, compression_of
from datapipe.stores.location import is_url
from datapipe.stores.places import parse_location, parse_place


def open_index(path: str | os.PathLike[str], form: Form | None = None) -> SampleIndex:
    """Open the samples at `path`: a converted dataset, on disk or in an object store, or whatever `convert` reads.

    `form`: how to read it; None to recognise that. Shards (WebDataset tars, TFRecord, HDF5, Parquet and Arrow files) are given as
    a file, a directory or a glob pattern. Data that datapipe did not write is indexed on first use, which may take minutes for
    millions of samples. Raises MissingDataError if the path does not exist, UnfinishedError for an unfinished dataset,
    FormatError or OptionError if the contents are not recognised, or are not of that form.
    """
    text = path_name(path, "the path to the dataset")
    if not text:
        raise OptionError("the path to the dataset is empty")
    form = (Form() if form is None else form).absolute()
    with remembered():
        is_recognised = form.name == AUTO
        if is_recognised:
            form = form.named(recognise(parse_place(text), form, kind=IMAGES).form)
        if is_url(text):
            return _open_remote(text, form)
        return _open_local(Path(text), text, form, is_recognised=is_recognised)


def _open_local(here: Path, text: str, form: Form, *, is_recognised: bool) -> SampleIndex:
    facts = FORMS[form.name]
    if form.name == CONVERTED:
        refuse_unfinished(here)
        index = _converted(here)
        _refuse_choices(form, index.manifest.container, text)
        return index
    if facts.shards:
        shards = _shards_at(here, text, form)
        if shards is not None and shards.container != form.name:
            title = FORMS[shards.container].title
            raise FormatError(f"{text}: holds {title}, not the form {form.name}; pass that form, or none")
        if shards is not None:
            _refuse_choices(form, shards.container, text)
            return open_foreign(shards)
    _refuse_unread(here, text, form)
    return open_foreign(ForeignPlace(here.absolute(), form, is_recognised=is_recognised))


def _refuse_choices(form: Form, container: str, text: str) -> None:
    """Raise OptionError for choices that have no effect on any shards."""
    if form.has_choices:
        raise OptionError(
            f"{text}: root, fields, class_from and class_map of a form have no effect on {FORMS[container].title}; leave"
            " them out, and choose among the fields with fields= of datapipe.Images"
        )


def _converted(here: Path) -> SampleIndex:
    manifest = read_manifest(here)
    if manifest.is_listing:  # an index of loose files, but no dataset: its paths may lead anywhere
        raise FormatError(f"{here / MANIFEST_NAME}: of a folder, which no conversion writes; remove it to read the images")
    return SampleIndex(manifest, data_directory=here, sidecar_directory=here)


def _shards_at(here: Path, text: str, form: Form) -> ForeignShards | None:
    """Return the shards of a form that a path names; None if it names none."""
    if not here.exists() and glob.has_magic(text):
        return _shards([Path(match) for match in matching(text)], text)
    paths = [here] if here.is_file() and container_of(here.name) == form.name else []
    entry = None if here.is_file() else entry_of(form.name, here)
    if entry is not None:
        return ForeignShards(form.name, here.absolute(), (str(entry.relative_to(here)),))
    found = None if here.is_file() else shard_list(form.name, here)
    if found is not None:
        return _listed_shards(found, form)
    if here.is_dir():
        paths = [here / name for name in _names_in(here) if container_of(name) == form.name and not os.path.isdir(here / name)]
    if not paths:
        return None
    refuse_several_sets([path.name for path in paths], text)
    return _shards(paths, text)


def _listed_shards(found: ShardList, form: Form) -> ForeignShards:
    """Return the shards of a list in a folder, unpacked if they lie there compressed alone."""
    here = found.folder
    assert isinstance(here, Path)
    refuse_unfinished(here)
    if not FORMS[form.name].has_splits:
        tell_unlisted([name for name in _names_in(here) if container_of(name) == form.name], found.shards, str(here))
    is_packed = any(shard.is_packed_in(here) for shard in found.shards)
    directory = unpacked_shards(found, form.name) if is_packed else here.absolute()
    for shard in found.shards:
        try:
            status = (directory / shard.name).stat()
        except FileNotFoundError as exc:
            raise MissingDataError(f"{here / shard.name}: is in {found.place}, but not there; get it") from exc
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{here / shard.name}: not a regular file; get it again")
        if shard.nbytes not in (None, status.st_size):
            what = f"has {status.st_size} bytes, its list says {shard.nbytes}"
            raise FormatError(f"{here / shard.name}: {what}: cut off, or of another version; get the file again")
    return ForeignShards(form.name, directory, tuple(shard.name for shard in found.shards))


def _names_in(directory: Path) -> list[str]:
    """Return the names in a directory. Raises StorageError if it cannot be read."""
    try:
        return names_in(directory)
    except OSError as exc:
        raise StorageError(exc.errno, f"{directory}: cannot be read ({exc.strerror}); check its permissions") from exc


def _refuse_unread(here: Path, text: str, form: Form) -> None:
    """Raise errors that say what else is there, or what to say, where a form does not list what lies at a place."""
    if not here.exists() and not glob.has_magic(text) and split_archive_path(here) is None:
        raise MissingDataError(f"{text}: no such file or directory; check the path")
    if here.is_file():
        refuse_unfinished(here.parent)
    facts = FORMS[form.name]
    if facts.source and not facts.shards and facts.kind == IMAGES:
        return
    if compression_of(os.fsencode(here.name)) is not None:
        raise compressed_tar(here)
    if facts.kind != IMAGES:
        raise FormatError(
            f"{text}: {facts.title} {'are' if facts.title.endswith('s') else 'is'} not read as samples; pass another form"
        )
    raise FormatError(
        f"{text}: no regular files of the form {form.name}, with names in lower case; pass the form that it has, or convert it"
    )


def _open_remote(text: str, form: Form) -> SampleIndex:
    """Open what a URL names: a converted dataset, or shards of others."""
    facts = FORMS[form.name]
    if form.name != CONVERTED and not facts.shards:
        raise OptionError(f"{text}: {form.name} is not read from stores by loaders; convert it, or copy it to a disk")
    location = parse_location(text)
    if form.name == CONVERTED:
        manifest_text = read_manifest_text(location)
        if manifest_text is None:
            raise nothing_there(location)
        manifest, remote = open_set(location, manifest_text)
        index = SampleIndex(manifest, data_directory=remote.copies, sidecar_directory=remote.copies, remote=remote)
    else:
        listed = shard_list(form.name, location) if facts.has_splits else None
        index = open_remote_shards(listed_shards(text) if listed is None else shards_in_list(form.name, listed))
        if index.manifest.container != form.name:
            title = FORMS[index.manifest.container].title
            raise FormatError(f"{text}: holds {title}, not the form {form.name}; pass that form, or none")
    _refuse_choices(form, index.manifest.container, text)
    return index


def _shards(paths: list[Path], text: str) -> ForeignShards:
    """Check that these are shards of one format in one directory, and return them as a set."""
    if not paths:
        raise MissingDataError(f"{text}: no file matches")
    for path in paths:
        if container_of(path.name) is None or not path.is_file():
            raise FormatError(
                f"{path}: not a regular file of shards; a pattern names files of one form:"
                f" {', '.join(name for name, facts in FORMS.items() if facts.shards)}"
            )
    names = tuple(path.name for path in paths)
    container = only_format(names, text, pattern=f"{text}/*.tar")
    directories = {path.absolute().parent for path in paths}
    if len(directories) > 1:
        raise FormatError(f"{text}: matches shards in {len(directories)} directories; open the shards of one directory at a time")
    (directory,) = directories
    refuse_unfinished(directory)
    return ForeignShards(container, directory, names)
