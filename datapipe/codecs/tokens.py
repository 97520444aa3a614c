"""Token ids: what is known of the tokenizer that made them, and how they are stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from datapipe.core.checks import whole_number
from datapipe.core.environment import install_command
from datapipe.errors import DependencyError, OptionError

STORED_DTYPES = ("uint16", "uint32")  # of the shards that datapipe writes
READ_DTYPES = ("uint8", "int16", *STORED_DTYPES, "int32", "int64")  # of files of others; ids are never negative


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The ids of a corpus, and the tokenizer that made them, as far as it is known. Raises OptionError for what none has."""

    dtype: str  # of an id, little-endian
    vocab_size: int | None = None  # all ids are below it
    bos: int | None = None  # begins each document, if there is one
    eos: int | None = None  # ends each document, if there is one
    pad: int | None = None
    tokenizer_sha256: str = ""  # of its file
    template_sha256: str = ""  # of the chat template, and of the tokens that it names
    image: int | None = None  # stands for each image, if documents may have images

    def __post_init__(self) -> None:
        if self.dtype not in READ_DTYPES:
            raise OptionError(f"dtype is {self.dtype!r:.40}; token ids are one of {', '.join(READ_DTYPES)}")
        for name in ("vocab_size", "bos", "eos", "pad", "image"):
            value = getattr(self, name)
            if value is not None and whole_number(value, name, least=int(name == "vocab_size")) >= 1 << 63:
                raise OptionError(f"{name} is {value!r:.40}; ids have 63 bits at most")

    def as_typed(self) -> dict[str, Any]:
        """Return the facts, JSON-safe, as the options of a conversion keep them: without `image` where there are none."""
        return {name: value for name, value in asdict(self).items() if name != "image" or value is not None}

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype of an id in the files."""
        return np.dtype(self.dtype).newbyteorder("<")


def import_tokenizers(who: str) -> Any:
    """Return the package tokenizers. Raises DependencyError, with the remedy, if it does not load. `who`: needs it."""
    try:
        import tokenizers
    except ImportError as exc:
        raise DependencyError(f"{who} needs the package tokenizers: {install_command('tokens')}") from exc
    return tokenizers
