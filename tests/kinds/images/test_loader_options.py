"""Refused arguments and their remedies, ranks, and the attributes of a loader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES, copies, same, write_webdataset
from recipes import EVAL, SIZE, TRAIN, make

import datapipe as dp
from datapipe.kernel.options import MAX_BLOCK

# -- refusals --------------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ({"batch_size": -3}, "batch_size is -3"),
    ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number"),
    ({"batch_size": None}, r"batch_size=None \(no batching\) is not available; pass a number"),
    ({"num_workers": -1}, "num_workers is -1"),
    ({"num_workers": 1.5}, "num_workers is 1.5"),
    ({"prefetch_factor": 0}, "prefetch_factor is 0"),
    ({"timeout": -1}, "timeout is -1.0"),
    ({"shuffle": True, "sampler": [1]}, "sampler and shuffle=True exclude each other"),
    ({"batch_sampler": [[1]]}, "batch_sampler excludes batch_size"),
    ({"batch_size": 1, "batch_sampler": [[1]], "shuffle": True}, "batch_sampler excludes batch_size, shuffle"),
    ({"batch_size": 1, "batch_sampler": [[1]], "sampler": [1]}, "batch_sampler excludes"),
    ({"batch_size": 1, "batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes"),
    ({"batch_size": 1, "batch_sampler": [[1]], "tail": "drop"}, "batch_sampler excludes tail='drop'"),
    ({"sampler": [1], "tail": "mask"}, "sampler excludes tail='mask'"),
    ({"drop_last": True, "tail": "pad"}, "drop_last=True contradicts tail='pad'"),
    ({"tail": "keep"}, "tail is 'keep'; choose one of: pad, drop, mask"),
    ({"on_error": "ignore"}, "on_error is 'ignore'; choose raise, skip or replace"),
    ({"output": "list"}, "output is 'list'; choose tuple or dict"),
    ({"rename": {"image": "x"}}, "rename needs output='dict'"),
    ({"output": "dict", "rename": {"pixels": "x"}}, "rename .*'pixels'"),
    ({"output": "dict", "rename": {"image": "x", "label": "x"}}, "rename would give two fields one name: x, x, real, id"),
    ({"backend": "images_tpu"}, "backend is 'images_tpu'"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"device": "cuda:0"}, "device is .cuda:0.*finds no device .*; pass device=.cpu."),
    ({"rank": 1}, "rank=1, world_size=None: pass both or neither"),
    ({"rank": 2, "world_size": 2}, "rank 2 is not among world_size 2"),
    ({"rank": 0.5, "world_size": 2}, "rank is 0.5; it must be a whole number"),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ({"seed": 2**64}, "it must fit 64 bits"),
    ({"seed": 1, "generator": torch.Generator()}, "seed=1 and generator exclude each other"),
    ({"transform": None}, "images would differ in size: .* end the geometry with RandomResizedCrop, CenterCrop or Resize"),
    ({"transform": [dp.Resize(20)]}, r"ends with Resize\(20\)?"),
    ({"batch_size": 1, "batch_sampler": [[1, 2]], "transform": None}, "images would differ in size"),
    ({"generator": 4}, "generator is 4; pass a torch.Generator"),
    ({"output": "dict", "rename": "x"}, "rename is 'x'; pass a dict"),
    ({"timeout": "x"}, "timeout is 'x'; it must be a number"),
    ({"collate_fn": 3}, "collate_fn is 3; it must be a function"),
    ({"worker_init_fn": 3}, "worker_init_fn is 3; it must be a function"),
    ({"memory_format": "x"}, "memory_format is 'x'; choose torch.channels_last"),
    ({"sampler": 5}, "sampler is 5; it must be an iterable"),
    ({"batch_size": 1, "batch_sampler": 5}, "batch_sampler is 5; it must be an iterable"),
    ({"transform": "flip"}, "is not a known transform and not callable"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_honoured_is_refused_at_construction(uneven: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(dp.OptionError, match=said):
        make(uneven, **arguments)


@pytest.mark.parametrize(
    "dataset", [[1, 2], torch.utils.data.TensorDataset(torch.zeros(3)), 5, None], ids=lambda d: type(d).__name__
)
def test_other_datasets_are_refused_saying_what_to_pass(dataset: Any) -> None:
    with pytest.raises(dp.OptionError, match=r"pass the path of a converted dataset, of WebDataset shards or of an image folder"):
        dp.DataLoader(dataset)


@pytest.mark.parametrize(("path", "said"), [
    ("ftp://bucket/x.tar", "ftp:// is not read"),
    ("x-{000..003}.tar", r"a pattern, such as x-\*.tar"), ("", "is empty"),
])  # fmt: skip
def test_other_ways_to_name_data_are_told_apart(path: str, said: str) -> None:
    with pytest.raises(dp.DatapipeError, match=said):
        dp.DataLoader(path)


def test_epochs_and_observers_and_explanations_of_nothing_are_refused(folder: Path) -> None:
    loader = make(folder)
    for epoch in (-1, 1.5, "a", None):
        with pytest.raises(dp.OptionError, match="epoch is"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(dp.OptionError, match="pass a function"):
        loader.observe(3)  # type: ignore[arg-type]
    for nothing in ("shards", 3, None):
        with pytest.raises(dp.OptionError, match="pass a loader"):
            print(dp.explain(nothing))


def test_images_of_any_size_one_at_a_time(uneven: Path) -> None:
    loader = dp.DataLoader(uneven, num_workers=2)
    shapes = {tuple(images.shape) for images, _ in loader}
    assert len(shapes) > 3
    assert all(shape[:2] == (1, 3) for shape in shapes)


def test_a_stored_size_needs_no_geometry(converted: Path) -> None:
    images, _ = next(iter(dp.DataLoader(converted, batch_size=5)))
    assert images.shape == (5, 3, 40, 48)


# -- ranks -----------------------------------------------------------------------------------------


def test_ranks_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [copies(make(folder, rank=rank, world_size=2, shuffle=True)) for rank in range(2)]
    assert len(expected[0]) == len(expected[1]) == 4
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert same(copies(make(folder, shuffle=True)), expected[rank])
    assert same(
        copies(make(folder, shuffle=True, rank=0, world_size=1)), copies(make(folder, shuffle=True, rank=0, world_size=1))
    )
    assert len(make(folder, rank=0, world_size=1)) == 8, "arguments win"


def test_the_rank_is_frozen_at_first_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = make(folder), make(folder)
    assert len(early) == 8
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(early) == 8
    assert len(late) == 2
    assert early.state_dict()["global_batch"] == 5
    assert late.state_dict()["global_batch"] == 20


@pytest.mark.parametrize(
    ("rank", "world_size", "said"), [("x", "2", "not numbers"), ("3", "2", "rank 3 is not among"), ("-1", "2", "not numbers")]
)
def test_an_environment_that_makes_no_sense_is_refused(
    folder: Path, rank: str, world_size: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(dp.OptionError, match=said):
        make(folder)


def test_half_an_environment_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert len(make(folder)) == 8


@pytest.mark.parametrize("tail", ["pad", "drop", "mask"])
def test_all_ranks_take_equally_many_steps(folder: Path, tail: str) -> None:
    for world_size in (2, 3, 5):
        passes = [copies(make(folder, tail=tail, rank=rank, world_size=world_size, batch_size=4)) for rank in range(world_size)]
        assert len({tuple(len(batch[1]) for batch in batches) for batches in passes}) == 1


# -- its attributes and methods --------------------------------------------------------------------


def test_it_reads_as_torchs_does(folder: Path) -> None:
    """What frameworks look at."""
    generator = torch.Generator().manual_seed(3)
    loader = make(
        folder,
        shuffle=True,
        seed=None,
        generator=generator,
        drop_last=True,
        prefetch_factor=4,
        timeout=3,
        persistent_workers=True,
    )
    assert (loader.batch_size, loader.num_workers, loader.drop_last, loader.prefetch_factor, loader.timeout) == (5, 2, True, 4, 3)
    assert loader.generator is generator
    assert loader.persistent_workers is True
    assert loader.pin_memory is False
    assert loader.collate_fn is None
    assert len(loader.sampler) == NUM_SAMPLES  # type: ignore[arg-type]
    assert not isinstance(loader, torch.utils.data.DataLoader), "hosts rebuild those"
    assert len(loader.dataset) == NUM_SAMPLES


def test_pickles_as_its_arguments(folder: Path) -> None:
    loader = make(folder, shuffle=True, seed=8, transform=TRAIN, output="dict", rename={"id": "no"}, tail="mask")
    expected = list(loader)
    data = pickle.dumps(loader)
    assert len(data) < 10_000
    again = pickle.loads(data)
    found = list(again)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in a)
    selected = make(loader.dataset.select([3, 5]))
    assert same(copies(pickle.loads(pickle.dumps(selected))), copies(selected))


def test_pinning_without_a_gpu_changes_nothing(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert same(copies(make(folder, pin_memory=True)), copies(make(folder)))


@pytest.mark.gpu
def test_pinned_batches(folder: Path) -> None:
    loader = make(folder, pin_memory=True, transform=TRAIN)
    for (images, _), (plain, _) in zip(loader, make(folder, transform=TRAIN), strict=True):
        assert images.is_pinned()
        assert torch.equal(images.to("cuda", non_blocking=True).cpu(), plain)


def test_several_shards_of_one_directory(folder: Path, tmp_path: Path) -> None:
    shards = write_webdataset(folder, tmp_path / "set", per_shard=3)
    assert same(copies(make(f"{shards}/*.tar", transform=EVAL)), copies(make(folder, transform=EVAL)))  # type: ignore[arg-type]
    assert next(iter(make(shards, transform=EVAL)))[0].shape == (5, 3, SIZE, SIZE)


# -- units of work ---------------------------------------------------------------------------------


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
