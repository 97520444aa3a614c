"""Robots' episodes as LeRobot keeps them, versions 3.0 and 2.1: `meta/`, tables in `data/`, a video of each camera in `videos/`.

The format is that of https://github.com/huggingface/lerobot (`lerobot/datasets`). In 3.0 files hold many episodes, and
`meta/episodes` says where each begins; in 2.1 each episode has files of its own.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.codecs.video.depth import Depth
from datapipe.containers.mapped import opened_for_library
from datapipe.core.printable import listed
from datapipe.core.regular_files import path_inside, read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.clips import VideoParts
from datapipe.index.episodes import NOW, EpisodeImages, EpisodeIndex, EpisodeTable, EpisodeVideos
from datapipe.index.media import MediaSource
from datapipe.index.videos import VideoIndex
from datapipe.opening.videos.indexing import open_videos
from datapipe.opening.videos.lerobot_tables import DAMAGE, FILES_AT_ONCE, columns_of, groups_of
from datapipe.stores.location import WEB_SCHEMES, Place, is_url, parse_location, url_inside
from datapipe.stores.objects import list_below, object_exists, read_object

Ints = NDArray[np.int64]
INFO = os.path.join("meta", "info.json")
_MAX_INFO_NBYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class _Info:
    """What `meta/info.json` says."""

    root: Place
    version: int  # 2 or 3
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    data_path: str
    video_path: str
    chunks_size: int

    @property
    def cameras(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.get("dtype") == "video"]

    @property
    def images(self) -> list[str]:
        """Cameras whose frames are images in the tables."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == "image"]

    def file(self, template: str, **numbers: Any) -> str:
        """Return the path or URL that a template means. Raises FormatError for one that leads out, or has other places."""
        where = self.root / INFO
        try:
            names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
            if not names <= numbers.keys():
                raise KeyError(f"{sorted(names - numbers.keys())}")
            text = template.format(**{name: numbers[name] for name in names})
        except (ValueError, KeyError, IndexError) as exc:
            raise FormatError(f"{where}: the path {template!r:.100} cannot be filled in ({exc}); repair it") from exc
        if isinstance(self.root, Path):
            return path_inside(str(self.root), text, named_in=str(where), follows=True)
        return url_inside(self.root, text, named_in=str(where))


@dataclass(frozen=True, slots=True, eq=False)
class _Episodes:
    """What is known of each episode, in order."""

    number: Ints
    length: Ints
    first_row: Ints
    data: list[str]  # files of rows, each once, in order
    videos: Mapping[str, list[str]]  # by camera: of each episode
    begin: Mapping[str, NDArray[np.float64]]  # by camera: seconds


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
    info = _read_info(path)
    offsets = _offsets(info, delta_timestamps, tolerance_s)
    found = _read_v3(info) if info.version == 3 else _read_v2(info)
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
    table = _read_table(info, found)
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
    info = _read_info(path)
    found = _read_v3(info) if info.version == 3 else _read_v2(info)
    files = sorted({file for of_camera in found.videos.values() for file in of_camera})
    if not files:
        raise MissingDataError(f"{path}: has no videos to look at; its cameras are images in Parquet, which datapipe.Clips reads")
    return VideoParts.whole(open_videos([MediaSource(file) for file in files], where=str(path)))


def _read_info(path: Place) -> _Info:
    where = path / INFO
    try:
        found = json.loads(_read(where))
        version = str(found["codebase_version"]).lstrip("v").partition(".")[0]
        features = {str(name): dict(feature) for name, feature in found["features"].items()}
        fps, data, video = float(found["fps"]), str(found["data_path"]), str(found.get("video_path") or "")
        chunks = int(found.get("chunks_size", 1000))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{where}: no such file; pass the folder of a LeRobot dataset") from exc
    except StorageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise FormatError(f"{where}: not the facts of a LeRobot dataset ({type(exc).__name__}: {exc}); repair it") from exc
    if version not in ("2", "3"):
        raise FormatError(f"{where}: has version {found['codebase_version']!r:.20}; convert it to 3.0 by LeRobot's own script")
    if not (fps > 0 and math.isfinite(fps) and chunks > 0):
        raise FormatError(f"{where}: fps is {fps:g} and chunks_size {chunks}; both must be more than 0")
    return _Info(path, int(version), fps, features, data, video, chunks)


def _read(place: Place) -> bytes:
    """Return all of a file or an object. Raises FileNotFoundError, StorageError, or ValueError for a file that is too large."""
    return read_bytes(place, at_most=_MAX_INFO_NBYTES) if isinstance(place, Path) else read_object(place)


