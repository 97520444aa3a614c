"""Describe what a loader does where, and why, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from datapipe.core.printable import counted, printable
from datapipe.errors import OptionError
from datapipe.kernel.accelerators import torch_build
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import LoaderOptions
from datapipe.order.plan import Plan

# The line about batches that are copied to a device.
TRANSFER = "transfer  pinned memory, a copy stream of its own; your stream waits for events, the host does not"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The text that `explain` returns: `print` shows it, and so does an interactive session or a notebook by itself."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines))

    __repr__ = __str__


def explain(loader: Any) -> Explanation:
    """Return a loader's device and backend and why, its decoder, which part runs where, and its order, as text to print.

    >>> print(datapipe.explain(loader))

    `loader`: a datapipe.DataLoader or TableLoader, or the result of `from_torch` or `prefetch`. Raises OptionError for
    anything else.

    Chooses a backend if that has not been done yet, which on a GPU may take some seconds of measuring.
    """
    if isinstance(loader, Loader):
        taken_over = [f"from      {loader.origin}"] if loader.origin else []
        return Explanation((*taken_over, *loader.strategy_lines, *loader._passes.kind.explain(loader._passes.facts())))
    if isinstance(loader, (str, bytes)) or not hasattr(loader, "__iter__"):
        raise OptionError(f"explain({loader!r:.60}): pass a loader, such as datapipe.DataLoader(path, ...)")
    origin = getattr(loader, "origin", "") or f"{type(loader).__qualname__}: unchanged"
    strategy = getattr(loader, "strategy_lines", ())  # by which `from_torch` took it over
    own = getattr(loader, "explanation", ())  # of a loader that it left to torch's workers
    return Explanation((f"from      {origin}", *strategy, f"device    {getattr(loader, 'device', 'cpu')}", *own))


def device_line(device: torch.device) -> str:
    """Return the line about the device that a loader delivers its batches on."""
    return f"device    {device}" + (f" (torch is {torch_build()})" if device.type == "cpu" else "")


def steps_line(plan: Plan, unit: str) -> str:
    """Return the line about the steps of an epoch. `unit`: what batches have so many of, such as "row"."""
    each, ranks = counted(plan.batch_size, unit), plan.rank.world_size
    return f"steps     {plan.num_steps} of {each} on each of {ranks} ranks, tail={plan.tail.value}"


def threads_text(options: LoaderOptions) -> str:
    """Return which threads make batches, in words."""
    if options.num_remote and not options.num_workers:
        return "no thread here"
    return counted(options.num_workers, "thread") if options.num_workers else "the caller's thread"
