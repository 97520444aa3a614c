"""Where the values of an LMDB database lie in its file.

    python -P listing.py DATA_FILE

A program of its own, since a damaged database ends the process that reads it. Standard output gets for each entry, in the
order of keys, offset, length and the length of the key as little-endian numbers, then the key. A value lies in one piece in
the file, in a leaf or in overflow pages.
"""

from __future__ import annotations

import os
import struct
import sys

RECORD = struct.Struct("<QQH")
CUT_OFF = 3  # exit status: the file ends before its last page
NO_DATABASE = 4
NO_LIBRARY = 5


def main(path: str) -> int:
    """List the entries; return an exit status."""
    try:
        import lmdb
    except ImportError:
        return NO_LIBRARY
    import numpy as np

    try:
        environment = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, max_dbs=0)
    except lmdb.Error as exc:
        print(exc, file=sys.stderr)
        return NO_DATABASE
    size = os.stat(path).st_size
    if (environment.info()["last_pgno"] + 1) * environment.stat()["psize"] > size:
        return CUT_OFF
    start: int | None = None
    with environment.begin(buffers=True) as transaction, open(1, "wb", closefd=False) as sink:
        for key, value in transaction.cursor():
            address = np.frombuffer(value, np.uint8).ctypes.data if len(value) else 0
            if start is None and address:
                start = _start_of_map(path, address)
            offset = address - start if address and start is not None else 0
            name = bytes(key)
            sink.write(RECORD.pack(offset, len(value), len(name)) + name)
    return 0


def _start_of_map(path: str, address: int) -> int:
    """Return the address at which the file would begin in memory. Raises LookupError if it is not mapped there."""
    status = os.stat(path)
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, _, inode, *_ = line.split(maxsplit=5)
            first, _, last = span.partition("-")
            if int(inode) == status.st_ino and int(first, 16) <= address < int(last, 16):
                return int(first, 16) - int(offset, 16)
    raise LookupError(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
