"""The tokenizer that made a corpus: whether a file is it, and texts of ids again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from datapipe.codecs.tokenizer_facts import MAX_TOKENIZER_NBYTES, look_at_tokenizer
from datapipe.codecs.tokens import import_tokenizers
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.tokens import TokenIndex

_WHO = "--tokenizer"


def refuse_other_tokenizer(index: TokenIndex, path: Path) -> None:
    """Raise OptionError if a corpus was made by another tokenizer, MissingDataError if there is none at the path."""
    path = _file(path)
    made_by = index.facts.tokenizer_sha256
    if not made_by:
        raise OptionError(f"tokenizer={str(path)!r}: {index.where} does not record which tokenizer made it; leave it out")
    found = hashlib.sha256(_read(path)).hexdigest()
    if found != made_by:
        raise OptionError(
            f"{index.where}: was made by another tokenizer than {path} (its SHA-256 is {made_by[:12]}..., not {found[:12]}...);"
            " convert the texts again with this one"
        )


def open_decoder(path: Path) -> Callable[[Sequence[int]], str]:
    """Return what turns token ids into their text, special tokens included.

    Raises DependencyError without `tokenizers`, MissingDataError without the file, FormatError for one that is no tokenizer.
    """
    tokenizers = import_tokenizers(_WHO)
    data = _read(_file(path))
    try:
        look_at_tokenizer(data, (), _WHO)
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as exc:  # the library raises nothing more special
        raise FormatError(f"{path}: no tokenizer.json ({exc}); pass the one of the model") from exc
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _file(path: Path) -> Path:
    """Return the tokenizer.json that a path means: that of a folder, or itself."""
    return path / "tokenizer.json" if path.is_dir() else path


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, at_most=MAX_TOKENIZER_NBYTES)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; pass the tokenizer.json of the model") from exc
