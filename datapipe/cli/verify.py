"""`datapipe verify`: check that a converted dataset is as it was written."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from datapipe.cli.progress import Progress
from datapipe.cli.say import say

_EPILOG = """\
example:
  datapipe verify shards/train
  datapipe verify s3://bucket/train

Reads every byte; each shard of a dataset in a store is downloaded to a temporary directory.
Lists missing, truncated and foreign files, and the samples whose bytes differ.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "verify",
        help="check every byte of a converted dataset",
        description="Check a converted dataset against its manifest: shards, indexes, and every byte.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory", metavar="DST", help="a converted dataset, on disk or the URL of one in a store, or a directory of its splits"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="threads (all cores this process may use)")
    parser.add_argument("--json", action="store_true", help="report as JSON on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check. Returns 0 if intact, 1 if damaged. Raises what `converters.verify.verify` raises."""
    from converters.verify import verify
    from converters.verify_remote import verify_remote
    from datapipe.stores.location import is_url, parse_location

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
        verdict = f"{num} problem{'s' * (num > 1)}" if num else "intact"
        samples, shards = ("rows", "files") if report.is_table else ("samples", "shards")
        say(
            f"{args.directory}: {verdict}; {report.num_samples} {samples} in {report.num_shards} {shards},"
            f" {report.nbytes / 1e6:.1f} MB read at {rate:.2f} GB/s"
        )
    return 1 if report.problems else 0
