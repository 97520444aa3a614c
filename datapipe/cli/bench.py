"""`datapipe bench`: measure how fast the loader is on this data and this machine, and where its time goes."""

from __future__ import annotations

import argparse
import json
import sys

from datapipe.cli.arguments import parse_form
from datapipe.core.checks import whole_number
from datapipe.core.printable import say_text
from datapipe.diagnostics.ceilings.of_loader import roofline_of
from datapipe.diagnostics.ceilings.roofline import Roofline, as_json, as_text
from datapipe.errors import OptionError
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.registry import open_path, part

_OF_THE_PARSER = ("run", "parser")  # no options


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 0. Raises OptionError for counts below 1, and what `open_path` and the loader raise."""
    for name in ("batch_size", "table_batch_size", "size", "images", "rounds"):
        whole_number(getattr(args, name), f"--{name.replace('_', '-')}", least=1)
    if args.demand is not None and not (args.ceilings and args.demand > 0):
        raise OptionError(f"--demand {args.demand:g}: pass samples per second above 0, with --ceilings")
    kind, index = open_path(args.path, parse_form(args))
    bench = part(kind, "bench")
    if args.ceilings:
        found = _ceilings(bench.loader(index, args), args)
        say_text(json.dumps(as_json(found), indent=1) if args.json else as_text(found))
        return 0
    result = bench.measure(index, args)
    say_text(json.dumps(result, indent=1) if args.json else bench.as_text(result))
    return 0


def _ceilings(loader: DataLoader, args: argparse.Namespace) -> Roofline:
    settings = json.dumps({name: value for name, value in vars(args).items() if name not in _OF_THE_PARSER})
    watched = [sys.executable, "-m", "datapipe.cli.watched_pass", settings]
    return roofline_of(loader, args.path, watched, least_samples=args.images, demand_per_s=args.demand)
