"""A store of static objects that costs little CPU: GET and HEAD with ranges, each answered after a fixed latency.

    python -m benchmarks.object_server ROOT --latency 0.05

Prints its port, serves the files of a directory on the loopback interface until standard input ends, then prints the CPU
seconds that it took and the number of answers. What it takes is taken from the loader on the same cores, so it does as
little as it can: no faults, no checks of signatures (`tests/faulty_store.py` has faults, and takes three times as long).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import re
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import unquote_to_bytes

_END = b"\r\n\r\n"
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)
_SEND_NBYTES = 1 << 20  # of a socket's buffer, or what the kernel allows: a whole image in one call
_MISSING = b"<Error><Code>NoSuchKey</Code></Error>"


class Connection(asyncio.Protocol):
    """One connection: requests come one after another, as its clients do not pipeline."""

    num_answers = 0  # of all connections

    def __init__(self, root: bytes, latency_s: float) -> None:
        self._root = root
        self._latency_s = latency_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_NBYTES)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(_END):
            asyncio.get_running_loop().call_later(self._latency_s, self._answer, self._received)
            self._received = b""

    def _answer(self, request: bytes) -> None:
        Connection.num_answers += 1
        method, target, _ = request.split(b" ", 2)
        path = unquote_to_bytes(target.partition(b"?")[0])
        found = None if b".." in path else _opened(self._root + path)
        if found is None:
            head = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(_MISSING)
            self._transport.write(head + (b"" if method == b"HEAD" else _MISSING))
            return
        descriptor, size, etag = found
        start, end, status, further = 0, size, b"200 OK", b""
        if method == b"GET" and (wanted := _RANGE.search(request)) is not None:
            start, end = _bounds(wanted[1], wanted[2], size)
            status, further = b"206 Partial Content", b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, size)
        head = (
            b"HTTP/1.1 %s\r\nETag: %s\r\nLast-Modified: Sun, 01 Nov 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n"
            b"%sContent-Length: %d\r\n\r\n" % (status, etag, further, end - start)
        )
        self._transport.write(head if method == b"HEAD" else head + os.pread(descriptor, end - start, start))


def _bounds(first: bytes, last: bytes, size: int) -> tuple[int, int]:
    """Return start and end of `bytes=FIRST-LAST`, either of which may be missing."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


@functools.lru_cache(maxsize=8192)
def _opened(path: bytes) -> tuple[int, int, bytes] | None:
    """Return descriptor, size and etag of a file; None where there is none. What is served does not change."""
    if not os.path.isfile(path):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    return descriptor, status.st_size, b'"%x-%x"' % (status.st_ino, status.st_mtime_ns)


async def _serve(root: Path, latency_s: float) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    served = os.fsencode(root.resolve())
    server = await loop.create_server(lambda: Connection(served, latency_s), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    await ended.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.object_server", description="A store of static objects.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.root, arguments.latency))
    times = os.times()
    print(f"{times.user + times.system:.3f} {Connection.num_answers}", flush=True)


if __name__ == "__main__":
    main()
