"""The fields of batches besides image and label: masks, boxes, captions, documents, arrays."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import open_images
from labelled_scenes import FIELDS, NUM, boxes_of, boxes_seen, convert_scenes, fields_of, image_of, mask_of, npy, write_tar

import datapipe as dp
from datapipe import transforms as T

pytestmark = pytest.mark.usefixtures("backend")

UNSAMPLED: dict[str, list[Any]] = {  # nothing is resampled, so pixels stay what they are
    "crop": [T.RandomCrop((24, 30)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "padded": [T.RandomCrop((36, 36), padding=6), T.RandomHorizontalFlip()],
    "pad, centre": [T.Pad((3, 1, 5, 7)), T.CenterCrop(50), T.RandomVerticalFlip()],
}


@pytest.fixture(scope="session", params=["webdataset", "hdf5", "parquet", "tfrecord"])
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_scenes(tmp_path_factory.mktemp("scenes"), to=request.param)


@pytest.fixture(scope="session")
def tar_scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_scenes(tmp_path_factory.mktemp("scenes"))


def make(path: Path | dp.Images, **changes: Any) -> dp.DataLoader:
    return open_images(path, **({"batch_size": 1, "num_workers": 2} | changes))


def by_id(loader: dp.DataLoader) -> dict[int, dict[str, Any]]:
    """The rows of an epoch of dicts."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in loader:
        for row, number in enumerate(batch["id"].tolist()):
            rows[number] = {name: column[row] for name, column in batch.items()}
    return rows


@pytest.mark.parametrize("name", UNSAMPLED)
def test_masks_boxes_and_twins_go_where_the_pixels_go(scenes: Path, name: str) -> None:
    seen = 0
    for epoch in range(3):
        loader = make(
            scenes,
            transform=UNSAMPLED[name],
            batch_size=5,
            shuffle=True,
            output="dict",
            fields=["image", "seg", "boxes", "twin"],
            seed=epoch,
        )
        rows = by_id(loader)
        assert len(rows) == NUM
        for number, row in rows.items():
            image = row["image"].permute(1, 2, 0).numpy()
            assert (image[:, :, 2].max() == number) or number == 0
            assert row["seg"].dtype == torch.uint8
            assert np.array_equal(20 * row["seg"].numpy(), image[:, :, 0])
            assert np.array_equal(row["twin"].permute(1, 2, 0).numpy(), image[:, :, ::-1])
            assert row["boxes"].dtype == torch.float32
            assert sorted(row["boxes"].tolist(), key=lambda box: box[4]) == boxes_seen(image)
            seen += len(row["boxes"])
    assert seen > NUM


def test_the_draws_are_the_same_with_and_without_other_fields(tar_scenes: Path) -> None:
    for transform in ([T.RandomResizedCrop(20), T.RandomHorizontalFlip()], [T.RandomCrop(30, padding=4)]):
        alone = list(make(tar_scenes, transform=transform, fields=["image", "label"], batch_size=4, shuffle=True))
        others = list(make(tar_scenes, transform=transform, batch_size=4, shuffle=True, boxes="padded"))
        assert all(torch.equal(one[0], other[0]) for one, other in zip(alone, others, strict=True))


def test_resampled_masks_keep_their_labels(tar_scenes: Path) -> None:
    loader = make(tar_scenes, transform=[T.RandomResizedCrop(33), T.RandomHorizontalFlip()], fields=["image", "seg"])
    for images, masks in loader:
        assert masks.shape == (len(images), 33, 33)
        assert set(masks.unique().tolist()) <= set(range(5))


