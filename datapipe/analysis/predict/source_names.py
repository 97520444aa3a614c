"""Find the name that a script gives a loader, by the line that makes it, so that a remedy's code can be pasted below."""

from __future__ import annotations

import ast
import functools
from contextlib import suppress

from datapipe.core.parsing import parse
from datapipe.core.regular_files import read_bytes
from datapipe.errors import DatapipeError

_MAX_NBYTES = 4 << 20


@functools.lru_cache(maxsize=16)
def assigned_name(site: str | None, kind: str) -> str | None:
    """Return the variable, or attribute such as `self.loader`, to which a loader is assigned where it is made.

    `site`: file:line of the call. `kind`: the loader's class, with the module. None if the call there is another one, or unclear.
    """
    file, _, line = (site or "").rpartition(":")
    if not file or not line.isdecimal():
        return None
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError, DatapipeError):
        for node in ast.walk(parse(read_bytes(file, at_most=_MAX_NBYTES), file=file)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= int(line) <= (node.end_lineno or node.lineno):
                return _only_target(node) if _makes(node.value, kind) else None
    return None


def _makes(value: ast.expr | None, kind: str) -> bool:
    """Return True if an expression is a call of a class of this name."""
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == kind.rpartition(".")[2]


def _only_target(node: ast.Assign | ast.AnnAssign) -> str | None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return ast.unparse(targets[0]) if len(targets) == 1 and isinstance(targets[0], ast.Name | ast.Attribute) else None
