"""`datapipe bench`: measure how fast the loader is on this data and this machine, and where its time goes."""

from __future__ import annotations

import argparse
import json

from datapipe.cli.arguments import form_of
from datapipe.core.checks import whole_number
from datapipe.core.printable import say_text
from datapipe.kinds.registry import part, recognise


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 0. Raises OptionError for counts below 1, and what `recognise` and the loader raise."""
    for name in ("batch_size", "table_batch_size", "size", "images", "rounds"):
        whole_number(getattr(args, name), f"--{name.replace('_', '-')}", least=1)
    kind, index = recognise(args.path, form_of(args))
    bench = part(kind, "bench")
    result = bench.measure(index, args)
    say_text(json.dumps(result, indent=1) if args.json else bench.as_text(result))
    return 0
