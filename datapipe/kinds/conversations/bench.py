"""Measure packed batches of conversations for `datapipe bench`: how full rows are, and how fast images come."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.tokens import TokenIndex
from datapipe.kernel.calibration import in_turns
from datapipe.kinds.conversations.data import Conversations
from datapipe.kinds.loader import DataLoader

_LENGTH = 8192


def _data(args: argparse.Namespace) -> Conversations:
    if args.processor is None:
        raise OptionError(f"{args.path}: holds conversations with images; say for which model: --processor MODEL")
    return Conversations(args.path, _LENGTH, args.processor, long="drop")


def loader(index: TokenIndex, args: argparse.Namespace) -> DataLoader:
    """Return a loader of shuffled rows of a set. Raises OptionError without a processor."""
    return DataLoader(_data(args), 1, True, seed=0, num_workers=args.num_workers, device=args.device, workers=args.workers)


def measure(index: TokenIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return images and conversations per second of shuffled rows, by round. Raises OptionError without a processor."""
    if args.against is not None:
        raise OptionError("--against is for images; benchmarks/conversations measures others on conversations")
    opened = loader(index, args)
    data: Any = opened.dataset
    num_images = 0

    def rate() -> float:
        nonlocal num_images
        started, found = time.perf_counter(), 0
        for batch in opened:
            grids = batch.get("image_grid_thw")
            found += 0 if batch["pixel_values"] is None else len(batch["pixel_values"] if grids is None else grids)
            if found >= args.images:
                break
        num_images = found
        return found / (time.perf_counter() - started)

    rates = in_turns({"images": rate}, rounds=args.rounds)["images"]
    numbers = np.arange(len(index), dtype=np.int64)
    lengths = data.documents.num_tokens(numbers)
    return {
        "conversations": len(index),
        "length": _LENGTH,
        "rows": len(data),
        "fill": float(lengths[lengths <= _LENGTH].sum()) / (len(data) * _LENGTH),
        "images": num_images,
        "images_per_s": statistics.median(rates),
        "rounds": rates,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    return (
        f"{counted(result['conversations'], 'conversation')} in {counted(result['rows'], 'row')} of {result['length']:,} tokens,"
        f" {result['fill']:.2%} full\n  decoded and placed{result['images_per_s']:>12,.0f} images/s"
    )
