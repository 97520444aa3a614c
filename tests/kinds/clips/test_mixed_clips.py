"""Clips that are mixed have their shares of every step, each clip as its own dataset has it, on any threads and ranks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")

from lerobot_files import CAMERAS, write_lerobot  # noqa: E402
from video_files import X264, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.errors import OptionError, StateError  # noqa: E402

HOW: dict[str, Any] = {"frames": 3, "stride": 2, "step": 2, "per_visit": 4, "fields": ["video", "label", "times", "id"]}
WEIGHTS, NUM = [3, 1, 1], 300


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three folders of videos of one size, in classes of the same names. Not to be changed."""
    roots = []
    for number in range(3):
        roots.append(tmp_path_factory.mktemp("sets") / f"set{number}")
        for label in range(2):
            (roots[-1] / f"class{label}").mkdir(parents=True)
            frames = pictures(30 + 20 * number, 48, 32, seed=10 * label + number)
            write_video(roots[-1] / f"class{label}" / "a.mp4", frames=frames, options=x264(f"{X264}:bframes=3"))
    return roots


def mixed(sets: list[Path], **changes: Any) -> dp.Clips:
    return dp.mix([dp.Clips(path, **HOW | changes) for path in sets], WEIGHTS, num_samples=NUM)


def loader_of(data: Any, batch_size: int = 10, **options: Any) -> Any:
    return dp.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, "num_workers": 2} | options)


def everything(loaders: list[Any]) -> list[dict[str, torch.Tensor]]:
    """The batches of ranks put together, step by step."""
    return [{name: torch.cat([one[name] for one in step]).clone() for name in step[0]} for step in zip(*loaders, strict=True)]


def same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(first[name], second[name]) for first, second in zip(one, other, strict=True) for name in first
    )


