"""Print output of commands, and refuse arguments, with file names made safe for the terminal."""

from __future__ import annotations

import argparse
from typing import NoReturn, TextIO

from datapipe.core.printable import printable


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print each of `lines`, made printable, on standard output unless told otherwise."""
    print("\n".join(map(printable, lines)), file=file, flush=True)


def say_text(text: str, *, file: TextIO | None = None) -> None:
    """Print a text of several lines, such as a report, each made printable."""
    say(*text.split("\n"), file=file)


class Parser(argparse.ArgumentParser):
    """An argument parser whose error messages are printable, whatever arguments they quote."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))
