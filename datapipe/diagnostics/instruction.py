"""How a remedy is carried out: what is copied, where it goes, and what else is to be known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["shell", "python"]
_MAX_LINE = 92  # of Python, so that a screen takes it whole


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code as it is copied, of one or several lines, and nothing else."""

    language: Language
    text: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """`code` in the order in which it is used. `where`: file:line that its Python belongs to; None where that is not known."""

    code: tuple[Snippet, ...] = ()
    where: str | None = None
    note: str = ""

    def sentence(self) -> str:
        """All of it in one line, to be read rather than copied."""
        done = ", then ".join(" ".join(one.text.split()) for one in self.code)
        place = f" at {self.where}" if self.where and self.code else ""
        return "; ".join(filter(None, [done + place, self.note]))


def python_call(function: str, *arguments: str) -> Snippet:
    """A call of a function, or the assignment of one, over as many lines as it needs."""
    lines = [f"{function}("]
    for number, argument in enumerate(arguments, 1):
        piece = argument + (")" if number == len(arguments) else ",")
        spaced = piece if lines[-1].endswith("(") else f" {piece}"
        if len(lines[-1] + spaced) > _MAX_LINE:
            lines.append(" " * (len(function) + 1) + piece)
        else:
            lines[-1] += spaced
    return Snippet("python", "\n".join(lines))
