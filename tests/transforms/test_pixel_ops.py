"""Parameters of the pixel operations: ranges, frequencies, refusals. Their pixels: test_parity.py."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision_reference import torchvision_v2

import datapipe.transforms as T
from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.pixels.auto_augment import OPERATIONS, apply_operation, rotation_matrix, shear_matrix
from datapipe.transforms.pixels.erasing import _covered, _normals

MANY = 12_000
DRAWS = Draws(11, 3, np.arange(MANY))


def check_share(hits: int, share: float, total: int = MANY) -> None:
    """A count within five standard deviations of its expectation."""
    assert abs(hits - total * share) <= 5 * math.sqrt(total * share * (1 - share))


def test_color_jitter_draws_orders_and_factors() -> None:
    params = T.ColorJitter(0.4, (0.2, 3.0), 2.0, 0.1).draw(DRAWS, 0, (8, 8))
    orders, counts = np.unique(params["order"], axis=0, return_counts=True)
    assert len(orders) == 24
    for count in counts:
        check_share(int(count), 1 / 24)
    for column, (low, high) in enumerate([(0.6, 1.4), (0.2, 3.0), (0.0, 3.0), (-0.1, 0.1)]):
        factors = params["factors"][:, column].astype(float)
        assert low <= factors.min()
        assert factors.max() < high
        # Mean and spread of a uniform distribution.
        assert abs(factors.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * MANY)
        assert factors.std() == pytest.approx((high - low) / math.sqrt(12), rel=0.03)


def test_color_jitter_of_nothing_changes_nothing() -> None:
    assert T.ColorJitter(0, 0.0, (1, 1), 0) == T.ColorJitter()
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    op = T.ColorJitter()
    assert torch.equal(op.apply(images.clone(), op.draw(Draws(0, 0, np.arange(2)), 0, (5, 5))), images)


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_grayscale_and_erasing_happen_with_probability_p(p: float) -> None:
    check_share(int(T.RandomGrayscale(p).draw(DRAWS, 0, (9, 9))["chosen"].sum()), p)
    boxes = T.RandomErasing(p).draw(DRAWS, 0, (224, 224))["box"].astype(int)
    check_share(int((boxes[:, 2] > 0).sum()), p)


def test_erased_boxes_are_distributed_as_torchvisions() -> None:
    v2 = torchvision_v2()
    boxes = T.RandomErasing(1.0).draw(Draws(0, 0, np.arange(4000)), 0, (100, 150))["box"].astype(int)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= 100).all()
    assert (boxes[:, 1] + boxes[:, 3] <= 150).all()
    torch.manual_seed(0)
    theirs = v2.RandomErasing(1.0)
    drawn = [theirs.make_params([torch.empty(3, 100, 150)]) for _ in range(4000)]
    reference = np.array([[p["i"], p["j"], p["h"], p["w"]] for p in drawn])
    for column in range(4):
        values = np.concatenate([boxes[:, column], reference[:, column]])
        below = [np.searchsorted(np.sort(side[:, column]), values, side="right") / 4000 for side in (boxes, reference)]
        assert np.abs(below[0] - below[1]).max() < 0.0436, "Kolmogorov-Smirnov, 0.1 % point"


def test_erasing_finds_no_box_in_an_image_of_one_row() -> None:
    op = T.RandomErasing(1.0)
    assert not op.draw(DRAWS, 0, (1, 50))["box"].any()


def test_noise_is_standard_normal() -> None:
    noise = np.concatenate([_normals(np.uint64(key), 3001) for key in range(40)]).astype(float)
    assert len(noise) == 40 * 3001
    assert abs(noise.mean()) < 5 / math.sqrt(len(noise))
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / len(noise))
    for limit, share in ((1.0, 0.682689), (2.0, 0.954500), (3.0, 0.997300)):
        check_share(int((np.abs(noise) < limit).sum()), share, len(noise))
    assert not np.array_equal(_normals(np.uint64(1), 50), _normals(np.uint64(2), 50))


def test_erased_noise_lies_in_the_box_only() -> None:
    op = T.RandomErasing(1.0, value="random")
    params = op.draw(Draws(0, 0, np.arange(3)), 0, (40, 50))
    images = op.apply(torch.full((3, 3, 40, 50), 99.0), params)
    mask = _covered(params["box"].astype(np.int64), images).expand_as(images)
    assert (images[~mask] == 99).all()
    assert (images[mask].abs() < 7).all()
    assert 0.8 < float(images[mask].std()) < 1.2


@pytest.mark.parametrize("value", [3.0, (1.0, 2.0, 3.0)])
def test_the_mask_of_all_boxes_is_the_boxes(value: Any) -> None:
    """`_covered` is how a GPU erases a whole batch."""
    op = T.RandomErasing(0.6, value=value)
    params = op.draw(Draws(0, 0, np.arange(20)), 0, (30, 20))
    erased = op.apply(torch.full((20, 3, 30, 20), 99.0), params)
    assert torch.equal((erased != 99).all(1, keepdim=True), _covered(params["box"].astype(np.int64), erased))
    assert erased[0].unique().numel() <= 4


@pytest.mark.parametrize(("op", "slots"), [(T.RandAugment(num_ops=3, magnitude=10), 3), (T.TrivialAugmentWide(), 1)])
def test_operations_and_signs_are_equally_frequent(op: Any, slots: int) -> None:
    params = op.draw(DRAWS, 0, (224, 224))
    assert params["choice"].shape == params["magnitude"].shape == (MANY, slots)
    for slot in range(slots):
        for number, name in enumerate(OPERATIONS):
            chosen = params["choice"][:, slot] == number
            check_share(int(chosen.sum()), 1 / 14)
            magnitude = params["magnitude"][chosen, slot]
            if name in ("ShearX", "TranslateY", "Rotate", "Brightness", "Sharpness"):
                nonzero = magnitude[magnitude != 0]
                check_share(int((nonzero < 0).sum()), 0.5, len(nonzero))
            else:
                assert name in ("ShearY", "TranslateX", "Color", "Contrast") or (magnitude >= 0).all()


def test_magnitudes_are_those_of_torchvisions_tables() -> None:
    v2 = torchvision_v2()
    height, width = 96, 224
    for op, theirs in ((T.RandAugment(1, 17), v2.RandAugment()), (T.TrivialAugmentWide(), v2.TrivialAugmentWide())):
        params = op.draw(DRAWS, 0, (height, width))
        for number, name in enumerate(OPERATIONS):
            table, signed = theirs._AUGMENTATION_SPACE[name]
            expected = table(31, height, width)
            drawn = np.unique(np.abs(params["magnitude"][params["choice"] == number].astype(float)))
            if expected is None:
                assert drawn.tolist() == [0.0]
            else:
                allowed = np.unique(expected.double()[17] if isinstance(op, T.RandAugment) else expected.double())
                # torch's linspace rounds once more where the CPU does not fuse a multiplication and an addition.
                fuses = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
                np.testing.assert_allclose(drawn, allowed, rtol=0 if fuses else 1e-6, atol=0, err_msg=name)
                assert signed == bool((params["magnitude"][params["choice"] == number] < 0).any())


MATRICES: dict[str, Callable[[Any, tuple[int, int]], Any]] = {
    "ShearX": lambda by, size: shear_matrix(by, np.zeros(1), size),
    "ShearY": lambda by, size: shear_matrix(np.zeros(1), by, size),
    "Rotate": lambda by, size: rotation_matrix(by),
}


def near(image: Any, matrix: Any, fill: tuple[int, int, int]) -> Any:
    """What an image (3, h, w) becomes if sampled 0.0001 pixels from its exact sources, on four sides: (4, 3, h, w).

    The four differ where a source lies between two pixels. There the last digit of the arithmetic decides, and torchvision's is
    that of a matrix product, which MKL computes in another way on another CPU. Turned by 90 degrees, an image of 37 x 52 pixels
    has all its sources there.
    """
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    padded[:, [0, -1], :] = padded[:, :, [0, -1]] = np.array(fill)[:, None, None]
    x, y = np.arange(width) - (width - 1) / 2, np.arange(height)[:, None] - (height - 1) / 2
    source_x, source_y = (a * x + b * y + c + (side - 1) / 2 for (a, b, c), side in zip(matrix, (width, height), strict=True))
    results = []
    for right in (-1e-4, 1e-4):
        for down in (-1e-4, 1e-4):
            row, column = np.rint(source_y + down).astype(int) + 1, np.rint(source_x + right).astype(int) + 1
            results.append(padded[:, row.clip(0, height + 1), column.clip(0, width + 1)])
    return np.stack(results)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_images_that_are_not_square(name: str) -> None:
    v2 = torchvision_v2()
    theirs = v2.RandAugment(fill=[3, 90, 200])
    rng = np.random.default_rng(OPERATIONS.index(name))
    for height, width in ((37, 52), (64, 21), (2, 9)):
        for magnitude in (0.0, 0.31, -0.63, 0.9, 5.5, 20.0, -31.0, 90.0):
            if name == "Posterize":
                magnitude = float(int(abs(magnitude)) % 9)
            elif name == "Solarize" or (name in ("Brightness", "Color", "Contrast", "Sharpness") and magnitude < -1):
                magnitude = abs(magnitude) % 1
            image = torch.from_numpy(rng.integers(0, 256, (1, height, width, 3), dtype=np.uint8)).permute(0, 3, 1, 2)
            ours = image.clone(memory_format=torch.channels_last)
            apply_operation(ours, name, np.array([magnitude]), (3, 90, 200))
            expected = theirs._apply_image_or_video_transform(image[0], name, magnitude, theirs.interpolation, theirs._fill)
            differs = (ours[0].int() - expected.int()).abs()
            if name in MATRICES:
                allowed = near(image[0].numpy(), MATRICES[name](np.array([magnitude]), (height, width))[0], (3, 90, 200))
                clear = (allowed == allowed[0]).all(axis=(0, 1))
                assert not differs[:, torch.from_numpy(clear)].any(), (height, width, magnitude)
                assert (allowed == ours[0].numpy()).all(axis=1).any(axis=0).all(), (height, width, magnitude)
            else:
                assert differs.max() <= 1, (height, width, magnitude)
                assert (differs > 0).float().mean() < 0.02, (height, width, magnitude)


def test_blur_draws_sigma_and_refuses_small_images() -> None:
    sigma = T.GaussianBlur(5, sigma=(0.5, 3)).draw(DRAWS, 0, (9, 9))["sigma"].astype(float)
    assert 0.5 <= sigma.min() < 0.51
    assert 2.99 < sigma.max() < 3
    with pytest.raises(OptionError, match=r"GaussianBlur\(\(5, 5\)\): images of 9 x 2 .* too small"):
        T.GaussianBlur(5).draw(DRAWS, 0, (9, 2))


@pytest.mark.parametrize(
    "op", [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(1.0), T.GaussianBlur(5), T.RandomErasing(1.0)], ids=repr
)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_other_floating_point_images(op: Any, dtype: torch.dtype, limit: float) -> None:
    images = torch.rand(3, 3, 20, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    params = op.draw(Draws(0, 0, np.arange(3)), 0, (20, 24))
    narrow = op.apply(images.clone(memory_format=torch.channels_last), params)
    assert narrow.dtype == op.output_dtype(dtype) == dtype
    wide = op.apply(images.float().clone(memory_format=torch.channels_last), params)
    assert (narrow.float() - wide).abs().max() <= limit


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: T.ColorJitter(brightness=-1), r"ColorJitter: brightness is -1; .*at least 0"),
        (lambda: T.ColorJitter(contrast=(2, 1)), r"contrast is \(2, 1\)"),
        (lambda: T.ColorJitter(hue=0.6), r"hue is \(-0\.6, 0\.6\); .*<= 0\.5"),
        (lambda: T.GaussianBlur(4), r"kernel_size is 4; it must be odd"),
        (lambda: T.GaussianBlur(3, sigma=0), r"sigma is 0; .*greater than 0"),
        (lambda: T.RandomErasing(scale=(0, 2)), r"scale is \(0, 2\)"),
        (lambda: T.RandomErasing(value="white"), r"value is 'white'; .*'random'"),
        (lambda: T.RandAugment(magnitude=31), r"magnitude is 31; .*0 to 30"),
        (lambda: T.RandAugment(num_ops=-1), r"num_ops is -1"),
        (lambda: T.RandAugment(interpolation="bilinear"), r"interpolation is 'bilinear'; only 'nearest'"),
        (lambda: T.TrivialAugmentWide(num_magnitude_bins=0), r"num_magnitude_bins is 0"),
        (lambda: T.ToDtype(torch.int64), r"dtype is torch\.int64"),
        (lambda: T.Normalize([0.5], [0.5]), r"mean is \[0\.5\]; .*three numbers"),
        (lambda: T.Normalize([0, 0, 0], [1, 0, 1]), r"std is \[1, 0, 1\]; .*divided by"),
    ],
)
def test_refusals_name_transform_argument_value_and_remedy(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


@pytest.mark.parametrize(
    "op",
    [
        T.ToDtype(torch.float32, scale=True),
        T.ToDtype(torch.bfloat16),
        T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        T.ColorJitter(0.4, hue=0.1),
        T.RandomGrayscale(0.2),
        T.GaussianBlur((3, 5), sigma=2),
        T.RandomErasing(0.25, value="random"),
        T.RandomErasing(value=(1, 2, 3)),
        T.RandAugment(magnitude=7, fill=3),
        T.TrivialAugmentWide(),
    ],
    ids=repr,
)
def test_repr_is_the_call_that_makes_it(op: Any) -> None:
    assert eval(repr(op), {**vars(T), "torch": torch}) == op
    assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives() -> None:
    images = torch.randint(0, 256, (16, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = Draws(0, 0, np.arange(16))
    floating = T.ToDtype(torch.float32, scale=True)
    for transforms in (
        [T.ColorJitter(0.4, 0.4, 0.4, 0.1)], [T.RandomGrayscale(0.5)], [T.GaussianBlur(5)],
        [T.RandomErasing(0.5, value=(1, 2, 3))],
        [T.RandAugment()], [T.TrivialAugmentWide()], [floating, T.RandomErasing(0.5, value="random")],
        [floating, T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)], [T.ToDtype(torch.float16, scale=True)],
    ):  # fmt: skip
        recipe = T.Recipe.of(transforms)
        results = []
        for device in ("cpu", "cuda"):
            out = torch.empty(images.shape, dtype=recipe.output_dtype, device=device)
            recipe.run_pixels(images.clone().to(device), draws, out)
            results.append(out.cpu().float())
        differences = (results[0] - results[1]).abs()
        step = 1.0 if recipe.output_dtype == torch.uint8 else 1e-3
        # Next to a whole number the two may truncate differently, and sample another of two equally near neighbours.
        assert (differences > 2 * step).float().mean() < 1e-3, transforms