def test_values_by_kind(scenes: Path) -> None:
    rows = by_id(make(scenes, output="dict", num_workers=0, batch_size=5))
    assert set(rows[0]) == {*FIELDS, "id"}
    for number, row in rows.items():
        assert np.array_equal(row["image"].permute(1, 2, 0).numpy(), image_of(number))
        assert np.array_equal(row["seg"].numpy(), mask_of(number))
        assert np.array_equal(row["boxes"].numpy(), boxes_of(number))
        assert row["txt"] == f"scene № {number}"
        assert row["json"] == {"number": number, "tags": ["a"] * (number % 3)}
        assert (row["vector"].dtype, row["vector"].tolist()) == (torch.int16, [number, number + 1, number + 2])
        assert row["blob"] == bytes([number]) * (number + 1)
        assert row["label"] == number % 3


def test_tuples_come_in_the_order_asked_for(tar_scenes: Path) -> None:
    batch = next(iter(make(tar_scenes, fields=("txt", "label", "image"), batch_size=2, tail="mask")))
    captions, labels, images, real = batch
    assert captions == ["scene № 0", "scene № 1"]
    assert labels.tolist() == [0, 1]
    assert images.shape == (2, 3, 40, 48)
    assert real.tolist() == [True, True]
    everything = next(iter(make(tar_scenes, batch_size=2)))
    assert len(everything) == len(FIELDS)
    assert everything[0].ndim == 4
    assert everything[1].dtype == torch.int64


def test_rename_and_collate_fn_speak_of_all_fields(tar_scenes: Path) -> None:
    arguments: dict[str, Any] = {"fields": ["image", "seg", "txt"], "output": "dict", "batch_size": 3}
    renamed = next(iter(make(tar_scenes, **(arguments | {"output": {"seg": "mask", "image": "pixel_values"}}))))
    assert list(renamed) == ["pixel_values", "mask", "txt", "id"]
    samples = next(iter(make(tar_scenes, **arguments, collate_fn=list)))
    assert [sample["txt"] for sample in samples] == ["scene № 0", "scene № 1", "scene № 2"]
    assert np.array_equal(samples[1]["seg"].numpy(), mask_of(1))
    pairs = next(iter(make(tar_scenes, fields=["seg", "label"], batch_size=2, collate_fn=list)))
    assert [label for _, label in pairs] == [0, 1]


def test_boxes_padded(tar_scenes: Path) -> None:
    (boxes,) = next(iter(make(tar_scenes, fields=["boxes"], boxes="padded", batch_size=4)))
    assert boxes.shape == (4, 3, 5)
    for number in range(4):
        assert np.array_equal(boxes[number, :number].numpy(), boxes_of(number))
        assert boxes[number, number:].tolist() == [[0, 0, 0, 0, -1]] * (3 - number)


def test_batches_without_images(tar_scenes: Path) -> None:
    loader = make(tar_scenes, fields=["vector", "txt"], batch_size=4, seed=3)
    vectors = torch.cat([vector for vector, _ in loader])
    assert sorted(vectors[:, 0].tolist()) == list(range(NUM))
    labels = torch.cat([label for (label,) in make(tar_scenes, fields=["label"], batch_size=4)])
    assert sorted(labels.tolist()) == sorted(number % 3 for number in range(NUM))
    with pytest.raises(dp.errors.OptionError, match=r"is for images, and batches have txt; leave it out"):
        make(tar_scenes, fields=["txt"], transform=[T.CenterCrop(8)])


def test_the_dataset_has_the_same_fields(tar_scenes: Path) -> None:
    loader = make(tar_scenes, fields=["seg", "txt", "label", "image"])
    seg, text, label, image = loader.dataset[-1]
    assert (text, label) == (f"scene № {NUM - 1}", (NUM - 1) % 3)
    assert np.array_equal(seg.numpy(), mask_of(NUM - 1))
    assert image.shape == (3, 40, 48)
    some = make(loader.dataset.select([4, 2]), batch_size=2)
    assert next(iter(some))[1] == ["scene № 4", "scene № 2"]
    assert next(iter(make(some.dataset, fields=["label"], batch_size=2)))[0].tolist() == [1, 2]
    assert pickle.loads(pickle.dumps(loader)).dataset.fields == loader.dataset.fields


