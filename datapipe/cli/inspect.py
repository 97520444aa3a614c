"""`datapipe inspect`: describe data of any kind, in words, and samples as a contact sheet."""

from __future__ import annotations

import argparse
import json

from datapipe.cli.arguments import parse_form
from datapipe.core.atomic import refuse_to_replace
from datapipe.core.checks import whole_number
from datapipe.core.printable import say_text
from datapipe.errors import OptionError
from datapipe.kinds.registry import open_path, part

_OF_ONE_KIND = {  # options: the kind of data that they are for, and its name
    "tokenizer": ("tokens", "token ids alone"),
    "processor": ("conversations", "conversations"),
    "buckets": ("images", "images"),
}


def run(args: argparse.Namespace) -> int:
    """Print the description. Returns 0. Raises OptionError for wrong options, and what `open_path` raises."""
    whole_number(args.num, "--num", least=1)
    if args.grid is not None:
        refuse_to_replace(args.grid)
    kind, index = open_path(args.path, parse_form(args))
    for name, (its_kind, what) in _OF_ONE_KIND.items():
        if getattr(args, name) is not None and kind != its_kind:
            raise OptionError(f"--{name}: {args.path} holds {kind}, and no {what}; leave it out")
    inspection = part(kind, "inspection")
    facts = inspection.describe(index, args)
    say_text(json.dumps(facts, indent=1) if args.json else inspection.as_text(args.path, facts))
    return 0
