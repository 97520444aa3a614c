"""`datapipe completion`: print the code that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from datapipe.core.printable import say_text


def run(args: argparse.Namespace) -> int:
    """Print the completion. Returns 0."""
    import shtab

    from datapipe.cli.main import build_parser

    say_text(complete_files(shtab, build_parser(), args.shell))
    return 0


def complete_files(shtab: Any, parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the code, with files completed wherever an option or argument takes a value that has no list of choices."""
    commands = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.values():
        for action in command._actions:
            if action.choices is None and action.nargs != 0 and not isinstance(action, argparse._HelpAction):
                action.complete = shtab.FILE
    return str(shtab.complete(parser, shell=shell))
