"""What `fuzz` looks at of stores: answers of a web server, damaged anywhere, to the requests that open and read objects."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from datapipe.errors import DatapipeError
from datapipe.stores import failures
from datapipe.stores.location import Location
from datapipe.stores.objects import object_facts, read_object
from datapipe.stores.places import parse_location
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote
from datapipe.stores.transfers import download

TIMEOUT_S = 0.05
MOST_NBYTES = 1 << 20
_NEXT = b"\0NEXT ANSWER\0"
_BODY = bytes(range(256))
_HEAD = b'ETag: "e"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nAccept-Ranges: bytes\r\n'


def answers() -> list[bytes]:
    whole = b"HTTP/1.1 200 OK\r\n" + _HEAD + b"Content-Length: 256\r\n\r\n" + _BODY
    part = b"HTTP/1.1 206 Partial Content\r\n" + _HEAD + b"Content-Range: bytes 0-255/256\r\nContent-Length: 256\r\n\r\n" + _BODY
    chunks = b"HTTP/1.1 200 OK\r\n" + _HEAD + b"Transfer-Encoding: chunked\r\n\r\n100\r\n" + _BODY + b"\r\n0\r\n\r\n"
    moved = b"HTTP/1.1 302 Found\r\nLocation: /set/a\r\nContent-Length: 0\r\n\r\n"
    refused = b"HTTP/1.1 503 Slow Down\r\nRetry-After: 100000\r\nContent-Length: 0\r\n\r\n"
    return [whole, part, *(_NEXT.join((first, whole)) for first in (part, chunks, moved, refused))]


class _Server:
    """Gives its answers in turn, one to a request, and closes the connection after each."""

    def __init__(self) -> None:
        self.answer, self.num_asked = b"", 0
        self.process = os.getpid()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client, contextlib.suppress(OSError):
                client.settimeout(1)
                request = client.recv(1 << 16)
                self.num_asked += 1
                given = self.answer.split(_NEXT)
                answer = given[self.num_asked % len(given) - 1]
                if request.startswith(b"HEAD"):
                    answer = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                client.sendall(answer)


_servers: list[_Server] = []


def look_at_answer(data: bytes, scratch: Path) -> object:
    """Read an object in every way that there is. Nothing may wait much longer than the deadline, or read without a bound."""
    if not _servers or _servers[-1].process != os.getpid():
        _servers.append(_Server())
    server = _servers[-1]
    server.answer, server.num_asked = data, 0
    longest_pause_s, failures.LONGEST_PAUSE_S = failures.LONGEST_PAUSE_S, 0.02
    apply_settings(Remote(timeout_s=TIMEOUT_S))
    try:
        return _read(parse_location(f"http://127.0.0.1:{server.port}/set/a"))
    finally:
        apply_settings(Remote())
        failures.LONGEST_PAUSE_S = longest_pause_s


def _read(place: Location) -> bytes:
    read: list[int] = []
    with contextlib.suppress(DatapipeError):
        object_facts(place)
    with contextlib.suppress(DatapipeError):
        download(place, lambda piece, offset: read.append(len(piece)))
    assert sum(read) <= MOST_NBYTES
    found = read_object(place)
    assert len(found) <= MOST_NBYTES
    return found
