"""Encode rendered chats: the template's special tokens are special, and those that a message mentions are text.

A mark, a character that no message has, is put into each mention before rendering, so that the tokenizer finds the template's
special tokens alone. A text with mentions is then encoded without its marks, in one call, by a copy of the tokenizer in which
special tokens have other names, which are put where the template's were found. What pre-tokenizers, normalizers, `lstrip` and
`rstrip` do at a place depends on what lies around it, so a text cannot be encoded in pieces.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.tokenizer import MARKS, Tokenizing, are_words, open_tokenizer, refusals, renamed, special_tokens_of

_Places = list[tuple[int, int]]  # characters of a text: the first, and the one after the last


class SpecialTokens:
    """The special tokens of a tokenizer, and what keeps them apart from those that messages mention. For one thread."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        self._tokenizer = open_tokenizer(tokenizing)
        special = special_tokens_of(self._tokenizer)
        self._contents = {id_: one.content for id_, one in special.items()}
        ordered = sorted(map(re.escape, self._contents.values()), key=len, reverse=True)
        self._mention = re.compile("|".join(ordered)) if ordered else None
        normalizer = self._tokenizer.normalizer
        self._is_exact = normalizer is None or not (are_words(self._tokenizer) or any(one.normalized for one in special.values()))
        self._marks = [one for one in MARKS if self._is_exact or one in normalizer.normalize_str(one)]
        self._renamed = functools.lru_cache(maxsize=1)(functools.partial(renamed, self._tokenizer))

    def mark_for(self, text: str) -> str | None:
        """Return a character that is not in a text; None if all that could be taken are."""
        return next((one for one in self._marks if one not in text), None)

    def marked(self, value: Any, mark: str) -> Any:
        """Return a value of JSON in whose texts the mark divides what looks like a special token."""
        mention = self._mention
        if mention is None:
            return value
        if isinstance(value, str):
            return mention.sub(lambda found: mark.join(found[0]) + mark, value)
        if isinstance(value, list):
            return [self.marked(one, mark) for one in value]
        if isinstance(value, dict):
            return {self.marked(name, mark): self.marked(one, mark) for name, one in value.items()}
        return value

    def encode(self, text: str, mark: str, *, is_marked: bool) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of a rendered text without its marks, and where in it each begins, marks counted.

        Raises DecodeError for a text that has no ids.
        """
        ids, offsets = _encoded(self._tokenizer, text)
        if is_marked or not self._is_exact:
            special = np.flatnonzero(np.isin(ids, list(self._contents)))
            places = self._template_places(text, mark, ids[special].tolist(), offsets[special].tolist())
            if is_marked or len(places) < len(special):
                return self._encoded_apart(text, mark, places)
        return ids, offsets[:, 0]

    def _template_places(self, text: str, mark: str, ids: list[int], offsets: list[tuple[int, int]]) -> _Places:
        """Return which of these special tokens, and where in the text, the template wrote.

        Others are those of a single character, which a mark follows, and what is special only after normalization, such as `<S>`
        in lower case.
        """
        places = []
        for id_, (first, end) in zip(ids, offsets, strict=True):
            content = self._contents[id_]
            start = text.find(content, first, end)  # white space around it may belong to it
            if start >= 0 and text[start + len(content) : start + len(content) + 1] != mark:
                places.append((start, start + len(content)))
        return places

    def _encoded_apart(self, text: str, mark: str, places: _Places) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode a text of which these places alone are special tokens."""
        other = self._renamed(mark)
        parts, before = [], 0
        for start, end in places:
            parts += [text[before:start].replace(mark, ""), mark, text[start:end], mark]
            before = end
        ids, offsets = _encoded(other.tokenizer, "".join([*parts, text[before:].replace(mark, "")]))
        unmarked = np.flatnonzero(np.frombuffer(text.encode("utf-32-le"), "<u4") != ord(mark))
        bounds = np.array(places, np.int64).reshape(-1)
        origins = np.append(np.insert(unmarked, np.searchsorted(unmarked, bounds), bounds), len(text))  # by character encoded
        starts, ends = origins[offsets].T
        special = np.flatnonzero(np.isin(ids, list(other.special)))
        taken = [place for place in places if ((starts[special] <= place[0]) & (place[1] <= ends[special])).any()]
        if len(taken) < len(places):  # a `single_word`, next to a mention that ends with a letter
            return self._encoded_apart(text, mark, taken)
        return other.ids[ids], starts


def _encoded(tokenizer: Any, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the ids of a text, and (n, 2) the characters of each: the first, and the one after the last."""
    with refusals():
        found = tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = found.ids, itertools.chain.from_iterable(found.offsets)
    return np.array(ids, np.uint32), np.fromiter(offsets, np.int64, 2 * len(ids)).reshape(-1, 2)
