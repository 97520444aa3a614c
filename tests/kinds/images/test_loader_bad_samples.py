"""Bad samples: raised, skipped or replaced, the same for any number of threads, and always named."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import NUM_SAMPLES, encode, entry_of, flip_bit, listing, open_images
from recipes import CROP, TRAIN

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.probe import MAX_SAMPLE_NBYTES
from datapipe.opening.samples import open_index

pytestmark = pytest.mark.usefixtures("backend")

BAD = (0, 4, 5, 20, 36)  # ids: the first, neighbours, the last


@pytest.fixture(scope="session")
def damaged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with five bad files, bad in different ways."""
    root = tmp_path_factory.mktemp("damaged") / "set"
    shutil.copytree(folder, root)
    paths = listing(root)
    data = paths[4].read_bytes()
    for sample, contents in zip(BAD, (b"", data[: len(data) // 2], b"<html>", data[:-2], bytes(900)), strict=True):
        paths[sample].write_bytes(contents)
    return root


def make(path: Path, **changes: Any) -> dp.DataLoader:
    return open_images(path, **({"batch_size": 5, "transform": CROP, "output": "dict", "num_workers": 2} | changes))


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize(("position", "reason"), [
    (0, "empty file"), (4, "it ends before the first scan"), (5, "not an image: 6 bytes starting with b'<html>'"),
    (20, "end marker is missing"), (36, "900 zero bytes"),
])  # fmt: skip
def test_raise_names_file_reason_and_remedy(damaged: Path, num_workers: int, position: int, reason: str) -> None:
    loader = make(damaged, num_workers=num_workers, sampler=[1, 2, 3, 6, 7, position, 8], batch_size=2)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    with pytest.raises(dp.errors.DecodeError, match=re.escape(reason)) as caught:
        next(iterator)
    assert str(listing(damaged)[position]) in str(caught.value)
    assert f"sample {position}" in str(caught.value)
    assert "on_error='skip'" in str(caught.value)
    assert isinstance(caught.value, OSError), "as Pillow's errors are: scripts catch that"
    assert loader.state_dict()["samples_done"] == 6, "the batch that failed is done"
    assert next(iterator)["id"].tolist() == [8], "the pass goes on after it"
    assert next(iterator, None) is None


@pytest.mark.parametrize("transform", [CROP, TRAIN], ids=["uint8", "float32"])
def test_skip_makes_shorter_batches_never_fewer_steps(folder: Path, damaged: Path, transform: list[object]) -> None:
    whole = list(make(folder, transform=transform))
    expected = []
    for batch in whole:
        good = ~torch.isin(batch["id"], torch.tensor(BAD))
        expected.append({name: value[good] for name, value in batch.items()})
    for num_workers in (0, 1, 4):
        loader = make(damaged, transform=transform, num_workers=num_workers, on_error="skip")
        found = list(loader)
        assert len(found) == len(whole) == len(loader)
        assert all(torch.equal(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in a)
        assert all(batch["image"].is_contiguous(memory_format=torch.channels_last) for batch in found)


def test_skipped_samples_are_reported(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(damaged, on_error="skip", shuffle=True)
    with caplog.at_level(logging.WARNING):
        list(loader), list(loader)
    for epoch in (0, 1):
        reports = [bad for bad in loader.bad_samples if bad.epoch == epoch]
        assert sorted(bad.id for bad in reports) == list(BAD)
        for bad in reports:
            assert str(listing(damaged)[bad.id]) in bad.where
            assert bad.reason
            assert 0 <= bad.step < len(loader)
    assert str(listing(damaged)[36]) in caplog.text
    assert len(caplog.records) == 2 * len(BAD)


def test_many_bad_samples_do_not_flood_the_log(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(damaged, on_error="skip", sampler=[0] * 60, batch_size=7)
    with caplog.at_level(logging.WARNING):
        assert [len(batch["id"]) for batch in loader] == [0] * 9
    assert len(loader.bad_samples) == 60
    assert 10 < len(caplog.records) < 30
    assert "see DataLoader.bad_samples" in caplog.text


@pytest.mark.parametrize("arguments", [{}, {"transform": TRAIN}, {"transform": None, "batch_size": 1}, {"tail": "mask"}], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_nothing_but_bad_samples_is_empty(damaged: Path, arguments: dict[str, Any], num_workers: int) -> None:
    loader = make(damaged, on_error="skip", num_workers=num_workers, **({"batch_size": 2} | arguments))
    loader_of_bad = make(
        loader.dataset.select([0, 4, 1, 2]), on_error="skip", num_workers=num_workers, **({"batch_size": 2} | arguments)
    )
    batches = list(loader_of_bad)
    assert sum(len(batch["label"]) for batch in batches) == 2
    first = batches[0]
    assert (len(first["image"]), len(first["label"]), first["label"].dtype) == (0, 0, torch.int64)
    assert first["image"].ndim == 4
    assert first["image"].shape[1] == 3
    assert first["image"].dtype == loader._passes.kind.recipe.output_dtype


@pytest.mark.parametrize("transform", [CROP, TRAIN], ids=["uint8", "float32"])
def test_replace_is_the_same_for_any_threads_and_order(damaged: Path, transform: list[object]) -> None:
    expected = list(make(damaged, transform=transform, on_error="replace", num_workers=0))
    assert [len(batch["id"]) for batch in expected] == [5] * 7 + [2]
    labels = make(damaged).dataset.targets
    for batch in expected:
        assert batch["label"].tolist() == [labels[sample] for sample in batch["id"].tolist()]
        assert not set(batch["id"].tolist()) & set(BAD)
    for num_workers in (1, 4):
        found = list(make(damaged, transform=transform, on_error="replace", num_workers=num_workers))
        assert all(torch.equal(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in a)
    planned = [
        sample for batch in make(damaged, on_error="replace", sampler=range(NUM_SAMPLES)) for sample in batch["id"].tolist()
    ]
    stand_ins = {sample: planned[sample] for sample in BAD}
    backwards = [
        sample for batch in make(damaged, on_error="replace", sampler=range(36, -1, -1)) for sample in batch["id"].tolist()
    ]
    assert {sample: backwards[36 - sample] for sample in BAD} == stand_ins
    reported = make(damaged, on_error="replace")
    list(reported)
    assert sorted(bad.id for bad in reported.bad_samples) == list(BAD)


def test_a_replacement_looks_as_it_does_in_its_own_place(damaged: Path) -> None:
    loader = make(damaged, on_error="replace", transform=TRAIN)
    images: dict[int, list[torch.Tensor]] = {}
    for batch in loader:
        for sample, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            images.setdefault(sample, []).append(image)
    repeated = [copies for copies in images.values() if len(copies) > 1]
    assert repeated
    assert all(torch.equal(copies[0], copy) for copies in repeated for copy in copies)


def test_replacements_change_with_the_epoch(damaged: Path) -> None:
    loader = make(damaged, on_error="replace", sampler=BAD)
    assert [b["id"].tolist() for b in loader] != [b["id"].tolist() for b in loader]


def test_bad_data_as_a_whole_is_said(damaged: Path) -> None:
    loader = make(make(damaged).dataset.select(BAD), on_error="replace")
    with pytest.raises(dp.errors.DecodeError, match="samples drawn to replace it are bad too"):
        list(loader)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_images_of_any_size_and_bad_ones(damaged: Path, uneven: Path, on_error: str, tmp_path: Path) -> None:
    """Without a recipe that makes sizes equal: one by one, through collate_fn."""
    root = tmp_path / "set"
    shutil.copytree(uneven, root)
    listing(root)[3].write_bytes(b"")
    sizes = []
    for num_workers in (0, 2):
        loader = dp.DataLoader(root, batch_size=4, on_error=on_error, collate_fn=list, num_workers=num_workers)
        batches = list(loader)
        sizes.append([tuple(image.shape) for batch in batches for image, _ in batch])
        assert [len(batch) for batch in batches][:2] == [3 if on_error == "skip" else 4, 4]
    assert sizes[0] == sizes[1]
    assert len(set(sizes[0])) > 3


# -- damage to shards -------------------------------------------------------------------------------


@pytest.fixture
def own(converted: Path, tmp_path: Path) -> Path:
    """A converted dataset to be damaged."""
    return Path(shutil.copytree(converted, tmp_path / "set"))


@pytest.mark.parametrize("where", ["first byte", "middle", "last byte"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_flipped_bit_is_named(own: Path, where: str, num_workers: int) -> None:
    """Whether or not the image would decode all the same."""
    path, offset, nbytes = entry_of(open_index(own), 7)
    flip_bit(Path(path), offset + {"first byte": 0, "middle": nbytes // 2, "last byte": nbytes - 1}[where])
    loader = make(own, num_workers=num_workers)
    with pytest.raises(dp.errors.IntegrityError, match=r"crc32c .* damaged") as caught:
        list(loader)
    assert path in str(caught.value)
    assert "sample 7" in str(caught.value)
    assert len(list(make(own, sampler=[n for n in range(37) if n != 7]))) == 8


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_flipped_bit_can_be_passed_over(own: Path, on_error: str) -> None:
    path, offset, _ = entry_of(open_index(own), 7)
    flip_bit(Path(path), offset + 9)
    loader = make(own, on_error=on_error)
    ids = [sample for batch in loader for sample in batch["id"].tolist()]
    assert 7 not in ids
    assert len(ids) == (36 if on_error == "skip" else 37)
    assert [bad.id for bad in loader.bad_samples] == [7]


def test_a_truncated_shard_is_named(own: Path) -> None:
    path, offset, _ = entry_of(open_index(own), 7)
    with open(path, "r+b") as file:
        file.truncate(offset + 5)
    with pytest.raises(dp.errors.IntegrityError, match=r"ends within bytes .* truncated") as caught:
        list(make(own))
    assert path in str(caught.value)


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_missing_shard_is_named_and_never_passed_over(own: Path, on_error: str, num_workers: int) -> None:
    """A bad sample is one thing; a shard that is not there is a fault of the whole."""
    path, _, _ = entry_of(open_index(own), 7)
    Path(path).unlink()
    with pytest.raises(dp.errors.MissingDataError, match="is missing") as caught:
        list(make(own, on_error=on_error, num_workers=num_workers))
    assert path in str(caught.value)


def _vanish(path: Path) -> None:
    path.unlink()


def _become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _lose_its_directory(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


def _grow(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_SAMPLE_NBYTES + 1)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("change", [_vanish, _become_a_directory, _lose_its_directory, _grow])
def test_a_loose_file_that_is_none_any_more_is_a_bad_sample(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], num_workers: int
) -> None:
    root = tmp_path / "set"
    shutil.copytree(folder, root)
    index = open_index(root)
    paths = listing(root)
    change(paths[7])
    bad = [sample for sample, path in enumerate(paths) if not path.is_file() or path.stat().st_size > MAX_SAMPLE_NBYTES]
    assert 7 in bad
    with pytest.raises(
        dp.errors.DecodeError if change is _grow else dp.errors.MissingDataError, match=f"sample ({'|'.join(map(str, bad))}): "
    ) as caught:
        list(make(dp.Images(index), num_workers=num_workers))
    assert any(str(paths[sample]) in str(caught.value) for sample in bad)
    assert "on_error='skip' or 'replace'" in str(caught.value)
    loader = make(dp.Images(index), on_error="skip", num_workers=num_workers)
    assert sum(len(batch["label"]) for batch in loader) == NUM_SAMPLES - len(bad)
    assert sorted(one.id for one in loader.bad_samples) == bad
    replaced = make(dp.Images(index), on_error="replace", num_workers=num_workers)
    assert sum(len(batch["label"]) for batch in replaced) == NUM_SAMPLES


def test_a_missing_index_is_named(own: Path) -> None:
    path, _, _ = entry_of(open_index(own), 7)
    Path(path + ".index.arrow").unlink()
    with pytest.raises(dp.errors.MissingDataError, match="index is missing") as caught:
        list(make(own))
    assert path in str(caught.value)


def test_single_samples_are_checked_too(own: Path, damaged: Path) -> None:
    path, offset, _ = entry_of(open_index(own), 7)
    flip_bit(Path(path), offset + 9)
    with pytest.raises(dp.errors.IntegrityError, match="sample 7"):
        make(own).dataset[7]
    with pytest.raises(dp.errors.DecodeError, match="sample 4"):
        make(damaged).dataset[4]


def test_a_set_whose_conversion_left_samples_out(damaged: Path, folder: Path, tmp_path: Path) -> None:
    """Ids stay those of the source, so the good samples look as they do in the folder."""
    from fixtures import convert

    import converters

    out = convert(damaged, tmp_path / "out", on_error=converters.OnError.SKIP)
    loader = make(out, num_workers=1, on_error="raise")
    assert len(loader.dataset) == NUM_SAMPLES - len(BAD)
    found = {int(sample): image for batch in loader for sample, image in zip(batch["id"], batch["image"], strict=True)}
    assert sorted(found) == sorted(set(range(NUM_SAMPLES)) - set(BAD))
    for batch in make(folder):
        for sample, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            assert sample in BAD or torch.equal(found[sample], image)
    assert np.array_equal(loader.dataset.targets, np.delete(make(folder).dataset.targets, BAD))


@pytest.mark.parametrize("operation", [T.MixUp(num_classes=3), T.CutMix(num_classes=3)], ids=repr)
def test_empty_batches_have_the_form_of_mixed_ones(damaged: Path, operation: object) -> None:
    dataset = make(damaged).dataset.select([0, 4, 1, 2])
    empty, full = list(make(dataset, on_error="skip", transform=[*TRAIN, operation], batch_size=2))
    for name in ("image", "label"):
        assert empty[name].dtype == full[name].dtype
        assert (len(empty[name]), empty[name].shape[1:]) == (0, full[name].shape[1:])


def test_the_mask_leaves_out_what_the_batch_does(damaged: Path) -> None:
    """The last batch is filled up with repeats, some of them bad."""
    loader = make(damaged, on_error="skip", tail="mask", batch_size=20)
    for batch in loader:
        assert len(batch["real"]) == len(batch["id"]) == len(batch["image"]) == len(batch["label"])
    assert batch["real"].tolist() == [sample > 20 for sample in batch["id"].tolist()]
    assert batch["id"].tolist() == [*range(21, 36), 1, 2]


@pytest.mark.parametrize("transform", [[T.Resize(256)], [T.Resize(256), T.CenterCrop(224)]], ids=["any size", "one size"])
def test_an_image_that_a_transform_would_make_too_large_is_a_bad_sample(
    folder: Path, tmp_path: Path, transform: list[object]
) -> None:
    """However small it is itself: one of 1 x 1,000,000 pixels would become 256 x 256,000,000."""
    root = tmp_path / "set"
    shutil.copytree(folder, root)
    listing(root)[3].write_bytes(encode(np.zeros((1, 1_000_000, 3), np.uint8), "PNG"))
    loader = make(root, transform=transform, on_error="skip", batch_size=1)
    assert sum(len(batch["label"]) for batch in loader) == NUM_SAMPLES - 1
    assert [(bad.id, "exceeds the limit" in bad.reason) for bad in loader.bad_samples] == [(3, True)]
