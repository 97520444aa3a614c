"""`--resize` against torchvision's Resize: equal on Pillow's images, one step apart at most on tensors."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from torchvision_reference import torchvision_v2
from trees import encoded_image

from converters.options import Encode, ResizeRule
from converters.samples.images import transcode
from datapipe.codecs.probe import probe

functional = torchvision_v2().functional


@pytest.mark.parametrize("how", ["shorter:256", "shorter:30", "exact:224x224", "exact:100x300"])
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (40, 56), (256, 256), (1000, 33)])
def test_the_pixels_of_torchvision(size: tuple[int, int], how: str) -> None:
    data = encoded_image(3, size=size, form="PNG")
    resize = ResizeRule.parse(how)
    stored, _ = transcode(data, probe(data), resize=resize, encode=Encode("raw"))
    found = np.load(io.BytesIO(stored)).astype(np.int16)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    asked = [resize.size] if resize.width is None else [resize.size, resize.width]
    by_pillow = np.asarray(functional.resize(image, asked))
    assert np.array_equal(found, by_pillow)
    tensor = functional.pil_to_tensor(image)
    by_torch = functional.resize(tensor, asked, antialias=True).permute(1, 2, 0).numpy()
    assert np.abs(found - by_torch).max() <= 1
    without_rounding = functional.resize(tensor.float(), asked, antialias=True).permute(1, 2, 0).numpy()
    assert np.abs(found - without_rounding).max() < 1.1
