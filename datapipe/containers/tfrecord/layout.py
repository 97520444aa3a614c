"""TFRecord's framing, `tf.train.Example` in protobuf's encoding, and DALI's index of both.

A frame is a uint64 length, the masked CRC-32C of those eight bytes, the data, and the data's masked CRC-32C, all
little-endian (tensorflow/core/lib/io/record_writer.h). The data is an Example: a message of nested,
length-delimited fields, so the bytes of a feature lie in one piece and can be read without the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crc32c import crc32c

from datapipe.containers.labels import LABEL_NAMES

HEAD_NBYTES = 12
TAIL_NBYTES = 4
MAX_EXAMPLE_NBYTES = (1 << 31) - 1  # protobuf's limit
DALI_INDEX_SUFFIX = ".idx"

# Names of features: TensorFlow's own for classification (its ImageNet scripts, slim, the Object Detection API).
KEY = "__key__"
IMAGE = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
LABEL, LABEL_ALONE = LABEL_NAMES["tfrecord"]  # the second, TFDS's name, if there is no image

_LENGTH_DELIMITED = 2  # wire type
_BYTES_LIST, _INT64_LIST = 1, 3  # field numbers in Feature


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """A serialised Example, and where the features' values lie in it."""

    parts: tuple[bytes, ...]  # to be written one after the other
    nbytes: int
    extents: dict[str, tuple[int, int]]  # by feature: (offset, nbytes) of its value within the message


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that frames hold."""
    return mask(crc32c(data))


def mask(crc: int) -> int:
    """Return a CRC-32C as it is stored: rotated and shifted, as checksums of checksums are weak."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame_head(nbytes: int) -> bytes:
    """Return the 12 bytes before `nbytes` of data."""
    length = struct.pack("<Q", nbytes)
    return length + struct.pack("<I", masked_crc32c(length))


def frame_tail(parts: Iterable[bytes]) -> bytes:
    """Return the 4 bytes after the data, which is `parts` one after the other."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return struct.pack("<I", mask(crc))


def dali_index(frames: Iterable[tuple[int, int]]) -> bytes:
    """Return the index that `fn.readers.tfrecord(index_path=...)` reads: start and size of each frame, with head and tail."""
    return "".join(f"{start} {nbytes}\n" for start, nbytes in frames).encode()


def encode_example(features: Mapping[str, bytes | int]) -> EncodedExample:
    """Return the Example of these features, each a list of one value: bytes, or an int64.

    Features are sorted by name, so the same ones give the same bytes. Values that are bytes are not copied.
    """
    entries = [(name, *_encode_entry(name, features[name])) for name in sorted(features)]
    body = sum(len(head) + len(value) for _, head, value in entries)
    head = _delimited(1, body)
    parts, position = [head], len(head)
    extents: dict[str, tuple[int, int]] = {}
    for name, entry_head, value in entries:
        parts += (entry_head, value)
        extents[name] = (position + len(entry_head), len(value))
        position += len(entry_head) + len(value)
    return EncodedExample(tuple(parts), position, extents)


def encode_int(value: int) -> bytes:
    """Return an int64 as in a list of one: a varint, of ten bytes if it is negative."""
    return _varint(value & 0xFFFFFFFFFFFFFFFF)


def _encode_entry(name: str, value: bytes | int) -> tuple[bytes, bytes]:
    """Return one entry of the map of features: the bytes before the value, and the value."""
    if isinstance(value, int):
        data, kind = encode_int(value), _INT64_LIST
    else:
        data, kind = value, _BYTES_LIST
    of_value = _delimited(1, len(data))  # of int64 too, as they are packed
    of_list = _delimited(kind, len(of_value) + len(data)) + of_value
    key = name.encode()
    of_feature = _delimited(1, len(key)) + key + _delimited(2, len(of_list) + len(data)) + of_list
    return _delimited(1, len(of_feature) + len(data)) + of_feature, data


def _delimited(number: int, nbytes: int) -> bytes:
    """Return tag and length of a length-delimited field."""
    return bytes((number << 3 | _LENGTH_DELIMITED,)) + _varint(nbytes)


def _varint(value: int) -> bytes:
    """Return a varint: seven bits a byte, the lowest first; the top bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
