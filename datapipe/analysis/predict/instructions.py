"""How a remedy is carried out: code to copy, with the name that the script gives its loader, and the place where it belongs."""

from __future__ import annotations

import ast
import functools
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from datapipe.core.parsing import parse
from datapipe.core.regular_files import read_bytes
from datapipe.errors import DatapipeError
from datapipe.instruments.measure.watching import LoaderFacts

_MAX_LINE = 92  # characters of Python, so that it fits a screen
_MAX_NBYTES = 4 << 20  # of a script
_BELOW = "below the loader's line, with import datapipe"

Language: TypeAlias = Literal["shell", "python"]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code to copy, in one or several lines, and nothing else."""

    language: Language
    text: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """`code` in the order of use. `where`: file:line that its Python belongs to; None if unknown."""

    code: tuple[Snippet, ...] = ()
    where: str | None = None
    note: str = ""

    def sentence(self) -> str:
        """Return the whole instruction in one line, for reading rather than copying."""
        done = ", then ".join(" ".join(one.text.split()) for one in self.code)
        place = f" at {self.where}" if self.where and self.code else ""
        return "; ".join(filter(None, [done + place, self.note]))


def python_call(function: str, *arguments: str) -> Snippet:
    """Return a call of a function, or an assignment of its result, over as many lines as needed."""
    lines = [f"{function}("]
    for number, argument in enumerate(arguments, 1):
        piece = argument + (")" if number == len(arguments) else ",")
        spaced = piece if lines[-1].endswith("(") else f" {piece}"
        if len(lines[-1] + spaced) > _MAX_LINE:
            lines.append(" " * (len(function) + 1) + piece)
        else:
            lines[-1] += spaced
    return Snippet("python", "\n".join(lines))


def argument_of(loader: LoaderFacts, text: str, now: object) -> Instruction:
    """Return the instruction to change one argument of the loader to `text`; `now`: its current value."""
    return Instruction((Snippet("python", text),), where_made(loader), f"in DataLoader(...); now {now}")


def taken_over(loader: LoaderFacts, *arguments: str, note: str = "") -> Instruction:
    """Return the instruction to call `from_torch`, which keeps the loader's sampler, batches and arguments.

    `arguments`: more of the call, in which {loader} is the loader's name.
    """
    known = assigned_name(loader.site, loader.kind)
    name = known or "loader"
    code = python_call(f"{name} = datapipe.from_torch", name, *(one.format(loader=name) for one in arguments), 'device="cpu"')
    whose = "" if known else "`loader` stands for the name that the script gives it"
    return Instruction((code,), where_made(loader), "; ".join(filter(None, [_BELOW, whose, note])))


def where_made(loader: LoaderFacts) -> str | None:
    """Return where the script makes the loader; None if that is unknown."""
    return place_of(loader.site) if loader.site else None


def place_of(site: str) -> str:
    """Return file:line, relative to the working directory if it is inside that."""
    try:
        return str(Path(site).relative_to(Path.cwd()))
    except ValueError:
        return site


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
