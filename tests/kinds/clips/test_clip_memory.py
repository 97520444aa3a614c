"""Decoded clips take no more memory than `explain` says, whatever the visits and lanes."""

from __future__ import annotations

import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")

from video_files import pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.kernel.pools import BatchMemory, SlabPool  # noqa: E402
from datapipe.kinds.clips.kind import ClipKind  # noqa: E402
from datapipe.kinds.clips.settings import LANES_NBYTES, ClipSettings  # noqa: E402


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    root = tmp_path_factory.mktemp("videos")
    first = write_video(root / "00.mp4", frames=pictures(96, 48, 32), options=x264("bframes=0"))
    for number in range(1, 12):
        (root / f"{number:02d}.mp4").write_bytes(first.read_bytes())
    return root


def held_nbytes(loader: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes that are allocated for visits at once during an epoch; batches have pools of their own."""
    held, most, of_batches = 0, 0, set()
    allocate, open_pass = SlabPool._allocate, ClipKind.open_pass

    def freed(nbytes: int) -> None:
        nonlocal held
        held -= nbytes

    def counting(self: SlabPool) -> Any:
        nonlocal held, most
        memory = allocate(self)
        if id(self) not in of_batches:
            held += self.nbytes
            most = max(most, held)
            weakref.finalize(memory, freed, self.nbytes)
        return memory

    def opened(self: ClipKind, settings: Any) -> Any:
        maker = open_pass(self, settings)
        for memory in maker.memory:
            _noting_pools(memory, of_batches)
        return maker

    with monkeypatch.context() as patched:
        patched.setattr(SlabPool, "_allocate", counting)
        patched.setattr(ClipKind, "open_pass", opened)
        for _ in loader:
            pass
    return most


def _noting_pools(memory: BatchMemory, pools: set[int]) -> None:
    open_pool = memory._open_pool

    def opened(nbytes: int) -> SlabPool:
        pool = open_pool(nbytes)
        pools.add(id(pool))
        return pool

    memory._open_pool = opened


@pytest.mark.daily(2)
@pytest.mark.parametrize("transform", [[], [dp.transforms.RandomResizedCrop(24)]], ids=["whole", "crops"])
@pytest.mark.parametrize(
    "options",
    [
        {"per_visit": 4, "lanes": 64},
        {"per_visit": 4},
        {"per_visit": 12, "lanes": 16},
        {"per_visit": 1},
        {"per_visit": 4, "lanes": 16, "frames": 1, "step": 1},
        {"clips": "random"},
        {"shuffle": False},
    ],
    ids=str,
)
def test_no_more_memory_than_explain_says(
    videos: Path, options: dict[str, Any], transform: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffle = options.get("shuffle", True)
    how = {"frames": 4, "step": 2} | {name: value for name, value in options.items() if name != "shuffle"}
    loader = dp.DataLoader(dp.Clips(videos, **how), 8, shuffle=shuffle, seed=0, num_workers=2, transform=transform)
    (line,) = [line for line in dp.explain(loader).lines if line.startswith("memory ")]
    found = re.fullmatch(r"memory    ([\d.]+) MB a clip; at most ([\d,.]+) MB of decoded clips on each of 1 ranks, .*", line)
    assert found is not None, line
    size = 24 * 24 if transform else 32 * 48
    assert float(found[1]) == pytest.approx(3 * size * how["frames"] / 1e6, abs=0.005)
    held = held_nbytes(loader, monkeypatch)
    said = loader._passes.kind.most_held_nbytes(loader._passes.source(), loader._passes.options)
    assert float(found[2].replace(",", "")) == pytest.approx(said / 1e6, abs=0.5)
    assert held <= said
    if options.get("lanes") == 64:
        assert held > said / 3  # it is no wild guess


def test_lanes_are_chosen_within_bounds() -> None:
    for clip_nbytes in (1 << 18, 1 << 22, 1 << 25):
        for batch in (8, 64, 128):
            lanes = ClipSettings().num_lanes(1 << 30, batch, clip_nbytes)
            assert lanes % batch == 0
            assert lanes * 4 * clip_nbytes <= max(LANES_NBYTES, batch * 4 * clip_nbytes)


def test_explain_says_when_clips_take_much(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", frames=[np.zeros((1088, 1920, 3), np.uint8)] * 8, options=x264("bframes=0"))
    data = dp.Clips([tmp_path / "a.mp4"] * 60, frames=4, step=1)
    said = str(dp.explain(dp.DataLoader(data, 32, shuffle=True)))
    assert "25.07 MB a clip" in said
    assert "a smaller per_visit, or smaller frames, take less" in said
