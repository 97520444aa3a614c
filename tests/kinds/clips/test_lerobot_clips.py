"""Samples of LeRobot's datasets have what LeRobot's own code gives: frames by their times, clamped to episodes, with masks."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

av = pytest.importorskip("av")

from lerobot_files import CAMERAS, FPS, LENGTHS, TASKS, decoded, table_of, write_lerobot  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.cli.main import main  # noqa: E402
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError  # noqa: E402
from datapipe.kernel.pools import BatchMemory  # noqa: E402

TOP, WRIST = CAMERAS
DELTAS = {TOP: [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2, 0.3], "observation.state": [-0.1, 0.0]}


@pytest.fixture(scope="module", params=["v3.0", "v2.1"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of two cameras. Not to be changed."""
    return write_lerobot(tmp_path_factory.mktemp("lerobot") / "data", request.param)


def expected(dataset: Path, index: int, deltas: dict[str, list[float]], frames: dict[str, list[Any]]) -> dict[str, Any]:
    """What LeRobotDataset's __getitem__ returns, written after its documentation; images as uint8."""
    rows = table_of(LENGTHS).to_pydict()
    starts = np.cumsum([0, *LENGTHS])
    episode = int(np.searchsorted(starts, index, side="right")) - 1
    first, end = int(starts[episode]), int(starts[episode + 1])
    item: dict[str, Any] = {name: torch.tensor(column[index]) for name, column in rows.items()}
    for camera in CAMERAS:
        item[camera] = torch.from_numpy(frames[camera][index]).permute(2, 0, 1)
    for name, times in deltas.items():
        wanted = [index + round(time * FPS) for time in times]
        kept = [min(max(one, first), end - 1) for one in wanted]
        item[f"{name}_is_pad"] = torch.tensor([one != other for one, other in zip(wanted, kept, strict=True)])
        if name in CAMERAS:
            item[name] = torch.stack([torch.from_numpy(frames[name][one]).permute(2, 0, 1) for one in kept])
        else:
            item[name] = torch.tensor([rows[name][one] for one in kept])
    item["task"] = TASKS[rows["task_index"][index]]
    return item


@pytest.mark.daily(1)
@pytest.mark.parametrize("deltas", [{}, DELTAS], ids=["now", "deltas"])
def test_samples_are_those_of_lerobot(dataset: Path, deltas: dict[str, list[float]]) -> None:
    frames: dict[str, list[Any]] = {camera: decoded(dataset, camera, sum(LENGTHS)) for camera in CAMERAS}
    data = dp.Clips(dataset, delta_timestamps=deltas)
    assert len(data) == sum(LENGTHS)
    seen = []
    for batch in dp.DataLoader(data, 4, shuffle=True, seed=0, num_workers=2):
        for row, index in enumerate(batch["index"].tolist()):
            item = expected(dataset, index, deltas, frames)
            assert item.keys() == batch.keys()
            for name, value in item.items():
                found = batch[name][row]
                if isinstance(value, torch.Tensor):
                    assert found.shape == value.shape, name
                    assert torch.equal(found.to(value.dtype), value), (name, index)
                else:
                    assert found == value
            seen.append(index)
    assert sorted(seen) == list(range(len(data)))
    assert batch["action"].dtype == torch.float32
    assert batch["index"].dtype == torch.int64


def test_some_episodes_and_fields(dataset: Path) -> None:
    whole = dp.Clips(dataset, fields=[TOP, "action", "index"], delta_timestamps={"action": [0.0, 0.1]})
    some = dp.Clips(dataset, fields=[TOP, "action", "index"], delta_timestamps={"action": [0.0, 0.1]}, episodes=[2, 0])
    assert len(some) == LENGTHS[0] + LENGTHS[2]
    by_index = {
        int(batch["index"][row]): (batch[TOP][row], batch["action"][row])
        for batch in dp.DataLoader(whole, 8, num_workers=0)
        for row in range(len(batch["index"]))
    }
    order = []
    for batch in dp.DataLoader(some, 8, num_workers=0):
        assert list(batch) == [TOP, "action", "index"]
        for row, index in enumerate(batch["index"].tolist()):
            order.append(index)
            assert torch.equal(by_index[index][0], batch[TOP][row])
            assert torch.equal(by_index[index][1], batch["action"][row])
    assert order == [*range(LENGTHS[0]), *range(sum(LENGTHS[:2]), sum(LENGTHS))]


