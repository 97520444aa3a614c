"""The same seed gives the same batches, whatever the threads, the container or the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, convert
from recipes import CROP, EVAL, TRAIN

import datapipe as dp
from datapipe import transforms as T
from datapipe.testing.loaders.kind import copies, same

pytestmark = pytest.mark.usefixtures("backend")

RECIPES: dict[str, Any] = {"uint8": CROP, "float32": TRAIN, "eval": EVAL}


def passes(path: Path, num: int = 2, **arguments: Any) -> list[tuple[torch.Tensor, ...]]:
    if not {"sampler", "batch_sampler"} & arguments.keys():
        arguments = {"batch_size": 5, "shuffle": True} | arguments
    loader = dp.DataLoader(path, seed=arguments.pop("seed", 9), **arguments)
    return [batch for _ in range(num) for batch in copies(loader)]


@pytest.fixture(scope="module")
def others(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder in the formats other than tar."""
    root = tmp_path_factory.mktemp("others")
    return [convert(folder, root / to, to=to) for to in ("hdf5", "parquet", "tfrecord")]


@pytest.mark.daily(1)
@pytest.mark.parametrize("recipe", RECIPES)
def test_threads_and_containers_make_no_difference(
    recipe: str, folder: Path, shards: Path, converted: Path, others: list[Path]
) -> None:
    transform = RECIPES[recipe]
    expected = passes(folder, transform=transform, num_workers=0)
    for path in (folder, shards, converted, *others):
        for num_workers in (0, 1, 2, 4) if path in (folder, converted) else (2,):
            assert same(passes(path, transform=transform, num_workers=num_workers), expected), (path, num_workers)
    assert not same(passes(folder, transform=transform, seed=10), expected)


def samples(loader: dp.DataLoader) -> dict[int, torch.Tensor]:
    return {int(sample): image.clone() for batch in loader for sample, image in zip(batch["id"], batch["image"], strict=True)}


def test_a_samples_crop_depends_on_seed_epoch_and_id_only(folder: Path) -> None:
    """Not on batch size, order, rank, or what else is selected."""
    common: dict[str, Any] = {"transform": TRAIN, "output": "dict", "seed": 4}
    expected = samples(dp.DataLoader(folder, batch_size=37, num_workers=0, **common))
    assert len(expected) == NUM_SAMPLES
    dataset = dp.DataLoader(folder).dataset
    others = [
        samples(dp.DataLoader(folder, batch_size=3, shuffle=True, num_workers=2, **common)),
        samples(dp.DataLoader(folder, batch_size=11, sampler=range(36, -1, -1), num_workers=2, **common)),
        *[samples(dp.DataLoader(folder, batch_size=4, shuffle=True, ranks=(rank, 3), **common)) for rank in range(3)],
        samples(dp.DataLoader(dataset.select([30, 2, 17]), batch_size=2, **common)),
        samples(dp.DataLoader(folder, batch_size=1, sampler=[8, 2, 30], **common)),
    ]
    for found in others:
        assert all(torch.equal(image, expected[sample]) for sample, image in found.items())
    later = dp.DataLoader(folder, batch_size=37, num_workers=0, **common)
    later.set_epoch(1)
    assert not any(torch.equal(image, expected[sample]) for sample, image in samples(later).items())


def test_a_sample_that_comes_again_in_an_epoch_is_cropped_anew(folder: Path) -> None:
    """The first time as ever, then each time otherwise; the same on every run, and after resuming in between."""
    for arguments in ({"batch_size": 3, "sampler": [5, 5, 7, 5, 8, 7]}, {"batch_sampler": [[5, 5, 7], [5, 8, 7]]}):
        first, second = passes(folder, 1, transform=CROP, **arguments)
        images = torch.cat([first[0], second[0]])
        assert torch.equal(images[0], passes(folder, 1, transform=CROP, batch_size=1, sampler=[5])[0][0][0])
        for one, other in ((0, 1), (1, 3), (0, 3), (2, 5)):
            assert not torch.equal(images[one], images[other])
        assert same([first, second], passes(folder, 1, transform=CROP, **arguments))
        loader, again = (dp.DataLoader(folder, seed=9, transform=CROP, **arguments) for _ in range(2))
        next(iter(loader))
        again.load_state_dict(loader.state_dict())
        assert same(list(again), [second])


@pytest.mark.parametrize("operation", [T.MixUp(num_classes=3), T.CutMix(num_classes=3)], ids=repr)
def test_mixing_is_drawn_per_batch(folder: Path, operation: object) -> None:
    transform = [*TRAIN, operation]
    expected = passes(folder, transform=transform, num_workers=0)
    _, labels = expected[0]
    assert (labels.dtype.is_floating_point, tuple(labels.shape)) == (True, (5, 3))
    assert torch.allclose(labels.sum(1), torch.ones(5))
    for num_workers in (1, 4):
        assert same(passes(folder, transform=transform, num_workers=num_workers), expected)
    resumed = dp.DataLoader(folder, batch_size=5, shuffle=True, seed=9, transform=transform)
    iterator = iter(resumed)
    next(iterator)
    state = resumed.state_dict()
    iterator.close()
    resumed.load_state_dict(state)
    assert same(copies(resumed), expected[1:8])
    plain = passes(folder, transform=TRAIN)
    assert not same([batch[:1] for batch in plain], [batch[:1] for batch in expected])


def test_mixing_differs_between_ranks_and_steps(folder: Path) -> None:
    """Keyed by (seed, epoch, step, rank): the shares differ from batch to batch."""
    shares = []
    for rank in range(2):
        loader = dp.DataLoader(
            folder,
            batch_size=9,
            shuffle=True,
            transform=[*TRAIN, T.MixUp(num_classes=3)],
            ranks=(rank, 2),
            drop_last=True,
        )
        for _ in range(4):
            for _, labels in loader:
                blended = labels[(labels > 0).sum(1) == 2]  # of two classes
                assert len(blended)
                shares.append(round(float(blended.max()), 5))
    assert len(shares) == len(set(shares)) == 16


def test_mixing_needs_labels_and_no_collate_fn(folder: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"MixUp.*collate_fn would have to"):
        dp.DataLoader(folder, batch_size=4, transform=[*TRAIN, T.MixUp(num_classes=3)], collate_fn=list)


def test_another_seed_needs_no_other_decoders(folder: Path, backend: str) -> None:
    """Nor does `explain`, which opens them before there is a seed."""
    mixed = [*CROP, T.ToDtype(torch.float32, scale=True), T.MixUp(num_classes=3)]
    arguments: dict[str, Any] = {"shuffle": True, "num_workers": 1, "transform": mixed, "backend": backend, "device": "cpu"}
    loader = dp.DataLoader(folder, 5, **arguments)
    loader._passes.kind.decoder_device(loader._passes.settings())
    opened = loader._passes.kind.batch_maker(loader._passes.settings())
    torch.manual_seed(1)
    assert same(copies(loader), copies(dp.DataLoader(folder, 5, seed=1, **arguments)))
    again = loader._passes.kind.batch_maker(loader._passes.settings(1))
    assert again.resources is opened.resources
    assert again.dali is opened.dali
