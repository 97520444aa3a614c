"""Image folders for these tests, and ways to look at what was converted from them."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datapipe.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def encoded_image(seed: int, *, size: tuple[int, int] = (40, 56), form: str = "JPEG", mode: str = "RGB") -> bytes:
    """An image with some structure and some noise; `size` is (height, width)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    noise = rng.integers(0, 24, (*size, 3), dtype=np.uint8)
    pixels = np.clip(np.asarray(image).astype(np.int16) + noise, 0, 255).astype(np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(sink, form)
    return sink.getvalue()


def make_tree(root: Path, *, num_classes: int = 3, per_class: int = 8, size: tuple[int, int] = (40, 56)) -> Path:
    """A folder of `class_*` folders of JPEGs, all different."""
    for label in range(num_classes):
        folder = root / f"class_{label}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            (folder / f"img {number}.jpg").write_bytes(encoded_image(label * 1000 + number, size=size))
    return root


def contents(directory: Path) -> dict[str, str]:
    """Relative path -> sha256 of every file, hidden ones included."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            found[str(path.relative_to(directory))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run_process(*arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`datapipe ARGUMENTS` in a process of its own."""
    return subprocess.run(cli_command(*arguments), capture_output=True, text=True, timeout=timeout, cwd=ROOT)


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What such a process ends with and prints, from a call in this one, which takes a fraction of the time."""
    said, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])  # the command brings its own, pytest's would stay in its way
        patch.setattr(logging.root, "level", logging.WARNING)
        patch.setattr(sys, "stdout", said)
        patch.setattr(sys, "stderr", errors)
        try:
            status = run_main(*arguments)
        except SystemExit as exc:
            status = int(exc.code or 0)
    return subprocess.CompletedProcess(arguments, status, *(stream.buffer.getvalue().decode() for stream in (said, errors)))


def run_main(*arguments: str | Path) -> int:
    """`datapipe ARGUMENTS` in this process, which takes a tenth of the time; its exit status."""
    return main([str(argument) for argument in arguments])


def cli_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "import sys; from datapipe.cli.main import main; sys.exit(main())", *map(str, arguments)]
