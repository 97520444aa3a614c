"""Maps of sparse members of tars: which runs of a file's bytes are stored; the others are zeros.

GNU tar writes three kinds: its own header (type `S`), PAX 0.0 and 0.1 (the map in the PAX header), PAX 1.0 (the map before the
data). (GNU tar's manual, "Sparse Formats".) Maps are hostile input: runs must ascend without overlap, within the file, and add
up to what is stored, and what they claim is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from datapipe.codecs.stored import PLAIN, absent, sparse
from datapipe.containers.mapped import ByteSource, is_bomb
from datapipe.containers.tar.layout import BLOCK_NBYTES as BLOCK

_MAX_RUNS = 10_000
_MAX_DIGITS = 18
# of the old GNU header: 4 runs, whether more follow, the size; then blocks of 21 runs, and whether more follow
_RUNS_AT, _MORE_AT, _SIZE_AT = 386, 482, 483
_RUN_NBYTES, _MORE_RUNS, _STILL_MORE_AT = 24, 21, 504

Runs = list[tuple[int, int]]  # offset in the file and size of each, bytes


def old_gnu(data: ByteSource, header: bytes, start: int, nbytes: int) -> tuple[int, str]:
    """Return where the data of a member of type `S` begin, and the codec that makes its file of them.

    `start`: after the header, which says that `nbytes` are stored. If the data end within the map, they begin after the end.
    """
    fields = [header[_RUNS_AT : _RUNS_AT + 4 * _RUN_NBYTES]]
    more = header[_MORE_AT]
    while more:
        block = data[start : start + BLOCK]
        start += BLOCK
        if len(block) < BLOCK:
            break
        if (len(fields) - 2) * _MORE_RUNS <= _MAX_RUNS:  # further ones are passed over: these are too many already
            fields.append(block[: _MORE_RUNS * _RUN_NBYTES])
        more = block[_STILL_MORE_AT]
    try:
        numbers = [_octal(part[at : at + 12]) for part in fields for at in range(0, len(part), 12)]
        runs = [run for run in zip(numbers[::2], numbers[1::2], strict=True) if run != (0, 0)]
        return start, _codec(runs, _octal(header[_SIZE_AT : _SIZE_AT + 12]), nbytes)
    except ValueError as exc:
        return start, _bad(exc)


def of_pax(data: ByteSource, pax: Mapping[bytes, bytes], start: int, nbytes: int) -> tuple[int, int, str]:
    """Return where the data of a sparse member with these PAX values begin, their size, and their codec.

    `start` and `nbytes`: of what is stored.
    """
    major, size = pax.get(b"GNU.sparse.major", b"0"), pax.get(b"GNU.sparse.size")
    try:
        if major == b"1":
            runs, nbytes_of_map = _leading_map(data, start, nbytes)
            stored = nbytes - nbytes_of_map
            return start + nbytes_of_map, stored, _codec(runs, _decimal(pax.get(b"GNU.sparse.realsize", b"")), stored)
        if size is None:
            raise ValueError(f"of version {major[:20]!r}, which is not read")
        text = pax.get(b"GNU.sparse.map", b"")
        if text.count(b",") > 2 * _MAX_RUNS:
            raise ValueError(f"of more than {_MAX_RUNS} runs")
        numbers = [_decimal(number) for number in text.split(b",")] if text else []
        return start, nbytes, _codec(list(zip(numbers[::2], numbers[1::2], strict=True)), _decimal(size), nbytes)
    except ValueError as exc:
        return start, nbytes, _bad(exc)


def _leading_map(data: ByteSource, start: int, nbytes: int) -> tuple[Runs, int]:
    """Return the runs that stand before the data, a number in each line, and the bytes that they take, in whole blocks."""
    text = data[start : start + min(nbytes, BLOCK)]
    num = _decimal(text.partition(b"\n")[0])
    if num > _MAX_RUNS:
        raise ValueError(f"of {num} runs, more than {_MAX_RUNS}")
    while text.count(b"\n") < 2 * num + 1:
        block = data[start + len(text) : start + min(nbytes, len(text) + BLOCK)]
        if not block:
            raise ValueError("of fewer runs than it says")
        text += block
    numbers = [_decimal(line) for line in text.split(b"\n")[1 : 2 * num + 1]]
    return list(zip(numbers[::2], numbers[1::2], strict=True)), len(text)


def _codec(runs: Runs, nbytes: int, stored: int) -> str:
    """Return how a file of `nbytes` bytes is made of `stored` ones. Raises ValueError for a map that cannot be."""
    if len(runs) > _MAX_RUNS:
        raise ValueError(f"of {len(runs)} runs, more than {_MAX_RUNS}")
    end = 0
    for offset, size in runs:
        if offset < end or offset + size > nbytes:
            raise ValueError(f"whose run of {size} bytes at {offset} overlaps the one before, or ends after the file's {nbytes}")
        end = offset + size
    if sum(size for _, size in runs) != stored:
        raise ValueError(f"whose runs do not add up to the {stored} bytes that are stored")
    if is_bomb(nbytes, stored):
        raise ValueError(f"that makes {nbytes} bytes of {stored}: a bomb?")
    kept = [run for run in runs if run[1]]
    return PLAIN if kept == [(0, nbytes)] or not nbytes else sparse(nbytes, kept)


def _bad(reason: ValueError) -> str:
    return absent(f"is a sparse file with a map {reason}; write the tar again without --sparse")


def _octal(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0") or b"0"
    if not text.isdigit():
        raise ValueError(f"that has no number in {field!r}")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise ValueError(f"that has no number in {text[:20]!r}")
    return int(text)
