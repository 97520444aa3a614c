"""Turn a path to samples into a `SampleIndex`. Code that uses the index does not depend on formats."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Any

from datapipe.containers.foreign import ForeignShards, kept_index, open_foreign, open_kept
from datapipe.containers.form import Form
from datapipe.containers.formats import container_of, only_format, refuse_several_sets
from datapipe.containers.forms import AUTO, FORMS, IMAGES
from datapipe.containers.remote_shards import named_shards, open_remote_shards, shards_under
from datapipe.core.checks import path_name
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest, refuse_unfinished
from datapipe.index.remote_set import open_set, read_manifest_text
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tables import TABLE_NAME
from datapipe.opening.listed import ForeignPlace, recognised_before
from datapipe.opening.recognise import recognise_form
from datapipe.sources.archives.members import split_archive_path
from datapipe.sources.archives.recognise import archive_of_file, archives_of_folder
from datapipe.sources.spool import compressed_tar, compression_of
from datapipe.stores.location import is_url, parse_location

_CONVERTED = "dataset"  # the form of what `convert` made


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
    if is_url(text):
        if form.name in FORMS and FORMS[form.name].source and not FORMS[form.name].shards:
            raise OptionError(f"{text}: {form.name} is not read from stores by loaders; convert it, or copy it to a disk")
        index = _open_remote(text)
        _refuse_misfit(form, index.manifest.container, text)
        return index
    here = Path(text)
    if here.is_dir() and form.name in (AUTO, _CONVERTED):
        if (here / MANIFEST_NAME).exists():
            index = _converted(here)
            _refuse_misfit(form, index.manifest.container, text)
            return index
        refuse_unfinished(here)
        if (here / TABLE_NAME).is_file():
            raise FormatError(f"{text}: a converted table, which holds no samples; read it with datapipe.Table")
    shards = _shards_at(here, text, form) if form.name == AUTO or FORMS[form.name].shards else None
    if shards is not None:
        kept = kept_index(shards)
        if not _are_archives(shards, kept, of_folder=here.is_dir()):
            _refuse_misfit(form, shards.container, text)
            return open_foreign(shards) if kept is None else open_kept(shards, *kept)
    known = recognised_before(here.absolute(), form) if form.name == AUTO else None
    if known is not None:
        return open_kept(*known)
    place = ForeignPlace(here.absolute(), _recognised(here, text, form), is_recognised=form.name == AUTO)
    return open_foreign(place)


def _refuse_misfit(form: Form, container: str, text: str) -> None:
    """Raise FormatError for shards of another form, and OptionError for choices that have no effect on any shards."""
    if form.name not in (AUTO, _CONVERTED, container):
        raise FormatError(f"{text}: holds {FORMS[container].title}, not the form {form.name}; pass that form, or none")
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
    """Return the shards that a path names; None if it names none. Of a directory, those of the form, if it is named."""
    if not here.exists() and glob.has_magic(text):
        return _shards(sorted(Path(match) for match in glob.glob(text)), text)
    paths = [here] if here.is_file() and container_of(here.name) else []
    if here.is_dir():
        paths = sorted(here / name for name in _names_in(here) if container_of(name) and not os.path.isdir(here / name))
        paths = [path for path in paths if form.name in (AUTO, container_of(path.name))]
    if not paths:
        return None
    refuse_several_sets([path.name for path in paths], text)
    return _shards(paths, text, is_recognised=form.name == AUTO)


def _names_in(directory: Path) -> list[str]:
    """Return the names in a directory. Raises StorageError if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError as exc:
        raise StorageError(exc.errno, f"{directory}: cannot be read ({exc.strerror}); check its permissions") from exc


def _are_archives(shards: ForeignShards, kept: tuple[Path, dict[str, Any]] | None, *, of_folder: bool) -> bool:
    """Return True for a tar that holds a folder, or a folder's tars of a class each, unless the form was named.

    A look at their first members tells, unless `kept`, their index, says that it has been taken.
    """
    if not shards.is_recognised or shards.container != "tar" or (kept is not None and kept[1].get("is_recognised")):
        return False
    if not of_folder:
        return archive_of_file(shards.directory / shards.names[0]) is not None
    return list(archives_of_folder(shards.directory, [os.fsencode(name) for name in shards.names])) == ["archive"]


def _recognised(here: Path, text: str, form: Form) -> Form:
    """Return the form with its name. Raises errors that say what else is there, or what to say."""
    if not here.exists() and split_archive_path(here) is None:
        raise MissingDataError(f"{text}: no such file or directory{_remedy(text)}")
    if here.is_file():
        refuse_unfinished(here.parent)
    if form.name == AUTO:
        if here.is_dir():
            sets = sorted(name for name in _names_in(here) if os.path.isfile(here / name / MANIFEST_NAME))
            if sets:
                raise FormatError(f"{text}: holds the datasets {', '.join(sets)}; open one of them, e.g. {here / sets[0]}")
        form = form.named(recognise_form(here, form.class_from, prefers_folders=True).form)
    if FORMS[form.name].kind != IMAGES:
        reader = {"clips": "datapipe.Clips", "audio": "datapipe.Audio"}[FORMS[form.name].kind]
        raise FormatError(f"{text}: holds {FORMS[form.name].title}, and no images; read it with {reader}")
    if FORMS[form.name].source and not FORMS[form.name].shards:
        return form
    if compression_of(os.fsencode(here.name)) is not None:
        raise compressed_tar(here)
    raise FormatError(
        f"{text}: no regular files of the form {form.name}, with names in lower case; pass the form that it has, or convert it"
    )


def _open_remote(text: str) -> SampleIndex:
    """Open what a URL names: shards of others, or a prefix with a converted dataset or such shards in it."""
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


def _shards(paths: list[Path], text: str, *, is_recognised: bool = False) -> ForeignShards:
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
    return ForeignShards(container, directory, names, is_recognised=is_recognised)
