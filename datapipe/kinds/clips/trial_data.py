"""A little data of this kind for trials: a camera moves over landscapes, and the way in which it moves is the class.

One frame alone does not say the class, so a network has to look at several.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.video.library import import_av

TITLE = "videos"
_ACTIONS = {"pan-left": (-1, 0), "pan-right": (1, 0), "tilt-down": (0, 1), "tilt-up": (0, -1)}  # steps in x and y
_NUM_VIDEOS, _NUM_FRAMES = 24, 90
_HEIGHT, _WIDTH = 240, 320  # pixels
_PIXELS_PER_FRAME = 3


def convert_options(path: Path) -> list[str]:
    """Return the options of `datapipe convert` for what was made there: none, as it is loaded where it lies."""
    return []


def make(path: Path) -> None:
    """Write 24 videos of three seconds to `path/CLASS/NN.mp4`. Raises DependencyError without PyAV."""
    import_av()
    for number in range(_NUM_VIDEOS):
        action = list(_ACTIONS)[number % len(_ACTIONS)]
        (path / action).mkdir(parents=True, exist_ok=True)
        write_video(path / action / f"{number:02d}.mp4", _moved(np.random.default_rng(number), _ACTIONS[action]))


def write_video(
    path: Path,
    frames: Iterator[NDArray[np.uint8]],
    *,
    key_every: int = 60,
    preset: str = "veryfast",
    encoder: Literal["libx264", "libx265"] = "libx264",
) -> None:
    """Write frames, (h, w, 3) RGB, 30 a second, as H.264 or HEVC with a key frame every `key_every`. `preset`: the encoder's."""
    av = import_av()
    first = next(frames)
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(encoder, rate=30)
        stream.height, stream.width, stream.pix_fmt = first.shape[0], first.shape[1], "yuv420p"
        settings = f"keyint={key_every}:min-keyint={key_every}:scenecut=0" + ":log-level=none" * (encoder == "libx265")
        stream.options = {f"{encoder[3:]}-params": settings, "preset": preset, "crf": "23"}
        for pixels in (first, *frames):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode(None))


def wandering(number: int, num_frames: int, height: int = 480, width: int = 640) -> Iterator[NDArray[np.uint8]]:
    """Yield frames, (height, width, 3), of a camera that wanders over a landscape of its number."""
    rng = np.random.default_rng(number)
    scene = _landscape(rng, 2 * height, 2 * width)
    for time in range(num_frames):
        left, top = int(320 + 300 * np.sin(time / 40 + number)), int(240 + 200 * np.cos(time / 55))
        yield _seen(scene, rng, left, top, height, width)


def _moved(rng: np.random.Generator, step: tuple[int, int]) -> Iterator[NDArray[np.uint8]]:
    """Yield frames of a camera that moves by `step`, and begins again at the other side where its landscape ends."""
    scene = _landscape(rng, 2 * _HEIGHT, 2 * _WIDTH)
    room = np.array([_WIDTH + 1, _HEIGHT + 1])
    place = rng.integers(0, room)
    for _ in range(_NUM_FRAMES):
        yield _seen(scene, rng, int(place[0]), int(place[1]), _HEIGHT, _WIDTH)
        place = (place + _PIXELS_PER_FRAME * np.array(step)) % room


def _seen(scene: NDArray[np.int16], rng: np.random.Generator, left: int, top: int, height: int, width: int) -> NDArray[np.uint8]:
    grain = (3 * rng.standard_normal((height, width, 1), np.float32)).astype(np.int16)
    seen = scene[top : top + height, left : left + width] + grain
    return np.clip(seen, 0, 255, out=seen).astype(np.uint8)


def _landscape(rng: np.random.Generator, height: int, width: int) -> NDArray[np.int16]:
    """Return (height, width, 3) texture from 0 to 255: noise of several sizes, as a landscape has."""
    found = np.zeros((height, width, 3), np.float32)
    for size in (4, 8, 16, 32, 64, 128):
        coarse = rng.standard_normal((height // size + 2, width // size + 2, 3), np.float32) * np.float32(size**0.6)
        found += _stretched(_stretched(coarse, size, width, axis=1), size, height, axis=0)
    texture: NDArray[np.int16] = np.clip(128 + 40 * found / found.std(), 0, 255).astype(np.int16)
    return texture


def _stretched(coarse: NDArray[np.float32], size: int, length: int, *, axis: int) -> NDArray[np.float32]:
    """Return `coarse` with `size` values for one along an axis, `length` in all, between them by straight lines."""
    places = np.arange(length)
    share = np.expand_dims(np.float32(places % size / size), [other for other in range(coarse.ndim) if other != axis])
    before = coarse.take(places // size, axis)
    before += (coarse.take(places // size + 1, axis) - before) * share
    return before
