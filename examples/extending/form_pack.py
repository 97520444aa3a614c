"""A new form of shards, worked out: `.pack` files of a label and an encoded image for each sample.

A pack is the four bytes PACK, then for each sample the label (int32) and the number of bytes (uint32) of the image, both
little endian, then the image. A form of shards is one function that says where the bytes of each sample lie; order, reading,
decoding, states, bad samples, caches and conversions need nothing else. In datapipe this file is
`datapipe/containers/pack.py`, with a line in `datapipe/containers/forms.py`:

    FORMS["pack"] = FormFacts(title="packs", shards="datapipe.containers.pack", files=re.compile(r".+\\.pack"))
"""

from __future__ import annotations

import struct
from pathlib import Path

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of
from datapipe.containers.mapped import mapped
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldExtent, SidecarRows

MAGIC = b"PACK"
_HEAD = struct.Struct("<iI")  # label, bytes of the image
_LOOKED_AT = 64  # bytes of an image: enough to recognise its encoding
_FIELDS = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one file; ids are row numbers. Fields: the image and the label.

    Nothing in the file is trusted: each length is compared with what is left. Raises MissingDataError, StorageError or
    FormatError, naming the file and the sample.
    """
    rows = SidecarRows(tuple(field.name for field in _FIELDS))
    with mapped(path, "a pack") as data:
        if data[: len(MAGIC)] != MAGIC:
            raise FormatError(f"{path}: does not begin with {MAGIC!r}, so it is no pack; get the file again")
        position = len(MAGIC)
        while position < len(data):
            where = f"{path}: sample {len(rows)}"
            if position + _HEAD.size > len(data):
                raise FormatError(f"{where}: cut within its head at byte {position}; get the file again")
            label, nbytes = _HEAD.unpack_from(data, position)
            start = position + _HEAD.size
            if start + nbytes > len(data):
                raise FormatError(f"{where}: reaches to byte {start + nbytes}, the file ends at {len(data)}; get the file again")
            if label < 0:
                raise FormatError(f"{where}: its label is {label}; write labels from 0")
            rows.append(
                id=len(rows),
                key=str(len(rows)).encode(),
                source=b"",  # the file that the sample was made from, if the format says
                label=label,
                size=(0, 0),  # (height, width), if the format says
                extents={
                    "image": FieldExtent(encoding_of(data[start : start + _LOOKED_AT]) or "", start, nbytes, None),
                    "label": FieldExtent("", position, 4, None),
                },
            )
            position = start + nbytes
    if not len(rows):
        raise FormatError(f"{path}: no samples")
    return rows, _FIELDS


def write_pack(path: Path, samples: list[tuple[bytes, int]]) -> None:
    """Write encoded images and their labels as a pack; for the test, and for whoever makes such files."""
    parts = [MAGIC]
    for image, label in samples:
        parts += [_HEAD.pack(label, len(image)), image]
    path.write_bytes(b"".join(parts))
