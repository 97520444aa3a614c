"""`datapipe index`: index data that datapipe did not write, ahead of its first use."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from datapipe.cli.say import say


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "index",
        help="index shards of other tools or an image folder ahead of first use",
        description="Create or update the index of data that datapipe did not write: a directory, file or glob "
        "pattern of WebDataset, TFRecord, HDF5 or Parquet shards, or an image folder. Loading does this by itself on first use.",
        epilog="example: datapipe index 'shards/train-*.tar'",
    )
    parser.add_argument("path", help="data to index")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Index the data and print the result. Returns 0. Raises what `open_index` raises."""
    from datapipe.containers import open_index

    start_s = time.perf_counter()
    index = open_index(args.path)
    elapsed_s = time.perf_counter() - start_s
    if args.json:
        found = {"samples": len(index), "container": index.manifest.container, "index": str(index.sidecar_directory)}
        print(json.dumps({**found, "seconds": round(elapsed_s, 3)}, indent=1))
    else:
        say(f"{len(index):,} samples ({index.manifest.container}); index in {index.sidecar_directory}; {elapsed_s:.2f} s")
    return 0
