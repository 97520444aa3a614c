"""What a LeRobot dataset says of itself is read, or refused in a line that names the file, whatever is in its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("av")

from lerobot_files import CAMERAS, LENGTHS, write_lerobot

from datapipe.errors import FormatError
from datapipe.index.episodes import EpisodeTable
from datapipe.opening.videos.lerobot_files import read_episodes, read_info, read_table

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of each version, without its videos. Not to be changed."""
    found = {}
    for version in ("v3.0", "v2.1"):
        found[version] = write_lerobot(tmp_path_factory.mktemp("lerobot") / version, version)
        shutil.rmtree(found[version] / "videos")
    return found


def table_of(root: Path) -> EpisodeTable:
    info = read_info(root)
    return read_table(info, read_episodes(info))


def info_with(**values: Any) -> Change:
    """Change what `meta/info.json` says; a text that is no JSON takes the place of the file."""

    def change(root: Path) -> None:
        path = root / "meta" / "info.json"
        path.write_text(values["text"] if "text" in values else json.dumps(json.loads(path.read_text()) | values))

    return change


def feature_with(name: str, **values: Any) -> Change:
    def change(root: Path) -> None:
        path = root / "meta" / "info.json"
        info = json.loads(path.read_text())
        info["features"][name] = info["features"].get(name, {}) | values
        path.write_text(json.dumps(info))

    return change


def column(where: str, name: str, values: Any) -> Change:
    """Put other values into a column of a table; a function makes them of those that are there."""

    def change(root: Path) -> None:
        path = sorted(root.glob(where))[0]
        table = pq.read_table(path)
        made = values(table.column(name).to_pylist()) if callable(values) else values
        at = table.column_names.index(name)
        pq.write_table(table.set_column(at, name, made if isinstance(made, pa.Array) else pa.array(made)), path)

    return change


def lines(name: str, text: str) -> Change:
    return lambda root: (root / "meta" / name).write_text(text)


EPISODES, ROWS, TASKS = "meta/episodes/*/*.parquet", "data/*/*.parquet", "meta/tasks.parquet"

