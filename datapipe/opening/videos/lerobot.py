"""Robots' episodes as LeRobot keeps them: `meta/`, tables in `data/`, a video of each camera in `videos/`."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from datapipe.codecs.probe import MAX_PIXELS
from datapipe.codecs.video.depth import Depth
from datapipe.containers.form import Form
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.core.printable import listed
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.clips import MOST_FRAMES, VideoParts
from datapipe.index.episodes import NOW, EpisodeImages, EpisodeIndex, EpisodeVideos
from datapipe.index.media import MediaSource
from datapipe.index.videos import VideoIndex
from datapipe.opening.videos.indexing import open_videos
from datapipe.opening.videos.lerobot_files import (
    INFO,
    Episodes,
    Info,
    Ints,
    read_episodes,
    read_info,
    read_table,
)
from datapipe.opening.videos.lerobot_tables import FILES_AT_ONCE, groups_of
from datapipe.stores.location import Place, is_url
from datapipe.stores.objects import object_exists
from datapipe.stores.places import parse_location


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a dataset of LeRobot's; None if it is none."""
    is_unlisted = look.is_stored and not look.folders and not look.files  # by a web server
    if look.nature is not Nature.FOLDER or not (b"meta" in look.folders or is_unlisted):
        return None
    is_one = look.once("lerobot", lambda: is_lerobot(str(look.place)))
    return Evidence(f"it holds {INFO}", Strength.DECISIVE) if is_one else None


def is_lerobot(path: str) -> bool:
    """Return True for a folder, or a prefix in a store, that says that it is a dataset of LeRobot's."""
    if is_url(path):
        return not any(sign in path for sign in "*[{") and object_exists(parse_location(path) / INFO)
    return os.path.isfile(os.path.join(path, INFO)) and os.path.isdir(os.path.join(path, "data"))


def open_episodes(
    path: Place,
    *,
    delta_timestamps: Mapping[str, Sequence[float]],
    episodes: Sequence[int] | None = None,
    cameras: Sequence[str] | None = None,
    tolerance_s: float = 1e-4,
) -> EpisodeIndex:
    """Return the samples of a dataset.

    `delta_timestamps`: by camera or column, seconds from a sample to what it has; others have the moment itself. `episodes`:
    their numbers; None: all. `cameras`: those that are wanted; None: all. `tolerance_s`: by how much a frame's time may differ.
    Raises MissingDataError, FormatError or OptionError.
    """
    info = read_info(path)
    offsets = _offsets(info, delta_timestamps, tolerance_s)
    found = read_episodes(info)
    chosen = _chosen(found, episodes, path)
    wanted, images = ([name for name in names if cameras is None or name in cameras] for names in (info.cameras, info.images))
    if not wanted and not images:
        known = listed([*info.cameras, *info.images], most=12)
        raise OptionError(f"{path}: no camera is wanted of {known or 'none'}; numbers alone are for datapipe.Table")
    depths = {name: _depth_of(info, name) for name in wanted}
    files = sorted({found.videos[name][episode] for name in wanted for episode in chosen.tolist()})
    sources = [MediaSource(file) for file in files]
    videos = open_videos(sources, where=str(path)) if sources else VideoIndex.joined([])
    numbers = {file: number for number, file in enumerate(files)}
    for number in np.flatnonzero(videos.num_frames == 0).tolist():
        raise FormatError(videos.problem(number))
    shown = tuple(
        EpisodeVideos(
            name,
            offsets.get(name, NOW),
            name in offsets,
            np.array([numbers[found.videos[name][episode]] for episode in chosen.tolist()], np.int64),
            found.begin[name][chosen],
            depths[name],
        )
        for name in wanted
    )
    table = read_table(info, found)
    return EpisodeIndex(
        videos,
        table,
        (*shown, *(_images_of(info, found, name, offsets, num_rows=table.num_rows) for name in images)),
        where=str(path),
        first_row=found.first_row[chosen],
        length=found.length[chosen],
        offsets={name: values for name, values in offsets.items() if name not in (*info.cameras, *info.images)},
        tolerance_s=tolerance_s,
    )


