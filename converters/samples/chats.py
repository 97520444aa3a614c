"""Render chats by a template, and find the tokens of the assistant in them.

The assistant's parts are what the template puts within `{% generation %}`. Where it has no such blocks, they are what each of the
assistant's messages adds to the rendering of those before. What looks like a special token in a message stays text
(`special_tokens`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.samples.special_tokens import SpecialTokens
from converters.samples.templates import ChatTemplate, LateError, Limits, Span
from converters.tokenizer import Tokenizing
from datapipe.errors import DecodeError

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}  # ShareGPT's names
_LIMIT_S, _LIMIT_S_EACH = 20.0, 0.2  # for a chat, and each of its messages, up to all of which it is rendered


class ChatRenderer:
    """Turns chats into ids and the runs of the assistant's. For one thread."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        """Raises DependencyError without the package transformers, OptionError for a template that writes the date."""
        self._template = ChatTemplate(tokenizing)
        self._special = SpecialTokens(tokenizing)
        self._limits = Limits()

    def encode_each(self, chats: Iterable[bytes]) -> list[tuple[NDArray[np.uint32], NDArray[np.int32]] | DecodeError]:
        """Return what `encode` does of each chat, or raises. In the main thread, a rendering without end is ended."""
        with self._limits.watching():
            return [self._encoded_or_not(data) for data in chats]

    def _encoded_or_not(self, data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.int32]] | DecodeError:
        try:
            return self.encode(data)
        except DecodeError as exc:
            return exc

    def encode(self, data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return the ids of a chat given as JSON, and (k, 2) the runs of those that carry loss.

        Raises DecodeError for what is no chat, or has nothing that carries loss.
        """
        try:
            messages = _messages_of(data)
            return self._encoded_chat(messages)
        except (RecursionError, UnicodeError) as exc:
            what = "is nested too deep" if isinstance(exc, RecursionError) else "has half of a surrogate pair, which is no text"
            raise DecodeError(f"no chat: it {what}") from exc

    def _encoded_chat(self, messages: list[dict[str, Any]]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        everything = json.dumps(messages, ensure_ascii=False)
        everything.encode()  # refuses half of a surrogate pair, which the tokenizer does not take
        mark = self._special.mark_for(everything + self._template.text)
        if mark is None:
            raise DecodeError("its messages use all characters that could keep special tokens in them apart")
        marked = self._special.marked(messages, mark)
        limit_s = _LIMIT_S + _LIMIT_S_EACH * len(messages)
        try:
            with self._limits.within(limit_s):
                text, spans = self._rendered(marked)
        except LateError:
            raise DecodeError(f"the chat template takes more than {limit_s:.0f} s to render it; repair the template") from None
        ids, starts = self._special.encode(text, mark, is_marked=marked != messages)
        is_assistants = np.zeros(len(starts), np.bool_)
        for first, end in spans:
            is_assistants |= (first <= starts) & (starts < end)
        runs = _runs(is_assistants)
        if not len(runs):
            raise DecodeError("nothing of the assistant is in it, so that it would carry no loss")
        return ids, runs

    def _rendered(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        """Return the text of a chat, and where the assistant speaks in it."""
        render = self._template.render
        if self._template.has_blocks:
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


def _messages_of(data: bytes) -> list[dict[str, Any]]:
    """Return the messages of a chat: a list of them, or an object that has one. Raises DecodeError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise DecodeError(f"not JSON: {exc}") from exc
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise DecodeError("no chat: expected a list of messages, each an object with `role` and `content`")
    messages = [
        {"role": _ROLES.get(one["from"], one["from"]), "content": one.get("value")}
        if "role" not in one and isinstance(one.get("from"), str)
        else one
        for one in value
    ]
    if not all(isinstance(one.get("role"), str) for one in messages):
        raise DecodeError("no chat: a message has no `role`")
    return messages


def _runs(carries: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return (k, 2) where runs of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], carries, [False]]).astype(np.int8)))
    return edges.astype(np.int32).reshape(-1, 2)