WRONG: dict[str, tuple[Change, str]] = {
    "a template of a huge width": (info_with(data_path="{chunk_index:0999999999d}"), r"cannot be filled in .*other places"),
    "a template of a field's attribute": (info_with(data_path="{chunk_index.real}"), "cannot be filled in"),
    "a template of a nested width": (info_with(data_path="{chunk_index:{file_index}}"), "cannot be filled in"),
    "a template with NUL": (info_with(data_path="a\0{chunk_index}"), "outside of"),
    "a surrogate": (info_with(data_path="\ud800{chunk_index}"), "not the facts of a LeRobot dataset"),
    "a surrogate in a name": (feature_with("\ud800", dtype="float32"), "not the facts of a LeRobot dataset"),
    "an infinite rate": (info_with(fps=float("inf")), "not the facts of a LeRobot dataset"),
    "a huge rate": (info_with(fps=1e300), r"fps is 1e\+300"),
    "a list for a rate": (info_with(fps=[30]), "Expected `float`, got `array`"),
    "an infinite number of chunks": (info_with(text='{"chunks_size": 1e999}'), "not the facts of a LeRobot dataset"),
    "deep JSON": (info_with(text='{"features": ' + "[" * 100_000), "not the facts of a LeRobot dataset"),
    "deep JSON of a feature": (
        info_with(text='{"features": {"a": {"info": {"a": ' + "[" * 100_000), "not the facts of a LeRobot dataset"
    ),
    "a list for the features": (info_with(features=[1]), "Expected `object`, got `array`"),
    "a text for a shape": (feature_with("action", shape="wide"), "not the facts of a LeRobot dataset"),
    "another shape": (feature_with("action", shape=[3]), r"'action' has 2 values in a row, and its shape is \[3\]"),
    "a negative shape": (feature_with("action", shape=[-1]), "Expected `int` >= 0"),
    "a huge shape": (feature_with("action", shape=[1 << 39, 1 << 39]), "'action' has 2 values in a row"),
    "a list for what is said of videos": (feature_with(CAMERAS[0], info=[1]), "Expected `object | null`, got `array`"),
    "an episode that ends before it begins": (column(EPISODES, "dataset_to_index", [0, 3, 5]), "episode 1 ends"),
    "an episode of a huge length": (column(EPISODES, "dataset_to_index", [1 << 62, 3, 5]), "'dataset_to_index' is 4611686018"),
    "an episode that is not there": (column(EPISODES, "dataset_to_index", [23, 31, 99]), "not those of the episodes"),
    "an episode twice": (column(EPISODES, "episode_index", [0, 1, 1]), "episode 1 is there twice"),
    "half an episode": (column(EPISODES, "episode_index", [0, 1.5, 2]), "'episode_index' is 1.5 in row 1"),
    "lists of numbers of episodes": (column(EPISODES, "episode_index", [[0], [1], [2]]), "no column 'episode_index' of whole"),
    "texts for numbers of episodes": (column(EPISODES, "episode_index", ["a", "b", "c"]), "no column 'episode_index' of whole"),
    "no time": (column(EPISODES, f"videos/{CAMERAS[0]}/from_timestamp", [0.0, float("nan"), 1.0]), "from_timestamp' of seconds"),
    "a negative file": (column(EPISODES, f"videos/{CAMERAS[0]}/file_index", [0, -1, 0]), "file_index' is -1 in row 1"),
    "rows of unequal length": (
        column(ROWS, "action", lambda rows: [*rows[:2], [1.0], [1.0, 2.0, 3.0], *rows[4:]]), "'action' has rows of 1 to 3 values"
    ),
    "rows of nothing": (column(ROWS, "action", lambda rows: [*rows[:2], None, *rows[3:]]), "'action' has nulls"),
    "files of unequal rows": (
        column(ROWS, "action", lambda rows: [[1.0, 2.0, 3.0]] * len(rows)), r"rows of shape \(2,\), not \(3,\)"
    ),
    "an endless time": (column(ROWS, "timestamp", lambda rows: [float("inf")] * len(rows)), "no column 'timestamp' of seconds"),
    "a task that is not there": (
        column(TASKS, "task_index", [0, 5]), r"tasks\.parquet: no table of the tasks \(it has no task 1, which row 23 of the data"
    ),
    "a gap in the tasks": (column(TASKS, "task_index", [0, 2]), "it has no task 1"),
    "a task of a huge number": (column(TASKS, "task_index", [0, 1 << 62]), "no table of the tasks"),
    "a task of no number": (column(TASKS, "task_index", [[0], [1]]), "no table of the tasks"),
    "a task without a text": (column(TASKS, "__index_level_0__", ["pick", None]), "it has no task 1"),
}  # fmt: skip
WRONG_LINES: dict[str, tuple[Change, str]] = {
    "a list for a length": (lines("episodes.jsonl", '{"episode_index": 0, "length": [1]}'), "no table of episodes"),
    "a huge length": (lines("episodes.jsonl", '{"episode_index": 0, "length": 1e300}'), "no table of episodes"),
    "a negative length": (lines("episodes.jsonl", '{"episode_index": 0, "length": -1}'), "no table of episodes"),
    "an episode twice": (lines("episodes.jsonl", '{"episode_index": 0, "length": 1}\n' * 2), "episode 0 is there twice"),
    "deep JSON": (lines("episodes.jsonl", "[" * 100_000), "no table of episodes"),
    "deep JSON of a task": (lines("tasks.jsonl", '{"task_index": 0, "task": ' + "[" * 100_000), "no table of the tasks"),
    "a surrogate": (lines("tasks.jsonl", '{"task_index": 0, "task": "\\ud800 x"}'), "no table of the tasks"),
    "a gap in the tasks": (lines("tasks.jsonl", '{"task_index": 0, "task": "x"}'), "it has no task 1"),
}


@pytest.mark.parametrize(("version", "case"), [*(("v3.0", one) for one in WRONG), *(("v2.1", one) for one in WRONG_LINES)])
def test_wrong_files_are_refused_by_name(version: str, case: str, datasets: dict[str, Path], tmp_path: Path) -> None:
    change, said = (WRONG if version == "v3.0" else WRONG_LINES)[case]
    root = Path(shutil.copytree(datasets[version], tmp_path / "data"))
    change(root)
    with pytest.raises(FormatError, match=said) as caught:
        table_of(root)
    assert str(caught.value).startswith(str(root))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_whole_files_are_read(version: str, datasets: dict[str, Path]) -> None:
    table = table_of(datasets[version])
    assert table.num_rows == sum(LENGTHS)
    assert {*table.tasks} == {0, 1}
    assert table.columns["action"].shape == (sum(LENGTHS), 2)


def test_numbers_of_tasks_may_have_gaps_that_no_row_names(datasets: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(datasets["v3.0"], tmp_path / "data"))
    tasks = pa.table({"task_index": [0, 7, 1], "task": ["a", "b", "c"]})
    pq.write_table(tasks, root / "meta" / "tasks.parquet")
    assert table_of(root).tasks == {0: "a", 1: "c", 7: "b"}


def test_whole_numbers_may_be_stored_as_floats(datasets: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(datasets["v3.0"], tmp_path / "data"))
    column(EPISODES, "episode_index", [2.0, 0.0, 1.0])(root)
    info = read_info(root)
    assert read_episodes(info).length.tolist() == list(np.array(LENGTHS)[[1, 2, 0]])
