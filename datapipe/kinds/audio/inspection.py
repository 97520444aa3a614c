"""Open sound, and say what it is, in facts and in words."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.containers.form import Form, refuse_choices
from datapipe.core.printable import counted, size_text
from datapipe.errors import OptionError
from datapipe.index.utterances import Utterances
from datapipe.opening.recordings.opening import open_utterances

_MAX_SHOWN = 5  # bad utterances, rates, channels, codings


def open_place(path: str, form: Form) -> Utterances:
    """Return the utterances of a folder, a file, a list or shards."""
    refuse_choices(path, form, "sound")
    return open_utterances(path)


def describe(found: Utterances, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of utterances, JSON-safe."""
    if args.grid is not None:
        raise OptionError(f"--grid: {args.path} holds sound, of which there are no pictures; leave it out")
    recordings = found.recordings
    is_good = found.num_frames > 0
    seconds = found.seconds[is_good]
    bad = np.flatnonzero(~is_good)
    _, first_of_each = np.unique(found.recording[bad], return_index=True)
    used = np.unique(found.recording[is_good])
    return {
        "container": "recordings",
        "utterances": len(found),
        "recordings": len(recordings),
        "hours": round(float(seconds.sum()) / 3600, 3),
        "bytes": int(recordings.nbytes[used].sum()),
        "classes": None if found.classes is None else len(found.classes),
        "has_texts": found.texts is not None,
        "seconds": {name: round(float(value), 2) for name, value in _spread(seconds).items()},
        "rates": _counts(recordings.rates[used]),
        "channels": _counts(recordings.channels[used]),
        "bad": [found.problem(number) for number in bad[np.sort(first_of_each)[:_MAX_SHOWN]].tolist()],
        "num_bad": len(bad),
    }


def _spread(seconds: NDArray[np.float64]) -> dict[str, float]:
    names = ("shortest", "median", "p95", "longest")
    return dict(zip(names, np.quantile(seconds, (0, 0.5, 0.95, 1)), strict=True)) if len(seconds) else {}


def _counts(values: NDArray[np.int64]) -> dict[str, int]:
    """Return the most frequent values, with how often each comes."""
    found, num = np.unique(values, return_counts=True)
    return {str(found[place]): int(num[place]) for place in np.argsort(-num, kind="stable")[:_MAX_SHOWN]}


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    lines = [
        f"{path}: {counted(facts['utterances'], 'utterance')} of {counted(facts['recordings'], 'recording')},"
        f" {facts['hours']:,.2f} h, {size_text(facts['bytes'])}" + (", with texts" if facts["has_texts"] else "")
    ]
    if facts["classes"] is not None:
        lines.append(f"  classes   {facts['classes']:,}")
    if facts["seconds"]:
        one = facts["seconds"]
        lines += [
            f"  seconds   {one['shortest']:g} to {one['longest']:g}; median {one['median']:g}, 95% up to {one['p95']:g}",
            f"  rates     {', '.join(f'{int(rate):,} Hz ({num:,})' for rate, num in facts['rates'].items())}",
            f"  channels  {', '.join(f'{channels} ({num:,})' for channels, num in facts['channels'].items())}",
        ]
    if len(facts["rates"]) > 1:
        least = min(map(int, facts["rates"]))
        lines.append(f"  advice    rates differ: pass rate={least} to datapipe.Audio, at which all can be")
    if facts["num_bad"]:
        lines.append(f"  bad       {counted(facts['num_bad'], 'utterance')} cannot be read; skip_bad=True leaves them out")
        lines += [f"    {reason}" for reason in facts["bad"]]
    return "\n".join(lines)
