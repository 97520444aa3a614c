"""Sound as a kind of data: the order of its samples, and who makes their batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from datapipe.core.printable import counted
from datapipe.core.ranges import spread
from datapipe.errors import OptionError
from datapipe.fetch.files import Files, open_object_files
from datapipe.fetch.remote import RemoteFiles
from datapipe.index.recordings import RecordingIndex
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.explanation import TRANSFER, device_line, steps_line, threads_text
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Resources
from datapipe.kernel.mixing import Mixture, mixed_order
from datapipe.kernel.options import LoaderOptions, Shuffle, refuse_backend, refuse_not_served, refuse_unknown_names
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.samplers import SampledSource, WeightedSampler
from datapipe.kinds.audio.batches import AudioMaker
from datapipe.kinds.audio.reading import SoundReader
from datapipe.kinds.audio.remote_reading import RemoteSoundReader
from datapipe.kinds.audio.samples import AudioSamples
from datapipe.order.by_length import LikeLengths
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from datapipe.remote_workers.elsewhere import LOOKED_AT, Elsewhere
from datapipe.remote_workers.settings import workers_or_none

# Arguments of a loader that sound does not serve, and what to do instead.
_NOT_SERVED = {
    "transform": "leave it out: batch_transform gets each batch, on its device; datapipe.transforms.LogMel is one",
    "collate_fn": "leave it out: batches are put together already; batch_transform gets each batch",
}
_REMOTE_NBYTES_AHEAD = 256 << 20
_REMOTE_AHEAD = 256  # utterances: 1,000 a second with 170 ms of latency each, and half as many again
_OF_BATCHES = "leave it out: max_seconds decides which utterances share a batch"


class AudioKind(Kind):
    """The samples of recordings. See `Kind`."""

    block_sizes = (1, 8)

    def __init__(self, samples: AudioSamples, *, mixture: Mixture | None, device: Callable[[], torch.device]) -> None:
        self.samples, self.mixture = samples, mixture
        settings, found = samples.settings, samples.utterances
        self.fingerprint = found.fingerprint
        batches = samples.batches
        self.num_samples = len(samples if batches is None else batches)
        self.num_in_epoch = self.num_samples if mixture is None else sum(mixture.counts)
        what = f"crops of {samples.crop}, {settings.crop}" if batches is None else f"batches of {settings.max_seconds} s"
        name = f"{what if samples.crop or batches else 'utterances'} at {samples.rate} Hz"
        self.identity = Identity("audio", name, "seconds, whole, rate, crop or max_seconds")
        self.has_free_ranks = batches is not None
        self.elsewhere = Elsewhere(functools.partial(_looked_at, found.recordings))
        self.device = device  # says where batches are delivered

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        of_batches = {} if self.samples.batches is None else {"sampler": _OF_BATCHES, "batch_sampler": _OF_BATCHES}
        refuse_not_served(arguments, _NOT_SERVED | of_batches, "sound")
        if self.mixture is not None and isinstance(arguments["sampler"], WeightedSampler):
            raise OptionError("a WeightedSampler and a dataset of mix() both say how often samples come; use one")
        refuse_backend(arguments, "sound is decoded")
        refuse_unknown_names(options.rename, self.samples.fields)
        self.elsewhere.use(workers_or_none(arguments["workers"]))

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        if self.mixture is not None:
            return mixed_order(self.mixture, seed=seed, shuffle=shuffle)
        if not shuffle:
            return SequentialOrder(self.num_samples)
        if self.samples.crop is None and self.samples.batches is None:
            return LikeLengths(self.num_samples, seed, global_batch, self.samples.lengths.__getitem__)
        return ShuffledOrder(self.num_samples, seed)

    @functools.cached_property
    def _files(self) -> Files:
        return open_object_files(self.samples.utterances.recordings.urls(), remote=self.samples.settings.remote)

    def open_pass(self, settings: Pass) -> AudioMaker:
        delivery = Delivery.to(self.device(), settings.options, settings.observer)
        readers = self._open_readers(settings.options)
        resources = Resources(self._options_of_making(settings.options), readers, delivery.runtime)
        return AudioMaker(self.samples, settings, self._files, delivery.memory(()), delivery, resources)

    def _open_readers(self, options: LoaderOptions) -> ObjectPool[SoundReader]:
        """Return what reads, for each thread. Call it in the consumer's thread."""
        rate, files, fleet, opened = self.samples.rate, self._files, self.elsewhere.fleet, itertools.count()

        def make() -> SoundReader:
            if fleet is not None and next(opened) >= options.num_workers:  # threads beyond those that decode here
                return RemoteSoundReader(rate, files, fleet)
            return SoundReader(rate, files)

        return ObjectPool(make)

    def _options_of_making(self, options: LoaderOptions) -> LoaderOptions:
        """Return the options with a thread for each seat, and so many batches ahead that the latency of a store is hidden."""
        options = self.elsewhere.making(options)
        if not isinstance(self._files, RemoteFiles):
            return options
        of_batch = options.batch_size if self.samples.batches is None else len(self.samples) / self.num_samples
        ahead = min(_REMOTE_AHEAD, _REMOTE_NBYTES_AHEAD / max(1, self.samples.utterances.recordings.nbytes.mean()))
        least = math.ceil(ahead / of_batch)
        return dataclasses.replace(options, prefetch_factor=max(options.prefetch_factor, least))

    def explain(self, facts: PassFacts) -> list[str]:
        samples, options, source = self.samples, self.elsewhere.making(facts.settings.options), facts.settings.source
        settings, found, batches = samples.settings, samples.utterances, samples.batches
        hours = float(found.seconds.sum()) / 3600
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
            *([] if self.mixture is None else [f"mix       {self.mixture.described()}"]),
            f"seed      {facts.seed}",
            f"batch     {', '.join(samples.fields)}",
            device_line(self.device()),
            f"backend   libsndfile on {threads_text(options)}; of FLAC, WAV and Opus, the stretch alone is read",
        ]
        lines += self.elsewhere.explain("block")
        if self.device().type != "cpu":
            lines.append(TRANSFER)
        return lines if isinstance(source, SampledSource) else [*lines, steps_line(source, of_batch)]


def _looked_at(recordings: RecordingIndex) -> list[str]:
    """Return some of the recordings, which are compared when a loader begins."""
    return [recordings.path(number) for number in spread(len(recordings), LOOKED_AT)]
