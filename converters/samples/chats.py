"""Render chats by a template, and find the tokens of the assistant in them; documents with images are rendered as they are.

The assistant's parts are what the template puts within `{% generation %}`. Where it has no such blocks, they are what each of the
assistant's messages adds to the rendering of those before. What looks like a special token in a message stays text
(`special_tokens`).
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.samples.special_tokens import SpecialTokens
from converters.samples.templates import ChatTemplate, LateError, Limits, Span
from converters.tokenizer import Tokenizing
from datapipe.codecs.messages import has_images, messages_of
from datapipe.errors import DecodeError

_LIMIT_S, _LIMIT_S_EACH = 20.0, 0.2  # for a chat, and each of its messages, up to all of which it is rendered
Encoded = tuple[NDArray[np.uint32], NDArray[np.int32] | None]  # as `ChatRenderer.encode` returns


class ChatRenderer:
    """Turns chats into ids and the runs of the assistant's. For one thread."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        """Raises DependencyError without the package transformers, OptionError for a template that writes the date."""
        self._template = None if tokenizing.template is None else ChatTemplate(tokenizing)
        self._images = tokenizing.images
        self._special = SpecialTokens(tokenizing)
        self._limits = Limits()

    def encode_each(self, chats: Iterable[bytes]) -> list[Encoded | DecodeError]:
        """Return what `encode` does of each chat, or raises. In the main thread, a rendering without end is ended."""
        with self._limits.watching():
            return [self._encoded_or_not(data) for data in chats]

    def _encoded_or_not(self, data: bytes) -> Encoded | DecodeError:
        try:
            return self.encode(data)
        except DecodeError as exc:
            return exc

    def encode(self, data: bytes) -> Encoded:
        """Return the ids of a chat given as JSON, and (k, 2) the runs of those that carry loss; None for all, as of a document.

        Raises DecodeError for what is no chat, or has nothing that carries loss.
        """
        try:
            value = _parsed(data)
            if self._images is not None and "document" in value:
                return self._ids_of_document(value["document"]), None
            return self._encoded_chat(messages_of(value))
        except (RecursionError, UnicodeError) as exc:
            what = "is nested too deep" if isinstance(exc, RecursionError) else "has half of a surrogate pair, which is no text"
            raise DecodeError(f"no chat: it {what}") from exc

    def _mark_for(self, value: Any, *others: str) -> str:
        """Return a character that no text of a value of JSON has, and none of the others."""
        everything = json.dumps(value, ensure_ascii=False)
        everything.encode()  # refuses half of a surrogate pair, which the tokenizer does not take
        mark = self._special.mark_for("".join((everything, *others)))
        if mark is None:
            raise DecodeError("its messages use all characters that could keep special tokens in them apart")
        return mark

    def _ids_of_document(self, parts: list[str | None]) -> NDArray[np.uint32]:
        """Return the ids of a document of texts, and of None in the place of each image."""
        assert self._images is not None
        mark = self._mark_for(parts)
        marked = self._special.marked(parts, mark)
        text = "".join(self._images.alone if one is None else one for one in marked)
        ids, _ = self._special.encode(text, mark, is_marked=marked != parts)
        return ids

    def _encoded_chat(self, messages: list[dict[str, Any]]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        if self._template is None:
            raise DecodeError("a chat, and no chat template was named; pass --chat-template auto, or a file")
        if self._images is None and has_images(messages):
            raise DecodeError("a chat with images, of which documents have none; convert it with --from conversations")
        mark = self._mark_for(messages, self._template.text)
        marked = self._special.marked(messages, mark)
        limit_s = _LIMIT_S + _LIMIT_S_EACH * len(messages)
        try:
            with self._limits.within(limit_s):
                text, spans = self._rendered(self._template, marked)
        except LateError:
            raise DecodeError(f"the chat template takes more than {limit_s:.0f} s to render it; repair the template") from None
        if self._images is not None:
            text, spans = _replaced(text, spans, self._images.written, self._images.kept)
        ids, starts = self._special.encode(text, mark, is_marked=marked != messages)
        is_assistants = np.zeros(len(starts), np.bool_)
        for first, end in spans:
            is_assistants |= (first <= starts) & (starts < end)
        runs = _runs(is_assistants)
        if not len(runs):
            raise DecodeError("nothing of the assistant is in it, so that it would carry no loss")
        return ids, runs

    @staticmethod
    def _rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        """Return the text of a chat, and where the assistant speaks in it."""
        render = template.render
        if template.has_blocks:
            return render(messages, tracks=True)
        text, _ = render(messages)
        spans: list[Span] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, _ = render(messages[:number], prompts=True)
            after, _ = render(messages[: number + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise DecodeError(
                    "the chat template renders earlier messages otherwise once others follow, so the assistant's cannot be told"
                    " apart; give it {% generation %} blocks"
                )
            spans.append((len(before), len(after)))
        return text, spans


@functools.lru_cache(maxsize=2)
def open_renderer(tokenizing: Tokenizing) -> ChatRenderer:
    """Return the renderer of a conversion, opened once in a process. Raises what `ChatRenderer` raises."""
    return ChatRenderer(tokenizing)


def _parsed(data: bytes) -> Any:
    """Return a value of JSON. Raises DecodeError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(f"not JSON: {exc}") from exc


def _replaced(text: str, spans: list[Span], written: str, kept: str) -> tuple[str, list[Span]]:
    """Return a text with one part of it replaced wherever it is, and spans at the places that they have then."""
    if written == kept:
        return text, spans
    starts = [found.start() for found in re.finditer(re.escape(written), text)]
    longer = len(kept) - len(written)
    moved = [(first + longer * bisect_left(starts, first), end + longer * bisect_left(starts, end)) for first, end in spans]
    return text.replace(written, kept), moved


def _runs(carries: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return (k, 2) where runs of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], carries, [False]]).astype(np.int8)))
    return edges.astype(np.int32).reshape(-1, 2)
