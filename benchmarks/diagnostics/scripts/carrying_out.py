"""Carry out a remedy's printed code on a script, as a user who copies it would."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path

from datapipe.analysis.predict.instructions import Instruction


def carry_out(how: Instruction, script: Path) -> None:
    """Edit the script at the line that the instruction names, and run its commands in the script's directory.

    Raises ValueError if the code is neither an argument of the loader's call nor a statement, or its place is unknown.
    """
    if how.where is None:
        raise ValueError("the remedy does not say where its code goes")
    line = int(how.where.split()[0].rpartition(":")[2])
    for snippet in how.code:
        if snippet.language == "shell":
            program, *arguments = shlex.split(snippet.text)
            command = [sys.executable, "-m", program, *arguments]
            subprocess.run(command, cwd=script.parent, check=True, capture_output=True, timeout=300)
        else:
            source = script.read_text()
            script.write_text(_with_statement(source, snippet.text, line) or _with_argument(source, snippet.text, line))


def _with_argument(source: str, text: str, line: int) -> str:
    """Return the source with `name=value` in the call at this line, instead of the present value."""
    new = ast.parse(f"f({text})").body[0]
    assert isinstance(new, ast.Expr)
    assert isinstance(new.value, ast.Call)
    (keyword,) = new.value.keywords
    calls = (one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Call) and one.lineno == line)
    call = next((one for one in calls if _makes_loader(one)), None)
    if call is None:
        raise ValueError(f"line {line} makes no loader")
    segment = ast.get_source_segment(source, call)
    assert segment is not None
    call.keywords = [one for one in call.keywords if one.arg != keyword.arg] + [keyword]
    return source.replace(segment, ast.unparse(call), 1)


def _makes_loader(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "DataLoader"


def _with_statement(source: str, text: str, line: int) -> str | None:
    """Return the source with the statement below this line; None if it is an argument."""
    if " = " not in text.splitlines()[0]:
        return None
    lines = source.splitlines()
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
    lines[line:line] = [indent + one for one in text.splitlines()]
    return "\n".join(["import datapipe", *lines]) + "\n"
