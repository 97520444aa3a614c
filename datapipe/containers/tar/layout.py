"""The form of WebDataset tars: which field a member is, by its suffix; headers as datapipe writes them; DALI's index.

    jpg, png, ...                the image              npy, of raw pixels         the image
    cls, or else label           the label              npy, of anything else      `array`
    txt, text, caption           text                   NAME.npy                   an array, or a mask
    json                         json                   NAME.txt, NAME.json, ...   field NAME of that kind
    NAME.png, NAME.jpg, ...      an image, or a mask    NAME.bin, any other        bytes

A mask is a member with a word for one (`mask`, `seg`, ...) in its name, unless it is an array of other things than labels.

A written header is 512 bytes: regular file, mode 0644, owner 0, time 0, no PAX or GNU extension, so the same samples give the
same bytes and every reader agrees on offsets. (POSIX.1-1988 "ustar" layout.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.probe import encoding_of, probe
from datapipe.containers.field_names import IMAGE, LABEL, field_name, is_mask_name, kind_of_array
from datapipe.containers.labels import LABEL_NAMES
from datapipe.errors import DecodeError, FormatError

BLOCK_NBYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_NBYTES)
MAX_NAME_NBYTES = 100
MAX_MEMBER_NBYTES = 8**11 - 1  # eleven octal digits
DALI_INDEX_VERSION = "v1.2"
DALI_INDEX_SUFFIX = ".idx"
LABEL_SUFFIX = LABEL_NAMES["tar"][0]  # WebDataset's name for a class number in decimal ASCII
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "gif", "npy")  # the best one first
_KINDS = {
    "txt": FieldKind.TEXT,
    "text": FieldKind.TEXT,
    "caption": FieldKind.TEXT,
    "json": FieldKind.JSON,
    "npy": FieldKind.ARRAY,
}
_BYTES_EXTENSION = "bin"

# mode, uid, gid | size | mtime | checksum, as spaces while it is computed | type, link name | magic, version, owners, prefix
_NUL = bytes(1)
_BEFORE_SIZE = b"0000644" + _NUL + b"0000000" + _NUL + b"0000000" + _NUL
_AFTER_SIZE = _NUL + b"00000000000" + _NUL
_AFTER_CHECKSUM = _NUL + b" 0" + bytes(100) + b"ustar" + _NUL + b"00" + bytes(32 + 32 + 8 + 8 + 155 + 12)
# the checksum field counts as eight spaces; what follows it starts with its own two closing bytes
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + 8 * ord(" ") + sum(_AFTER_CHECKSUM) - ord(" ")


def field_of_suffix(suffix: str, head: bytes, kind: FieldKind | None = None) -> FieldSpec:
    """Return the field of members of that suffix. `head`: its beginning, 256 bytes or more; `kind`: if it is known.

    Two suffixes may give one field, like `depth.png` and `depth.jpg`.
    """
    stem, _, extension = suffix.rpartition(".")
    if suffix == LABEL_SUFFIX and kind is None:
        return FieldSpec(LABEL, FieldKind.LABEL)
    kind = kind or _kind_of(stem, extension, head)
    is_known = extension in IMAGE_SUFFIXES or extension in _KINDS or extension == _BYTES_EXTENSION
    if not stem:
        if kind is FieldKind.IMAGE:
            return FieldSpec(IMAGE, kind)
        return FieldSpec(kind.value if extension in IMAGE_SUFFIXES else field_name(extension), kind)  # "png" names no purpose
    name = stem if is_known else suffix
    return FieldSpec(IMAGE if name == IMAGE and kind is FieldKind.IMAGE else field_name(name), kind)


def suffix_of_bytes(name: str) -> str:
    """Return the suffix of members that are the field `name` of kind bytes: its name, unless that has another meaning.

    `mp4` is a video in a member `KEY.mp4`; bytes called `json` are in `KEY.json.bin`.
    """
    return name if field_of_suffix(name, b"") == FieldSpec(name, FieldKind.BYTES) else f"{name}.{_BYTES_EXTENSION}"


def _kind_of(stem: str, extension: str, head: bytes) -> FieldKind:
    if extension == "npy":
        return kind_of_array(stem, head) if stem or not _is_raw_image(head) else FieldKind.IMAGE
    if extension in IMAGE_SUFFIXES:
        return FieldKind.MASK if is_mask_name(stem) else FieldKind.IMAGE
    return _KINDS.get(extension, FieldKind.BYTES)


def _is_raw_image(head: bytes) -> bool:
    """Return True if a .npy begins like one of (height, width, 3) uint8."""
    try:
        return encoding_of(head) == "npy" and probe(head).num_channels > 0
    except DecodeError:
        return False


class IndexedMember(NamedTuple):
    """One field of a sample as DALI's index names it."""

    suffix: str  # after the first dot of the base name
    offset: int  # of the data, bytes from the start of the tar
    nbytes: int
    name: str


def member_header(name: bytes, nbytes: int) -> bytes:
    """Return the 512 bytes before a member's data.

    Raises FormatError for a name or size that a plain USTAR header cannot hold.
    """
    if not 0 < len(name) <= MAX_NAME_NBYTES or not name.isascii():
        raise FormatError(f"tar member name {name!r} is not 1 to {MAX_NAME_NBYTES} ASCII bytes; choose another key")
    if not 0 <= nbytes <= MAX_MEMBER_NBYTES:
        raise FormatError(f"tar member {name!r} of {nbytes} bytes exceeds USTAR's {MAX_MEMBER_NBYTES}; leave the sample out")
    size = b"%011o" % nbytes
    checksum = _CONSTANT_SUM + sum(name) + sum(size)
    return b"%b%b%b%b%06o%b" % (name.ljust(100, b"\0"), _BEFORE_SIZE, size, _AFTER_SIZE, checksum, _AFTER_CHECKSUM)


def padding(nbytes: int) -> bytes:
    """Return the padding after a member's data up to the next block."""
    return bytes(-nbytes % BLOCK_NBYTES)


def dali_index(samples: Iterable[Sequence[IndexedMember]], num_samples: int) -> bytes:
    """Return the index that `fn.readers.webdataset(index_paths=...)` reads, as DALI's `wds2idx` writes it."""
    lines = [f"{DALI_INDEX_VERSION} {num_samples}"]
    lines.extend(" ".join(f"{m.suffix} {m.offset} {m.nbytes} {m.name}" for m in members) for members in samples)
    return ("\n".join(lines) + "\n").encode()
