"""Read the files of a LeRobot dataset: `meta/info.json`, the tables of episodes and tasks, and those of rows in `data/`.

The format is that of https://github.com/huggingface/lerobot (`lerobot/datasets`). In 3.0 files hold many episodes, and
`meta/episodes` says where each begins; in 2.1 each episode has files of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.containers.mapped import opened_for_library
from datapipe.core.regular_files import path_inside, read_bytes
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.entries import RowGroup
from datapipe.index.episodes import EpisodeTable
from datapipe.stores.location import WEB_SCHEMES, Place, url_inside
from datapipe.stores.objects import list_below, object_exists, read_object

Ints = NDArray[np.int64]
INFO = os.path.join("meta", "info.json")
FILES_AT_ONCE = 8
_MAX_INFO_NBYTES = 1 << 26
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Info:
    """The contents of `meta/info.json`."""

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
    return Info(path, int(version), fps, features, data, video, chunks)


def _read(place: Place) -> bytes:
    """Return all of a file or an object. Raises FileNotFoundError, StorageError, or ValueError for a file that is too large."""
    return read_bytes(place, at_most=_MAX_INFO_NBYTES) if isinstance(place, Path) else read_object(place)


def _json_lines(place: Place) -> Iterator[Any]:
    return (json.loads(line) for line in _read(place).splitlines() if line.strip())


def read_episodes(info: Info) -> Episodes:
    """Return what is known of the episodes. Raises MissingDataError, StorageError or FormatError."""
    return _read_v3(info) if info.version == 3 else _read_v2(info)


def _read_v3(info: Info) -> Episodes:
    files = _tables_of_episodes(info.root / "meta" / "episodes")
    if not files:
        raise MissingDataError(f"{info.root / 'meta' / 'episodes'}: holds no table of episodes; get the dataset again")
    rows = _columns_of_all(files, lambda name: not name.startswith("stats/"))
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
    return Episodes(number, length, first, sorted(paths), by_camera, begin)


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


def _read_v2(info: Info) -> Episodes:
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
    return Episodes(number, length, np.cumsum(length) - length, data, by_camera, begin)


def _each(chunks: Any, files: Any) -> list[tuple[int, int]]:
    return list(zip(np.asarray(chunks, np.int64).tolist(), np.asarray(files, np.int64).tolist(), strict=True))


def read_table(info: Info, episodes: Episodes) -> EpisodeTable:
    """Return the rows of all episodes. Raises MissingDataError, StorageError, or FormatError for others than there should be."""
    names = [name for name, feature in info.features.items() if feature.get("dtype") not in ("video", "image", "string")]
    columns = _columns_of_all(episodes.data, lambda name: name in names)
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


def _read_tasks(info: Info) -> tuple[str, ...]:
    """Return the texts of tasks, by number."""
    path = info.root / "meta" / ("tasks.parquet" if info.version == 3 else "tasks.jsonl")
    with _read_as(str(path), "not a table of tasks"):
        if info.version == 3:
            with opened_for_library(str(path)) as opened:
                rows = pq.ParquetFile(opened).read().to_pylist()
            pairs = {int(row["task_index"]): str(row.get("task", row.get("__index_level_0__"))) for row in rows}
        else:
            pairs = {int(row["task_index"]): str(row["task"]) for row in _json_lines(path)}
    return tuple(pairs.get(number, "") for number in range(max(pairs, default=-1) + 1))


def _columns_of_all(files: Sequence[str], is_wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Return columns of numbers of Parquet files, one after the other: (n,) or (n, k) arrays, lists flattened.

    Raises MissingDataError, StorageError or FormatError.
    """
    parts: dict[str, list[NDArray[Any]]] = {}
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        for some in pool.map(lambda file: _columns_of(file, is_wanted), files):
            for name, values in some.items():
                parts.setdefault(name, []).append(values)
    return {name: np.concatenate(column) for name, column in parts.items()}


def groups_of(name: str, file: str) -> list[RowGroup]:
    """Return the row groups of a column of images in a file. Raises as `columns_of`, also if there is no such column."""
    column = f"{name}.bytes"  # of a struct of these and a path, as Hugging Face's datasets store images
    with _opened(file) as held:
        if column not in {held.schema.column(number).path for number in range(len(held.schema.names))}:
            raise ValueError(f"it has no column {name} of images")
        sizes = [held.metadata.row_group(number).num_rows for number in range(held.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    return [RowGroup("parquet", file, column, number, *pair) for number, pair in enumerate(itertools.pairwise(starts))]


@contextlib.contextmanager
def _opened(file: str) -> Iterator[pq.ParquetFile]:
    """Open a file; errors, also those of the block, say which one."""
    with _read_as(file, "cannot be read as a table of the dataset"), opened_for_library(file) as opened:
        yield pq.ParquetFile(opened)


@contextlib.contextmanager
def _read_as(file: str, problem: str) -> Iterator[None]:
    """Translate the errors of a block that reads a file. `problem`: what is said of a damaged one."""
    try:
        yield
    except FileNotFoundError as exc:
        raise MissingDataError(f"{file}: no such file; get the dataset again") from exc
    except StorageError:
        raise
    except _DAMAGE as exc:
        raise FormatError(f"{file}: {problem} ({exc}); get it again") from exc


def _columns_of(file: str, is_wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    with _opened(file) as held:
        table = held.read([name for name in held.schema_arrow.names if is_wanted(name)])
        found = {name: _numbers(table.column(name), name) for name in table.column_names}
        return {name: values for name, values in found.items() if values is not None}


def _numbers(column: pa.ChunkedArray, name: str) -> NDArray[Any] | None:
    """Return a column as an array, None if it holds no numbers. Raises ValueError for one with nulls."""
    flat, is_list = column.combine_chunks(), False
    while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        flat, is_list = flat.flatten(), True
    kind = flat.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    if flat.null_count:
        raise ValueError(f"{name} has nulls")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1) if is_list else values
