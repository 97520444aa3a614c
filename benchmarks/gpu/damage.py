"""Files that are not what they should be, in known places of known batches."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image


def _gif(data: bytes) -> bytes:
    sink = io.BytesIO()
    with Image.open(io.BytesIO(data)) as opened:
        opened.convert("P").save(sink, "GIF")
    return sink.getvalue()


def _flipped(data: bytes, share: float) -> bytes:
    """One bit of the byte so far into the file."""
    place = int(share * len(data))
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def _overwritten(data: bytes, share: float, filling: bytes) -> bytes:
    """A hundred bytes of the body so far into the file; the end marker stays."""
    place = int(share * len(data))
    return data[:place] + (filling * 100)[:100] + data[place + 100 :]


# name -> what becomes of a JPEG. A GIF under a JPEG's name is good: Pillow reads it, DALI must not see it.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda data: b"<html><body>404 Not Found</body></html>\n",
    "empty": lambda data: b"",
    "gif": _gif,
    "header only": lambda data: data[: max(24, len(data) // 40)],
    "cut": lambda data: data[: len(data) // 2],
    "bit flipped in the header": lambda data: _flipped(data, 0.004),
    "bit flipped early": lambda data: _flipped(data, 0.2),
    "bit flipped late": lambda data: _flipped(data, 0.8),
    "zeros in the body": lambda data: _overwritten(data, 0.5, b"\0"),
    "marker in the body": lambda data: _overwritten(data, 0.3, b"\xff\xc0"),
    "half of the body": lambda data: data[: len(data) // 2] + b"\xff\xd9",
}


@dataclass(frozen=True, slots=True)
class DamagedFolder:
    """An image folder and which of its samples, in order, were damaged."""

    root: Path
    damaged: list[int]
    num_samples: int


def lay_out(root: Path, originals: list[Path], how: str, places: list[int], num_samples: int) -> DamagedFolder:
    """Copies of the originals, in turn, those at `places` damaged."""
    shutil.rmtree(root, ignore_errors=True)
    directory = root / "class"
    directory.mkdir(parents=True)
    damaged = set(places)
    for number in range(num_samples):
        data = originals[number % len(originals)].read_bytes()
        (directory / f"{number:06d}.jpg").write_bytes(DAMAGES[how](data) if number in damaged else data)
    return DamagedFolder(root, sorted(damaged), num_samples)


def places_in_batches(batch_size: int) -> tuple[list[int], int]:
    """Of six batches: a clean one, one damaged at its first, middle and last place each, a whole one, a clean one."""
    first, middle, last = batch_size, 2 * batch_size + batch_size // 2, 4 * batch_size - 1
    return [first, middle, last, *range(4 * batch_size, 5 * batch_size)], 6 * batch_size
