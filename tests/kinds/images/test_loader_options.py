"""Arguments of `DataLoader` that are refused, and their remedies; its attributes, and its units of work."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, write_webdataset
from recipes import EVAL, SIZE, TRAIN, make

import datapipe as dp
from datapipe import transforms as T
from datapipe.kernel.options import MAX_BLOCK, default_num_workers
from datapipe.testing.loaders.kind import copies, same

# -- refusals --------------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"shuffle": True, "sampler": [1]}, "sampler and shuffle=True exclude each other"),
    ({"batch_sampler": [[1]]}, "batch_sampler excludes batch_size"),
    ({"batch_size": 1, "batch_sampler": [[1]], "shuffle": True}, "batch_sampler excludes batch_size, shuffle"),
    ({"batch_size": 1, "batch_sampler": [[1]], "sampler": [1]}, "batch_sampler excludes"),
    ({"batch_size": 1, "batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes"),
    ({"batch_size": 1, "batch_sampler": [[1]], "tail": "drop"}, "batch_sampler excludes tail='drop'"),
    ({"sampler": [1], "tail": "mask"}, "sampler excludes tail='mask'"),
    ({"output": "list"}, "output is 'list'; choose 'tuple', 'dict', or new names"),
    ({"output": {"pixels": "x"}}, "output renames .*'pixels'"),
    ({"output": {"image": "x", "label": "x"}}, "output would give two fields one name: x, x, real, id"),
    ({"backend": "images_tpu"}, "backend is 'images_tpu'"),
    ({"device": "cuda:0"}, "device is .cuda:0.*finds no device .*; pass device=.cpu."),
    ({"transform": None}, "images would differ in size: .* end the geometry with RandomResizedCrop, CenterCrop or Resize"),
    ({"transform": [T.Resize(20)]}, r"ends with Resize\(20\)?"),
    ({"batch_size": 1, "batch_sampler": [[1, 2]], "transform": None}, "images would differ in size"),
    ({"collate_fn": 3}, "collate_fn is 3; it must be a function"),
    ({"memory_format": "x"}, "memory_format is 'x'; choose torch.channels_last"),
    ({"sampler": 5}, "sampler is 5; it must be an iterable"),
    ({"batch_size": 1, "batch_sampler": 5}, "batch_sampler is 5; it must be an iterable"),
    ({"transform": "flip"}, "is not a known transform and not callable"),
    ({"batch_size": 2**62}, "batch_size is 4611686018427387904; it must be at most"),
    ({"batch_size": 1e300}, r"batch_size is 1e\+300; it must be a whole number"),
    ({"timeout": 10**400}, "timeout is inf; it must be finite"), ({"timeout": "5"}, "timeout is '5'; it must be a number"),
    ({"device": 10**30}, "device is 10+, which torch does not accept"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_honoured_is_refused_at_construction(uneven: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=said):
        make(uneven, **arguments)


@pytest.mark.parametrize(
    "dataset", [[1, 2], torch.utils.data.TensorDataset(torch.zeros(3)), 5, None], ids=lambda d: type(d).__name__
)
def test_other_datasets_are_refused_saying_what_to_pass(dataset: Any) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"pass the path of a converted dataset, of"):
        dp.DataLoader(dataset)


@pytest.mark.parametrize(("path", "said"), [
    ("ftp://bucket/x.tar", "ftp:// is not read"),
    ("x-{000..003}.tar", r"a pattern, such as x-\*.tar"), ("", "is empty"),
])  # fmt: skip
def test_other_ways_to_name_data_are_told_apart(path: str, said: str) -> None:
    with pytest.raises(dp.errors.DatapipeError, match=said):
        dp.DataLoader(path)


def test_images_of_any_size_one_at_a_time(uneven: Path) -> None:
    loader = dp.DataLoader(uneven, num_workers=2)
    shapes = {tuple(images.shape) for images, _ in loader}
    assert len(shapes) > 3
    assert all(shape[:2] == (1, 3) for shape in shapes)


def test_a_stored_size_needs_no_geometry(converted: Path) -> None:
    images, _ = next(iter(dp.DataLoader(converted, batch_size=5)))
    assert images.shape == (5, 3, 40, 48)


# -- its attributes and methods --------------------------------------------------------------------


def test_it_reads_as_torchs_does(folder: Path) -> None:
    loader = make(folder, persistent_workers=True)
    assert loader.persistent_workers is True
    assert loader.collate_fn is None
    assert len(loader.dataset) == NUM_SAMPLES


def test_pickles_as_its_arguments(folder: Path) -> None:
    loader = make(folder, shuffle=True, seed=8, transform=TRAIN, output={"id": "no"}, tail="mask")
    expected = list(loader)
    data = pickle.dumps(loader)
    assert len(data) < 10_000
    again = pickle.loads(data)
    found = list(again)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in a)
    selected = make(loader.dataset.select([3, 5]))
    assert same(copies(pickle.loads(pickle.dumps(selected))), copies(selected))


@pytest.mark.gpu
def test_pinned_batches(folder: Path) -> None:
    loader = make(folder, pin_memory=True, device="cpu", transform=TRAIN)
    for (images, _), (plain, _) in zip(loader, make(folder, device="cpu", transform=TRAIN), strict=True):
        assert images.is_pinned()
        assert torch.equal(images.to("cuda", non_blocking=True).cpu(), plain)


def test_several_shards_of_one_directory(folder: Path, tmp_path: Path) -> None:
    shards = write_webdataset(folder, tmp_path / "set", per_shard=3)
    assert same(copies(make(f"{shards}/*.tar", transform=EVAL)), copies(make(folder, transform=EVAL)))  # type: ignore[arg-type]
    assert next(iter(make(shards, transform=EVAL)))[0].shape == (5, 3, SIZE, SIZE)


# -- threads and units of work ---------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5, 16, 200])
@pytest.mark.parametrize("num_samples", [1, 7, 64, 65, 100, 256, 1000])
def test_every_thread_gets_as_many_blocks(num_workers: int, num_samples: int, folder: Path) -> None:
    """Otherwise the last batches of an epoch, and the first, would wait for the rank with one more."""
    options = make(folder, num_workers=num_workers).options
    size = options.block_size_of(num_samples)
    num_blocks = -(-num_samples // size)
    assert 1 <= size <= MAX_BLOCK
    assert num_blocks * size < num_samples + num_blocks  # none is short of more than rounding asks for
    assert -(-num_blocks // max(1, num_workers)) == -(-num_samples // (MAX_BLOCK * max(1, num_workers)))


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, None), ({"SLURM_CPUS_PER_TASK": "1"}, 1), ({"LOCAL_WORLD_SIZE": "1000"}, 1), ({"SLURM_CPUS_PER_TASK": "nonsense"}, None),
])  # fmt: skip
def test_default_number_of_threads(
    environment: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert 1 <= default_num_workers() <= len(os.sched_getaffinity(0))
    if expected is not None:
        assert default_num_workers() == expected
    assert make(folder, num_workers=None).num_workers == default_num_workers()
