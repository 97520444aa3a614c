"""What `datapipe bench` measures of numbers."""

from __future__ import annotations

import argparse
from typing import Any

from datapipe.kernel.calibration import in_turns, rate_of
from datapipe.kinds.loader import DataLoader
from kind_numbers.data import Numbers
from kind_numbers.inspection import NumbersIndex


def loader(index: NumbersIndex, args: argparse.Namespace) -> DataLoader:
    """Return a loader of shuffled batches."""
    return DataLoader(Numbers(args.path), args.batch_size, True)


def measure(index: NumbersIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return numbers per second, by round."""
    ours = loader(index, args)
    return in_turns({"numbers": lambda: rate_of([[batch] for batch in ours], 1, device=ours.device)}, rounds=args.rounds)


def as_text(result: dict[str, Any]) -> str:
    """Return the best round in words."""
    return f"{max(result['numbers']):,.0f} numbers/s"
