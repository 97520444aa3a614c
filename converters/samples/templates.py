"""Render chats by a template of Jinja, which may come from anywhere: within a time and a size, and after a trial."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import resource
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from converters.samples import template_trial
from converters.tokenizer import Tokenizing
from datapipe.core.environment import install_command
from datapipe.core.limited_process import UnfitError, run_limited
from datapipe.errors import DecodeError, DependencyError, OptionError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DATE = {"date_string": "26 Jul 2024"}  # that of Llama's own templates where there is no clock: shards must not depend on the day
_TRIAL_S, _TRIAL_NBYTES = 15, 2 << 30  # with the import of transformers, about 1 s
_MOST_CHARACTERS = 1 << 28
_RENDERING_NBYTES = 1 << 30  # more than the process has already
Span = tuple[int, int]  # characters of a rendered chat: the first, and the one after the last


def refuse_template(tokenizing: Tokenizing) -> None:
    """Try a template on small chats, in a process of its own.

    Raises OptionError for one that is no Jinja, writes the date, or takes too much time or memory; DependencyError without the
    package transformers.
    """
    template = ChatTemplate(tokenizing)
    image = None if tokenizing.images is None else tokenizing.images.written
    given = json.dumps({"template": template.text, "names": template.names, "image": image}).encode()
    try:
        problem = json.loads(run_limited(template_trial.__file__, given, cpu_s=_TRIAL_S, nbytes=_TRIAL_NBYTES))
    except UnfitError as exc:
        problem = f"of a chat of two messages {exc}; repair it"
    if problem is not None:
        raise OptionError(f"--chat-template: {problem}")


class ChatTemplate:
    """A chat template, and the names that it may use."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        """Raises DependencyError without the package transformers, OptionError for a template that writes the date."""
        assert tokenizing.template is not None
        if importlib.util.find_spec("transformers") is None:
            raise DependencyError(f"--chat-template needs the package transformers: {install_command('tokens')}")
        if "strftime_now" in tokenizing.template and "date_string" not in tokenizing.template:
            raise OptionError(
                "--chat-template: it writes the time of day, and shards must not depend on it; take strftime_now out"
            )
        self.text = tokenizing.template
        self.names = dict(tokenizing.names) | _DATE
        self.has_blocks = _GENERATION.search(self.text) is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, prompts: bool = False, tracks: bool = False
    ) -> tuple[str, list[Span]]:
        """Return the text of a chat, and with `tracks` where its `{% generation %}` blocks are.

        `prompts`: with the beginning of an answer. Raises DecodeError for what the template refuses.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                [list(messages)],
                chat_template=self.text,
                add_generation_prompt=prompts,
                return_assistant_tokens_mask=tracks,
                **self.names,
            )
        except LateError:
            raise
        except MemoryError:
            raise DecodeError("the chat template takes too much memory to render it; repair the template") from None
        except Exception as exc:  # a template may raise anything
            raise DecodeError(f"the chat template refuses it: {str(exc).splitlines()[0] if str(exc) else exc!r:.120}") from exc
        if len(texts[0]) > _MOST_CHARACTERS:
            raise DecodeError(f"the chat template makes {len(texts[0])} characters of it, more than {_MOST_CHARACTERS}")
        return texts[0], [tuple(span) for span in spans[0]] if tracks else []


class LateError(Exception):
    """The time is over."""


class Limits:
    """Ends what takes too long, or too much memory; by a signal, which the main thread alone gets: in others nothing is ended."""

    def __init__(self) -> None:
        self._of_data: tuple[tuple[int, int], ...] = ()  # limits of the process's data, soft and hard: here, and within

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Let `within` end things in this block. It costs as much as ten of them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _data_nbytes() + _RENDERING_NBYTES
        least = min([wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
        self._of_data = (soft, hard), (least, hard)
        before = signal.signal(signal.SIGALRM, _ring)
        try:
            yield
        finally:
            self._of_data = ()
            signal.signal(signal.SIGALRM, before)

    @contextlib.contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Raise LateError in the block once it has taken so long, and MemoryError where it takes too much."""
        if not self._of_data:
            yield
            return
        waiting = signal.setitimer(signal.ITIMER_REAL, limit_s)
        resource.setrlimit(resource.RLIMIT_DATA, self._of_data[1])
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, self._of_data[0])
            signal.setitimer(signal.ITIMER_REAL, *waiting)


def _data_nbytes() -> int:
    """Return how much memory for data this process has reserved."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def _ring(number: int, frame: FrameType | None) -> None:
    raise LateError
