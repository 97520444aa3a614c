"""The clips of several datasets as one: those of the first, then those of the next."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.core.printable import counted, listed
from datapipe.errors import OptionError
from datapipe.index.clips import AnyClips, Camera, ClipFrames, Ints
from datapipe.index.entries import Description, RowGroup, by_number, place_in
from datapipe.index.videos import VideoIndex

_NAME_LENGTH = 10  # of a line of `explain`


class JoinedClips(AnyClips):
    """The clips of several datasets, with the cameras and columns that all of them have. See `AnyClips`.

    Raises OptionError where there is no camera in common, or a field is of another form in each.
    """

    def __init__(self, parts: Sequence[AnyClips], fields: Sequence[str] | None = None) -> None:
        """`fields`: those that are wanted, which must be of one form; None: all of the usual ones."""
        self.parts = tuple(parts)
        self.where = " + ".join(part.where for part in parts)
        self.videos = VideoIndex.joined([part.videos for part in parts])
        self._first_videos = np.cumsum([0, *(len(part.videos) for part in parts)], dtype=np.int64)
        self._first_rows = np.cumsum([0, *(part.num_rows for part in parts)], dtype=np.int64)
        self.starts: Ints = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        if len({part.choices is None for part in parts}) > 1:
            raise OptionError("mix() of Clips with clips='all' and clips='random'; give all of them the same")
        self.cameras = tuple(_joined_cameras(parts))
        self.columns, usual = (_common([getattr(part, names) for part in parts]) for names in ("columns", "usual"))
        known = {camera.name for camera in self.cameras}
        self.usual = tuple(name for name in usual if name in known or name in self.columns)
        for name in self.columns:
            if name in (self.usual if fields is None else fields):
                self._check_form(name)

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def frames(self, clip: int, camera: int) -> ClipFrames:
        part, clip = place_in(self.starts, clip)
        names = [one.name for one in self.parts[part].cameras]
        found = self.parts[part].frames(clip, names.index(self.cameras[camera].name))
        if self.cameras[camera].is_of_images:
            return found._replace(frames=found.frames + self._first_rows[part])
        return found._replace(video=found.video + int(self._first_videos[part]))

    def values(self, column: str, clips: Ints) -> Any:
        if column == "id" and self.choices is None:
            return clips
        shares = by_number(np.searchsorted(self.starts, clips, side="right") - 1)
        found = [self.parts[part].values(column, clips[rows] - self.starts[part]) for part, rows in shares]
        if column == "id" and self.choices is not None:
            first = np.cumsum([0, *(len(one) - 1 for one in self.choices)])
            found = [values + first[part] for values, (part, _) in zip(found, shares, strict=True)]
        back = np.argsort(np.concatenate([rows for _, rows in shares])) if shares else np.zeros(0, np.int64)
        if not found:
            return self.parts[0].values(column, clips)
        if isinstance(found[0], np.ndarray):
            return np.concatenate(found)[back]
        texts = [text for some in found for text in some]
        return [texts[place] for place in back.tolist()]

    @property
    def num_rows(self) -> int:
        return int(self._first_rows[-1])

    def image(self, camera: int, row: int) -> tuple[RowGroup, int]:
        part, row = place_in(self._first_rows, row)
        names = [one.name for one in self.parts[part].cameras]
        return self.parts[part].image(names.index(self.cameras[camera].name), row)

    @functools.cached_property
    def choices(self) -> list[Ints] | None:
        found = [part.choices for part in self.parts]
        return None if found[0] is None else [starts for one in found for starts in one or ()]

    def run_starts(self, num_clips: int) -> list[Ints]:
        return [starts for part in self.parts for starts in part.run_starts(num_clips)]

    def describe(self, clip: int) -> Description:
        part, there = place_in(self.starts, clip)
        number = int(self.values("id", np.array([clip], np.int64))[0])
        return dataclasses.replace(self.parts[part].describe(there), id=number)

    def explain(self) -> list[str]:
        lines = [f"data      {counted(len(self.parts), 'dataset')}, {counted(len(self.videos), 'video')}"]
        texts = ("; ".join(line[_NAME_LENGTH:] for line in part.explain()) for part in self.parts)
        return lines + [f"dataset   {part.where}: {text}" for part, text in zip(self.parts, texts, strict=True)]

    def _check_form(self, column: str) -> None:
        """Raise OptionError if a column has values of another shape or type in some dataset."""
        forms: dict[str, str] = {}
        for part in self.parts:
            values = part.values(column, np.zeros(1 if len(part) else 0, np.int64))
            form = f"{values.dtype} {values.shape[1:]}" if isinstance(values, np.ndarray) else "texts"
            forms.setdefault(form, part.where)
        if len(forms) > 1:
            each = "; ".join(f"{form} at {where}" for form, where in forms.items())
            raise OptionError(f"mix() of Clips whose {column!r} differ: {each}; leave it out: fields=[...]")


def _joined_cameras(parts: Sequence[AnyClips]) -> list[Camera]:
    common = []
    for camera in parts[0].cameras:
        same = [one for part in parts for one in part.cameras if one.name == camera.name]
        if len(same) < len(parts):
            continue
        if len({(one.depth is None, one.is_of_images) for one in same}) > 1:
            raise OptionError(f"mix() of Clips that store {camera.name!r} differently (as video, images or depth); leave it out")
        if len({(one.num_frames, one.has_time) for one in same}) > 1:
            counts = ", ".join(str(one.num_frames) for one in same)
            raise OptionError(f"mix() of Clips with {counts} frames of {camera.name!r}; give all of them the same number")
        sizes = {one.size for one in same}
        if len({one.depth for one in same}) > 1:
            raise OptionError(f"mix() of Clips that store the depth of {camera.name!r} differently; leave it out: fields=[...]")
        common.append(camera._replace(size=sizes.pop() if len(sizes) == 1 else None))
    if not common:
        names = [listed([one.name for one in part.cameras], most=4) for part in parts]
        raise OptionError(f"mix() of Clips without a camera in common ({'; '.join(names)}); make a loader for each")
    return common


def _common(names: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(name for name in names[0] if all(name in others for others in names[1:]))
