"""The `datapipe` command: parse, dispatch, and turn errors into one line and an exit status.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from datapipe import __version__
from datapipe.cli import arguments, convert_arguments, training_arguments
from datapipe.core import waiting
from datapipe.core.printable import printable, say
from datapipe.errors import DatapipeError, OptionError

COMMANDS = {
    "convert": convert_arguments.add_convert,
    "verify": arguments.add_verify,
    "fit": arguments.add_fit,
    "inspect": arguments.add_inspect,
    "index": arguments.add_index,
    "bench": arguments.add_bench,
    "diagnose": training_arguments.add_diagnose,
    "train": training_arguments.add_train,
    "serve": arguments.add_serve,
    "doctor": arguments.add_doctor,
    "demo": arguments.add_demo,
}  # what adds each to the parser


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are two lines: what must be given, and what is wrong. They quote arguments printably."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--[\w-]+): (?=\1 )", "", message)  # our own messages name the option, too
        self.exit(2, f"{self._usage_in_a_line()}{self.prog}: error: {printable(message)}\n")

    def _usage_in_a_line(self) -> str:
        """Return the usage, with the options that may be left out named only if a line has room for them."""
        usage = self.format_usage()
        if usage.count("\n") == 1:
            return usage
        must = [action for action in self._actions if action.required]
        return f"usage: {self.prog} [options] {' '.join(map(_typed, must))}     (options: {self.prog} --help)\n"


def _typed(action: argparse.Action) -> str:
    """Return how a required argument is typed."""
    value = str(action.metavar or ("|".join(action.choices) if action.choices else action.dest))
    return " ".join([*action.option_strings[-1:], value])


class _PrintCompletion(argparse.Action):
    """Prints a script by which a shell completes commands, options and their values."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: Any, option: str | None = None) -> NoReturn:
        import shtab  # only here, as it takes longer than everything else that `--help` needs

        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for action in (action for command in commands.choices.values() for action in command._actions):
            if action.nargs != 0 and not action.choices and action.type not in (int, float):
                action.complete = shtab.FILE  # most texts are paths
        print(shtab.complete(parser, values))
        parser.exit()


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps a text of one line, such as a description, and leaves one of several lines as it is, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _LogFormatter(logging.Formatter):
    """Writes the level before a message; a wait that is long has none, as it is no fault."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return line if record.name == waiting.logger.name else f"{record.levelname}: {line}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may have letters that the terminal's encoding lacks
    if not (sys.argv[1:] if argv is None else argv):
        build_parser().print_help()
        return 0
    args = parse(argv)
    try:
        module, _, function = args.run.partition(":")
        status: int = getattr(importlib.import_module(module), function)(args)
        sys.stdout.flush()
    except OptionError as exc:
        return _fail(str(exc), 2)
    except DatapipeError as exc:
        return _fail(str(exc), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output is gone, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as exc:
        if exc.filename is None:  # not about a file
            raise
        return _fail(f"{os.fsdecode(exc.filename)}: {exc.strerror}", 1)
    return status


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of one command. Unknown ones are an error of that command, which then prints its own usage."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        args.parser.error(_about_unknown(unknown, list(args.parser._option_string_actions)))
    return args


def _about_unknown(arguments: Sequence[str], options: Sequence[str]) -> str:
    """Return what to say of arguments that a command does not know."""
    unknown = [name for one in arguments if len(name := one.partition("=")[0]) > 2 and name.startswith("-")]
    if not unknown:
        return f"unrecognized arguments: {' '.join(arguments)}"
    near = [difflib.get_close_matches(name, options, n=1) for name in unknown]
    meant = " and ".join(found[0] for found in near if found)
    return f"unknown option{'s' * (len(unknown) > 1)} {', '.join(unknown)}" + (f"; did you mean {meant}?" if meant else "")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="datapipe",
        description="Keeps GPUs fed: repack small-file datasets, load them fast, measure the difference.",
        epilog="Example: datapipe convert photos/ shards/ --to webdataset",
    )
    parser.add_argument("--version", action="version", version=f"datapipe {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print a script for this shell, and exit",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS.values():
        add(subparsers)
    for command in subparsers.choices.values():
        command.set_defaults(parser=command)
    return parser


def _fail(message: str, status: int) -> int:
    say(f"datapipe: {message}", file=sys.stderr)
    return status
