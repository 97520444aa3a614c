"""With clips="random" each video gives one clip an epoch, drawn of all that there are by seed, epoch and video alone."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")

from video_files import X264, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.errors import OptionError, StateError  # noqa: E402

LENGTHS = (30, 3, 50, 70, 41)
HOW: dict[str, Any] = {"frames": 4, "stride": 2, "clips": "random", "fields": ["video", "label", "times", "is_pad", "id"]}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of so many frames, at 30 a second; the second one is shorter than a clip. Not to be changed."""
    root = tmp_path_factory.mktemp("videos")
    for number, length in enumerate(LENGTHS):
        (root / f"class{number // 3}").mkdir(exist_ok=True)
        frames = pictures(length, 48, 32, seed=number)
        write_video(root / f"class{number // 3}" / f"{number}.mp4", frames=frames, options=x264(f"{X264}:bframes=2"))
    return root


def loader_of(data: Any, **options: Any) -> Any:
    return dp.DataLoader(data, **{"batch_size": 2, "shuffle": True, "seed": 5, "num_workers": 2} | options)


def starts(batches: Any) -> dict[int, int]:
    """The first frame of each video's clip."""
    found: dict[int, int] = {}
    for batch in batches:
        for video, times in zip(batch["id"].tolist(), batch["times"].tolist(), strict=True):
            assert video not in found
            found[video] = round(times[0] * 30)
            assert times == pytest.approx([min(found[video] + 2 * k, LENGTHS[video] - 1) / 30 for k in range(4)], abs=1e-3)
    return found


@pytest.mark.daily(1)
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_video_gives_one_clip_which_is_drawn_anew_every_epoch(videos: Path, shuffle: bool) -> None:
    data = dp.Clips(videos, **HOW)
    assert len(data) == len(LENGTHS)
    assert "5 clips of 5 videos" in repr(data)
    loader = loader_of(data, shuffle=shuffle)
    epochs = [starts(loader) for _ in range(60)]
    assert all(sorted(one) == [0, 1, 2, 3, 4] for one in epochs)
    for video, length in enumerate(LENGTHS):
        seen = [one[video] for one in epochs]
        last = max(0, length - 7)
        assert (min(seen), max(seen)) <= (last, last)
        if last:
            assert len({*seen}) > min(15, last / 2)
            assert np.mean(seen) == pytest.approx(last / 2, abs=last / 6)  # 4.5 standard deviations
    assert "one drawn of each of 5 parts an epoch, of 4 frames, every 2; of those that begin every 1" in str(dp.explain(loader))


def test_order_threads_ranks_and_states_draw_the_same(videos: Path) -> None:
    def everything(loaders: list[Any]) -> list[dict[str, torch.Tensor]]:
        return [{name: torch.cat([one[name] for one in step]) for name in step[0]} for step in zip(*loaders, strict=True)]

    options: dict[str, Any] = {"transform": [dp.transforms.RandomCrop(20)], "tail": "drop"}
    loader = loader_of(dp.Clips(videos, **HOW), **options)
    expected = [everything([loader]) for _ in range(2)]
    for others in (
        [loader_of(dp.Clips(videos, **HOW), num_workers=0, **options)],
        [pickle.loads(pickle.dumps(loader_of(dp.Clips(videos, **HOW), **options)))],
        [loader_of(dp.Clips(videos, **HOW), ranks=(rank, 2), **options | {"batch_size": 1}) for rank in range(2)],
    ):
        for wanted in expected:
            found = everything(others)
            assert all(torch.equal(one[name], two[name]) for one, two in zip(found, wanted, strict=True) for name in one)
    assert starts(expected[0]) != starts(loader_of(dp.Clips(videos, **HOW), seed=6, **options))
    loader = loader_of(dp.Clips(videos, **HOW), **options)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(dp.Clips(videos, **HOW), **options)
    resumed.load_state_dict(state)
    (rest,) = everything([resumed])
    assert all(torch.equal(rest[name], expected[0][1][name]) for name in rest)
    with pytest.raises(StateError, match="saved with other frames, stride"):
        loader_of(dp.Clips(videos, **HOW | {"clips": "all"}), **options).load_state_dict(state)


def test_a_step_says_where_clips_may_begin(videos: Path) -> None:
    loader = loader_of(dp.Clips(videos, **HOW, step=10))
    assert {start for _ in range(20) for start in starts(loader).values()} == {0, 10, 20, 30, 40, 50, 60}


def test_parts_and_mixtures_draw_of_their_own(videos: Path, tmp_path: Path) -> None:
    path = videos / "class1" / "3.mp4"
    (tmp_path / "parts.csv").write_text(f"path,start,end\n{path},0,1\n{path},1,2\n")
    how = HOW | {"fields": ["times", "id"]}
    for _ in range(5):
        for batch in loader_of(dp.Clips(tmp_path / "parts.csv", **how)):
            for number, times in zip(batch["id"].tolist(), batch["times"].tolist(), strict=True):
                assert number <= times[0] < times[-1] < number + 1
    mixed = dp.mix([dp.Clips(videos, **HOW), dp.Clips(videos, **HOW)], [3, 1], num_samples=40)
    seen: dict[int, list[float]] = {}
    for batch in loader_of(mixed):
        for number, times in zip(batch["id"].tolist(), batch["times"].tolist(), strict=True):
            seen.setdefault(number, []).append(times[0])
    assert {number: len(found) for number, found in seen.items()} == {number: 6 if number < 5 else 2 for number in range(10)}
    assert len({*seen[3]}) > 3  # drawn again whenever it comes again in an epoch
    with pytest.raises(OptionError, match="with clips='all' and clips='random'"):
        dp.mix([dp.Clips(videos, **HOW), dp.Clips(videos, **HOW | {"clips": "all"}, per_visit=1)])


def test_wrong_settings_are_refused(videos: Path) -> None:
    with pytest.raises(OptionError, match="clips is 'one'; choose one of all, random"):
        dp.Clips(videos, clips="one")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="per_visit is 4, and clips='random' takes one clip of each video; leave it out"):
        dp.Clips(videos, clips="random", per_visit=4)
    assert len(dp.Clips(videos, clips="random", frames=40, short="drop")) == 3
