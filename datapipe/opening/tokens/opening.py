"""Open a corpus of token ids: a converted set, or files of Megatron, datatrove, OLMo or nanoGPT."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.tokens import TokenFacts
from datapipe.containers.foreign import INDEX_DIRECTORY_NAME
from datapipe.containers.form import Form
from datapipe.containers.look import Evidence, Look, Nature
from datapipe.core.checks import path_name
from datapipe.core.directories import matching, names_in
from datapipe.core.printable import listed
from datapipe.core.remembering import remembered
from datapipe.core.user_cache import INDEXES, index_directory
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.manifest import MANIFEST_NAME, Manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.tokens import TOKENS_CONTAINER, ShardFacts, TokenIndex, index_of_set
from datapipe.opening.samples import open_index
from datapipe.opening.tokens import indexed, masks, plain
from datapipe.stores.location import is_url

TokenSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
MEGATRON, DATATROVE, PLAIN = "Megatron's", "datatrove's", "bare"
_SAID = (indexed.DATATROVE_DATA, indexed.MEGATRON_DATA, indexed.MEGATRON_INDEX)  # suffixes
_SUFFIXES = (indexed.MEGATRON_DATA, indexed.DATATROVE_DATA, ".npy", ".u16", ".u32")  # of files in a directory


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why files are token ids that say themselves what they are; None for others, such as bare ids."""
    if look.is_stored or look.nature is Nature.NOTHING or form.has_choices:
        return None
    top = look.place if look.nature is Nature.FOLDER else look.place.parent
    assert isinstance(top, Path)
    names = map(os.fsdecode, look.files)
    found = next(
        (name for name in names if name.endswith(_SAID) and identify_writer(top / name) != PLAIN and (top / name).is_file()), None
    )
    if found is None:
        return None
    return Evidence(f"{'its name ends with' if look.nature is Nature.FILE else 'it holds'} {os.path.splitext(found)[1]}")


@remembered()
def open_tokens(
    source: TokenSource,
    *,
    dtype: str | None = None,
    eos: int | None = None,
    vocab_size: int | None = None,
    field: str | None = None,
) -> TokenIndex:
    """Return the documents of a corpus.

    `source`: the directory or URL of a converted set; or a file, a directory, a glob pattern or a list of files of others.
    `dtype`, `eos`: of bare files, the type of their ids, and the id that ends each document. `vocab_size`: all ids are below it.
    `field`: of a converted set, None for its only one. Raises MissingDataError, StorageError, FormatError or OptionError.
    """
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    named = [path_name(path, "the path to the tokens") for path in paths]
    if not named:
        raise OptionError("the list of files is empty; name at least one file of token ids")
    if len(named) == 1 and (is_url(named[0]) or os.path.lexists(os.path.join(named[0], MANIFEST_NAME))):
        if dtype is not None or eos is not None or vocab_size is not None:
            raise OptionError(f"{named[0]}: a converted set knows its dtype, eos and vocab_size; leave them out")
        return _of_set(named[0], field)
    if field is not None:
        raise OptionError(f"{named[0]}: field is that of a converted set; leave it out")
    files = [file for path in named for file in _files(path)]
    data = frozenset(files)
    files = [file for file in files if data.isdisjoint(_data_files(file))]
    mask = next(filter(masks.is_mask, files), None)
    if mask is not None:
        wanted = " or ".join(one.name for one in masks.ids_beside(mask))
        raise FormatError(f"{mask}: a mask of the tokens with loss, which is read with the token ids beside it; name {wanted}")
    return _of_files(files, dtype, eos, vocab_size)


def token_fields(manifest: Manifest) -> list[str]:
    """Return the names of a set's fields of token ids."""
    return [spec.name for spec in manifest.fields if spec.kind is FieldKind.TOKENS]


def plan_homes(index: TokenIndex) -> list[Path]:
    """Return the places where a plan of the packs of a corpus may be kept, best first."""
    samples = index.samples
    is_local = isinstance(samples, SampleIndex) and not samples.is_remote
    beside = [Path(index.where) / INDEX_DIRECTORY_NAME] if is_local else []
    name = hashlib.sha256(
        f"packs {os.path.realpath(index.where)} {index.fingerprint}".encode(errors="surrogateescape")
    ).hexdigest()
    return [*beside, index_directory(INDEXES, name[:24])]


