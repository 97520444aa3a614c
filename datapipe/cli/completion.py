"""`datapipe completion`: print the code that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from datapipe.cli.say import say_text

SHELLS = ("bash", "zsh", "tcsh")

_EPILOG = """\
examples:
  datapipe completion bash > ~/.local/share/bash-completion/completions/datapipe
  datapipe completion zsh > "${fpath[1]}/_datapipe"
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "completion",
        help="print the completion of commands and options for a shell",
        description="Print the code that completes datapipe's commands, options and files in a shell. Put it where the shell "
        "looks for completions, then start a new shell.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(run=run)


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
