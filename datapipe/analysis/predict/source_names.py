"""What a script calls the loader that it makes at a line, so that a remedy's code can be pasted below it."""

from __future__ import annotations

import ast
from contextlib import suppress

from datapipe.core.regular_files import read_bytes
from datapipe.errors import DatapipeError

_MAX_NBYTES = 4 << 20


def assigned_name(site: str | None) -> str | None:
    """Return the variable, or attribute such as `self.loader`, that is assigned by the call at file:line; None if unclear."""
    file, _, line = (site or "").rpartition(":")
    if not file or not line.isdecimal():
        return None
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError, DatapipeError):
        for node in ast.walk(ast.parse(read_bytes(file, at_most=_MAX_NBYTES))):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) > 1:
                continue
            if node.lineno <= int(line) <= (node.end_lineno or node.lineno) and isinstance(targets[0], ast.Name | ast.Attribute):
                return ast.unparse(targets[0])
    return None