def _json_lines(place: Place) -> Iterator[Any]:
    return (json.loads(line) for line in _read(place).splitlines() if line.strip())


def _offsets(info: _Info, delta_timestamps: Mapping[str, Sequence[float]], tolerance_s: float) -> dict[str, tuple[int, ...]]:
    """Return the frames from a sample to what it has, by camera or column. Raises OptionError for others, or between frames."""
    found = {}
    for name, deltas in delta_timestamps.items():
        if name not in info.features:
            raise OptionError(f"delta_timestamps has {name!r:.60}, which is none of {listed(list(info.features), most=12)}")
        times = np.array(deltas, np.float64).reshape(-1)
        frames = np.round(times * info.fps)
        if not len(times) or not np.isfinite(times).all():
            raise OptionError(f"delta_timestamps[{name!r}] is {deltas!r:.60}; give at least one number of seconds")
        far = np.abs(frames / info.fps - times)
        if (far > tolerance_s).any():
            between = f"{times[int(np.argmax(far))]:g} s lies between frames, of which there are {info.fps:g} a second"
            raise OptionError(f"delta_timestamps[{name!r}]: {between}")
        found[name] = tuple(int(frame) for frame in frames)
    return found


def _depth_of(info: _Info, name: str) -> Depth | None:
    """Return how a camera's depth is stored, as LeRobot 0.6 writes it; None for RGB. Raises FormatError."""
    try:
        details = {**(info.features[name].get("video_info") or {}), **(info.features[name].get("info") or {})}
        if not (details.get("is_depth_map") or details.get("video.is_depth_map")):
            return None
        usual = Depth()
        keys = zip(("depth_min", "depth_max", "shift"), usual[:3], strict=True)
        least, most, shift = (float(details.get(f"video.{key}", default)) for key, default in keys)
        found = Depth(least, most, shift, bool(details.get("video.use_log", usual.is_log)))
    except (TypeError, ValueError) as exc:
        raise FormatError(f"{info.root / INFO}: {name}: it does not say how depth is stored ({exc}); repair it") from exc
    if found.problem:
        raise FormatError(f"{info.root / INFO}: {name}: {found.problem}; repair it")
    return found


def _images_of(
    info: _Info, found: _Episodes, name: str, offsets: Mapping[str, tuple[int, ...]], *, num_rows: int
) -> EpisodeImages:
    """Return the images of a camera. Raises OptionError for those that are not RGB, FormatError if some are missing."""
    feature = info.features[name]
    where = f"{info.root / INFO}: {name}"
    details = feature.get("info") or {}
    shape = feature.get("shape")
    if not isinstance(shape, Sequence) or len(shape) != 3 or not all(isinstance(side, int) and side > 0 for side in shape):
        raise FormatError(f"{where}: its shape is {shape!r:.60}, not that of images; repair it")
    height, width, channels = shape if shape[2] in (1, 3, 4) else (shape[1], shape[2], shape[0])
    if channels != 3 or details.get("is_depth_map"):
        raise OptionError(f"{where}: images of {channels} channels, or of depth, are not served; name other fields: fields=[...]")
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        groups = [group for some in pool.map(functools.partial(groups_of, name), found.data) for group in some]
    starts = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    if starts[-1] != num_rows:
        raise FormatError(f"{where}: its tables have {starts[-1]} images, and {num_rows} rows; get the dataset again")
    return EpisodeImages(name, offsets.get(name, NOW), name in offsets, (height, width), groups, starts)


def _chosen(found: _Episodes, episodes: Sequence[int] | None, path: Place) -> Ints:
    """Return the places of the episodes that are wanted."""
    if episodes is None:
        return np.arange(len(found.number), dtype=np.int64)
    places = {number: place for place, number in enumerate(found.number.tolist())}
    unknown = [number for number in episodes if number not in places]
    if unknown or not len(episodes):
        raise OptionError(f"{path}: has no episode {unknown[0] if unknown else 'at all chosen'} (of {len(places)})")
    return np.array(sorted({places[number] for number in episodes}), np.int64)


