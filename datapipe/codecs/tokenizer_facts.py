"""The first look at a tokenizer.json, which may come from anywhere: some end the process that loads them, or never let it go."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from datapipe.codecs import tokenizer_trial
from datapipe.codecs.tokens import import_tokenizers
from datapipe.core.limited_process import UnfitError, run_limited
from datapipe.core.printable import printable
from datapipe.errors import FormatError

MAX_TOKENIZER_NBYTES = 1 << 28
_CPU_S = 30
_NBYTES = 4 << 30
_MOST_IDS = 1 << 28


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The ids of a tokenizer's tokens, found without loading it into this process."""

    largest: int  # id
    added: Mapping[str, int]  # ids of the tokens that it finds in texts beside its vocabulary
    asked: Mapping[str, int]  # ids of those of the tokens asked for that it has
    first: str | None  # the token that it puts before each text
    keeps_ids: bool  # the library gives its tokens the ids that the file states


class PanicError(Exception):
    """A library in Rust gave up."""


@functools.lru_cache(maxsize=2)
def look_at_tokenizer(data: bytes, asked: tuple[str, ...], who: str) -> TokenizerFacts:
    """Return what a tokenizer.json holds, as a process of its own finds it. `asked`: tokens. `who`: needs it.

    Raises FormatError for a file that is no tokenizer, or does not survive a few lines of text; DependencyError without the
    package tokenizers.
    """
    import_tokenizers(who)
    try:
        given = json.dumps(asked).encode() + b"\n" + data
        found = json.loads(run_limited(tokenizer_trial.__file__, given, cpu_s=_CPU_S, nbytes=_NBYTES + 16 * len(data)))
    except UnfitError as exc:
        raise FormatError(str(exc)) from exc
    problem = found.get("problem")
    if problem is None and found["largest"] >= _MOST_IDS:
        problem = f"it has the id {found['largest']}, and no model has so many"
    if problem is not None:
        raise FormatError(printable(problem.splitlines()[0] if problem else "it fails")[:120])
    return TokenizerFacts(**found)


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise PanicError for a panic of a library in Rust: those derive from BaseException, and have no common class."""
    try:
        yield
    except BaseException as exc:
        if type(exc).__name__ == "PanicException":
            raise PanicError(str(exc)) from exc
        raise