def test_transforms_cut_all_frames_and_cameras_of_a_sample_alike(dataset: Path) -> None:
    transform = [dp.transforms.RandomCrop(24), dp.transforms.ToDtype(torch.float32, scale=True)]
    data = dp.Clips(dataset, delta_timestamps={TOP: [0.0, 0.0]}, fields=[TOP, WRIST])
    for batch in dp.DataLoader(data, 4, shuffle=True, seed=0, transform=transform, num_workers=2):
        assert tuple(batch[TOP].shape[1:]) == (2, 3, 24, 24)
        assert tuple(batch[WRIST].shape[1:]) == (3, 24, 24)
        assert batch[TOP].dtype == torch.float32
        assert torch.equal(batch[TOP][:, 0], batch[TOP][:, 1])


def test_frames_that_several_samples_show_are_kept_once(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leased = []
    lease = BatchMemory.lease

    def noting(self: BatchMemory, num_rows: int, dtype: torch.dtype, *, room: int = 0) -> torch.Tensor:
        leased.append((self.row_shape, num_rows))
        return lease(self, num_rows, dtype, room=room)

    monkeypatch.setattr(BatchMemory, "lease", noting)

    def batches(*transform: Any) -> list[dict[str, Any]]:
        data = dp.Clips(dataset, delta_timestamps={TOP: [-0.2, -0.1, 0.0]}, fields=[TOP, "index"], per_visit=8)
        return list(dp.DataLoader(data, 4, shuffle=True, seed=0, transform=list(transform), num_workers=2))

    shared = batches(dp.transforms.ToDtype(torch.float32))
    of_frames = [num for shape, num in leased if shape == (48, 64, 3)]
    assert of_frames
    assert max(of_frames) < 3 * 8
    leased.clear()
    apart = batches(dp.transforms.CenterCrop((48, 64)), dp.transforms.ToDtype(torch.float32))
    assert all(len(shape) == 4 for shape, _ in leased)
    for one, other in zip(shared, apart, strict=True):
        assert torch.equal(one["index"], other["index"])
        assert torch.equal(one[TOP], other[TOP])


def test_states_resume_and_loaders_pickle(dataset: Path) -> None:
    def loader() -> Any:
        return dp.DataLoader(dp.Clips(dataset, delta_timestamps=DELTAS), 5, shuffle=True, seed=3, num_workers=2)

    alone = [batch["index"].tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    other = pickle.loads(pickle.dumps(loader()))
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [batch["index"].tolist() for batch in other] == alone[4:]
    assert f"frames of cameras: {TOP} at [-2, 0, 1], {WRIST} at [0]" in str(dp.explain(first))
    with pytest.raises(dp.errors.StateError, match="delta_timestamps"):
        dp.DataLoader(dp.Clips(dataset), 5, shuffle=True, seed=3).load_state_dict(first.state_dict())


def test_frames_that_the_data_lists_and_the_video_lacks(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    tables = sorted((copy / "data").rglob("*.parquet"))
    table = pq.read_table(tables[-1])
    late = np.asarray(table["timestamp"]) + np.float32(0.04)
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", [late]), tables[-1])
    said = (
        r"sample \d+ \(frame \d+ of episode 2\): the data lists a frame at \d\.\d+ s of the video, whose nearest one is at "
        r"\d\.\d+ s, beyond tolerance_s=0\.0001; pass a larger tolerance_s if this is the frame, or repair the timestamps; "
        r"pass on_error='skip' or 'replace'$"
    )
    with pytest.raises(DecodeError, match=said):
        list(dp.DataLoader(dp.Clips(copy), 4, num_workers=0))
    loader = dp.DataLoader(dp.Clips(copy), 4, num_workers=0, on_error="skip")
    assert sum(len(batch["index"]) for batch in loader) == sum(LENGTHS[:2])
    assert len(loader.bad_samples) == LENGTHS[2]
    near = list(dp.DataLoader(dp.Clips(copy, tolerance_s=0.041), 4, num_workers=0))  # the nearest frame of each
    assert all(torch.equal(one[TOP], other[TOP]) for one, other in zip(near, dp.DataLoader(dp.Clips(dataset), 4), strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delta_timestamps": {"observation.image": [0.0]}}, "which is none of observation.state, action"),
        ({"delta_timestamps": {TOP: [0.04]}}, "0.04 s lies between frames, of which there are 10 a second"),
        ({"delta_timestamps": {TOP: []}}, "give at least one number of seconds"),
        ({"delta_timestamps": {TOP: [1e300]}}, r"has 1e\+300 s, and no video is that long"),
        ({"delta_timestamps": {TOP: [10**400]}}, "it must be finite"),
        ({"delta_timestamps": {TOP: ["a"]}}, "a time in delta_timestamps.* is 'a'; it must be a number"),
        ({"delta_timestamps": {"action": range(1 << 40)}}, "has more than 65,536 items; pass fewer"),
        ({"delta_timestamps": {"action": 0.1}}, "is 0.1; it must be a list"),
        ({"delta_timestamps": [0.1]}, r"delta_timestamps is \[0.1\]; it must map cameras and columns to lists of seconds"),
        ({"tolerance_s": -1}, "tolerance_s is -1; it must not be negative"),
        ({"episodes": 3}, "episodes is 3; it must be a list"),
        ({"episodes": [[0]]}, r"a number in episodes is \[0\]; it must be a whole number"),
        ({"episodes": [7]}, "has no episode 7"),
        ({"episodes": []}, "has no episode at all chosen"),
        ({"frames": 4}, r"is a LeRobot dataset, whose samples are frames; pass delta_timestamps=\{"),
        ({"fields": [TOP, "reward"]}, "fields has 'reward'; choose of"),
        ({"fields": ["action"]}, "no camera is wanted of"),
    ],
)
def test_wrong_options_are_refused(dataset: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        dp.Clips(dataset, **options)


def test_what_is_no_whole_dataset(dataset: Path, tmp_path: Path) -> None:
    def changed(**values: Any) -> Path:
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(dataset, copy)
        info = json.loads((copy / "meta" / "info.json").read_text()) | values
        (copy / "meta" / "info.json").write_text(json.dumps(info))
        return copy

    for values, said in [
        ({"codebase_version": "v1.6"}, "convert it to 3.0 by LeRobot's own script"),
        ({"fps": 0}, "fps is 0"),
        ({"video_path": "../{video_key}.mp4"}, "outside of"),
        ({"video_path": "{video_key.__class__}.mp4"}, "cannot be filled in"),
        ({"features": 3}, "not the facts of a LeRobot dataset"),
    ]:
        with pytest.raises(FormatError, match=said):
            dp.Clips(changed(**values))
    whole = changed()
    next(iter(sorted((whole / "data").rglob("*.parquet")))).unlink()
    with pytest.raises(MissingDataError, match="no such file; get the dataset again"):
        dp.Clips(whole)
    with pytest.raises(OptionError, match="is no LeRobot dataset, which delta_timestamps and episodes are for"):
        dp.Clips(tmp_path, delta_timestamps={TOP: [0.0]})


@pytest.mark.daily(1)
def test_commands(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(dataset)]) == 0
    assert f"videos, {2 * sum(LENGTHS)} frames in all" in capsys.readouterr().out
    assert main(["bench", str(dataset), "--rounds", "1", "--size", "24", "--images", "20"]) == 0
    assert "clips/s" in capsys.readouterr().out
    with pytest.raises(OptionError, match=r"is a LeRobot dataset; pass datapipe\.Clips\(.*delta_timestamps"):
        dp.DataLoader(dataset)
