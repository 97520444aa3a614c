"""`Audio`: sound, in crops of a few seconds or whole utterances."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from datapipe.core.checks import names_or_none
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted, get_logger, warn_once
from datapipe.errors import OptionError
from datapipe.index.utterances import Utterances
from datapipe.kernel.mixing import Mixture, refuse_unlike, warn_of_classes
from datapipe.kernel.options import refuse_unknown_fields
from datapipe.kernel.reopening import ReopenedData
from datapipe.kinds.audio.kind import AudioKind
from datapipe.kinds.audio.samples import AudioSamples
from datapipe.kinds.audio.settings import AudioSettings, Crop, Short
from datapipe.opening.recordings.opening import AudioSource, open_utterances
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings

logger = get_logger(__name__)


class Audio(ReopenedData):
    """Sound, in crops of a few seconds or whole utterances: what a loader for speech or music reads.

    >>> data = datapipe.Audio("speech", seconds=5, rate=16_000)
    >>> for batch in datapipe.DataLoader(data, batch_size=64, shuffle=True):
    ...     loss = criterion(model(batch["audio"]), batch["label"])       # (64, 80_000) float32 and (64,)

    source: a folder of sound files, or the URL of one, whose top folders are classes; a folder of LibriSpeech or Common Voice;
      tars of WebDataset, or Parquet of Hugging Face, also by URL; a file, a URL, a pattern or a list of those; or a list of
      utterances, CSV or JSON lines, with a column `path`, and `start`, `end` (seconds), `label` and `text` if there are such.
    seconds: of a crop, drawn from each utterance once an epoch.
    whole: a sample is a whole utterance; batches have utterances of like lengths, and are as long as their longest.
    rate: Hz of the samples; recordings of other rates are resampled. None: that of the recordings, which must be the same.
    channels: of the samples. 1: the mean of those of the recording; otherwise it has as many, or one that is repeated.
    short: what becomes of utterances that are shorter than a crop: "pad" with zeros, "drop" or "error".
    crop: "random", "center" or "start": where in an utterance a crop lies.
    max_seconds: of a batch of whole utterances, padding included, instead of a number of them; the batch size of the loader is 1.
    between: the least and the most seconds of utterances, such as (0.5, 20); others are left out.
    skip_bad: leave out files that cannot be decoded at all, utterances of which a few bytes claim hours, parts that begin after
      the end of their file, and samples of shards whose text cannot be read; False: such are errors.
    fields: which of `audio`, `lengths`, `label`, `text` and `id` a batch has; by default all that there are, without `id`.
    remote: a `datapipe.Remote(...)`: how recordings in an object store are read. With `cache_dir` they are kept on a disk.

    A batch is a dict: `audio` (b, t) float32, full scale being 1, or (b, channels, t) for several channels; `lengths` (b,) int64,
    the samples of each before padding; `label` (b,) int64; `text`, a list of what is said; `id` (b,) int64, the numbers of
    utterances. With tail="mask" also `real` (b,) bool.

    Raises OptionError for settings that do not fit, FormatError for a file that cannot be decoded, MissingDataError where there
    is none, and DependencyError without soundfile.
    """

    mixture: Mixture | None = None  # of several sets of crops
    _parts: tuple[Audio, ...] = ()  # those sets

    def __init__(
        self,
        source: AudioSource,
        *,
        seconds: float | None = None,
        whole: bool = False,
        rate: int | None = None,
        channels: int = 1,
        short: Short = "pad",
        crop: Crop = "random",
        max_seconds: float | None = None,
        between: tuple[float, float] | None = None,
        skip_bad: bool = False,
        fields: Sequence[str] | None = None,
        remote: Remote | None = None,
    ) -> None:
        if (seconds is None) is not bool(whole):
            raise OptionError("say what a sample is: a crop, seconds=5, or a whole utterance, whole=True; and not both")
        of_batch = names_or_none(fields, "fields")
        stores = remote_settings(remote)
        settings = AudioSettings(seconds, rate, channels, short, crop, max_seconds, between, of_batch, stores)
        self._set(source, settings, bool(skip_bad))
        if self.samples.left_out is not None:
            warn_once(logger, f"{self.where}: {self.samples.left_out}")

    def _set(self, source: AudioSource, settings: AudioSettings, skip_bad: bool) -> None:
        if any(
            isinstance(path, str) and is_url(path) for path in ([source] if isinstance(source, (str, os.PathLike)) else source)
        ):
            apply_settings(settings.remote)  # for the opening too
        self._opening = source, settings, skip_bad
        with opened_at({}) as self._versions:
            self.samples = AudioSamples.of(open_utterances(source), settings, skip_bad=skip_bad)
        refuse_unknown_fields(settings.fields, self.samples.possible_fields)

    def _making(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.mixture is not None:
            return Audio._join, (self._parts, self.mixture)
        return Audio._reopen, self._opening

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of classes by label; None if labels are not of classes."""
        return self.samples.utterances.classes

    @property
    def shown(self) -> str:
        batches = "" if self.samples.batches is None else f"{counted(len(self.samples.batches), 'batch')} of "
        text = f"{batches}{counted(len(self.samples), 'utterance')} at {self.where}"
        return text if self.mixture is None else f"{len(self):,} an epoch of {text}"

    @property
    def where(self) -> str:
        """The folder, list or URL of the recordings."""
        return self.samples.utterances.where

    def __len__(self) -> int:
        """Return the samples of an epoch, over all ranks; with `max_seconds` the batches."""
        if self.mixture is not None:
            return sum(self.mixture.counts)
        return len(self.samples) if self.samples.batches is None else len(self.samples.batches)

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> AudioKind:
        if self.samples.batches is not None and arguments["batch_size"] != 1:
            raise OptionError(f"batch_size is {arguments['batch_size']!r:.40}, and max_seconds says how many; leave it out")
        return AudioKind(self.samples, mixture=self.mixture, device=device)

    def mixed(self, others: Sequence[Audio], *, weights: Sequence[float] | None, num_samples: int | None) -> Audio:
        """Return these crops and others, of each of which an epoch has a fixed share. See `mix`."""
        parts = (self, *others)
        if any(part.samples.crop is None for part in parts):
            raise OptionError("mix() of whole utterances: they come in batches of like lengths; mix crops: seconds=5")
        refuse_unlike(parts, lambda part: self.samples.differing(part.samples))
        made = Audio._join(parts, Mixture.of(parts, weights, num_samples))
        if "label" in made.samples.fields:
            warn_of_classes([(part.where, part.classes) for part in parts])
        return made

    @classmethod
    def _reopen(cls, source: AudioSource, settings: AudioSettings, skip_bad: bool) -> Audio:
        data = cls.__new__(cls)
        data._set(source, settings, skip_bad)
        return data

    @classmethod
    def _join(cls, parts: Sequence[Audio], mixture: Mixture) -> Audio:
        data = cls.__new__(cls)
        data._opening, data._parts, data.mixture = parts[0]._opening, tuple(parts), mixture
        first = parts[0].samples
        utterances = Utterances.joined([part.samples.utterances for part in parts])
        left_out = "; ".join(filter(None, [part.samples.left_out for part in parts]))
        data.samples = AudioSamples(utterances, first.settings, first.rate, left_out or None)
        refuse_unknown_fields(first.settings.fields, data.samples.possible_fields)
        return data


def make_data(source: Any, index: Utterances | None) -> Audio | None:
    """Refuse a path alone, which does not say what a sample is; no other object is one of sound."""
    if index is None:
        return None
    raise OptionError(f"{source}: holds sound; say what a sample is: datapipe.Audio({str(source)!r}, seconds=5), or whole=True")