@pytest.mark.daily(1)
@pytest.mark.parametrize("per_visit", [1, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_shares_hold_in_every_step_and_clips_are_those_of_their_sets(sets: list[Path], per_visit: int, shuffle: bool) -> None:
    data = mixed(sets, per_visit=per_visit)
    alone = [dp.Clips(path, **HOW) for path in sets]
    ends = np.cumsum([0, *map(len, alone)])
    assert len(data) == NUM
    of_set = [next(iter(loader_of(one, len(one), shuffle=False))) for one in alone]
    seen = np.zeros(ends[-1], np.int64)
    for batch in loader_of(data, shuffle=shuffle):
        ids = batch["id"].numpy()
        which = np.searchsorted(ends, ids, side="right") - 1
        assert np.abs(np.bincount(which, minlength=3) - 10 * np.array([0.6, 0.2, 0.2])).max() <= 2
        for row, (dataset, sample) in enumerate(zip(which.tolist(), ids.tolist(), strict=True)):
            for name in ("video", "label", "times"):
                assert torch.equal(batch[name][row], of_set[dataset][name][sample - ends[dataset]])
        np.add.at(seen, ids, 1)
    for dataset, count in enumerate([180, 60, 60]):
        times = seen[ends[dataset] : ends[dataset + 1]]
        assert times.sum() == count
        assert times.max() - times.min() <= 1  # all of a set come before any comes again


@pytest.mark.nightly
def test_threads_ranks_copies_and_states_change_nothing(sets: list[Path]) -> None:
    options: dict[str, Any] = {"transform": [dp.transforms.RandomCrop(20)]}
    expected = everything([loader_of(mixed(sets), 8, **options)])
    assert same(everything([loader_of(mixed(sets), 8, num_workers=0, **options)]), expected)
    assert same(everything([loader_of(mixed(sets), 4, ranks=(rank, 2), **options) for rank in range(2)]), expected)
    assert same(everything([pickle.loads(pickle.dumps(loader_of(mixed(sets), 8, **options)))]), expected)
    two = [loader_of(mixed(sets), 4, ranks=(rank, 2), **options) for rank in range(2)]
    for iterator in map(iter, two):
        for _ in range(5):
            next(iterator)
    state = json.loads(json.dumps(two[0].state_dict()))
    four = [loader_of(mixed(sets), 2, ranks=(rank, 4), **options) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(state)
    assert same(everything(four), expected[5:])
    other = loader_of(dp.mix([dp.Clips(path, **HOW) for path in sets], [1, 1, 1], num_samples=NUM), 8, **options)
    with pytest.raises(StateError, match=r"order='mixed 180:60:60, visits .*pass the same .*weights or number of samples"):
        other.load_state_dict(state)


def test_a_clip_that_comes_again_in_an_epoch_is_cut_again(sets: list[Path]) -> None:
    data = dp.mix([dp.Clips(path, **HOW) for path in sets[:2]], [9, 1], num_samples=NUM)
    of_clip: dict[int, list[torch.Tensor]] = {}
    for batch in loader_of(data, transform=[dp.transforms.RandomCrop(12)]):
        for sample, pixels in zip(batch["id"].tolist(), batch["video"].clone(), strict=True):
            of_clip.setdefault(sample, []).append(pixels)
    again = [found for found in of_clip.values() if len(found) > 1]
    assert len(again) > 20
    assert sum(torch.equal(found[0], found[1]) for found in again) < len(again) / 5


def test_a_rank_decodes_each_visit_once(sets: list[Path]) -> None:
    """No two ranks share a visit, whatever the weights."""
    data = mixed(sets, lanes=64)
    orders = [loader_of(data, 4, ranks=(rank, 4)) for rank in range(4)]
    order = orders[0]._passes.source(5).order
    positions = np.arange(NUM)
    rank_of = positions % 16 // 4
    visits = order.visits_at(0, positions)
    assert all(len({rank_of[place] for place, other in enumerate(visits) if other == visit}) == 1 for visit in {*visits})


def test_explain_says_the_shares(sets: list[Path]) -> None:
    said = str(dp.explain(loader_of(mixed(sets))))
    assert "mix       300 an epoch in shares of 60.0%, 20.0%, 20.0%" in said
    assert said.count("\ndataset   ") == 3
    assert f"300 an epoch of {sum(len(dp.Clips(path, **HOW)) for path in sets)} clips of 6 videos" in repr(mixed(sets))


def test_sets_that_name_other_classes_are_told(sets: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.mp4").write_bytes((sets[0] / "class0" / "a.mp4").read_bytes())
    with pytest.warns(UserWarning, match="name different classes"):
        data = dp.mix([dp.Clips(sets[0], **HOW), dp.Clips(tmp_path, **HOW)])
    assert data.classes is None
    unlabelled = dp.Clips(sorted(sets[0].rglob("*.mp4")), frames=3)
    assert set(next(iter(loader_of(dp.mix([dp.Clips(sets[0], frames=3), unlabelled]))))) == {"video"}


def test_wrong_mixes_are_refused(sets: list[Path], tmp_path: Path) -> None:
    first, second = (dp.Clips(path, **HOW) for path in sets[:2])
    with pytest.raises(OptionError, match="pass all datasets to one mix"):
        dp.mix([dp.mix([first, second]), first])
    with pytest.raises(OptionError, match="differ in per_visit, layout; give all of them the same"):
        dp.mix([first, dp.Clips(sets[1], **HOW | {"per_visit": 2, "layout": "BCTHW"})])
    with pytest.raises(OptionError, match="with 3, 5 frames of 'video'"):
        dp.mix([first, dp.Clips(sets[1], **HOW | {"frames": 5})])
    with pytest.raises(OptionError, match="weights have the shape"):
        dp.mix([first, second], [1, 2, 3])
    write_video(tmp_path / "x.mp4", frames=pictures(20, 64, 48))
    large = dp.Clips(tmp_path / "x.mp4", frames=3)
    small = dp.Clips(sorted(sets[0].rglob("*.mp4")), frames=3)
    with pytest.raises(OptionError, match="the videos differ in size"):
        loader_of(dp.mix([large, small]))
    batch = next(iter(loader_of(dp.mix([large, small]), transform=[dp.transforms.Resize((16, 16))])))
    assert batch["video"].shape[1:] == (3, 3, 16, 16)
    robot = dp.Clips(write_lerobot(tmp_path / "robot"))
    with pytest.raises(OptionError, match="without a camera in common"):
        dp.mix([small, robot])
    with pytest.raises(OptionError, match=r"mix\(\) of Clips and Audio|Images|Table|a batch has samples of one kind"):
        dp.mix([small, dp.Table])


def test_robots_are_mixed(tmp_path: Path) -> None:
    """Samples are those of each set; columns and cameras that both have."""
    paths = [write_lerobot(tmp_path / name) for name in ("one", "other")]
    deltas = {CAMERAS[0]: [-0.1, 0.0], "action": [0.0, 0.1]}
    parts = [dp.Clips(path, delta_timestamps=deltas) for path in paths]
    data = dp.mix(parts, [2, 1], num_samples=30)
    found = [next(iter(loader_of(part, len(part), shuffle=False))) for part in parts]
    for batch in loader_of(data, 6):
        assert batch.keys() == found[0].keys()
        for row, number in enumerate(batch["index"].tolist()):  # in both sets the same numbers, of the same data
            for name in batch:
                assert all(_equal(batch[name][row], one[name][number]) for one in found[:1])


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
