"""`Clips`: windows of frames in videos."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from datapipe.codecs.video.conversion import Resize
from datapipe.core.checks import items_of, path_name, real_number, whole_number
from datapipe.core.pinning import opened_at
from datapipe.core.printable import counted, get_logger, warn_once
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.clips import AnyClips, ClipIndex, Short, Which, WindowSettings
from datapipe.index.joined_clips import JoinedClips
from datapipe.kernel.mixing import Mixture, refuse_unlike, warn_of_classes
from datapipe.kernel.options import refuse_unknown_fields
from datapipe.kernel.reopening import ReopenedData
from datapipe.kinds.clips.kind import ClipKind
from datapipe.kinds.clips.settings import ClipSettings, Layout
from datapipe.opening.videos.lerobot import is_lerobot, open_episodes
from datapipe.opening.videos.opening import ClipSource, open_parts
from datapipe.stores.location import is_url
from datapipe.stores.places import parse_place
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings
from datapipe.transforms import Recipe

_PER_VISIT = 4
_MOST_EPISODES = 1 << 22
_MOST_MOMENTS = 1 << 16  # that a sample has of a camera or column

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Opening:
    """How videos are opened: all that a copy in another process needs."""

    source: ClipSource
    windows: WindowSettings
    skip_bad: bool
    deltas: Mapping[str, tuple[float, ...]]
    episodes: tuple[int, ...] | None
    tolerance_s: float
    is_of_episodes: bool  # whether the source is a dataset of LeRobot's

    def open(self, settings: ClipSettings) -> tuple[AnyClips, tuple[str, ...] | None]:
        """Return the clips, and the names of classes by label."""
        if self.is_of_episodes:
            assert isinstance(self.source, (str, os.PathLike))
            path = parse_place(path_name(self.source, "the path to the dataset"))
            index = open_episodes(
                path, delta_timestamps=self.deltas, episodes=self.episodes, cameras=settings.fields, tolerance_s=self.tolerance_s
            )
            return index, None
        parts, where = open_parts(self.source)
        return ClipIndex(parts, self.windows, where=where, skips_bad=self.skip_bad), parts.classes


class Clips(ReopenedData):
    """Clips of videos, a few frames each: what a loader for action recognition, or of robots' cameras, reads.

    >>> data = datapipe.Clips("videos", frames=8, stride=4, step=4)
    >>> crop = datapipe.transforms.RandomResizedCrop(224)
    >>> for batch in datapipe.DataLoader(data, batch_size=32, shuffle=True, transform=[crop]):
    ...     loss = criterion(model(batch["video"]), batch["label"])       # (32, 8, 3, 224, 224) and (32,)

    source: a folder of videos, whose top folders are classes; WebDataset tars with members `KEY.mp4`, and `KEY.cls` if there are
      labels; a video, a glob pattern, or a list of videos; or a list of parts of videos, CSV or JSON lines, with a column `path`,
      and `start`, `end` (seconds) and `label` if there are such. All of them, but the list, may lie in an object store.
    frames: of a clip; None: 8.
    stride: frames from one frame of a clip to the next.
    step: frames from the beginning of a clip to that of the next one of the video; None: clips do not overlap.
    fps: frames a second that `frames`, `stride` and `step` count, the ones that a player shows at these moments; None: the
      frames of the video.
    short: what becomes of parts that are shorter than a clip: "repeat", they give one clip, in which the last frame is repeated;
      "drop" or "error".
    delta_timestamps: of a LeRobot dataset (its folder is the source), whose samples are frames: by camera or column, the seconds
      from a sample to what it has of it, such as `{"observation.images.top": [-0.1, 0.0], "action": [0.0, 0.1]}`.
    episodes: of a LeRobot dataset, the numbers of those that are loaded; None: all.
    tolerance_s: of a LeRobot dataset, the seconds by which the time of a frame may differ from the one that is asked for.
    clips: "all" of a video, or part, each once an epoch; "random": one of each, drawn every epoch of all that begin every `step`
      frames (None: at any frame).
    skip_bad: leave out videos that cannot be decoded at all, and parts in which no frame begins; False: those are errors.
    per_visit: clips of a stretch of a video that are decoded together, and come in different batches. 1: each by itself, in a
      full shuffle. None: 4; with clips="random" it is 1.
    lanes: visits that are open side by side, a multiple of the clips of a step over all ranks: the more, the more varied are
      batches, and the more memory is used; "auto": up to 16 times those of a step, so that batches vary as in a full shuffle,
      but no more than 2 GB of decoded clips for up to 128 clips of a step; `dp.explain` says how much it is.
    resize: how transforms that resize are carried out: "exact", on the RGB of torchcodec as torchvision's Resize does;
      "fast", in one pass from YUV, in half the time: about 38 dB from the exact ones.
    layout: of `video`: "BTCHW", "BCTHW" or "BTHWC"; views of the same memory.
    remote: a `datapipe.Remote(...)`: how videos in an object store are read. With `cache_dir` they are kept on a disk.
    fields: which of `video`, `label`, `is_pad`, `times` and `id` a batch has; the first two by default.

    A batch is a dict: `video` (b, t, 3, h, w) in the layout, uint8 or what the loader's transforms make of it, which draw once
    for a clip; `label` (b,) int64; `is_pad` (b, t) bool, True where a frame is repeated; `times` (b, t) float64, the seconds at
    which frames are shown; `id` (b,) int64, the clips' numbers, or with clips="random" the videos' or parts'. With tail="mask"
    also `real` (b,) bool. Of a LeRobot dataset it has what LeRobot's own samples have: cameras by their names, without a
    dimension of time where `delta_timestamps` names none, columns, `..._is_pad`, and `task`, a list of texts.

    Raises OptionError for settings that do not fit, FormatError for a video that cannot be decoded, MissingDataError where
    there is none, and DependencyError without PyAV.
    """

    def __init__(
        self,
        source: ClipSource,
        *,
        frames: int | None = None,
        stride: int = 1,
        step: int | None = None,
        fps: float | None = None,
        short: Short = "repeat",
        clips: Which = "all",
        skip_bad: bool = False,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        tolerance_s: float = 1e-4,
        per_visit: int | None = None,
        lanes: int | str = "auto",
        resize: str = "exact",
        layout: Layout = "BTCHW",
        fields: Sequence[str] | None = None,
        remote: Remote | None = None,
    ) -> None:
        if resize not in [one.value for one in Resize]:
            raise OptionError(f"resize is {resize!r:.40}; choose 'exact' or 'fast'")
        names = None if fields is None else tuple(fields)
        if clips == "random" and per_visit not in (None, 1):
            raise OptionError(f"per_visit is {per_visit!r:.40}, and clips='random' takes one clip of each video; leave it out")
        each = per_visit if per_visit is not None else 1 if clips == "random" else _PER_VISIT
        settings = ClipSettings(each, lanes, Resize(resize), layout, names, remote_settings(remote))  # type: ignore[arg-type]
        windows = WindowSettings(8 if frames is None else frames, stride, step, fps, short, clips)
        tolerance = real_number(tolerance_s, "tolerance_s")
        if tolerance < 0:
            raise OptionError(f"tolerance_s is {tolerance:g}; it must not be negative")
        deltas = _checked(delta_timestamps)
        if _is_in_store(source):
            apply_settings(settings.remote)  # for the opening too
        of_episodes = isinstance(source, (str, os.PathLike)) and is_lerobot(path_name(source, "the path to the videos"))
        chosen = None
        if episodes is not None:
            chosen = tuple(
                whole_number(one, "a number in episodes") for one in items_of(episodes, "episodes", most=_MOST_EPISODES)
            )
        opening = _Opening(source, windows, bool(skip_bad), deltas, chosen, tolerance, of_episodes)
        if of_episodes:
            if frames is not None or replace(windows, frames=8) != WindowSettings():
                raise OptionError(
                    f"{source}: is a LeRobot dataset, whose samples are frames; pass delta_timestamps={{...}} instead"
                )
        elif deltas or episodes is not None:
            raise OptionError(f"{source}: is no LeRobot dataset, which delta_timestamps and episodes are for; pass frames=8")
        self._set(opening, settings)
        if self.index.left_out is not None:
            warn_once(logger, f"{self.index.where}: {self.index.left_out}")

    def _set(self, opening: _Opening, settings: ClipSettings) -> None:
        self._opening, self.settings = opening, settings
        self._parts: tuple[Clips, ...] = ()
        self.mixture: Mixture | None = None
        with opened_at({}) as self._versions:
            self.index, self.classes = opening.open(settings)
        if settings.fields is not None and "label" in settings.fields and "label" not in self.index.columns:
            raise OptionError(
                f"fields has 'label', and {self.index.where} has no labels; put videos in folders of classes, or leave it out"
            )
        refuse_unknown_fields(settings.fields, [*(one.name for one in self.index.cameras), *self.index.columns])
        if not len(self.index):
            bad = f" ({self.index.left_out})" if self.index.left_out else ""
            raise MissingDataError(f"{self.index.where}: no clips{bad}; check the path, `frames` and `short`")

    def _making(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.mixture is not None:
            return Clips._join, (self._parts, self.mixture)
        return Clips._reopen, (self._opening, self.settings)

    @property
    def shown(self) -> str:
        text = f"{counted(self._num_samples, 'clip')} of {counted(len(self.index.videos), 'video')} at {self.index.where}"
        return text if self.mixture is None else f"{len(self):,} an epoch of {text}"

    @property
    def where(self) -> str:
        """The folder, list or URL of the videos."""
        return self.index.where

    def __len__(self) -> int:
        """Return the clips of an epoch, over all ranks."""
        return self._num_samples if self.mixture is None else sum(self.mixture.counts)

    @property
    def _num_samples(self) -> int:
        choices = self.index.choices
        return len(self.index) if choices is None else sum(len(one) - 1 for one in choices)

    def open_kind(
        self, arguments: Mapping[str, Any], *, device: Callable[[], torch.device], open_loader: Callable[..., Iterable[Any]]
    ) -> ClipKind:
        recipe = Recipe.of(arguments["transform"])
        return ClipKind(self.index, self.settings, recipe, mixture=self.mixture, device=device, open_loader=open_loader)

    def mixed(self, others: Sequence[Clips], *, weights: Sequence[float] | None, num_samples: int | None) -> Clips:
        """Return these clips and others, of each of which an epoch has a fixed share. See `mix`."""
        parts = (self, *others)
        refuse_unlike(parts, lambda part: self.settings.differing(part.settings))
        made = Clips._join(parts, Mixture.of(parts, weights, num_samples))
        if "label" in (self.settings.fields or made.index.usual):
            warn_of_classes([(part.where, part.classes) for part in parts])
        return made

    @classmethod
    def _reopen(cls, opening: _Opening, settings: ClipSettings) -> Clips:
        if _is_in_store(opening.source):
            apply_settings(settings.remote)
        data = cls.__new__(cls)
        data._set(opening, settings)
        return data

    @classmethod
    def _join(cls, parts: Sequence[Clips], mixture: Mixture) -> Clips:
        data = cls.__new__(cls)
        data._opening, data.settings, data._parts, data.mixture = parts[0]._opening, parts[0].settings, tuple(parts), mixture
        fields = data.settings.fields
        index = JoinedClips([part.index for part in parts], fields)
        refuse_unknown_fields(fields, [*(one.name for one in index.cameras), *index.columns])
        data.index, data.classes = index, parts[0].classes if len({part.classes for part in parts}) == 1 else None
        return data


def _checked(deltas: Mapping[str, Sequence[float]] | None) -> dict[str, tuple[float, ...]]:
    """Return the seconds of `delta_timestamps`, by camera or column. Raises OptionError for what is none."""
    if not isinstance(deltas, Mapping | None):
        raise OptionError(f"delta_timestamps is {deltas!r:.60}; it must map cameras and columns to lists of seconds")
    found = {}
    for key, values in (deltas or {}).items():
        name = f"delta_timestamps[{key!r:.60}]"
        found[key] = tuple(real_number(one, f"a time in {name}") for one in items_of(values, name, most=_MOST_MOMENTS))
    return found


def _is_in_store(source: ClipSource) -> bool:
    """Return whether some of a source lies in an object store."""
    paths = [source] if isinstance(source, (str, os.PathLike)) else source
    return any(isinstance(path, str) and is_url(path) for path in paths)


def make_data(source: Any, index: Any) -> Clips | None:
    """Refuse a path alone, which does not say what a clip is; no other object is one of clips."""
    if index is None:
        return None
    if is_lerobot(str(source)):
        raise OptionError(f"{source}: is a LeRobot dataset; pass datapipe.Clips({str(source)!r}, delta_timestamps={{...}})")
    raise OptionError(f"{source}: holds videos; say how many frames a clip has: datapipe.Clips({str(source)!r}, frames=8)")
