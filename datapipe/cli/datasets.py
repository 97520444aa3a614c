"""`datapipe verify`, `datapipe fit` and `datapipe index`: check a converted dataset, fit a recipe to a table, index data."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

from converters.verify import verify, verify_remote
from datapipe.cli.arguments import parse_form
from datapipe.cli.progress import Progress
from datapipe.columns.recipe import Columns
from datapipe.core.printable import counted, say
from datapipe.opening.samples import open_index
from datapipe.stores.location import is_url
from datapipe.stores.places import parse_location


def run_verify(args: argparse.Namespace) -> int:
    """Check. Returns 0 if intact, 1 if damaged. Raises what `converters.verify.verify` raises."""
    with Progress(None, "B", "verify") as progress:
        if is_url(args.directory):
            report = verify_remote(parse_location(args.directory), num_workers=args.workers, on_bytes=progress.update)
        else:
            report = verify(Path(args.directory), num_workers=args.workers, on_bytes=progress.update)
    if args.json:
        print(json.dumps({**dataclasses.asdict(report), "is_intact": not report.problems}, indent=1))
    else:
        for problem in report.problems:
            say(str(problem))
        rate = report.nbytes / 1e9 / max(report.elapsed_s, 1e-9)
        num = len(report.problems)
        verdict = counted(num, "problem") if num else "intact"
        sample, shard = ("row", "file") if report.is_table else ("sample", "shard")
        say(
            f"{args.directory}: {verdict}; {counted(report.num_samples, sample)} in {counted(report.num_shards, shard)},"
            f" {report.nbytes / 1e6:.1f} MB read at {rate:.2f} GB/s"
        )
    return 1 if report.problems else 0


def run_fit(args: argparse.Namespace) -> int:
    """Fit, and print the findings. Raises what `Columns.load`, `fit` and `save` raise."""
    recipe = Columns.load(args.recipe)
    with Progress(None, "rows", "fit") as progress:
        fitted = recipe.fit(args.source, num_workers=args.workers, on_rows=progress.update)
    target = args.output or args.recipe
    fitted.save(target)
    for line in fitted.describe():
        say(line)
    say(f"{target}: fitted to {args.source}")
    return 0


def run_index(args: argparse.Namespace) -> int:
    """Index the data and print the result. Returns 0. Raises what `open_index` raises."""
    start_s = time.perf_counter()
    index = open_index(args.path, parse_form(args))
    elapsed_s = time.perf_counter() - start_s
    if args.json:
        found = {"samples": len(index), "container": index.manifest.container, "index": str(index.sidecar_directory)}
        print(json.dumps({**found, "seconds": round(elapsed_s, 3)}, indent=1))
    else:
        say(
            f"{counted(len(index), 'sample')} ({index.manifest.container}); index in {index.sidecar_directory}; {elapsed_s:.2f} s"
        )
    return 0
