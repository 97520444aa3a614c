"""Parse Python, in one thread at a time: Python 3.11 raises SystemError in one of two that do (python/cpython#106905)."""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()


def parse(source: str | bytes, *, file: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a module. `file`: named in warnings. Raises what `ast.parse` raises."""
    with _ONE_AT_A_TIME:
        return ast.parse(source, file)
