"""The process of `datapipe bench --ceilings` whose lock is watched: iterates the same loader. Its options come as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time

from datapipe.cli.arguments import parse_form
from datapipe.diagnostics.ceilings.costs import iterate
from datapipe.diagnostics.ceilings.lock_watch import offer, report_span
from datapipe.kinds.registry import open_path, part


def main() -> None:
    """Report one span of time with the seconds per sample."""
    offer()
    args = argparse.Namespace(**json.loads(sys.argv[1]))
    kind, index = open_path(args.path, parse_form(args))
    loader = part(kind, "bench").loader(index, args)
    iterate(loader, args.images // 4, 0.5)
    started_s = time.perf_counter()
    num, _ = iterate(loader, args.images, 1.0)
    ended_s = time.perf_counter()
    report_span(started_s, ended_s, wall_s=(ended_s - started_s) / num)


if __name__ == "__main__":
    main()
