"""Sorting, checking, fusing and running a list of transforms."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import datapipe.transforms as T
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.execute import cut_through, row_cuts
from datapipe.transforms.pixels.dtype import ScaleAndShift
from datapipe.transforms.protocols import Params

TO_FLOAT = T.ToDtype(torch.float32, scale=True)
NORMALIZE = T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)
TRAIN = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), TO_FLOAT, NORMALIZE]


def block(num_images: int = 8, side: int = 24) -> torch.Tensor:
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (num_images, side // 4, side // 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    return torch.from_numpy(np.clip(smooth + rng.integers(-20, 20, smooth.shape), 0, 255).astype(np.uint8))


def run(recipe: T.Recipe, images: torch.Tensor, draws: Draws) -> torch.Tensor:
    out = torch.full(images.shape, 9, dtype=recipe.output_dtype)
    recipe.run_pixels(images.clone(), draws, out)
    return out


def draws_of(*ids: int) -> Draws:
    return Draws(4, 2, np.array(ids))


class Compose:
    """What torchvision's looks like from outside."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms


def test_nests_flatten_to_the_same_recipe() -> None:
    flat = T.Recipe.of(TRAIN)
    assert T.Recipe.of(Compose([[TRAIN[0]], Compose([*TRAIN[1:3]]), (TRAIN[3], None)])) == flat
    assert T.Recipe.of(flat) == flat
    assert hash(T.Recipe.of(list(TRAIN))) == hash(flat)
    assert T.Recipe.of(TRAIN[::-1][2:]) != flat
    assert T.Recipe.of(T.CenterCrop(3)) == T.Recipe.of([T.CenterCrop(3)])
    assert T.Recipe.of(None) == T.Recipe.of([])
    assert pickle.loads(pickle.dumps(flat)) == flat


def test_repr_is_the_list_that_makes_it() -> None:
    recipe = T.Recipe.of([*TRAIN, T.RandomErasing(0.25), T.MixUp(alpha=0.2, num_classes=5)])
    assert T.Recipe.of(eval(repr(recipe), {**vars(T), "torch": torch})) == recipe


def test_explain_says_what_runs_where() -> None:
    geometry, flip, mix = [T.Resize(30), T.CenterCrop(24)], T.RandomHorizontalFlip(), T.MixUp(num_classes=3)
    assert T.Recipe.of([geometry, TO_FLOAT, NORMALIZE, flip, mix]).explain() == [
        "with the decode: Resize(30)",
        "with the decode: CenterCrop(24)",
        "with the decode: RandomHorizontalFlip() (moved before the pixel operations: same result)",
        "on blocks of images: ToDtype(torch.float32, scale=True) + Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) "
        "(one multiply-add)",
        "on the batch: MixUp(num_classes=3)",
        "out: float32 RGB, 24 x 24, channels_last",
    ]


def test_sizes_must_be_equal() -> None:
    assert T.Recipe.of(TRAIN).check_equal_sizes() == (24, 24)
    assert T.Recipe.of([T.Pad(2)]).check_equal_sizes((10, 11)) == (14, 15)
    assert T.Recipe.of([T.Resize(10)]).check_equal_sizes((10, 20)) == (10, 20)
    with pytest.raises(OptionError, match=r"differ in size: .*Resize\(10\).*CenterCrop or Resize\(\(h, w\)\)"):
        T.Recipe.of([T.Resize(10), TO_FLOAT]).check_equal_sizes()
    with pytest.raises(OptionError, match="has no crop or resize"):
        T.Recipe.of(None).check_equal_sizes()


def test_an_empty_recipe_gives_the_image() -> None:
    recipe = T.Recipe.of(None)
    image = block(1)[0].numpy()
    chain = recipe.draw_cuts(draws_of(0), np.array([image.shape[:2]]))
    out = torch.empty(image.shape, dtype=torch.uint8)
    cut_through(image, [row_cuts(cuts)[0] for cuts in chain], out.numpy())
    assert (out.numpy() == image).all()
    assert recipe.output_dtype == torch.uint8
    assert not recipe.pixels


