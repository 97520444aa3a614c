"""Images of conversations that a worker on another machine decodes: what it is asked, and how it does so, as `Placer` here."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from datapipe.codecs.probe import MAX_PIXELS
from datapipe.errors import FormatError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.entries import Extents
from datapipe.kinds.conversations.documents import Images
from datapipe.kinds.conversations.placing import Placer
from datapipe.processors.fixed import FixedProcessor
from datapipe.processors.patches import PatchProcessor
from datapipe.processors.processor import Processor
from datapipe.processors.tiles import CanvasProcessor, SplitProcessor
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.wire import (
    MAX_ROWS,
    Bad,
    ExtentsForm,
    array_of,
    bytes_of,
    extents_of,
    form_of_extents,
    packed,
    packed_request,
    unpacked,
)

PROCESSORS: dict[str, Any] = {one.__name__: one for one in (FixedProcessor, PatchProcessor, CanvasProcessor, SplitProcessor)}
_COLUMNS = {  # of `Images`: numbers of each
    "segment": 1, "place": 1, "nbytes": 1, "orientation": 1, "grid": 2, "num_tokens": 1, "num_units": 1, "size": 2,
}  # fmt: skip


class PlacingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How images are placed: a processor by its name and values."""

    processor: str
    values: dict[str, Any]
    scales: bool


class PlacingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images to be placed into units of pixels. `columns`: those of `Images`, one after the other."""

    recipe: msgspec.Raw
    extents: ExtentsForm
    columns: list[bytes]


def packed_recipe(processor: Processor, *, scales: bool) -> bytes:
    """Return a processor as it is sent. Raises OptionError for one that is not datapipe's."""
    name = type(processor).__name__
    if PROCESSORS.get(name) is not type(processor):
        raise OptionError(f"workers: the processor {name} is not datapipe's; leave out workers=")
    return packed(PlacingRecipe(name, msgspec.to_builtins(processor), scales))


def asked(recipe: bytes, extents: Extents, images: Images) -> bytes:
    """Return the request for the images of conversations."""
    return packed_request(
        "conversations", PlacingRequest(msgspec.Raw(recipe), form_of_extents(extents), [bytes_of(column) for column in images])
    )


def serve(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Place the images of a request; return their units, and the answer.

    Raises FormatError, OptionError and what reading raises.
    """
    request = unpacked(body, PlacingRequest)
    extents = extents_of(request.extents)
    files = desk.files(extents.paths)
    key = ("conversations", bytes(request.recipe), files)
    processor, placer = desk.opened(key, lambda: _open(unpacked(request.recipe, PlacingRecipe), files))
    images = _images_of(request, len(extents), processor)
    out = desk.rows((int(images.num_units.sum()), *processor.unit), torch.uint8)
    return out, packed(Bad(sorted(placer.place(out, extents, images))))


def _open(recipe: PlacingRecipe, files: Files) -> tuple[Processor, Placer]:
    make = PROCESSORS.get(recipe.processor)
    if make is None:
        raise FormatError(f"the processor {recipe.processor!r:.40} is not known")
    try:
        processor: Processor = msgspec.convert(recipe.values, make)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise FormatError(f"{recipe.processor} is sent with values that it cannot have ({exc})") from exc
    return processor, Placer(processor, files, scales=recipe.scales)


def _images_of(request: PlacingRequest, num_conversations: int, processor: Processor) -> Images:
    """Return the images that were sent. Raises FormatError for numbers that do not fit together."""
    num = len(request.columns[0]) // 8 if request.columns else 0
    if len(request.columns) != len(_COLUMNS) or num > MAX_ROWS:
        raise FormatError(f"a message has {len(request.columns)} columns of {num} images")
    columns = [array_of(data, np.int64, num * each) for data, each in zip(request.columns, _COLUMNS.values(), strict=True)]
    images = Images(*(one if each == 1 else one.reshape(num, each) for one, each in zip(columns, _COLUMNS.values(), strict=True)))
    segment, grid, units = images.segment, images.grid, images.num_units
    fits = (
        num == 0
        or (
            bool((np.diff(segment) >= 0).all())
            and int(segment[0]) >= 0
            and int(segment[-1]) < num_conversations
            and int(images.nbytes.min()) >= 0
            and int(images.size.min()) > 0
            and int((images.size[:, 0] * images.size[:, 1]).max()) <= MAX_PIXELS
            and int(grid.max()) < MAX_ROWS
            and int(units.min()) >= 0
            and int(units.max()) < MAX_ROWS
        )
    )  # fmt: skip
    if not fits or not np.array_equal(np.where(grid[:, 0] < 0, 0, processor.num_units(np.maximum(grid, 0))), units):
        raise FormatError("the images of a message do not fit together")
    return images
