"""Read the files of a LeRobot dataset: `meta/info.json`, the tables of episodes and tasks, and those of rows in `data/`.

The format is that of https://github.com/huggingface/lerobot (`lerobot/datasets`). In 3.0 files hold many episodes, and
`meta/episodes` says where each begins; in 2.1 each episode has files of its own.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.containers.mapped import opened_for_library
from datapipe.core.directories import files_below
from datapipe.core.regular_files import path_inside, read_bytes
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.episodes import EpisodeTable
from datapipe.opening.videos.lerobot_tables import Columns, columns_of, read_as
from datapipe.stores.location import WEB_SCHEMES, Place, url_inside
from datapipe.stores.objects import list_below, object_exists, read_object

Ints = NDArray[np.int64]
INFO = os.path.join("meta", "info.json")
_MAX_INFO_NBYTES = 1 << 26
_MAX_FPS = 1e6
_PLACEHOLDER = re.compile(r"(0?\d{1,2}d?)?")  # how a number is written in a template: "03d", up to 99 digits
_EPISODE_COLUMNS = ("episode_index", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
_NOT_IN_ARRAYS = ("video", "image", "string")  # types of features that are no columns of numbers
_T = TypeVar("_T")

_MOST = 1 << 40  # of a count: sums of millions fit 64 bits
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]
_Facts = dict[str, Any]


class Feature(msgspec.Struct, frozen=True):
    """A camera or a column: the type and shape of its values, and how they are stored."""

    dtype: str = ""
    shape: tuple[_Count, ...] | None = None
    info: _Facts | None = None
    video_info: _Facts | None = None

    @property
    def details(self) -> _Facts:
        """How the videos or images of a camera are stored; earlier releases have it under another name."""
        return {**(self.video_info or {}), **(self.info or {})}


class _InfoFile(msgspec.Struct):
    codebase_version: str
    fps: float
    features: dict[str, Feature]
    data_path: str
    video_path: str | None = None
    chunks_size: int = 1000


class _EpisodeLine(msgspec.Struct):
    episode_index: _Count
    length: _Count


class _Task(msgspec.Struct):
    """A line of `tasks.jsonl`, or a row of `tasks.parquet`, where the text is the index of a data frame of pandas."""

    task_index: _Count
    task: str | None = None
    index: str | None = msgspec.field(default=None, name="__index_level_0__")


@dataclass(frozen=True, slots=True)
class Info:
    """The contents of `meta/info.json`."""

    root: Place
    version: int  # 2 or 3
    fps: float
    features: Mapping[str, Feature]
    data_path: str
    video_path: str
    chunks_size: int

    @property
    def cameras(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    @property
    def images(self) -> list[str]:
        """Cameras whose frames are images in the tables."""
        return [name for name, feature in self.features.items() if feature.dtype == "image"]

    def file(self, template: str, **numbers: Any) -> str:
        """Return the path or URL that a template means. Raises FormatError for one that leads out, or has other places."""
        where = self.root / INFO
        try:
            parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
            names = {name for _, name, _, _ in parts if name is not None}
            if not names <= numbers.keys():
                raise KeyError(f"{sorted(names - numbers.keys())}")
            if not all(_PLACEHOLDER.fullmatch(form or "") and conversion is None for _, _, form, conversion in parts):
                raise ValueError("it asks for other places than numbers have")
            text = template.format(**{name: numbers[name] for name in names})
        except (ValueError, KeyError, IndexError) as exc:
            raise FormatError(f"{where}: the path {template!r:.100} cannot be filled in ({exc}); repair it") from exc
        if isinstance(self.root, Path):
            return path_inside(str(self.root), text, named_in=str(where), follows=True)
        return url_inside(self.root, text, named_in=str(where))


@dataclass(frozen=True, slots=True, eq=False)
class Episodes:
    """The facts of each episode, in order."""

    number: Ints
    length: Ints
    first_row: Ints
    data: list[str]  # files of rows, each once, in order
    videos: Mapping[str, list[str]]  # by camera: of each episode
    begin: Mapping[str, NDArray[np.float64]]  # by camera: seconds


def read_info(path: Place) -> Info:
    """Return what a dataset says of itself. Raises MissingDataError, StorageError, or FormatError for what is no such dataset."""
    where = path / INFO
    with read_as(str(where), "not the facts of a LeRobot dataset"):
        found = _parsed(_read(where), _InfoFile)
    version = found.codebase_version.lstrip("v").partition(".")[0]
    if version not in ("2", "3"):
        raise FormatError(f"{where}: has version {found.codebase_version!r:.20}; convert it to 3.0 by LeRobot's own script")
    if not (0 < found.fps <= _MAX_FPS and found.chunks_size > 0):
        raise FormatError(f"{where}: fps is {found.fps:g} and chunks_size {found.chunks_size}; both must be more than 0")
    return Info(path, int(version), found.fps, found.features, found.data_path, found.video_path or "", found.chunks_size)


def _read(place: Place) -> bytes:
    """Return all of a file or an object. Raises FileNotFoundError, StorageError, or ValueError for a file that is too large."""
    return read_bytes(place, at_most=_MAX_INFO_NBYTES) if isinstance(place, Path) else read_object(place)


def _parsed(text: bytes, form: type[_T]) -> _T:
    """Return a document of JSON as this form. Raises ValueError for another one, RecursionError for one that is too deep."""
    return msgspec.json.decode(text, type=form, strict=False)


def _lines(place: Place, form: type[_T]) -> list[_T]:
    """Return the lines of a file of JSON as this form. Raises as `_read` and `_parsed` do."""
    return [_parsed(line, form) for line in _read(place).splitlines() if line.strip()]


def read_episodes(info: Info) -> Episodes:
    """Return what is known of the episodes. Raises MissingDataError, StorageError or FormatError."""
    return _read_v3(info) if info.version == 3 else _read_v2(info)


def _read_v3(info: Info) -> Episodes:
    files = _tables_of_episodes(info.root / "meta" / "episodes")
    if not files:
        raise MissingDataError(f"{info.root / 'meta' / 'episodes'}: holds no table of episodes; get the dataset again")
    places = {name: [f"videos/{name}/{what}" for what in ("chunk_index", "file_index")] for name in info.cameras}
    times = {name: f"videos/{name}/from_timestamp" for name in info.cameras}
    whole = [*_EPISODE_COLUMNS, *itertools.chain.from_iterable(places.values())]
    held = columns_of(files, {*whole, *times.values()})
    with read_as(str(info.root / "meta" / "episodes"), "no tables of episodes"):
        order = np.argsort(_whole_numbers(held, "episode_index"), kind="stable")
        rows = {name: _whole_numbers(held, name)[order] for name in whole}
        begin = {name: _seconds(held, time)[order] for name, time in times.items()}
        number, first, end, *of_data = (rows[name] for name in _EPISODE_COLUMNS)
        _refuse_twice(number)
        if (end < first).any():
            raise ValueError(f"episode {number[int(np.argmax(end < first))]} ends before it begins")
    paths = dict.fromkeys(info.file(info.data_path, chunk_index=chunk, file_index=file) for chunk, file in _pairs(*of_data))
    by_camera = {
        name: [
            info.file(info.video_path, video_key=name, chunk_index=chunk, file_index=file)
            for chunk, file in _pairs(rows[chunks], rows[numbers])
        ]
        for name, (chunks, numbers) in places.items()
    }
    return Episodes(number, end - first, first, sorted(paths), by_camera, begin)


def _whole_numbers(columns: Columns, name: str) -> Ints:
    """Return a column of counts, (n,). Raises ValueError if there is none, or it has other values."""
    values = columns.get(name)
    if values is None or values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ValueError(f"they have no column {name!r:.80} of whole numbers")
    wrong = ~((values >= 0) & (values < _MOST) & (values == np.floor(values)))
    if wrong.any():
        raise ValueError(f"{name!r:.80} is {values[int(np.argmax(wrong))]} in row {int(np.argmax(wrong))}")
    return values.astype(np.int64)


def _seconds(columns: Columns, name: str) -> NDArray[np.float64]:
    """Return a column of seconds, (n,). Raises ValueError if there is none, or it has other values."""
    values = columns.get(name)
    if values is None or values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ValueError(f"they have no column {name!r:.80} of seconds")
    return values.astype(np.float64)


def _refuse_twice(numbers: Ints) -> None:
    """Raise ValueError for numbers of episodes, ascending, of which two are the same."""
    is_again = numbers[1:] == numbers[:-1]
    if is_again.any():
        raise ValueError(f"episode {numbers[int(np.argmax(is_again))]} is there twice")


def _pairs(chunks: Ints, files: Ints) -> list[tuple[int, int]]:
    return list(zip(chunks.tolist(), files.tolist(), strict=True))


def _tables_of_episodes(place: Place) -> list[str]:
    """Return the tables at a place, by name; where a web server does not list them, those of the names that LeRobot gives."""
    if isinstance(place, Path):
        return [path for path in files_below(place) if path.endswith(".parquet")]
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


def _read_v2(info: Info) -> Episodes:
    where = info.root / "meta" / "episodes.jsonl"
    with read_as(str(where), "no table of episodes"):
        rows = sorted((one.episode_index, one.length) for one in _lines(where, _EpisodeLine))
        number, length = np.array(rows, np.int64).reshape(-1, 2).T
        _refuse_twice(number)
    numbers = [{"episode_chunk": one // info.chunks_size, "episode_index": one} for one in number.tolist()]
    by_camera = {name: [info.file(info.video_path, video_key=name, **values) for values in numbers] for name in info.cameras}
    data = [info.file(info.data_path, **values) for values in numbers]
    begin = {name: np.zeros(len(number)) for name in info.cameras}
    return Episodes(number, length, np.cumsum(length) - length, data, by_camera, begin)


def read_table(info: Info, episodes: Episodes) -> EpisodeTable:
    """Return the rows of all episodes. Raises MissingDataError, StorageError, or FormatError for others than there should be."""
    names = [name for name, feature in info.features.items() if feature.dtype not in _NOT_IN_ARRAYS]
    columns = columns_of(episodes.data, names)
    with read_as(str(info.root / "data"), "its tables are not those of the dataset"):
        missing = [name for name in ("timestamp", "index", *names) if name not in columns]
        if missing:
            raise ValueError(f"they lack the column {missing[0]!r:.80}")
        num = len(columns["index"])
        end = int((episodes.first_row + episodes.length).max(initial=0))
        if not np.array_equal(columns["index"], np.arange(num)) or num < end:
            raise ValueError("their rows are not those of the episodes, in order")
        for name in names:
            columns[name] = _shaped(columns[name], info.features[name].shape or (1,), name)
        tasks = _tasks_of(info, _whole_numbers(columns, "task_index")) if "task_index" in columns else {}
        return EpisodeTable(num, _seconds(columns, "timestamp"), columns, tasks)


def _shaped(values: NDArray[Any], shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Return rows (n,) or (n, k) as the features say; (n,) for one number. Raises ValueError if they have others."""
    width = 1 if values.ndim == 1 else values.shape[1]
    if math.prod(shape) != width:
        raise ValueError(f"{name!r:.80} has {width} values in a row, and its shape is {list(shape)} in {INFO}")
    return values.reshape(len(values), *(() if shape == (1,) else shape))


def _tasks_of(info: Info, used: Ints) -> dict[int, str]:
    """Return the texts of tasks, by number. `used`: the tasks of rows. Raises MissingDataError, StorageError or FormatError."""
    path = info.root / "meta" / ("tasks.parquet" if info.version == 3 else "tasks.jsonl")
    with read_as(str(path), "no table of the tasks"):
        if info.version == 3:
            with opened_for_library(str(path)) as opened:
                found = msgspec.convert(pq.ParquetFile(opened).read().to_pylist(), list[_Task], strict=False)
        else:
            found = _lines(path, _Task)
        texts = {one.task_index: one.index if one.task is None else one.task for one in found}
        tasks = {number: text for number, text in texts.items() if text is not None}
        unknown = np.flatnonzero(~np.isin(used, [*tasks]))
        if len(unknown):
            raise ValueError(f"it has no task {used[unknown[0]]}, which row {unknown[0]} of the data names")
    return tasks