def test_data_of_others_gives_image_and_label_unless_asked(tmp_path: Path) -> None:
    members = [{name: data for name, data in fields_of(number).items() if name in ("png", "cls")} for number in range(3)]
    path = write_tar(tmp_path / "theirs.tar", members)
    images, labels = next(iter(make(path, batch_size=3, transform=[T.CenterCrop(8)])))
    assert labels.tolist() == [0, 1, 2]
    assert images.shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("suffix", "data", "reason"),
    [
        ("seg.png", fields_of(3)["seg.png"][:60], "field 'seg'"),
        ("seg.png", npy(np.zeros((3, 3), np.uint8)), r"field 'seg': 3 x 3 pixels for an image of 40 x 48"),
        ("boxes.npy", npy(np.zeros((3, 4), np.float32)), r"field 'boxes': .*no boxes"),
        ("json", b"{", "field 'json': not JSON"),
        ("txt", b"\xff\xfe\xfd", "field 'txt': text is not UTF-8"),
    ],
)
def test_a_bad_field_makes_its_sample_bad(tmp_path: Path, suffix: str, data: bytes, reason: str) -> None:
    """The image is there all the same, perhaps in DALI's hands already."""
    samples = [fields_of(number, **({suffix: data} if number == 5 else {})) for number in range(NUM)]
    shards = convert_scenes(tmp_path, samples, unchecked=suffix)
    arguments: dict[str, Any] = {
        "transform": [T.RandomCrop(24)], "output": "dict", "seed": 1, "batch_size": 4, "shuffle": True,
    }  # fmt: skip
    with pytest.raises(dp.errors.DecodeError, match=reason):
        list(make(shards, **arguments))
    skipping = make(shards, **arguments, on_error="skip")
    rows = by_id(skipping)
    assert sorted(rows) == [number for number in range(NUM) if number != 5]
    assert [bad.id for bad in skipping.bad_samples] == [5]
    replacing = make(shards, **arguments, on_error="replace")
    seen = list(replacing)
    assert sum(len(batch["id"]) for batch in seen) == NUM
    for batch in seen:
        for row, number in enumerate(batch["id"].tolist()):
            image = batch["image"][row].permute(1, 2, 0).numpy()
            assert image[:, :, 2].max() == number
            assert np.array_equal(20 * batch["seg"][row].numpy(), image[:, :, 0])
            assert batch["txt"][row] == f"scene № {number}"


def test_what_cannot_follow_the_image_is_refused(tar_scenes: Path) -> None:
    for transform in (
        [T.CenterCrop(8), T.RandAugment()],
        [T.CenterCrop(8), T.CutMix(num_classes=3)],
        [T.CenterCrop(8), lambda image: image],
    ):
        with pytest.raises(dp.errors.OptionError, match=r"may move pixels after the geometry, and twin, seg, boxes would not"):
            make(tar_scenes, transform=transform)
        make(tar_scenes, transform=transform, fields=["image", "label", "txt"])


def test_wrong_fields_are_refused(tar_scenes: Path) -> None:
    for fields, problem in ((["image", "depth"], "no field 'depth'"), ([], "no fields"), (["txt", "txt"], "named twice")):
        with pytest.raises(dp.errors.OptionError, match=problem):
            make(tar_scenes, fields=fields)
    with pytest.raises(dp.errors.OptionError, match=r"boxes is 'rows'; choose list or padded"):
        make(tar_scenes, boxes="rows")


def test_arrays_of_differing_shapes_need_a_collate_fn(tmp_path: Path) -> None:
    shards = convert_scenes(tmp_path, [fields_of(n, **{"vector.npy": npy(np.arange(n))}) for n in range(NUM)])
    with pytest.raises(dp.errors.OptionError, match=r"field 'vector' differs within a batch .*pass a collate_fn"):
        list(make(shards, fields=["vector"], batch_size=4))
    lists = list(make(shards, fields=["vector"], batch_size=4, collate_fn=lambda samples: [len(v) for (v,) in samples]))
    assert sorted(length for batch in lists for length in batch) == list(range(NUM))
