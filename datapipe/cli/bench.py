"""`datapipe bench`: measure how fast the loader is on this data and this machine, and where its time goes."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

from datapipe.cli.arguments import parse_form
from datapipe.core.checks import whole_number
from datapipe.core.printable import say_text
from datapipe.diagnostics.ceilings import of_workers
from datapipe.diagnostics.ceilings.of_loader import roofline_of
from datapipe.diagnostics.ceilings.of_workers import BOTH, ELSEWHERE, HERE, WithWorkers, compare
from datapipe.diagnostics.ceilings.roofline import Roofline, as_json, as_text
from datapipe.errors import OptionError
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.registry import open_path, part
from datapipe.remote_workers.settings import Workers
from datapipe.serving.work import SERVED

_OF_THE_PARSER = ("run", "parser")  # no options


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 0. Raises OptionError for counts below 1, and what `open_path` and the loader raise."""
    for name in ("batch_size", "table_batch_size", "size", "images", "rounds"):
        whole_number(getattr(args, name), f"--{name.replace('_', '-')}", least=1)
    if args.demand is not None and not (args.ceilings and args.demand > 0):
        raise OptionError(f"--demand {args.demand:g}: pass samples per second above 0, with --ceilings")
    workers = _workers(args)
    kind, index = open_path(args.path, parse_form(args))
    bench = part(kind, "bench")
    if workers is not None:
        if kind not in SERVED:
            raise OptionError(f"--workers: other machines make {', '.join(SERVED)}, and {args.path} holds {kind}")
        compared = _with_workers(functools.partial(bench.loader, index), args, workers)
        say_text(json.dumps(of_workers.as_json(compared), indent=1) if args.json else of_workers.as_text(compared))
        return 0
    if args.ceilings:
        found = _ceilings(bench.loader(index, args), args)
        say_text(json.dumps(as_json(found), indent=1) if args.json else as_text(found))
        return 0
    result = bench.measure(index, args)
    say_text(json.dumps(result, indent=1) if args.json else bench.as_text(result))
    return 0


def _workers(args: argparse.Namespace) -> Workers | None:
    """Return the workers that are named. Raises OptionError."""
    named, args.workers = args.workers, None  # loaders without them come first
    if named is None:
        if args.certificate is not None:
            raise OptionError("--certificate is that of workers; pass --workers, too")
        return None
    if args.ceilings or args.against:
        raise OptionError("--workers is measured alone; leave out --ceilings and --against")
    if named.partition(":")[0] != "ray":
        return Workers(named, certificate=args.certificate)
    num_cpus = named.partition(":")[2]
    if not num_cpus.isascii() or not num_cpus.isdigit():
        raise OptionError(f"--workers {named:.40}: write ray:N, with the cores of all workers together, such as ray:64")
    return Workers("ray", num_cpus=int(num_cpus))


def _with_workers(loader: Callable[[argparse.Namespace], Any], args: argparse.Namespace, workers: Workers) -> WithWorkers:
    ways: dict[str, dict[str, Any]] = {HERE: {}, ELSEWHERE: {"num_workers": 0, "workers": workers}, BOTH: {"workers": workers}}

    def opened(way: str) -> Any:
        return loader(argparse.Namespace(**{**vars(args), **ways[way]}))

    return compare(opened, least_samples=args.images, rounds=args.rounds)


def _ceilings(loader: DataLoader, args: argparse.Namespace) -> Roofline:
    settings = json.dumps({name: value for name, value in vars(args).items() if name not in _OF_THE_PARSER})
    watched = [sys.executable, "-m", "datapipe.cli.watched_pass", settings]
    return roofline_of(loader, args.path, watched, least_samples=args.images, demand_per_s=args.demand)