def test_conversion_and_normalisation_become_one_operation() -> None:
    recipe = T.Recipe.of(TRAIN)
    assert [type(step.op) for step in recipe.pixels] == [ScaleAndShift]
    assert recipe.output_dtype == torch.float32
    images = block()
    mean, std = torch.tensor(T.IMAGENET_MEAN), torch.tensor(T.IMAGENET_STD)
    torch.testing.assert_close(run(recipe, images, draws_of(*range(8))), (images / 255 - mean) / std, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("normalize", [None, NORMALIZE])
def test_every_dtype_is_the_exact_value_rounded_once(dtype: torch.dtype, scale: bool, normalize: T.Normalize | None) -> None:
    recipe = T.Recipe.of([T.ToDtype(dtype, scale=scale), normalize])
    images = block(3)
    exact = images.double() / (255 if scale else 1)
    if normalize is not None:
        exact = (exact - torch.tensor(normalize.mean, dtype=torch.float64)) / torch.tensor(normalize.std, dtype=torch.float64)
    got = run(recipe, images, draws_of(1, 2, 3))
    assert got.dtype == dtype
    # Half a step of the dtype, and a little for float32 arithmetic before it.
    before = 0 if dtype == torch.float64 else 5e-7
    limit = exact.abs() * (0.5 * torch.finfo(dtype).eps + before) + before + 1e-12
    assert ((got.double() - exact).abs() <= limit).all()


def test_uint8_without_pixel_work_may_stay_where_it_is() -> None:
    recipe = T.Recipe.of([T.CenterCrop(24), T.ToDtype(torch.uint8, scale=True)])
    images = block()
    recipe.run_pixels(images, draws_of(*range(8)), images)
    assert torch.equal(images, block())
    assert torch.equal(run(recipe, images, draws_of(*range(8))), block())


def test_uint8_pixel_work_may_run_in_place() -> None:
    recipe = T.Recipe.of([T.ColorJitter(0.5, 0.5), T.RandomErasing(0.5)])
    images = block()
    expected = run(recipe, images, draws_of(*range(8)))
    recipe.run_pixels(images, draws_of(*range(8)), images)
    assert torch.equal(images, expected)
    assert not torch.equal(images, block())


PIXEL_LISTS: list[list[Any]] = [
    [T.ColorJitter(0.4, 0.4, 0.4, 0.2)],
    [T.RandomGrayscale(0.5)],
    [T.GaussianBlur((3, 5))],
    [T.RandomErasing(0.7)],
    [T.RandAugment()],
    [T.TrivialAugmentWide(fill=9)],
    [TO_FLOAT, T.ColorJitter(0.4, 0.4, 0.4, 0.2), NORMALIZE, T.RandomErasing(0.8, value="random")],
    [T.RandAugment(), T.ToDtype(torch.float16, scale=True), NORMALIZE, T.RandomErasing(0.5, value=(1, 2, 3))],
    [TO_FLOAT, T.GaussianBlur(3), T.ToDtype(torch.uint8, scale=True), T.RandomGrayscale(0.5)],
    [T.ToDtype(torch.bfloat16, scale=True), T.ColorJitter(0.4), T.ToDtype(torch.float32)],
    [T.RandomInvert(), T.RandomPosterize(3), T.RandomSolarize(99), T.RandomAutocontrast()],
    [T.RandomEqualize(), T.RandomAdjustSharpness(2.5)],
    [T.RandomApply([T.ColorJitter(0.8), T.GaussianBlur(3)], 0.6)],
    [T.RandomChoice([T.ColorJitter(0.4), T.RandomGrayscale(0.5), T.RandAugment()], [1, 2, 2]), TO_FLOAT],
    [TO_FLOAT, T.RandomOrder([T.RandomErasing(0.7), T.ColorJitter(0.4), T.RandomApply([T.GaussianBlur(3)])]), NORMALIZE],
]


@pytest.mark.parametrize("transforms", PIXEL_LISTS, ids=repr)
def test_blocks_do_not_matter(transforms: list[Any]) -> None:
    recipe, images, ids = T.Recipe.of(transforms), block(), np.array([3, 9, 27, 81, 5, 6, 1000000007, 8])
    together = run(recipe, images, draws_of(*ids))
    for split in ([1] * 8, [3, 5], [7, 1], [2, 2, 4]):
        blocks = zip(images.split(split), np.split(ids, np.cumsum(split)[:-1]), strict=True)
        parts = [run(recipe, part, draws_of(*rows)) for part, rows in blocks]
        assert torch.equal(torch.cat(parts).view(torch.uint8), together.view(torch.uint8)), split
    backwards = run(recipe, images.flip(0), draws_of(*ids[::-1]))
    assert torch.equal(backwards.flip(0), together)


@pytest.mark.parametrize("transforms", PIXEL_LISTS, ids=repr)
def test_seed_epoch_and_id_decide(transforms: list[Any]) -> None:
    recipe, images = T.Recipe.of(transforms), block()[:1].repeat(8, 1, 1, 1)
    base = Draws(0, 0, np.arange(8))
    first = run(recipe, images, base)
    assert torch.equal(run(recipe, images, Draws(0, 0, np.arange(8))), first)
    for other in (Draws(1, 0, base.ids), Draws(0, 1, base.ids), Draws(0, 0, base.ids + 8)):
        assert not torch.equal(run(recipe, images, other), first)
    assert len({row.numpy().tobytes() for row in first.float()}) > 1, "equal images with other ids come out differently"


@pytest.mark.parametrize("module", ["color", "blur", "auto_augment"])
def test_a_whole_batch_at_once_is_the_same(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, which takes all samples in one group, on the CPU."""
    lists = [transforms for transforms in PIXEL_LISTS if torch.float16 not in [getattr(t, "dtype", None) for t in transforms]]
    ids = draws_of(*range(8))
    one_by_one = [run(T.Recipe.of(transforms), block(), ids) for transforms in lists]
    monkeypatch.setattr(f"datapipe.transforms.pixels.{module}.groups", lambda images: [slice(0, len(images))])
    for transforms, expected in zip(lists, one_by_one, strict=True):
        at_once = run(T.Recipe.of(transforms), block(), ids)
        torch.testing.assert_close(at_once.float(), expected.float(), atol=2e-6, rtol=1e-6)


def test_an_operation_number_is_the_place_in_the_list() -> None:
    """What is written after an operation, or how the list is nested, does not change what it draws."""
    alone = T.Recipe.of([T.CenterCrop(24), T.RandomErasing(0.9)])
    within = T.Recipe.of([[T.CenterCrop(24)], [T.RandomErasing(0.9), [TO_FLOAT]]])
    later = T.Recipe.of([T.CenterCrop(24), T.CenterCrop(24), T.RandomErasing(0.9)])
    ids = draws_of(*range(8))
    torch.testing.assert_close(run(alone, block(), ids).float() / 255, run(within, block(), ids))
    assert not torch.equal(run(alone, block(), ids), run(later, block(), ids))


# Geometry after pixel operations.

MOVABLE: list[list[Any]] = [
    [T.ColorJitter(0.5, 0.5, 0.5, 0.2), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    [TO_FLOAT, NORMALIZE, T.RandomHorizontalFlip()],
    [T.RandomGrayscale(0.5), T.RandomCrop(17), TO_FLOAT],
    [T.ColorJitter(brightness=0.5, hue=0.1), T.CenterCrop((20, 11))],
]


@pytest.mark.parametrize("transforms", MOVABLE, ids=repr)
def test_moved_geometry_gives_the_pixels_of_the_written_order(transforms: list[Any]) -> None:
    first = T.Resize((24, 24))
    recipe = T.Recipe.of([first, *transforms])
    images, ids = block(), draws_of(*range(8))
    # In the order written: every transform alone, under its own number.
    expected = images.permute(0, 3, 1, 2)
    for operation, op in enumerate(transforms, start=1):
        size = (expected.shape[2], expected.shape[3])
        if hasattr(op, "fold"):
            (cuts,) = op.fold(T.Recipe.of(None).draw_cuts(ids, np.array([size] * 8)), ids, operation)
            turned = []
            for image, (top, left, height, width), flip in zip(expected, cuts.region.tolist(), cuts.flip.tolist(), strict=True):
                turned.append(image[:, top : top + height, left : left + width].flip([1 + axis for axis in (0, 1) if flip[axis]]))
            expected = torch.stack(turned)
        else:
            expected = op.apply(expected.clone(memory_format=torch.channels_last), op.draw(ids, operation, size))
    chain = recipe.draw_cuts(ids, np.array([(24, 24)] * 8))
    cut = torch.empty((8, *recipe.check_equal_sizes(), 3), dtype=torch.uint8)
    for row in range(8):
        steps = [row_cuts(cuts)[row] for cuts in chain]
        top, left, height, width = steps[0].region
        cut_through(images[row].numpy()[top : top + height, left : left + width], steps, cut[row].numpy())
    got = run(recipe, cut, ids).permute(0, 3, 1, 2)
    if any(step.op.__class__ is ScaleAndShift and len(step.stands_for) == 2 for step in recipe.pixels):
        torch.testing.assert_close(got, expected, atol=2e-6, rtol=0)  # fused: rounded less often than one by one
    else:
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "transforms",
    [
        [TO_FLOAT, T.RandomResizedCrop(8)],
        [TO_FLOAT, T.Resize((8, 8))],
        [TO_FLOAT, T.Pad(2)],
        [NORMALIZE, T.RandomCrop(8, padding=4)],
        [T.RandomGrayscale(), T.RandomCrop(8, pad_if_needed=True)],
        [T.RandomGrayscale(), T.CenterCrop(8)],
        [T.Resize((8, 8)), T.RandomGrayscale(), T.CenterCrop(9)],
        [T.ColorJitter(contrast=0.5), T.RandomCrop(8)],
        [TO_FLOAT, T.ColorJitter(contrast=0.5), T.RandomHorizontalFlip()],
        [T.GaussianBlur(3), T.RandomHorizontalFlip()],
        [T.RandomErasing(), T.RandomHorizontalFlip()],
        [T.RandAugment(), T.RandomVerticalFlip()],
    ],
    ids=repr,
)
def test_geometry_that_cannot_move_is_refused(transforms: list[Any]) -> None:
    fixed = [TO_FLOAT, *transforms] if transforms[0] is NORMALIZE else transforms
    with pytest.raises(OptionError, match=r"comes after .* move all crops.*to the front"):
        T.Recipe.of(fixed)


def test_what_is_no_transform_is_named() -> None:
    with pytest.raises(OptionError, match=r"RandomHorizontalFlip is a class; pass an instance"):
        T.Recipe.of([T.RandomHorizontalFlip])
    with pytest.raises(OptionError, match=r"'flip'.*is not a known transform"):
        T.Recipe.of("flip")


@pytest.mark.parametrize(
    ("transforms", "says"),
    [
        ([NORMALIZE], r"Normalize.* gets uint8 images; put ToDtype\(torch\.float32, scale=True\) before"),
        ([TO_FLOAT, T.RandAugment()], r"RandAugment.* gets float32 images; put it before ToDtype"),
        ([T.RandomErasing(value="random")], r"value='random' is noise.*put ToDtype before"),
        ([T.RandomErasing(value=300)], r"uint8 images hold 0 to 255"),
        ([T.MixUp(num_classes=3)], r"MixUp.*floating point; add ToDtype"),
        ([T.CutMix(num_classes=3), T.CenterCrop(3)], r"comes after CutMix.*mixes whole batches; move it before"),
        ([T.CutMix(num_classes=3), TO_FLOAT], r"comes after CutMix"),
    ],
)
def test_orders_that_cannot_work_are_refused(transforms: list[Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        T.Recipe.of(transforms)


@dataclass(frozen=True)
class Invert:
    """A pixel operation from outside, which does not state its locality."""

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        return {}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        return 255 - images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return dtype


def test_pixel_operations_from_outside() -> None:
    recipe = T.Recipe.of([Invert(), TO_FLOAT])
    torch.testing.assert_close(run(recipe, block(), draws_of(*range(8))), (255 - block().float()) / 255, atol=1e-7, rtol=0)
    with pytest.raises(OptionError, match=r"comes after Invert\(\)"):
        T.Recipe.of([Invert(), T.RandomHorizontalFlip()])


def test_batch_operations_run_in_order() -> None:
    mix, cut = T.MixUp(num_classes=4), T.CutMix(num_classes=4)
    recipe = T.Recipe.of([TO_FLOAT, mix, cut])
    images, labels = (block(4).float() / 255).permute(0, 3, 1, 2), torch.tensor([0, 1, 2, 3])
    draws = Draws(0, 0, np.array([77]))
    expected = mix.apply(images.clone(), labels, mix.draw(draws, 1, (24, 24)))
    expected = cut.apply(*expected, cut.draw(draws, 2, (24, 24)))
    got = recipe.run_batch(images.clone(), labels, draws)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
