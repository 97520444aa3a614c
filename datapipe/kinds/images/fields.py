"""The fields of a dataset: which of them a batch has, and how those other than image and label are read, decoded and moved.

Masks, boxes and further images are cut and flipped as the sample's image is, with the same draws. No other
operation of the recipe touches them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.decode import Decoder, open_decoder
from datapipe.codecs.field_values import FieldKind, FieldSpec, value_of
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError, IntegrityError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex
from datapipe.index.entries import Extents
from datapipe.kernel.kind import BadRow
from datapipe.kinds.images.images_cpu import BlockReport
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, cut_mask, cut_through, move_boxes, row_cuts

IMAGE, LABEL = "image", "label"  # the field that the recipe applies to; the field that the index itself holds
ADDED = ("real", "id")  # what a batch may have besides fields: which samples are no repeats (tail="mask"), and sample ids

_MOVED = (FieldKind.MASK, FieldKind.BOXES, FieldKind.IMAGE)  # cut and flipped with the image

Values = dict[str, Any]  # of one sample, by field


@dataclass(frozen=True, slots=True)
class BatchFields:
    """The fields of a batch, in the order of its tuple."""

    specs: tuple[FieldSpec, ...]

    @classmethod
    def of(cls, index: AnyIndex, names: Iterable[str] | None) -> BatchFields:
        """Return the fields of these names. None: image and label of shards that others wrote, all of other data.

        Raises OptionError for a name that the dataset does not have, for one given twice, and for none at all.
        """
        has = {spec.name: spec for spec in index.manifest.fields}
        if names is None:
            first = [name for name in (IMAGE, LABEL) if name in has]
            is_narrow = index.is_foreign and not index.manifest.is_listing
            rest = [name for name in has if name not in first]
            return cls(tuple(has[name] for name in (first if first and is_narrow else first + rest)))
        wanted = [names] if isinstance(names, str) else list(names)
        unknown = [name for name in wanted if name not in has]
        if unknown or not wanted or len(set(wanted)) < len(wanted):
            problem = f"no field {unknown[0]!r}" if unknown else "a field named twice" if wanted else "no fields"
            raise OptionError(f"fields={wanted}: {problem}; {index.where} has {', '.join(has)}")
        return cls(tuple(has[name] for name in wanted))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    @property
    def has_image(self) -> bool:
        return IMAGE in self.names

    @property
    def has_label(self) -> bool:
        return LABEL in self.names

    @property
    def stored(self) -> tuple[FieldSpec, ...]:
        """The fields that lie in the dataset's files; the image first."""
        return tuple(
            sorted((spec for spec in self.specs if spec.kind is not FieldKind.LABEL), key=lambda spec: spec.name != IMAGE)
        )

    def looked_up(self, index: AnyIndex) -> str:
        """Return the field with which to ask the index for labels: one of the batch's, if it has any."""
        return next(spec.name for spec in (*self.stored, *index.manifest.fields) if spec.kind is not FieldKind.LABEL)

    @property
    def further(self) -> tuple[FieldSpec, ...]:
        """The fields other than the image and the label."""
        return tuple(spec for spec in self.specs if spec.name != IMAGE and spec.kind is not FieldKind.LABEL)

    @property
    def moved(self) -> tuple[FieldSpec, ...]:
        """The fields that are cut and flipped with the image."""
        return tuple(spec for spec in self.further if spec.kind in _MOVED) if self.has_image else ()

    def check_recipe(self, recipe: Recipe) -> None:
        """Check the transforms. Raises OptionError for one that lacks its field, or would not move a field along."""
        if recipe.transforms and not self.has_image:
            raise OptionError(f"transform={recipe!r} is for images, and batches have {', '.join(self.names)}; leave it out")
        if recipe.batch and not self.has_label:
            raise OptionError(f"{recipe.batch[0][1]!r} mixes labels, and batches have {', '.join(self.names)}")
        moving = [
            *(step.op for step in recipe.pixels if getattr(step.op, "moves_pixels", False)),
            *(op for _, op in recipe.batch),
            *recipe.rest[:1],
        ]
        if moving and self.moved:
            left_behind = ", ".join(spec.name for spec in self.moved)
            raise OptionError(
                f"{moving[0]!r} may move pixels after the geometry, and {left_behind} would not move along; leave it out, "
                "or choose other fields by fields="
            )

    def check_rename(self, rename: Mapping[str, str]) -> None:
        """Check new names. Raises OptionError for a key that no batch has, and if two fields would get one name."""
        names = [*self.names, *ADDED]
        unknown = [name for name in rename if name not in names]
        if unknown:
            raise OptionError(f"output renames {unknown}, which no batch has; its fields are {', '.join(names)}")
        renamed = [rename.get(name, name) for name in names]
        if len(set(renamed)) < len(renamed):
            raise OptionError(f"output would give two fields one name: {', '.join(renamed)}")


class Movement(NamedTuple):
    """How the image of a sample was moved."""

    size: list[int]  # height, width as stored
    steps: Sequence[RowCut]


