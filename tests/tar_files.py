"""Tars with members that Python's tarfile does not write: sparse files of every kind, and links."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

Runs = Sequence[tuple[int, int]]  # offset and size of each


def tar_of(*members: tuple[str, bytes] | tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of these files; TarInfo for what is no plain file."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            file.addfile(info, io.BytesIO(member[1]))
    return sink.getvalue()


def link_to(target: str, name: str, *, is_hard: bool = False) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE if is_hard else tarfile.SYMTYPE, target
    return info


def pax_member(name: str, pax: dict[str, str], body: bytes) -> bytes:
    """One file with a PAX header, without an end of the archive."""
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = len(body), pax
    return info.tobuf(tarfile.PAX_FORMAT) + padded(body)


def old_sparse(name: str, nbytes: int, runs: Runs, stored: bytes, *, more: bytes | None = None) -> bytes:
    """A file of type `S`. `more`: blocks after the header, in place of those of further runs."""
    pairs = [b"%011o\0%011o\0" % run for run in runs]
    blocks = [pairs[4:][at : at + 21] for at in range(0, len(pairs) - 4, 21)]
    further = b"".join(
        b"".join(some).ljust(504, b"\0") + bytes([number < len(blocks) - 1]) + bytes(7) for number, some in enumerate(blocks)
    )
    info = tarfile.TarInfo(name)
    info.size = len(stored)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:483] = b"".join(pairs[:4]).ljust(96, b"\0") + bytes([bool(further or more)])
    header[483:495] = b"\x80" + nbytes.to_bytes(11)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + (further if more is None else more) + padded(stored)


def sparse_tars(
    contents: bytes, runs: Runs, *, name: str = "dir/a.bin", nbytes: int | None = None, stored: bytes | None = None
) -> dict[str, bytes]:
    """The file with these runs in each of GNU's formats, without an end of the archive.

    `nbytes`, `stored`: its size and its stored bytes, where they are not those of `contents`.
    """
    size = len(contents) if nbytes is None else nbytes
    held = b"".join(contents[offset : offset + nbytes] for offset, nbytes in runs) if stored is None else stored
    numbers = [str(number) for run in runs for number in run]
    leading = "".join(f"{number}\n" for number in (len(runs), *numbers)).encode()
    hidden = "dir/GNUSparseFile.0/a.bin"
    return {
        "old": old_sparse(name, size, runs, held),
        "pax 0.0": _pax_0_0(name, size, runs, held),
        "pax 0.1": pax_member(
            hidden, {"GNU.sparse.name": name, "GNU.sparse.size": str(size), "GNU.sparse.map": ",".join(numbers)}, held
        ),
        "pax 1.0": pax_member(
            hidden,
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name, "GNU.sparse.realsize": str(size)},
            padded(leading) + held,
        ),
    }  # fmt: skip


def _pax_0_0(name: str, size: int, runs: Runs, held: bytes) -> bytes:
    """Which repeats two keys, so that tarfile's dict of them cannot say it."""
    pairs = [("GNU.sparse.size", size), ("GNU.sparse.numblocks", len(runs))]
    for offset, nbytes in runs:
        pairs += [("GNU.sparse.offset", offset), ("GNU.sparse.numbytes", nbytes)]
    lines = b"".join(_line(f" {key}={value}\n".encode()) for key, value in pairs)
    info = tarfile.TarInfo(name)
    info.size, info.type = len(lines), tarfile.XHDTYPE
    plain = tarfile.TarInfo(name)
    plain.size = len(held)
    return info.tobuf(tarfile.USTAR_FORMAT) + padded(lines) + plain.tobuf(tarfile.USTAR_FORMAT) + padded(held)


def _line(rest: bytes) -> bytes:
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)
