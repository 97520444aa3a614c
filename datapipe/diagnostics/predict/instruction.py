"""Instructions for a remedy: the code to copy, its place, and a note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["shell", "python"]
_MAX_LINE = 92  # characters of Python, so that it fits a screen


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