def _data_files(path: Path) -> list[Path]:
    """Return which files of ids an index of Megatron or datatrove, or a mask, may belong to; none for any other file."""
    if path.suffix == indexed.MEGATRON_INDEX:
        return [path.with_suffix(indexed.MEGATRON_DATA)]
    if masks.is_mask(path):
        return masks.ids_beside(path)
    return [path.with_suffix("")] if path.name.endswith(indexed.DATATROVE_INDEX) else []


def identify_writer(path: Path) -> str:
    """Return whose file of token ids this is."""
    if path.suffix == indexed.DATATROVE_DATA:
        return DATATROVE
    has_index = path.suffix == indexed.MEGATRON_DATA and path.with_suffix(indexed.MEGATRON_INDEX).exists()
    return MEGATRON if has_index or path.suffix == indexed.MEGATRON_INDEX else PLAIN


def _of_set(path: str, field: str | None) -> TokenIndex:
    samples = open_index(path)
    manifest = samples.manifest
    if manifest.container != TOKENS_CONTAINER or manifest.tokens is None:
        raise FormatError(
            f"{path}: holds {manifest.container} shards, and no token ids; convert texts: datapipe convert --to tokens"
        )
    names = token_fields(manifest)
    if field is None and len(names) > 1:
        raise OptionError(f"{path}: has the fields {', '.join(names)}; say which one, as field={names[0]!r}")
    if field is not None and field not in names:
        raise OptionError(f"{path}: has no field {field!r} of token ids (has: {', '.join(names)})")
    return index_of_set(samples, manifest.tokens, field or names[0])


def _files(path: str) -> list[Path]:
    """Return the files of token ids that a path or pattern names, by name."""
    here = Path(path)
    if here.is_dir():
        paths = [here / name for name in names_in(here) if not name.startswith(".")]
        found = [one for one in paths if one.suffix in _SUFFIXES and one.is_file()]
        if not found:
            raise MissingDataError(f"{path}: holds no converted set, and no files of token ids ({', '.join(_SUFFIXES)})")
        return found
    if here.exists() or not glob.has_magic(path):
        return [here]
    found = [Path(match) for match in matching(path)]
    if not found:
        raise MissingDataError(f"{path}: no file matches")
    return found


def _of_files(paths: Sequence[Path], dtype: str | None, eos: int | None, vocab_size: int | None) -> TokenIndex:
    forms = sorted({identify_writer(path) for path in paths})
    where = str(paths[0]) if len(paths) == 1 else listed([str(path) for path in paths], most=1)
    if len(forms) > 1:
        raise FormatError(f"{where}: files of several forms ({', '.join(forms)}); open those of one at a time")
    if forms != [PLAIN] and eos is not None:
        raise OptionError(f"{where}: {forms[0]} index says where documents end; leave eos out")
    found = [_looked(path, forms[0], dtype, eos) for path in paths]
    dtypes = sorted({one.dtype for one in found})
    if len(dtypes) > 1 or (dtype is not None and dtypes != [dtype]):
        expected = "files hold ids of several types" if len(dtypes) > 1 else f"its ids are {dtypes[0]}, not {dtype}"
        raise FormatError(f"{where}: {expected}; open those of one type at a time, and leave dtype out where the files say it")
    facts = TokenFacts(dtypes[0], vocab_size=vocab_size, eos=eos)
    words: list[tuple[object, ...]] = [(forms[0], facts.dtype, eos)]
    words += [(path.stem, one.num_documents, one.num_tokens, one.crc32c) for path, one in zip(paths, found, strict=True)]
    fingerprint = hashlib.sha256(repr(words).encode(errors="surrogateescape")).hexdigest()[:16]
    num_documents = [one.num_documents for one in found]
    return TokenIndex(where, num_documents, lambda number: found[number].open(), fingerprint=fingerprint, facts=facts)


def _looked(path: Path, form: str, dtype: str | None, eos: int | None) -> ShardFacts:
    if form == MEGATRON:
        return indexed.look_at_megatron(path)
    found = indexed.look_at_datatrove(path) if form == DATATROVE else plain.look(path, dtype, eos)
    mask = masks.mask_beside(path)
    return found if mask is None else masks.masked(found, mask)
