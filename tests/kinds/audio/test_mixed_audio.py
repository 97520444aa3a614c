"""Crops of several sets of recordings have their shares of every step; whole utterances are not mixed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

soundfile = pytest.importorskip("soundfile")

import datapipe as dp  # noqa: E402
from datapipe.errors import OptionError  # noqa: E402

RATE = 8000


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders of sound, of 12 and 5 files. Not to be changed."""
    rng, roots = np.random.default_rng(0), []
    for name, num in (("one", 12), ("other", 5)):
        roots.append(tmp_path_factory.mktemp(name))
        for number in range(num):
            soundfile.write(roots[-1] / f"{number:02d}.wav", rng.normal(0, 0.1, RATE // 2 + 100 * number), RATE, subtype="PCM_16")
    return roots


def loader_of(data: Any, batch_size: int = 10, **options: Any) -> Any:
    return dp.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, "num_workers": 2} | options)


def mixed(sets: list[Path], **changes: Any) -> dp.Audio:
    how = {"seconds": 0.2, "fields": ["audio", "lengths", "id"]} | changes
    return dp.mix([dp.Audio(path, **how) for path in sets], [4, 1], num_samples=100)


def test_shares_hold_and_crops_are_of_their_recordings(sets: list[Path]) -> None:
    files = [path for root in sets for path in sorted(root.glob("*.wav"))]
    sound = [soundfile.read(path, dtype="float32")[0] for path in files]
    for batch in loader_of(mixed(sets)):
        ids = batch["id"].numpy()
        assert (ids < 12).sum() in (7, 8, 9)
        for number, crop in zip(ids.tolist(), batch["audio"].numpy(), strict=True):
            starts = np.flatnonzero(sound[number] == crop[0])
            assert any(
                (sound[number][at : at + len(crop)] == crop).all() for at in starts if at + len(crop) <= len(sound[number])
            )


def test_threads_ranks_copies_and_repeats(sets: list[Path]) -> None:
    def everything(loaders: list[Any]) -> torch.Tensor:
        return torch.cat([torch.cat([one["audio"] for one in step]) for step in zip(*loaders, strict=True)])

    expected = everything([loader_of(mixed(sets))])
    assert torch.equal(everything([loader_of(mixed(sets), 5, ranks=(rank, 2), num_workers=0) for rank in range(2)]), expected)
    assert torch.equal(everything([pickle.loads(pickle.dumps(loader_of(mixed(sets))))]), expected)
    assert len({tuple(crop) for crop in expected.tolist()}) > 95  # those that come again are cut again
    assert "mix       100 an epoch in shares of 80.0%, 20.0%" in str(dp.explain(loader_of(mixed(sets))))


def test_wrong_mixes_are_refused(sets: list[Path]) -> None:
    with pytest.raises(OptionError, match="whole utterances: they come in batches of like lengths; mix crops"):
        dp.mix([dp.Audio(path, whole=True) for path in sets])
    with pytest.raises(OptionError, match="differ in seconds, rate"):
        dp.mix([dp.Audio(sets[0], seconds=1), dp.Audio(sets[1], seconds=0.5, rate=4000)])
    with pytest.raises(OptionError, match="pass all datasets to one mix"):
        dp.mix([mixed(sets), dp.Audio(sets[0], seconds=0.2)])
    with pytest.raises(OptionError, match="both say how often samples come"):
        loader_of(mixed(sets), sampler=dp.WeightedSampler(np.ones(17)), shuffle=False)
