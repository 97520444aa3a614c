"""The `datapipe` command: parse, dispatch, and turn errors into one line and an exit status.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from datapipe import __version__
from datapipe.cli.say import Parser, say
from datapipe.core.errors import DatapipeError, OptionError

COMMANDS = ("convert", "verify", "fit", "inspect", "index", "bench", "diagnose", "train", "doctor", "demo", "completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may have letters that the terminal's encoding lacks
    args = parse(argv) if (sys.argv[1:] if argv is None else argv) else None
    try:
        status: int = _say_next_steps() if args is None else args.run(args)
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
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="datapipe",
        description="Keeps GPUs fed: repack small-file datasets, load them fast, measure the difference.",
        epilog="Without a command: what to do next with what lies in this folder. "
        "Example: datapipe convert photos/ shards/ --to webdataset",
    )
    parser.add_argument("--version", action="version", version=f"datapipe {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"datapipe.cli.{name}").add_parser(subparsers)
        subparsers.choices[name].set_defaults(parser=subparsers.choices[name])
    return parser


def _say_next_steps() -> int:
    from datapipe.cli.next_steps import run

    return run(Path.cwd())


def _fail(message: str, status: int) -> int:
    say(f"datapipe: {message}", file=sys.stderr)
    return status