def _read_v3(info: _Info) -> _Episodes:
    files = _tables_of_episodes(info.root / "meta" / "episodes")
    if not files:
        raise MissingDataError(f"{info.root / 'meta' / 'episodes'}: holds no table of episodes; get the dataset again")
    rows = columns_of(files, lambda name: not name.startswith("stats/"))
    try:
        order = np.argsort(rows["episode_index"], kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
        data = _each(rows["data/chunk_index"], rows["data/file_index"])
        videos = {name: _each(rows[f"videos/{name}/chunk_index"], rows[f"videos/{name}/file_index"]) for name in info.cameras}
        first = np.asarray(rows["dataset_from_index"], np.int64)
        length = np.asarray(rows["dataset_to_index"], np.int64) - first
        begin = {name: np.asarray(rows[f"videos/{name}/from_timestamp"], np.float64) for name in info.cameras}
        number = np.asarray(rows["episode_index"], np.int64)
    except (KeyError, ValueError, TypeError) as exc:
        raise FormatError(f"{info.root / 'meta' / 'episodes'}: lacks {exc}, or it is no number; get the dataset again") from exc
    paths = dict.fromkeys(info.file(info.data_path, chunk_index=chunk, file_index=file) for chunk, file in data)
    by_camera = {
        name: [info.file(info.video_path, video_key=name, chunk_index=chunk, file_index=file) for chunk, file in places]
        for name, places in videos.items()
    }
    return _Episodes(number, length, first, sorted(paths), by_camera, begin)


def _tables_of_episodes(place: Place) -> list[str]:
    """Return the tables at a place, by name; where a web server does not list them, those of the names that LeRobot gives."""
    if isinstance(place, Path):
        return sorted(map(str, place.rglob("*.parquet")))
    if place.scheme not in WEB_SCHEMES:
        names = [one.name for page in list_below(place) for one in page if one.name.endswith(".parquet")]
        return [str(place / name) for name in sorted(names)]
    found: list[str] = []
    for chunk in itertools.count():
        numbers = (place / f"chunk-{chunk:03d}/file-{file:03d}.parquet" for file in itertools.count())
        some = [str(one) for one in itertools.takewhile(object_exists, numbers)]
        if not some:
            return found
        found += some
    raise AssertionError  # the loop ends with the first chunk that is not there


def _read_v2(info: _Info) -> _Episodes:
    where = info.root / "meta" / "episodes.jsonl"
    try:
        rows = sorted((int(row["episode_index"]), int(row["length"])) for row in _json_lines(where))
    except (KeyError, ValueError, TypeError) as exc:
        raise FormatError(f"{where}: a line has no episode_index and length; get the dataset again") from exc
    number, length = (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else (np.zeros(0, np.int64),) * 2
    numbers = [{"episode_chunk": one // info.chunks_size, "episode_index": one} for one in number.tolist()]
    by_camera = {name: [info.file(info.video_path, video_key=name, **values) for values in numbers] for name in info.cameras}
    data = [info.file(info.data_path, **values) for values in numbers]
    begin = {name: np.zeros(len(number)) for name in info.cameras}
    return _Episodes(number, length, np.cumsum(length) - length, data, by_camera, begin)


def _each(chunks: Any, files: Any) -> list[tuple[int, int]]:
    return list(zip(np.asarray(chunks, np.int64).tolist(), np.asarray(files, np.int64).tolist(), strict=True))


def _read_table(info: _Info, episodes: _Episodes) -> EpisodeTable:
    names = [name for name, feature in info.features.items() if feature.get("dtype") not in ("video", "image", "string")]
    columns = columns_of(episodes.data, lambda name: name in names)
    missing = [name for name in ("timestamp", "index", *names) if name not in columns]
    if missing:
        raise FormatError(f"{info.root / 'data'}: the tables lack the column {missing[0]}; get the dataset again")
    num = len(columns["index"])
    end = int((episodes.first_row + episodes.length).max(initial=0))
    if not np.array_equal(columns["index"], np.arange(num)) or num < end:
        raise FormatError(f"{info.root / 'data'}: its rows are not those of the episodes, in order; get the dataset again")
    for name in names:
        shape = tuple(int(side) for side in info.features[name].get("shape") or (1,))
        columns[name] = columns[name].reshape(num, *(() if shape == (1,) else shape))
    tasks = _read_tasks(info) if "task_index" in columns else ()
    return EpisodeTable(num, np.asarray(columns["timestamp"], np.float64), columns, tasks)


def _read_tasks(info: _Info) -> tuple[str, ...]:
    """Return the texts of tasks, by number."""
    path = info.root / "meta" / ("tasks.parquet" if info.version == 3 else "tasks.jsonl")
    try:
        if info.version == 3:
            with opened_for_library(str(path)) as opened:
                rows = pq.ParquetFile(opened).read().to_pylist()
            pairs = {int(row["task_index"]): str(row.get("task", row.get("__index_level_0__"))) for row in rows}
        else:
            pairs = {int(row["task_index"]): str(row["task"]) for row in _json_lines(path)}
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; get the dataset again") from exc
    except StorageError:
        raise
    except DAMAGE as exc:
        raise FormatError(f"{path}: not a table of tasks ({exc}); get it again") from exc
    return tuple(pairs.get(number, "") for number in range(max(pairs, default=-1) + 1))