def open_cameras(path: Place) -> VideoParts:
    """Return the videos of all cameras of a dataset, for people to look at. Raises as `open_episodes` does."""
    info = read_info(path)
    found = read_episodes(info)
    files = sorted({file for of_camera in found.videos.values() for file in of_camera})
    if not files:
        raise MissingDataError(f"{path}: has no videos to look at; its cameras are images in Parquet, which datapipe.Clips reads")
    return VideoParts.whole(open_videos([MediaSource(file) for file in files], where=str(path)))


def _offsets(info: Info, delta_timestamps: Mapping[str, Sequence[float]], tolerance_s: float) -> dict[str, tuple[int, ...]]:
    """Return the frames from a sample to what it has, by camera or column. Raises OptionError for others, or between frames."""
    found = {}
    for name, deltas in delta_timestamps.items():
        if name not in info.features:
            raise OptionError(f"delta_timestamps has {name!r:.60}, which is none of {listed(list(info.features), most=12)}")
        times = np.array(deltas, np.float64)
        if not len(times):
            raise OptionError(f"delta_timestamps[{name!r}] is {deltas!r:.60}; give at least one number of seconds")
        if np.abs(times).max() * info.fps > MOST_FRAMES:
            raise OptionError(f"delta_timestamps[{name!r}] has {times[np.abs(times).argmax()]:g} s, and no video is that long")
        frames = np.round(times * info.fps)
        far = np.abs(frames / info.fps - times)
        if (far > tolerance_s).any():
            between = f"{times[int(np.argmax(far))]:g} s lies between frames, of which there are {info.fps:g} a second"
            raise OptionError(f"delta_timestamps[{name!r}]: {between}")
        found[name] = tuple(int(frame) for frame in frames)
    return found


def _depth_of(info: Info, name: str) -> Depth | None:
    """Return how a camera's depth is stored, as LeRobot 0.6 writes it; None for RGB. Raises FormatError."""
    try:
        details = info.features[name].details
        if not (details.get("is_depth_map") or details.get("video.is_depth_map")):
            return None
        usual = Depth()
        keys = zip(("depth_min", "depth_max", "shift"), usual[:3], strict=True)
        least, most, shift = (float(details.get(f"video.{key}", default)) for key, default in keys)
        found = Depth(least, most, shift, bool(details.get("video.use_log", usual.is_log)))
    except (TypeError, ValueError, OverflowError) as exc:
        raise FormatError(f"{info.root / INFO}: {name}: it does not say how depth is stored ({exc}); repair it") from exc
    if found.problem:
        raise FormatError(f"{info.root / INFO}: {name}: {found.problem}; repair it")
    return found


def _images_of(info: Info, found: Episodes, name: str, offsets: Mapping[str, tuple[int, ...]], *, num_rows: int) -> EpisodeImages:
    """Return the images of a camera. Raises OptionError for those that are not RGB, FormatError if some are missing."""
    feature = info.features[name]
    where = f"{info.root / INFO}: {name}"
    details, shape = feature.details, feature.shape or ()
    if len(shape) != 3 or min(shape) < 1:
        raise FormatError(f"{where}: its shape is {list(shape)}, not that of images; repair it")
    height, width, channels = shape if shape[2] in (1, 3, 4) else (shape[1], shape[2], shape[0])
    if channels != 3 or details.get("is_depth_map"):
        raise OptionError(f"{where}: images of {channels} channels, or of depth, are not served; name other fields: fields=[...]")
    if height * width > MAX_PIXELS:
        raise FormatError(f"{where}: images of {height} x {width} pixels exceed the limit of {MAX_PIXELS}; repair it")
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        groups = [group for some in pool.map(functools.partial(groups_of, name), found.data) for group in some]
    starts = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    if starts[-1] != num_rows:
        raise FormatError(f"{where}: its tables have {starts[-1]} images, and {num_rows} rows; get the dataset again")
    return EpisodeImages(name, offsets.get(name, NOW), name in offsets, (height, width), groups, starts)


def _chosen(found: Episodes, episodes: Sequence[int] | None, path: Place) -> Ints:
    """Return the places of the episodes that are wanted."""
    if episodes is None:
        return np.arange(len(found.number), dtype=np.int64)
    places = {number: place for place, number in enumerate(found.number.tolist())}
    unknown = [number for number in episodes if number not in places]
    if unknown or not len(episodes):
        raise OptionError(f"{path}: has no episode {unknown[0] if unknown else 'at all chosen'} (of {len(places)})")
    return np.array(sorted({places[number] for number in episodes}), np.int64)
