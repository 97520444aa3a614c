"""The lines of `explain` about sound: what samples are, how they are ordered, decoded and delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from datapipe.core.printable import counted
from datapipe.kernel.explanation import TRANSFER, device_line, threads_text
from datapipe.kernel.passes import Passes
from datapipe.kernel.samplers import SampledSource

if TYPE_CHECKING:
    from datapipe.kinds.audio.kind import AudioKind


def explain(kind: AudioKind, passes: Passes) -> list[str]:
    """Return the lines about the passes over such data."""
    samples, options, source = kind.samples, passes.options, passes.source()
    settings, found, batches = samples.settings, samples.utterances, samples.batches
    hours = float((found.num_frames / found.rates).sum()) / 3600
    of_batch = "batch" if batches is not None else "utterance"
    what = "whole utterances" if settings.seconds is None else f"a {settings.crop} crop of {settings.seconds:g} s of each"
    if batches is not None:
        what += f", as many as fill {settings.max_seconds:g} s, padding included: {counted(len(batches), 'batch')}"
    order = "in stored order" if not options.shuffle else f"shuffled in full: any {of_batch} is as near as any other"
    if options.shuffle and settings.seconds is None and batches is None:
        order = "shuffled, steps of like lengths"
    num_other = int((found.rates != samples.rate).sum())
    resampled = f"; {counted(num_other, 'utterance')} resampled by soxr" if num_other else ""
    num_recordings = counted(len(np.unique(found.recording)), "recording")
    lines = [
        f"data      {counted(len(found), 'utterance')} of {num_recordings}, {hours:,.1f} h",
        *([] if samples.left_out is None else [f"bad       {samples.left_out}"]),
        f"samples   {what}, at {samples.rate:,} Hz, {counted(settings.channels, 'channel')}{resampled}",
        f"order     {'that of the sampler' if isinstance(source, SampledSource) else order}",
        *([] if kind.mixture is None else [f"mix       {kind.mixture.described()}"]),
        f"seed      {passes.progress.seed.describe()}",
        f"batch     {', '.join(samples.fields)}",
        device_line(kind.device),
        f"backend   libsndfile on {threads_text(options)}; of FLAC, WAV and Opus, the stretch alone is read",
    ]
    if kind.device.type != "cpu":
        lines.append(TRANSFER)
    if not isinstance(source, SampledSource):
        each, ranks = counted(source.batch_size, of_batch), source.rank.world_size
        lines.append(f"steps     {source.num_steps} of {each} on each of {ranks} ranks, tail={options.tail.value}")
    return lines
