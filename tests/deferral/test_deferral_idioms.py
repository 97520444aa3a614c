"""Deferred images are those that the user's code makes without deferral, whatever it is written like."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import NUM, F, Holder, Images, Point, Sample, T, both_ways, samples_of
from PIL import Image, ImageFile, JpegImagePlugin

from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.requests import BatchRequest

NORMALISED = ("erasing", "training", "evaluation", "functional", "lambda", "v2", "v2 of tensors")
CONVERTED = T.Compose([T.RandomCrop(32), T.ToTensor()])  # nothing is resampled


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"))


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """In 255ths of the range, normalised or not."""
    assert type(ours) is type(theirs)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.stride() == theirs.stride()
    unit = 1.0 if ours.dtype is torch.uint8 or ours.dtype is torch.int64 else 255.0
    return float((ours.double() - theirs.double()).abs().max()) * unit


@pytest.mark.parametrize("name", data.OPENING)
def test_however_an_image_is_opened(paths: list[str], name: str) -> None:
    ours, theirs = both_ways(Images(paths, CONVERTED, data.OPENING[name]))
    assert [difference(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)] == [0.0] * NUM


@pytest.mark.parametrize("name", data.TRANSFORMS)
def test_whatever_is_done_to_it(paths: list[str], name: str) -> None:
    make, most = data.TRANSFORMS[name]
    ours, theirs = both_ways(Images(paths, make))
    most = most / min(data.STD) if name in NORMALISED else most
    assert max(difference(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)) <= most + 1e-3


@pytest.mark.parametrize("name", ["training", "v2", "v2 jitter", "v2 of tensors"])
def test_what_is_recorded_is_not_computed_by_pillow(paths: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DeferringDataset(Images(paths, data.TRANSFORMS[name][0]), defers=True)
    keys = list(range(NUM))
    dataset.__getitems__(BatchRequest(keys, [5] * NUM))  # every signature is tried here

    def decoded(*_: Any) -> None:
        raise AssertionError("Pillow decodes")

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load_read", decoded)
    images = [image for image, _ in dataset.__getitems__(BatchRequest(keys, [5] * NUM))]
    assert all(image.shape == (3, 32, 32) for image in images)


def test_grey_images_become_tensors_as_torchvision_lays_them_out(paths: list[str]) -> None:
    grey = T.Compose([T.Resize((32, 32)), T.Grayscale(), T.ToTensor(), T.Normalize((0.5,), (0.2,))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = both_ways(Images(paths, lambda image: [grey(image)]))
    assert [one[0][0].stride() for one in ours] == [one[0][0].stride() for one in theirs]


def test_images_of_v2_are_of_its_type_whether_looked_at_or_not(paths: list[str]) -> None:
    cut = data.v2.Compose([data.v2.RandomCrop(32), data.v2.ToImage()])

    def make(image: Any) -> Any:
        one, two = cut(image), data.v2.functional.to_dtype(cut(image), torch.float32, scale=True)
        assert type(one) is type(two) is data.tv_tensors.Image
        assert one.shape == two.shape == (3, 32, 32)
        three = data.v2.functional.normalize(two, data.MEAN, data.STD)
        return [
            one,
            two,
            three,
            cut(image)[:, 3:5],
            data.v2.functional.horizontal_flip(cut(image)),
            F.normalize(two, (0.5,), (0.2,)),
        ]

    for ours, theirs in zip(*both_ways(Images(paths, make)), strict=True):
        for found, expected in zip(ours[0], theirs[0], strict=True):
            assert type(found) is type(expected)
            assert found.stride() == expected.stride()
            assert torch.equal(found, expected)


def of_many_shapes(image: Any) -> Any:
    tensor = F.to_tensor(image.crop((0, 0, 32, 32)))
    return {
        "tuple": (tensor, 1),
        "nested": [{"deep": F.to_tensor(image.crop((1, 1, 33, 33)))}],
        "namedtuple": Point(F.to_tensor(image.crop((2, 1, 34, 33))), 3),
        "dataclass": Sample(F.to_tensor(image.crop((3, 1, 35, 33))), image.size),
        "object": Holder(F.to_tensor(image.crop((4, 1, 36, 33)))),
        "image": image.crop((5, 1, 37, 33)),
        "closure": lambda: tensor,
    }


def test_whatever_the_sample_is_it_holds_true_tensors_and_images(paths: list[str]) -> None:
    for ours, theirs in zip(*both_ways(Images(paths, of_many_shapes)), strict=True):
        found, expected = ours[0], theirs[0]
        for get in (
            lambda sample: sample["tuple"][0],
            lambda sample: sample["nested"][0]["deep"],
            lambda sample: sample["namedtuple"].image,
            lambda sample: sample["dataclass"].image,
            lambda sample: sample["object"].image,
            lambda sample: sample["closure"](),
        ):
            assert type(get(found)) is torch.Tensor
            assert get(found).data_ptr() != 0
            assert torch.equal(get(found), get(expected))
            assert torch.equal(pickle.loads(pickle.dumps(get(found))), get(expected))
        assert type(found["image"]) is Image.Image
        assert np.array_equal(np.asarray(found["image"]), np.asarray(expected["image"]))


def looked_at(image: Any) -> list[Any]:
    """Attributes that user code reads before it continues."""
    assert type(image) is Image.Image
    small = image.crop((3, 4, 35, 36))
    tensor = F.to_tensor(small)
    assert type(small) is Image.Image
    assert type(tensor) is torch.Tensor
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == (3, 32, 32)
    assert tensor.dtype is torch.float32
    assert tensor.device.type == "cpu"
    assert len(tensor) == 3
    assert tensor.is_contiguous()
    assert not tensor.requires_grad
    return [small, tensor]


USES = {
    "half": lambda x: x.half(),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "permute": lambda x: x.permute(1, 2, 0),
    "numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "asarray": lambda x: torch.from_numpy(np.asarray(x).copy()),
    "stack": lambda x: torch.stack([x, x]),
    "cat by keyword": lambda x: torch.cat(tensors=[x, x]),
    "arithmetic": lambda x: 1 - x * 2,
    "index": lambda x: x[:, 3:5],
    "assignment": lambda x: x.__setitem__(0, 0.5) or x,
    "in place": lambda x: x.mul_(2),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": lambda x: torch.load(saved(x)),
    "sum": lambda x: torch.tensor(x.sum().item()),
    "list": lambda x: torch.tensor(x.tolist()),
    "iterate": lambda x: [*x][1],
    "share": lambda x: x.share_memory_(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "data": lambda x: x.data,
    "where": lambda x: torch.where(x > 0.5, x, 0.0),
    "contiguous": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous(),
    "script": lambda x: scripted(x),
    "under a mode": lambda x: under_a_mode(x),
}


def saved(tensor: torch.Tensor) -> io.BytesIO:
    sink = io.BytesIO()
    torch.save(tensor, sink)
    sink.seek(0)
    return sink


@functools.cache
def _script() -> Any:
    return torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(0)))


def scripted(tensor: torch.Tensor) -> torch.Tensor:
    return _script()(tensor)  # type: ignore[no-any-return]


def under_a_mode(tensor: torch.Tensor) -> torch.Tensor:
    with torch.device("cpu"):
        return tensor + torch.zeros(1)


@pytest.mark.parametrize("name", USES)
def test_however_a_tensor_is_used_inside(paths: list[str], name: str) -> None:
    def make(image: Any) -> Any:
        return USES[name](looked_at(image)[1])

    ours, theirs = both_ways(Images(paths, make))
    for (found, _), (expected, _) in zip(ours, theirs, strict=True):
        assert type(found) is type(expected)
        assert torch.equal(found, expected)


def test_two_crops_of_one_image_and_a_mask_cut_alike(paths: list[str]) -> None:
    reds = {path: np.asarray(Image.open(path))[:, :, 0] for path in paths}
    masks = {path: Image.fromarray((red > red.mean()).astype(np.uint8)) for path, red in reds.items()}

    class Segmentation(Images):
        def __getitem__(self, number: int) -> Any:
            path = self.paths[number]
            image, mask = Image.open(path).convert("RGB"), masks[path]
            box = T.RandomCrop.get_params(image, (32, 32))
            image, mask = F.crop(image, *box), F.crop(mask, *box)
            return F.to_tensor(image), torch.from_numpy(np.array(mask)), F.to_tensor(F.hflip(image))

    for ours, theirs in zip(*both_ways(Segmentation(paths, None)), strict=True):  # type: ignore[arg-type]
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("what", ["image", "crop", "tensor"])
def test_what_the_users_code_keeps_is_kept_with_its_pixels(paths: list[str], what: str) -> None:
    opened: list[str] = []

    @functools.lru_cache
    def kept(path: str) -> Any:
        opened.append(path)
        image = Image.open(path).convert("RGB")
        if what == "image":
            return image
        return image.crop((0, 0, 50, 50)) if what == "crop" else F.to_tensor(image.crop((0, 0, 50, 50)))

    def make(image: Any) -> Any:
        return image[:, :40, :40] if what == "tensor" else CONVERTED(image)

    dataset = DeferringDataset(Images(paths, make, kept), defers=True)
    keys = list(range(NUM))
    first = dataset.__getitems__(BatchRequest(keys, keys))
    for path in paths:
        there = kept(path)
        if what != "tensor":
            assert not isinstance(there._im, type(None))
            assert type(there.im).__name__ == "ImagingCore"
    again = dataset.__getitems__(BatchRequest(keys, keys))
    assert len(opened) == NUM
    expected = samples_of_plain(Images(paths, make), keys, what)
    for one, two, three in zip(first, again, expected, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[0], three)


@pytest.mark.parametrize("how", ["kept", "returned too", "in a list"])
def test_a_tensor_that_is_kept_serves_later_samples_of_its_fetch(paths: list[str], how: str) -> None:
    def dataset() -> Images:
        cache: dict[str, Any] = {}

        class Keeping(Images):
            def __getitem__(self, number: int) -> Any:
                path = self.paths[number // 2]
                if path not in cache:
                    cache[path] = [CONVERTED(by_path(path))]
                if how == "returned too":
                    return cache[path][0], number
                return [cache[path], number] if how == "in a list" else (cache[path][0] * 1.0, number)

        return Keeping(paths, None)  # type: ignore[arg-type]

    by_path, keys = data.by_path, [0, 1, 4, 0, 5, 1, 2]
    ours, theirs = (samples_of(dataset(), keys, defers=defers) for defers in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        found, expected = (sample[0][0] if how == "in a list" else sample[0] for sample in (one, other))
        assert torch.equal(found, expected)


def samples_of_plain(dataset: Images, keys: list[int], what: str) -> list[torch.Tensor]:
    """The samples of keys that are their own seeds."""

    def open_(path: str) -> Any:
        image = Image.open(path).convert("RGB")
        if what == "image":
            return image
        return image.crop((0, 0, 50, 50)) if what == "crop" else F.to_tensor(image.crop((0, 0, 50, 50)))

    dataset.open = open_
    return [image for image, _ in DeferringDataset(dataset, defers=False).__getitems__(BatchRequest(keys, keys))]


def test_images_opened_in_advance_are_read_once(paths: list[str]) -> None:
    class Opened(Images):
        def __init__(self) -> None:
            super().__init__(paths, CONVERTED)
            self.images = [Image.open(path) for path in paths]

        def __getitem__(self, number: int) -> Any:
            return self.make(self.images[number].convert("RGB")), number

    dataset = Opened()
    first, second = (samples_of(dataset, list(range(NUM)), defers=True) for _ in range(2))
    theirs = samples_of(Opened(), list(range(NUM)), defers=False)
    for one, two, three in zip(first, second, theirs, strict=True):
        assert torch.equal(one[0], three[0])
        assert torch.equal(two[0], three[0])
    assert all(image.fp is None for image in dataset.images)


def test_files_that_are_deleted_or_replaced_after_they_were_opened(tmp_path: Path) -> None:
    paths = data.make_files(tmp_path / "set")
    expected = samples_of(Images(paths, CONVERTED), list(range(NUM)), defers=False)

    def opened(path: str) -> Any:
        image = Image.open(path).convert("RGB")
        Path(path).unlink() if path.endswith(("0.jpg", "3.jpg")) else Path(path).write_bytes(b"other")
        return image

    found = samples_of(Images(paths, CONVERTED, opened), list(range(NUM)), defers=True)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP", "GIF", "CMYK", "L", "MPO"])
def test_other_forms_are_left_to_pillow_or_the_same(tmp_path: Path, form: str) -> None:
    paths = []
    for number in range(4):
        image = Image.fromarray(data.picture(number, 60, 70))
        path = tmp_path / f"{number}.{'jpg' if form in ('CMYK', 'L', 'MPO') else form.lower()}"
        options: dict[str, Any] = {"save_all": True, "append_images": [image]} if form == "MPO" else {}
        how = "JPEG" if form in ("CMYK", "L") else form
        (image.convert(form) if form in ("CMYK", "L") else image).save(path, how, **options)
        paths.append(str(path))
    for open_ in (data.by_path, data.by_load) if form == "L" else (data.by_path,):
        ours, theirs = both_ways(Images(paths, CONVERTED, open_), 4)
        assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, theirs, strict=True))


# -- other libraries --------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_timms_dataset_and_transforms(tmp_path: Path, training: bool) -> None:
    for name in ("ant", "bee"):
        data.make_files(tmp_path / name, num=4)
        (tmp_path / name / "all.zip").unlink()
    timm = pytest.importorskip("timm.data")
    dataset = timm.ImageDataset(str(tmp_path), transform=timm.create_transform(32, is_training=training))
    ours, theirs = both_ways(dataset)
    assert [label for _, label in ours] == [label for _, label in theirs] == [0] * 4 + [1] * 4
    # Bicubic, then jitter and normalisation: the differences of the resize enlarged.
    assert max(difference(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)) <= 17 / min(data.STD)


def test_hugging_faces_set_transform(paths: list[str]) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"image": paths, "label": list(range(NUM))}).cast_column("image", datasets.Image())

    def transform(rows: Any) -> Any:
        return {"pixel_values": [CONVERTED(image.convert("RGB")) for image in rows["image"]], "label": rows["label"]}

    for view in (table.with_transform(transform), table):
        if view is table:
            table.set_transform(transform)
        ours, theirs = (
            DeferringDataset(view, defers=defers).__getitems__(BatchRequest(list(range(NUM)), [4] * NUM))
            for defers in (True, False)
        )
        assert [one["label"] for one in ours] == list(range(NUM))
        assert all(torch.equal(one["pixel_values"], other["pixel_values"]) for one, other in zip(ours, theirs, strict=True))


def test_two_views_by_simclrs_recipe(paths: list[str]) -> None:
    view = T.Compose([T.RandomResizedCrop(32), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.GaussianBlur(5), T.ToTensor()])
    for ours, theirs in zip(*both_ways(Images(paths, lambda image: [view(image), view(image)])), strict=True):
        assert len(ours[0]) == 2
        assert max(difference(one, other) for one, other in zip(ours[0], theirs[0], strict=True)) <= 18


# -- bytes that are bad -----------------------------------------------------------------------------


def spoil(path: str, how: str) -> None:
    whole = Path(path).read_bytes()
    if how == "cut":
        Path(path).write_bytes(whole[: len(whole) // 2])
    elif how == "cut, with an end":
        Path(path).write_bytes(whole[: len(whole) // 2] + b"\xff\xd9")
    elif how == "no image":
        Path(path).write_bytes(b"no image at all")
    else:  # the body of the scan
        start = whole.index(b"\xff\xda") + 40
        Path(path).write_bytes(whole[:start] + b"\xff\xc0" * 50 + whole[start + 100 :])


SPOILED = ("cut", "cut, with an end", "no image", "a marker in the scan")


def outcome(dataset: Any, keys: list[int], *, defers: bool) -> Any:
    try:
        return [sample[0] for sample in samples_of(dataset, keys, defers=defers)]
    except Exception as exc:
        return type(exc), str(exc).replace("0x", "")[:20]


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("lenient", [False, True])
def test_bad_bytes_raise_what_they_raise_without_deferral(
    tmp_path: Path, how: str, lenient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = data.make_files(tmp_path / "set")
    spoil(paths[2], how)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    dataset = Images(paths, CONVERTED)
    ours, theirs = (outcome(dataset, list(range(NUM)), defers=defers) for defers in (True, False))
    assert type(ours) is type(theirs)
    if isinstance(ours, tuple):
        assert ours == theirs
    else:
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("how", SPOILED)
def test_the_users_own_handler_sees_bad_bytes(tmp_path: Path, how: str) -> None:
    paths = data.make_files(tmp_path / "set")
    spoil(paths[2], how)

    class Careful(Images):
        def __getitem__(self, number: int) -> Any:
            try:
                image = Image.open(self.paths[number]).convert("RGB")
            except (OSError, SyntaxError):
                return self[number + 1]
            return self.make(image), number

    ours, theirs = both_ways(Careful(paths, CONVERTED))
    assert [number for _, number in ours] == [number for _, number in theirs]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, theirs, strict=True))


def test_an_error_of_the_users_is_raised_with_its_traceback(paths: list[str]) -> None:
    def broken(image: Any) -> Any:
        return F.to_tensor(image.crop((0, 0, 8, 8))) + "text"

    with pytest.raises(TypeError) as raised:
        samples_of(Images(paths, broken), [0], defers=True)
    assert "broken" in [entry.name for entry in raised.traceback]
    assert raised.value.__context__ is None


def test_what_was_kept_before_a_sample_failed_has_its_values(paths: list[str]) -> None:
    kept: dict[int, torch.Tensor] = {}

    class Failing(Images):
        def __getitem__(self, number: int) -> Any:
            if number == 3:
                raise KeyError(number)
            kept[number] = CONVERTED(by_path(self.paths[number]))
            return kept[number]

    by_path = data.by_path
    with pytest.raises(KeyError):
        samples_of(Failing(paths, None), list(range(5)), defers=True)  # type: ignore[arg-type]
    assert sorted(kept) == [0, 1, 2]
    assert all(float(tensor.sum()) > 0 for tensor in kept.values())
