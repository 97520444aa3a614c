"""`datapipe fit`: find the statistics that the operations of a recipe for columns need."""

from __future__ import annotations

import argparse
from pathlib import Path

from datapipe.cli.progress import Progress
from datapipe.cli.say import say

_EPILOG = """\
example:
  datapipe fit 'train/*.parquet' recipe.json

  recipe.json before:  {"version": 1, "columns": [
                          ["I*", [{"operation": "FillMissing", "value": "median"}, {"operation": "Normalize"}]],
                          ["C*", [{"operation": "Categorify", "min_count": 10}]]]}
  and after: the same, with means, medians and vocabularies; in a script:
                       dp.TableLoader("train/*.parquet", 65536, transform=dp.Columns.load("recipe.json"))

Operations: FillMissing, Normalize, Log1p, Clip, Bucketize, HashBucket, Categorify, Cast (docs/tables.md). Ids of Categorify:
0 padding, 1 null, 2 unseen, then by count. One pass over the table; the same bytes for any number of workers.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "fit",
        help="find the means, medians and vocabularies of a table's columns",
        description="Fit a recipe for the columns of tables: find the means, medians and vocabularies that its operations need.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="Parquet or Arrow files: a file, a directory or a pattern")
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="a JSON file that says which operations which columns get")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where the fitted recipe goes (into RECIPE)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (all cores this process may use)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, and print the findings. Raises what `Columns.load`, `fit` and `save` raise."""
    from datapipe.columns.recipe import Columns

    recipe = Columns.load(args.recipe)
    with Progress(None, "rows", "fit") as progress:
        fitted = recipe.fit(args.source, num_workers=args.workers, on_rows=progress.update)
    target = args.output or args.recipe
    fitted.save(target)
    for line in fitted.describe():
        say(line)
    say(f"{target}: fitted to {args.source}")
    return 0