class FurtherFields:
    """Loads the further fields of samples. Thread-safe.

    A value is, by kind: MASK a (h, w) tensor of uint8 or int32 labels; BOXES a (k, 5) float32 tensor of left, top, right,
    bottom in pixels, the latter two exclusive, and label, without boxes that the cut leaves empty; IMAGE a (3, h, w)
    uint8 tensor; ARRAY a tensor; TEXT a str; JSON the parsed document; BYTES bytes.
    """

    def __init__(self, specs: Sequence[FieldSpec], *, index: AnyIndex, files: Files, geometry: Recipe | None) -> None:
        """`geometry`: that of the image; None if nothing is to be moved."""
        self.specs = tuple(specs)
        self._index = index
        self._files = files
        self._geometry = geometry
        self._local = threading.local()

    def look_up(self, ids: NDArray[np.int64]) -> dict[str, Extents]:
        """Return where the fields of these samples lie."""
        return {spec.name: self._index.look_up(ids, spec.name).extents for spec in self.specs}

    def load(self, extents: Mapping[str, Extents], rows: range, draws: Draws, report: BlockReport) -> list[Values | None]:
        """Return the values of samples `rows` of `extents`; None for bad ones, which are in `report` or added to it.

        `draws`: those of the rows. `report`: that of their images, if there are any.
        """
        start_ns, read_ns = time.perf_counter_ns(), report.read_ns
        values: list[Values | None] = [None] * len(rows)
        bad = {found.row for found in report.bad}
        good = [row for row in range(len(rows)) if row not in bad]
        for row, movement in zip(good, self._movements(good, draws, report), strict=True):
            try:
                values[row] = {
                    spec.name: self._value(spec, extents[spec.name], rows[row], movement, report) for spec in self.specs
                }
            except (DecodeError, IntegrityError) as exc:
                report.bad.append(BadRow(row, exc))
        report.decode_ns += time.perf_counter_ns() - start_ns - (report.read_ns - read_ns)
        return values

    def load_stored(self, extents: Mapping[str, Extents]) -> Values:
        """Return the values of a single sample as they are stored. Raises DecodeError or IntegrityError."""
        return {spec.name: self._value(spec, extents[spec.name], 0, None, BlockReport()) for spec in self.specs}

    def _movements(self, rows: list[int], draws: Draws, report: BlockReport) -> Sequence[Movement | None]:
        if self._geometry is None or not rows:
            return [None] * len(rows)
        sizes = np.array([report.sizes[row] for row in rows], np.int64)
        chain = self._geometry.draw_cuts(draws[np.array(rows, np.int64)], sizes)
        return [Movement(size, steps) for size, *steps in zip(sizes.tolist(), *map(row_cuts, chain), strict=True)]

    def _value(self, spec: FieldSpec, extents: Extents, row: int, movement: Movement | None, report: BlockReport) -> Any:
        start_ns = time.perf_counter_ns()
        data = self._files.read(extents, row)
        report.nbytes += len(data)
        report.read_ns += time.perf_counter_ns() - start_ns
        try:
            if spec.kind is FieldKind.IMAGE:
                return _image(data, movement, self._decoder())
            return _FORMS[spec.kind](data, movement) if spec.kind in _FORMS else value_of(spec.kind, data)
        except DecodeError as exc:
            if spec.name == IMAGE:
                raise
            raise DecodeError(f"field {spec.name!r}: {exc}") from exc

    def _decoder(self) -> Decoder:
        decoder: Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = open_decoder()
        return decoder


# -- values -----------------------------------------------------------------------------------------


def _array(data: bytes, movement: Movement | None) -> torch.Tensor:
    array: NDArray[Any] = value_of(FieldKind.ARRAY, data)
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))
    except TypeError as exc:
        raise DecodeError(f"torch has no dtype for an array of {array.dtype}; store numbers, or declare it as bytes") from exc


def _mask(data: bytes, movement: Movement | None) -> torch.Tensor:
    mask: NDArray[Any] = value_of(FieldKind.MASK, data)
    if movement is not None:
        _check_size(mask.shape, movement)
        mask = cut_mask(mask, movement.steps)
    return torch.from_numpy(np.require(mask, requirements=("C", "W")))


def _boxes(data: bytes, movement: Movement | None) -> torch.Tensor:
    boxes: NDArray[Any] = value_of(FieldKind.ARRAY, data)
    if boxes.ndim != 2 or boxes.shape[1] != 5 or boxes.dtype.kind not in "iuf":
        raise DecodeError(f"an array of {boxes.dtype} {boxes.shape} holds no boxes, expected rows of [x1, y1, x2, y2, label]")
    table = boxes.astype(np.float32)
    if movement is not None:
        table[:, :4] = move_boxes(table[:, :4], movement.steps)
        table = table[(table[:, 2] > table[:, 0]) & (table[:, 3] > table[:, 1])]
    return torch.from_numpy(table)


def _image(data: bytes, movement: Movement | None, decoder: Decoder) -> torch.Tensor:
    header = probe(data)
    if movement is None:
        return torch.from_numpy(decoder(data, header).copy()).permute(2, 0, 1)
    _check_size((header.height, header.width), movement)
    first, last = movement.steps[0], movement.steps[-1]
    out = np.empty((last.window[2], last.window[3], 3), np.uint8)
    cut_through(decoder(data, header, first.region), movement.steps, out)
    return torch.from_numpy(out).permute(2, 0, 1)


def _check_size(shape: tuple[int, ...], movement: Movement) -> None:
    if list(shape[:2]) != movement.size:
        raise DecodeError(f"{shape[0]} x {shape[1]} pixels for an image of {movement.size[0]} x {movement.size[1]}")


_FORMS: dict[FieldKind, Callable[[bytes, Movement | None], torch.Tensor]] = {
    FieldKind.ARRAY: _array, FieldKind.MASK: _mask, FieldKind.BOXES: _boxes,
}  # fmt: skip
