"""Loaders of torch that are easily mistaken for plainer ones: what `from_torch` gives is what they give."""

from __future__ import annotations

import gc
import importlib
import io
import pickle
import random
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import picture
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler
from torchvision_reference import torchvision_v2

import datapipe as dp

v2 = torchvision_v2()
v1: Any = importlib.import_module("torchvision.transforms")
folders: Any = importlib.import_module("torchvision.datasets")
TENSORS = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images without loss, in three classes."""
    made = tmp_path_factory.mktemp("lossless") / "set"
    for number in range(6):
        path = made / f"c{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number, 10, 12)).save(path)
    return made


def folder(root: Path, transform: Any = TENSORS, **arguments: Any) -> Any:
    return folders.ImageFolder(root, transform, **arguments)


def with_labels(root: Path, label_of: Any) -> Any:
    dataset = folder(root)
    dataset.samples = [(path, label_of(label)) for path, label in dataset.samples]
    return dataset


def one_hot(label: int) -> torch.Tensor:
    return torch.eye(3)[label]


def as_tensor(image: Any) -> torch.Tensor:
    return image if isinstance(image, torch.Tensor) else torch.tensor(np.asarray(image))


def told(samples: Any) -> Any:
    """What a collate_fn is given, in a form that workers send."""
    return [(type(image).__name__, as_tensor(image), label) for image, label in samples]


def prepare(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.prepared = worker  # type: ignore[union-attr]


def prepared(samples: Any) -> int:
    info = torch.utils.data.get_worker_info()
    return -1 if info is None else int(info.dataset.prepared)  # type: ignore[attr-defined]


def targa(root: Path) -> Any:
    other = root.parent / "targa" / "c0"
    other.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(3, 10, 12)).save(other / "0.tga")
    return folder(other.parent, is_valid_file=lambda path: True)


class AllAtOnce(folders.ImageFolder):  # type: ignore[misc]
    def __getitems__(self, places: list[int]) -> list[Any]:
        return [(torch.zeros(2), -place) for place in places]


class Lengthless:
    def __getitem__(self, place: int) -> int:
        return place


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, place: int) -> int:
        return place


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def over_part(dataset: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 2, sampler=RandomSampler(range(3), generator=torch.Generator().manual_seed(4)))  # type: ignore


def timms(dataset: Any) -> Any:
    kind = pytest.importorskip("timm.data.loader").MultiEpochsDataLoader
    return kind(dataset, 4, drop_last=True)


SEEN, KEPT = True, False
LOADERS: dict[str, tuple[bool, Any]] = {
    "in order": (SEEN, lambda root: DataLoader(folder(root), 4)),
    "sampler over a part": (SEEN, lambda root: DataLoader(folder(root), 2, sampler=SequentialSampler(range(3)))),
    "random sampler over a part": (SEEN, lambda root: over_part(folder(root))),
    "random sampler over a part, left to torch": (KEPT, lambda root: over_part(Numbers())),
    "float labels": (KEPT, lambda root: DataLoader(with_labels(root, float), 4)),
    "bool labels": (KEPT, lambda root: DataLoader(with_labels(root, bool), 4)),
    "text labels": (KEPT, lambda root: DataLoader(with_labels(root, str), 4)),
    "several labels": (KEPT, lambda root: DataLoader(with_labels(root, lambda label: (label, 1)), 4)),
    "one-hot labels": (KEPT, lambda root: DataLoader(folder(root, target_transform=one_hot), 4)),
    "uint8 labels": (KEPT, lambda root: DataLoader(folder(root, target_transform=np.uint8), 4)),
    "labels looked up": (SEEN, lambda root: DataLoader(folder(root, target_transform={0: 7, 1: 3, 2: 3}.get), 4)),
    "floats looked up": (KEPT, lambda root: DataLoader(folder(root, target_transform=[0.5, 1.0, 2.0].__getitem__), 4)),
    "labels as they are": (SEEN, lambda root: DataLoader(folder(root, target_transform=lambda label: label), 4)),
    "no crop": (SEEN, lambda root: DataLoader(folder(root, v1.ToTensor()), 4)),
    "PIL for a collate_fn": (KEPT, lambda root: DataLoader(folder(root, v1.CenterCrop(8)), 4, collate_fn=told)),
    "no transform": (KEPT, lambda root: DataLoader(folder(root, None), 4, collate_fn=told)),
    "tensors for a collate_fn": (SEEN, lambda root: DataLoader(folder(root), 4, collate_fn=told)),
    "tv_tensors for a collate_fn": (
        KEPT, lambda root: DataLoader(folder(root, v2.Compose([v2.CenterCrop(8), v2.ToImage()])), 4, collate_fn=told),
    ),
    "tv_tensors": (SEEN, lambda root: DataLoader(folder(root, v2.Compose([v2.CenterCrop(8), v2.ToImage()])), 4)),
    "prepared workers": (
        KEPT, lambda root: DataLoader(folder(root), 4, collate_fn=prepared, worker_init_fn=prepare, num_workers=1),
    ),
    "__getitems__": (KEPT, lambda root: DataLoader(AllAtOnce(root, TENSORS), 4)),
    "a form of Pillow's": (KEPT, lambda root: DataLoader(targa(root), 4)),
    "no length": (KEPT, lambda root: DataLoader(Lengthless(), 2, sampler=[4, 0, 1])),  # type: ignore[arg-type]
    "timm's repeating loader": (SEEN, lambda root: timms(folder(root))),
    "timm's repeating loader, left to torch": (KEPT, lambda root: timms(Numbers())),
    "single samples": (KEPT, lambda root: DataLoader(folder(root), None)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_torchs(root: Path, name: str) -> None:
    is_seen, make = LOADERS[name]
    ours = dp.from_torch(make(root))
    assert isinstance(ours, dp.DataLoader) is is_seen
    found, expected = list(ours), list(make(root))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)  # shape and dtype too
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for part, other_part in zip(one, other, strict=True):
            assert_same(part, other_part)
    else:
        assert one == other


def test_images_of_differing_sizes_fail_as_torchs_do(root: Path, tmp_path: Path) -> None:
    for number, size in enumerate(((10, 12), (11, 12))):
        (tmp_path / "c").mkdir(exist_ok=True)
        Image.fromarray(picture(number, *size)).save(tmp_path / "c" / f"{number}.png")
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(dp.from_torch(DataLoader(folder(tmp_path, v1.ToTensor()), 2))))
    images = [images for images, _ in dp.from_torch(DataLoader(folder(tmp_path, v1.ToTensor()), 1))]
    assert [tuple(image.shape) for image in images] == [(1, 3, 10, 12), (1, 3, 11, 12)]


def test_pil_images_make_no_batches(root: Path) -> None:
    for transform in (v1.CenterCrop(8), v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)])):
        with pytest.raises(TypeError):
            next(iter(DataLoader(folder(root, transform))))
        with pytest.raises(dp.errors.OptionError, match=r"leave PIL images, .* end them with ToTensor\(\)"):
            dp.from_torch(DataLoader(folder(root, transform)))


def test_memory_format_is_that_of_each_image_too(root: Path) -> None:
    def contiguous(loader: DataLoader[Any]) -> Any:
        return dp.from_torch(loader, data=dp.Images(loader.dataset, memory_format=torch.contiguous_format))

    views = contiguous(DataLoader(folder(root), 4, collate_fn=lambda samples: [x.view(-1) for x, _ in samples]))
    assert len(next(iter(views))) == 4
    for transform in (TENSORS, v1.ToTensor()):
        loader = DataLoader(folder(root, transform), 4)
        assert next(iter(dp.from_torch(loader)))[0].is_contiguous(memory_format=torch.channels_last)
        assert next(iter(contiguous(loader)))[0].is_contiguous()


def test_cut_files_are_images_where_pillow_is_told_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (root / "c0" / "0.png").read_bytes()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.png").write_bytes(whole[: len(whole) * 2 // 3])
    loader = DataLoader(folder(tmp_path))
    with pytest.raises(dp.errors.DecodeError):
        next(iter(dp.from_torch(loader)))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same(list(dp.from_torch(loader)), list(loader))
    skipping = dp.from_torch(loader, on_error="skip")
    assert [len(labels) for _, labels in skipping] == [0]


@pytest.mark.parametrize("form", ["AVIF", "TGA", "bytes between segments", "no end"])
def test_files_of_rare_forms_are_images(form: str, tmp_path: Path) -> None:
    """What Pillow reads in a training with torch, it reads here."""
    sink = io.BytesIO()
    Image.fromarray(picture(3, 40, 48)).save(sink, form if form.isupper() else "JPEG")
    data = sink.getvalue()
    if form == "bytes between segments":
        data = data[:20] + b"junk" + data[20:]
    elif form == "no end":
        data = data[:-2] + b"trailer" * 8
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.jpg").write_bytes(data)
    loader = DataLoader(folder(tmp_path))
    assert_same(list(dp.from_torch(loader)), list(loader))


def test_workers_are_not_prepared_where_there_are_none(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fix(worker: int) -> None:
        random.seed(0)

    ours = dp.from_torch(DataLoader(folder(root), 2, num_workers=2, worker_init_fn=fix, in_order=False))
    random.seed(5)
    before = random.getstate()
    assert len(list(ours)) == 3
    assert random.getstate() == before
    print(dp.explain(ours))
    out = capsys.readouterr().out
    assert "worker_init_fn is not called" in out
    assert "in_order=False is left out: batches come in order" in out


def test_classes_with_batches_of_their_own_are_refused(root: Path) -> None:
    class Twice(DataLoader[Any]):
        def __iter__(self) -> Any:
            return ((images * 2, labels) for images, labels in super().__iter__())  # type: ignore[misc]

    class Longer(DataLoader[Any]):
        def __len__(self) -> int:
            return 9

    for kind in (Twice, Longer):
        with pytest.raises(
            dp.errors.OptionError, match=rf"{kind.__name__} has a __\w+__ of its own.*datapipe.prefetch\(loader\)"
        ):
            dp.from_torch(kind(folder(root)))
    images, _ = next(iter(dp.prefetch(Twice(folder(root)), "cpu")))
    assert images.max() > 1


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Numbers(), {"batch_size": 2, "shuffle": True, "drop_last": True}),
        (Numbers(), {"batch_sampler": [[0, 1], [2]]}),
        (Numbers(), {"batch_size": None}),
        (Stream(), {"batch_size": 2}),
    ],
    ids=["batches", "a batch sampler", "single samples", "a stream"],
)
def test_the_refusal_says_what_to_type(dataset: Any, options: dict[str, Any]) -> None:
    class InThreads(DataLoader[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    loader = InThreads(dataset, **options)
    with pytest.raises(dp.errors.OptionError) as refused:
        dp.from_torch(loader)
    line = str(refused.value).rpartition("what it is made of: ")[2]
    taken = eval(line, {"datapipe": dp, "torch": torch, "loader": loader})
    assert len(list(taken)) == len(list(loader))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Stream(), 2), "IterableDataset, which has no place that could be saved"),
        (DataLoader(Numbers(), None), "batch_size=None"),
    ],
    ids=["a stream", "single samples"],
)
def test_what_is_given_back_as_it_is(loader: DataLoader[Any], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dp.from_torch(loader, device="cpu") is loader
    print(dp.explain(loader))
    assert reason in capsys.readouterr().out
    with pytest.raises(dp.errors.OptionError, match=rf"share_among_ranks=True: .*{reason}"):
        dp.from_torch(loader, share_among_ranks=True)


class LateFirst(Numbers):
    def __getitem__(self, place: int) -> int:
        time.sleep(0.1 * (place == 0))
        return place


def test_batches_come_in_order_and_the_place_is_theirs() -> None:
    loader: Any = dp.from_torch(DataLoader(LateFirst(), 1, num_workers=2, in_order=False))
    assert [batch.tolist() for batch in loader] == [[place] for place in range(7)]
    assert "in_order=False is left out" in loader.origin


def test_a_loader_pickles_and_its_place_is_saved_apart() -> None:
    loader: Any = dp.from_torch(DataLoader(Numbers(), 2, shuffle=True))
    steps = iter(loader)
    next(steps)
    again: Any = pickle.loads(pickle.dumps(loader))
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in steps]
    assert again.origin == loader.origin
    with pytest.raises(dp.errors.OptionError, match="Lengthless without a length, so no place in it can be saved"):
        dp.from_torch(DataLoader(Lengthless(), sampler=[1])).state_dict()  # type: ignore


def test_a_dropped_loader_is_gone_at_once() -> None:
    gc.disable()
    try:
        loader: Any = dp.from_torch(DataLoader(Numbers(), 2))
        assert len(list(loader)) == len(loader.batch_sampler) == 4
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()
