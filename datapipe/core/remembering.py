"""Ask once: within `remembered`, what was found serves whoever asks for it again."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


@dataclass(slots=True)
class Scope:
    """The findings of a block. `began`: by `time.monotonic_ns`. `values`: by key. `closing`: what is closed when it ends."""

    began: int = field(default_factory=time.monotonic_ns)
    values: dict[Hashable, Any] = field(default_factory=dict)
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("remembered", default=None)


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Let what is looked at within be looked at once, until the outermost of these blocks ends.

    A command looks at a place to recognise it, then lists it; on network storage each look is many requests. Threads that start
    within the block remember nothing.
    """
    if _scope.get() is not None:
        yield
        return
    scope = Scope()
    token = _scope.set(scope)
    try:
        with scope.closing:
            yield
    finally:
        _scope.reset(token)


@contextlib.contextmanager
def looking_again() -> Iterator[None]:
    """Let nothing within be remembered: for a look at what this program, or another one, may have changed since."""
    token = _scope.set(None)
    try:
        yield
    finally:
        _scope.reset(token)


def current_scope() -> Scope | None:
    """Return what was found since the block began; None outside of one."""
    return _scope.get()


def recall(key: Hashable, find: Callable[[], _T]) -> _T:
    """Return what `find` finds, or found within the block for the same key. What it raises is not remembered."""
    scope = _scope.get()
    if scope is None:
        return find()
    if key not in scope.values:
        scope.values[key] = find()
    return cast(_T, scope.values[key])
