"""Image processors of transformers are replaced where their numbers stay the same, bit for bit, and nowhere else."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import Images, loaded
from PIL import Image
from torch.utils.data import DataLoader

import datapipe as dp
from datapipe.deferral import preparing, processor_seams

pytest.importorskip("transformers")
from vision_models import image_processor

REPLACED = ("qwen", "qwen3", "llava", "siglip")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"))


def processor_named(name: str) -> Any:
    if name != "vit":
        return image_processor(name)
    image_processor("llava")  # which imports torchvision
    import transformers

    return transformers.ViTImageProcessor(size={"height": 60, "width": 44})


class ByProcessor:
    """What a processor makes of an image, as a Dataset of the user's calls it. `options`: of the call."""

    def __init__(self, processor: Any, as_given: Any = None, **options: Any) -> None:
        self.processor, self.as_given, self.options = processor, as_given, {"return_tensors": "pt", **options}

    def __call__(self, image: Any) -> dict[str, Any]:
        given = image.convert("RGB") if self.as_given is None else self.as_given(image)
        return dict(self.processor(images=given, **self.options))


class ByCollation:
    """A `collate_fn` that calls a processor with the images of a batch."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        return dict(self.processor([image for image, _ in samples], return_tensors="pt"))


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def rgb(image: Any) -> Any:
    return image.convert("RGB")


def batches(loader: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(loader)


def flat(value: Any) -> list[tuple[Any, ...]]:
    """All that a batch holds: the key, the type and the values of each tensor, array and number."""
    if isinstance(value, dict):
        return [(name, *one) for name in sorted(value) for one in flat(value[name])]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in flat(item)]
    return [(type(value), torch.as_tensor(value))]


def are_equal(ours: Any, theirs: Any) -> bool:
    pairs = zip(flat(ours), flat(theirs), strict=True)
    return all(one[:-1] == other[:-1] and same(one[-1], other[-1]) for one, other in pairs)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)


def is_said(loader: Any) -> bool:
    return "made at once by the same arithmetic" in str(dp.explain(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", [*REPLACED, "vit"])
def test_a_dataset_that_calls_one(paths: list[str], name: str, num_workers: int) -> None:
    dataset = Images(paths, ByProcessor(processor_named(name)))
    options = {"collate_fn": as_list, "num_workers": num_workers}
    loader = loaded(dataset, **options)
    assert are_equal(batches(loader), batches(DataLoader(dataset, 4, **options)))
    assert is_said(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", [*REPLACED, "vit"])
def test_a_collation_that_calls_one(paths: list[str], name: str, num_workers: int) -> None:
    options = {"collate_fn": ByCollation(processor_named(name)), "num_workers": num_workers}
    loader = loaded(Images(paths, rgb), **options)
    assert are_equal(batches(loader), batches(DataLoader(Images(paths, rgb), 4, **options)))
    assert is_said(loader)


@pytest.mark.parametrize(
    ("as_given", "is_replaced"),
    [
        (lambda image: image.resize((61, 50)), True),
        (lambda image: [image.convert("RGB"), image.convert("RGB").crop((3, 4, 40, 30))], True),
        (np.array, True),
        (lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1), False),
        (lambda image: image.convert("L"), False),
        (lambda image: image.convert("RGBA"), False),
        (lambda image: np.array(image).astype(np.float32), False),
    ],
    ids=["resized before", "several", "array", "tensor", "grey", "with alpha", "floats"],
)
def test_whatever_it_is_called_with(paths: list[str], as_given: Any, is_replaced: bool) -> None:
    dataset = Images(paths, ByProcessor(processor_named("siglip"), as_given))
    loader = loaded(dataset, collate_fn=as_list)
    assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
    assert is_said(loader) == is_replaced


@pytest.mark.parametrize(
    ("options", "is_replaced"),
    [
        ({"do_rescale": True}, True),
        ({"do_resize": False, "do_center_crop": False}, False),
        ({"size": {"height": 20, "width": 30}}, False),
        ({"return_tensors": "np"}, False),
        ({"image_mean": [0.1, 0.2, 0.3]}, False),
    ],
    ids=str,
)
def test_however_it_is_called(paths: list[str], options: dict[str, Any], is_replaced: bool) -> None:
    dataset = Images(paths, ByProcessor(processor_named("siglip"), **options))
    loader = loaded(dataset, collate_fn=as_list)
    assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
    assert is_said(loader) == is_replaced


def test_settings_may_change(paths: list[str]) -> None:
    processor = processor_named("siglip")
    dataset = Images(paths, ByProcessor(processor))
    loader = loaded(dataset, collate_fn=as_list)
    for mean in ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3)):
        processor.image_mean = mean
        assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
        assert is_said(loader)


@pytest.mark.parametrize("where", ["class", "object"])
def test_a_processor_with_a_method_of_its_own_keeps_it(paths: list[str], where: str) -> None:
    processor = processor_named("siglip")
    kind = type(processor)

    def upside_down(self: Any, image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return kind.resize(self, image, *args, **kwargs).flip(-2)

    if where == "class":
        processor.__class__ = type("UpsideDown", (kind,), {"resize": upside_down})
    else:
        processor.resize = functools.partial(upside_down, processor)
    dataset = Images(paths, ByProcessor(processor))
    loader = loaded(dataset, collate_fn=as_list)
    assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
    assert not is_said(loader)


@pytest.mark.parametrize("name", ["internvl", "gemma3"])
def test_other_processors_are_left_alone(paths: list[str], name: str) -> None:
    dataset = Images(paths, ByProcessor(processor_named(name), lambda image: [image.convert("RGB")]))
    loader = loaded(dataset, collate_fn=as_list)
    assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
    assert not is_said(loader)


def test_one_whose_numbers_differ_is_left_alone(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version of transformers might resize otherwise."""
    place = processor_seams.FixedProcessor.place

    def differs(self: Any, image: Any, rows: int, columns: int, out: torch.Tensor) -> None:
        place(self, image, rows, columns, out)
        out[0, 0, 0, 0] ^= 1

    preparing.forget()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(processor_seams.FixedProcessor, "place", differs)
            dataset = Images(paths, ByProcessor(processor_named("siglip")))
            loader = loaded(dataset, collate_fn=as_list)
            assert are_equal(batches(loader), batches(DataLoader(dataset, 4, collate_fn=as_list)))
            assert not is_said(loader)
    finally:
        preparing.forget()


def test_what_it_refuses_it_still_refuses(tmp_path: Path) -> None:
    path = tmp_path / "long.jpg"
    Image.new("RGB", (1000, 4)).save(path)
    loader = loaded(Images([str(path)], ByProcessor(processor_named("qwen"))), collate_fn=as_list)
    with pytest.raises(ValueError, match="absolute aspect ratio must be smaller than 200"):
        batches(loader)


def test_outside_of_loaders_it_is_called_as_it_is(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    processor = processor_named("siglip")
    batches(loaded(Images(paths, ByProcessor(processor)), collate_fn=as_list))  # replaces the method
    monkeypatch.setattr(processor_seams, "_made", None)
    with Image.open(paths[0]) as image:
        processor(images=image.convert("RGB"), return_tensors="pt")
