"""Measure packed batches of a corpus for `datapipe bench`: how full rows are, and how fast they come."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any, Literal

from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.tokens import TokenIndex
from datapipe.kernel.calibration import in_turns
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.tokens.data import Tokens

_LENGTH = 4096
_BATCH_SIZE = 8
_PACKINGS: tuple[Literal["best-fit", "concat"], ...] = ("best-fit", "concat")


def loader(index: TokenIndex, args: argparse.Namespace, packing: Literal["best-fit", "concat"] = "best-fit") -> DataLoader:
    """Return a loader of shuffled rows of a corpus."""
    return DataLoader(
        Tokens(args.path, _LENGTH, packing=packing),
        _BATCH_SIZE,
        True,
        seed=0,
        num_workers=args.num_workers,
        device=args.device,
    )


def measure(index: TokenIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return tokens per second of shuffled rows, by packing and round."""
    if args.against is not None:
        raise OptionError("--against is for images; packings of tokens are measured beside each other")
    loaders = {packing: loader(index, args, packing) for packing in _PACKINGS}

    def rate(loader: DataLoader) -> float:
        started = time.perf_counter()
        num = sum(int(batch["input_ids"].numel()) for batch in loader)
        return num / (time.perf_counter() - started)

    rates = in_turns({name: functools.partial(rate, loader) for name, loader in loaders.items()}, rounds=args.rounds)
    num_tokens = sum(int(index.shard(number).num_tokens.sum()) for number in range(index.num_shards))
    return {
        "documents": len(index),
        "length": _LENGTH,
        "batch_size": _BATCH_SIZE,
        "fill": {name: num_tokens / (len(loader.dataset) * _LENGTH) for name, loader in loaders.items()},
        "tokens_per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    lines = [f"{counted(result['documents'], 'document')} in rows of {result['length']:,}, batches of {result['batch_size']}"]
    for name, rate in result["tokens_per_s"].items():
        lines.append(f"  {name:<10}{rate / 1e6:>10,.1f} M tokens/s, rows {min(1.0, result['fill'][name]):.3%} full")
    return "\n".join(lines)
