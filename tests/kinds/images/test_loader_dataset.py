"""`loader.dataset`: the samples one at a time."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fixtures import CLASSES, NUM_SAMPLES, listing, make_folder
from PIL import Image
from recipes import ids_of, make

import datapipe as dp


def test_the_dataset_is_a_map_of_samples(folder: Path, shards: Path, converted: Path) -> None:
    for path in (folder, shards, converted):
        data = dp.DataLoader(path).dataset
        assert len(data) == NUM_SAMPLES
        for position in (0, 17, -1):
            image, label = data[position]
            source = listing(folder)[position]
            with Image.open(source) as reference:
                assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(reference))
            assert (label, type(label)) == (CLASSES.index(source.parent.name), int)
        assert data[np.int64(3)][1] == data[3][1]
        assert len(list(data)) == NUM_SAMPLES
        for beyond in (NUM_SAMPLES, -NUM_SAMPLES - 1):
            with pytest.raises(IndexError, match=f"sample {beyond} of a dataset of 37"):
                data[beyond]


def test_what_is_no_set_of_images_is_refused(folder: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"source is 3; pass a path"):
        dp.Images(3)  # type: ignore[arg-type]


def test_settings_of_other_images_are_taken_over(folder: Path) -> None:
    data = dp.Images(folder, fields=["label", "image"], memory_format=torch.contiguous_format)
    kept = dp.Images(data.select(range(9)), cache="ram")
    assert (len(kept), kept.settings.cache, kept.settings.memory_format) == (9, dp.Cache("ram"), torch.contiguous_format)
    labels, images = next(iter(dp.DataLoader(kept, 4)))
    assert images.is_contiguous()
    assert not images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == data.targets[:4]
    again = pickle.loads(pickle.dumps(kept))
    assert (len(again), again.settings) == (9, kept.settings)


def test_a_setting_that_is_given_counts_and_others_are_kept(folder: Path) -> None:
    data = dp.Images(folder, boxes="padded", cache="ram", memory_format=torch.contiguous_format)
    changed = dp.Images(data, boxes="list", memory_format=torch.channels_last)
    assert (changed.settings.boxes, changed.settings.memory_format) == ("list", torch.channels_last)
    assert changed.settings.cache == dp.Cache("ram")
    with pytest.raises(dp.errors.OptionError, match=r"with boxes='list' and boxes='padded'; give it to the mix"):
        dp.mix([changed, data])
    with pytest.raises(dp.errors.OptionError, match="fields is 5; pass names"):
        dp.Images(folder, fields=5)  # type: ignore[arg-type]


def test_a_pickle_holds_the_samples_as_they_were(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", num=5, size=(20, 24))
    data, loader = (pickle.dumps(one) for one in (dp.Images(root), dp.DataLoader(root, 4)))
    first = min(root.rglob("*.jpg"))
    shutil.copy(first, first.with_name("zzz.jpg"))
    assert len(pickle.loads(data)) == 5
    assert len(pickle.loads(loader).dataset) == 6, "a loader is opened again"


def test_a_folder_with_a_table_beside_its_images_is_no_table(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", num=5, size=(20, 24))
    pq.write_table(pa.table({"a": [1, 2]}), root / "metadata.parquet")
    with pytest.raises(dp.errors.OptionError, match=r"may be several things, say which: form='image-folder' .*form='table'"):
        dp.DataLoader(root)
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "t.parquet")
    (tmp_path / "t").mkdir()
    shutil.move(tmp_path / "t.parquet", tmp_path / "t")
    assert isinstance(dp.DataLoader(tmp_path / "t").dataset, dp.Table)
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["t.parquet"]


def test_samples_of_a_dataset_do_not_share_memory(folder: Path) -> None:
    data = dp.DataLoader(folder).dataset
    first = data[0][0]
    kept = first.clone()
    [data[position] for position in range(1, 9)]
    assert torch.equal(first, kept)


def test_a_dataset_serves_many_threads(folder: Path) -> None:
    data = dp.DataLoader(folder).dataset
    expected, wrong = [sample[0] for sample in data], []

    def read(start: int) -> None:
        positions = [*range(start, NUM_SAMPLES), *range(start)]
        wrong.extend(p for p in positions if not torch.equal(data[p][0], expected[p]))

    threads = [threading.Thread(target=read, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_selections(folder: Path) -> None:
    data = dp.DataLoader(folder).dataset
    some = data.select([30, -1, 2])
    assert len(some) == 3
    assert some.targets == [data.targets[30], data.targets[36], data.targets[2]]
    assert torch.equal(some[1][0], data[36][0])
    assert some.classes == data.classes
    assert [batch["id"].tolist() for batch in make(some, output="dict")] == [[30, 36, 2]]
    assert [sorted(ids) for ids in ids_of(make(some, output="dict", shuffle=True))] == [[2, 30, 36]]
    assert len(make(data.select([]))) == 0
    assert list(make(data.select([]))) == []
    assert data.select(np.array([4, 5])).targets == data.targets[4:6]
    with pytest.raises(dp.errors.OptionError, match="beyond"):
        data.select([37])


def test_torchs_subset_and_loader_take_the_dataset(folder: Path) -> None:
    data = dp.DataLoader(folder).dataset
    subset = torch.utils.data.Subset(data, [3, 1])  # type: ignore[arg-type]
    assert [label for _, label in torch.utils.data.DataLoader(subset, batch_size=None)] == [data.targets[3], data.targets[1]]


def test_classes_and_targets_are_the_folders(folder: Path, shards: Path, converted: Path) -> None:
    for path in (folder, converted):
        dataset = dp.DataLoader(path).dataset
        assert dataset.classes == list(CLASSES)
        assert dataset.class_to_idx == {name: n for n, name in enumerate(CLASSES)}
    unnamed = dp.DataLoader(shards).dataset
    assert unnamed.targets == dp.DataLoader(folder).dataset.targets == dp.DataLoader(converted).dataset.targets
    for name in ("classes", "class_to_idx"):
        with pytest.raises(AttributeError, match="no class names"):
            getattr(unnamed, name)
