"""What `fuzz` looks at of requests to a worker: they are served or refused, and nothing outside of its roots is read."""

from __future__ import annotations

import atexit
import copy
import functools
import random
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch
from fixtures import make_folder

from datapipe import transforms as T
from datapipe.codecs.audio.resampling import Span
from datapipe.core import regular_files
from datapipe.errors import FormatError
from datapipe.index.clips import WindowSettings
from datapipe.index.entries import Entries, Extents
from datapipe.index.media import MediaSource
from datapipe.kernel.process_main import Scratch
from datapipe.kinds.audio import served as audio
from datapipe.kinds.audio.reading import Stretch
from datapipe.kinds.clips import served as clips
from datapipe.kinds.conversations import served as conversations
from datapipe.kinds.conversations.documents import Images
from datapipe.kinds.images import served as images
from datapipe.opening.videos.indexing import look_at
from datapipe.order.draws import Draws
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.pixels import Pixels
from datapipe.remote_workers import own_code
from datapipe.remote_workers.wire import Request
from datapipe.serving.work import Refusal, ServedWork
from datapipe.transforms import Recipe

_RECIPES: list[list[Any]] = [
    [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
    [T.Resize(28), T.CenterCrop(24), T.RandomApply([T.ColorJitter(0.4), T.RandomGrayscale(0.5)]), T.RandAugment()],
]
_SIZE = 24
# Values that an attacker would write in place of others.
_VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 2**31, 2**62, -(2**62), 1e308, float("nan"), "", "x", "Resize", b"/etc/passwd", b"", b"\x00" * 8,
    b"\xff" * 800, None, True, [], [[]], {}, {"transform": "Resize", "size": 10**6}, {"transform": "Pad", "padding": 10**5},
    {"transform": "GaussianBlur", "kernel_size": 999_999}, b"../../etc/passwd", b"s3://bucket/x", b"http://127.0.0.1:1/x", b"\0",
)  # fmt: skip


def _hidden(request: bytes) -> bytes:
    """Return a request without the name of the folder, so that inputs are the same in every process."""
    top = str(_top()).encode()
    return request.replace(top, b"/".ljust(len(top), b"*"))


def _shown(request: bytes) -> bytes:
    top = str(_top()).encode()
    return request.replace(b"/".ljust(len(top), b"*"), top)


@functools.cache
def _top() -> Path:
    """A folder of images, a video and a recording, for as long as the process lives."""
    top = Path(tempfile.mkdtemp(prefix="fuzz-remote-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    make_folder(top / "images", num=4, size=(40, 48))
    from sound_files import sound, write_sound
    from video_files import write_video

    write_sound(top / "sound.flac", sound(0.25))
    write_video(top / "video.mov", "mjpeg", frames=np.zeros((12, 32, 48, 3), np.uint8), pixel_format="yuvj420p")
    return top


def requests() -> list[bytes]:
    paths = [str(path) for path in sorted(_top().glob("images/*/*"))]
    num = len(paths)
    nothing = np.zeros(num, np.int64)
    extents = Extents(paths, nothing, np.full(num, -1), nothing.astype(np.uint32), nothing.astype(np.uint8), one_file_each=True)
    out = torch.empty((num, _SIZE, _SIZE, 3), dtype=torch.uint8)
    draws = Draws(1, 2, np.arange(num))
    found = []
    for transforms in _RECIPES:
        recipe = Recipe.of(transforms)
        sent = images.packed_recipe(recipe, recipe.num_in_bytes, "exact")
        found.append(images.asked(sent, out, Entries(nothing, nothing, extents), draws, [1]))
    source = MediaSource(str(_top() / "video.mov"))
    track = look_at(source).track
    frames = np.array([[0, 1, 2, -1], [4, 5, 6, 7]], np.int64)
    shown = torch.empty((2, WindowSettings(frames=4).frames, _SIZE, _SIZE, 3), dtype=torch.uint8)
    sent = clips.packed_recipe(Recipe.of([T.RandomCrop(_SIZE)]), clips.Resize.EXACT)
    found.append(clips.asked(sent, track, source, None, frames, Draws(1, 2, np.arange(2)), shown, None))
    processor = PatchProcessor(14, 2, 2, 28 * 28, 28 * 28 * 9, Pixels("bicubic", (0.5,) * 3, (0.5,) * 3, 1 / 255), 4)
    sizes = np.full((num, 2), (48, 40), np.int64)
    grid = processor.grids(*sizes.T)
    tokens, units, which = processor.num_tokens(grid), processor.num_units(grid), np.arange(num)
    nbytes = np.array([Path(path).stat().st_size for path in paths])
    shown_by = Images(which, nothing, nbytes, nothing + 1, grid, tokens, units, sizes)
    found.append(conversations.asked(conversations.packed_recipe(processor, scales=True), extents, shown_by))
    stretches = [Stretch(MediaSource(str(_top() / "sound.flac")), Span(0, 4000, 16_000, 1), first, 900) for first in (0, 500)]
    found.append(audio.asked(8000, torch.empty(2, 1, 1000), stretches))
    return [_hidden(request) for request in found]


def _refused() -> bytes:
    """A request for code to be run, which no service does that was not told to."""
    return own_code.asked(own_code.Code(b"", "a" * 64), 0, [1, 2])


@functools.cache
def _handler() -> Any:
    return ServedWork((str(_top()),))()


def look_at_request(data: bytes, scratch: Path) -> object:
    """Serve a request. What is opened lies below the root: any other file would be a finding."""
    top = str(_top())
    opened = regular_files.os.open

    def checked(path: Any, *arguments: Any, **options: Any) -> int:
        if not str(Path(regular_files.os.fsdecode(path)).resolve()).startswith(top):
            raise AssertionError(f"{path!r} was opened")
        return opened(path, *arguments, **options)

    with mock.patch.object(regular_files.os, "open", checked):
        answer = _handler()(("", _shown(data), None), Scratch())
    if isinstance(answer, Refusal):
        if "AssertionError" in answer.text:
            raise AssertionError(answer.text)
        raise FormatError(answer.text)
    return answer


def tamper_request(data: bytearray) -> None:
    """Give values of the request, wherever they are in it, others of any type."""
    rng = random.Random(zlib.crc32(data))
    request = msgspec.msgpack.decode(rng.choice([*requests(), _refused()]), type=Request)
    body = msgspec.msgpack.decode(request.body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _tamper(body, rng)
    data[:] = msgspec.msgpack.encode(Request(request.kind, msgspec.Raw(msgspec.msgpack.encode(body))))


def _tamper(value: Any, rng: random.Random) -> None:
    """Change one member of a nested value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(value[key], (dict, list)) or not value[key] or rng.random() < 0.2:
            break
        value = value[key]
    if isinstance(value[key], bytes) and len(value[key]) > 7 and rng.random() < 0.5:
        changed = bytearray(value[key])
        at = rng.randrange(len(changed) - 7)
        changed[at : at + 8] = rng.choice((2**40, -1, 2**62, 7, 0)).to_bytes(8, "little", signed=True)
        value[key] = bytes(changed)
    else:
        value[key] = copy.deepcopy(rng.choice(_VALUES))
