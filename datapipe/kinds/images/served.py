"""Images that a worker on another machine makes: what it is asked, and how it makes them, as `BlockWorker` does here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import torch

from datapipe.codecs.decode import Decode
from datapipe.errors import FormatError
from datapipe.fetch.files import Files
from datapipe.index.entries import Entries
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.order.draws import Draws
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.wire import (
    MAX_ROWS,
    DrawsForm,
    ExtentsForm,
    draws_of,
    extents_of,
    form_of_draws,
    form_of_extents,
    packed,
    packed_request,
    unpacked,
)
from datapipe.transforms import Recipe
from datapipe.transforms.naming import named, recipe_named


class ImageRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How images are made: all transforms by their names, of which the geometry and so many pixel steps are carried out."""

    transforms: list[Any]
    num_pixels: int
    decode: Decode


class ImageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images to be made, uint8."""

    recipe: msgspec.Raw
    size: tuple[int, int]
    extents: ExtentsForm
    draws: DrawsForm
    leave_out: list[int]


class ImageAnswer(msgspec.Struct, frozen=True):
    """A `BlockReport` without the errors of bad rows, which the loader finds by itself."""

    bad: list[int]
    sizes: dict[int, tuple[int, int]]
    nbytes: int
    read_ns: int
    decode_ns: int
    augment_ns: int


def packed_recipe(recipe: Recipe, num_pixels: int, decode: Decode) -> bytes:
    """Return a recipe as it is sent. Raises OptionError for one with code of the user's."""
    return packed(ImageRecipe(named(recipe), num_pixels, decode))


def asked(recipe: bytes, out: torch.Tensor, entries: Entries, draws: Draws, leave_out: Collection[int]) -> bytes:
    """Return the request for images. `out`: (n, h, w, 3)."""
    size = int(out.shape[1]), int(out.shape[2])
    body = ImageRequest(
        msgspec.Raw(recipe), size, form_of_extents(entries.extents), form_of_draws(draws), sorted(map(int, leave_out))
    )
    return packed_request("images", body)


def report_of(answer: bytes, num: int) -> tuple[BlockReport, list[int]]:
    """Return what a worker says of its images, and the rows that it calls bad. Raises FormatError."""
    told = unpacked(answer, ImageAnswer)
    if any(not 0 <= row < num for row in (*told.bad, *told.sizes)):
        raise FormatError("a worker tells of rows that it was not asked for")
    report = BlockReport([], told.sizes, told.nbytes, told.read_ns, told.decode_ns, told.augment_ns)
    return report, sorted({*told.bad})


def serve(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Make the images of a request; return them, and the answer. Raises FormatError, OptionError and what reading raises."""
    request = unpacked(body, ImageRequest)
    extents = extents_of(request.extents)
    num = len(extents)
    draws = draws_of(request.draws, num)
    files = desk.files(extents.paths)
    key = ("images", bytes(request.recipe), files)
    worker = desk.opened(key, lambda: _open(unpacked(request.recipe, ImageRecipe), files))
    out = desk.rows((num, *request.size, 3), torch.uint8)
    nothing = np.zeros(num, np.int64)  # ids and labels, which the loader keeps
    leave_out = {row for row in request.leave_out[:MAX_ROWS] if 0 <= row < num}
    report = worker.load(Entries(nothing, nothing, extents), range(num), draws, out, leave_out=leave_out)
    bad = [row for row, _ in report.bad]
    answer = ImageAnswer(bad, report.sizes, report.nbytes, report.read_ns, report.decode_ns, report.augment_ns)
    return out, packed(answer)


def _open(recipe: ImageRecipe, files: Files) -> BlockWorker:
    whole = recipe_named(recipe.transforms)
    if whole.rest or not 0 <= recipe.num_pixels <= whole.num_in_bytes:
        raise FormatError("a recipe is asked for that does not end with images of bytes")
    return BlockWorker(whole.with_pixels(recipe.num_pixels), files, decode=recipe.decode)
