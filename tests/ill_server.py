"""A web server that does what no server should, on the loopback interface.

`http://127.0.0.1:PORT/NAME/...`: whatever is below the first part of the path gets the fault of that name, see `FAULTS`. Under
`/well/` it serves the bytes that it was given.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

_HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nAccept-Ranges: bytes\r\n'
_PIECE = 1 << 16


@dataclass
class IllServer:
    """The running server. `seen`: requests by fault; `headers`: what came with each request, by path."""

    port: int
    files: Mapping[str, bytes]
    target: str = ""  # of the faults that lead elsewhere
    seen: Counter[str] = field(default_factory=Counter)
    headers: dict[str, list[bytes]] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)
    tls: ssl.SSLContext | None = None

    def url(self, fault: str, name: str = "set") -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}/{fault}/{name}"


Answer = Callable[[IllServer, socket.socket, str, bytes], None]


def _redirect(client: socket.socket, to: str) -> None:
    client.sendall(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())


def _pour(server: IllServer, client: socket.socket, piece: bytes, pause_s: float) -> None:
    """Send pieces until the client goes, or the test is over."""
    while not server.is_over.is_set():
        client.sendall(piece)
        if pause_s:
            server.is_over.wait(pause_s)


def _unavailable(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _loop(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    _redirect(client, f"http://127.0.0.1:{server.port}{path}")


def _chain(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    """Another place each time, for ever."""
    first, _, number = path.partition("?")
    _redirect(client, f"http://127.0.0.1:{server.port}{first}?{int(number or 0) + 1}")


def _elsewhere(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    _redirect(client, server.target + path.removeprefix("/elsewhere"))


def _hops(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    """As many redirects as the path says, /hops/N/NAME, then the file."""
    _, _, left, name = path.split("/", 3)
    if left == "0":
        _well(server, client, f"/well/{name}", request)
    else:
        _redirect(client, f"/hops/{int(left) - 1}/{name}")


def _garbage(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n" * 20)


def _too_large(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    """A length that never comes; the connection stays open."""
    client.sendall(_HEAD + b"Content-Length: 1000000\r\n\r\n{}")
    server.is_over.wait()


def _too_large_closed(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(_HEAD + b"Content-Length: 1000000\r\nConnection: close\r\n\r\n{}")


def _drip(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(_HEAD + b"Content-Length: 1000000\r\n\r\n")
    _pour(server, client, b"x", 0.1)


def _drip_head(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    _pour(server, client, b"x", 0.1)


def _endless(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(_HEAD + b"Content-Length: 1000000000000\r\n\r\n")
    _pour(server, client, bytes(_PIECE), 0)


def _endless_range(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    """The range that was asked for by its name, and a body without an end."""
    asked = request.partition(b"bytes=")[2].partition(b"\r\n")[0] or b"0-99"
    head = _HEAD.replace(b"200 OK", b"206 Partial Content")
    client.sendall(head + b"Content-Range: bytes " + asked + b"/1000000\r\nContent-Length: 1000000000000\r\n\r\n")
    _pour(server, client, bytes(_PIECE), 0)


def _endless_chunks(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    _pour(server, client, b"10000\r\n" + bytes(_PIECE) + b"\r\n", 0)


def _endless_head(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    _pour(server, client, b"X-More: " + b"y" * 1000 + b"\r\n", 0)


def _forbidden(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _nowhere(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.sendall(b"HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _silent(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    server.is_over.wait()


def _cut(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    client.shutdown(socket.SHUT_RDWR)


def _well(server: IllServer, client: socket.socket, path: str, request: bytes) -> None:
    data = server.files.get(path.partition("?")[0].removeprefix("/well/"))
    if data is None:
        client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        return
    start, end, head = 0, len(data), _HEAD
    asked = request.lower().partition(b"range: bytes=")[2].partition(b"\r\n")[0]
    if asked:
        first, _, last = asked.partition(b"-")
        start, end = int(first), min(int(last) + 1 if last else end, end)
        head = (
            _HEAD.replace(b"200 OK", b"206 Partial Content") + f"Content-Range: bytes {start}-{end - 1}/{len(data)}\r\n".encode()
        )
    body = b"" if request.startswith(b"HEAD") else data[start:end]
    client.sendall(head + f"Content-Length: {end - start}\r\nConnection: close\r\n\r\n".encode() + body)


FAULTS: dict[str, Answer] = {
    "unavailable": _unavailable, "loop": _loop, "chain": _chain, "garbage": _garbage, "too-large": _too_large,
    "too-large-closed": _too_large_closed, "drip": _drip, "drip-head": _drip_head, "endless": _endless,
    "endless-range": _endless_range, "endless-chunks": _endless_chunks, "endless-head": _endless_head,
    "silent": _silent, "cut": _cut,
}  # fmt: skip
_ANSWERS = {
    **FAULTS, "well": _well, "elsewhere": _elsewhere, "hops": _hops, "forbidden": _forbidden, "nowhere": _nowhere,
}  # fmt: skip


@contextlib.contextmanager
def ill_server(files: Mapping[str, bytes] | None = None, *, tls: ssl.SSLContext | None = None) -> Iterator[IllServer]:
    """Run the server within the block. `files`: what it serves under /well/, by path. `tls`: for https; None: http."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = IllServer(listener.getsockname()[1], files or {}, tls=tls)
    threads = [threading.Thread(target=_accept, args=(server, listener), daemon=True)]
    threads[0].start()
    try:
        yield server
    finally:
        server.is_over.set()
        listener.close()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", server.port), 0.1).close()
        threads[0].join()


def _accept(server: IllServer, listener: socket.socket) -> None:
    while not server.is_over.is_set():
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(server, client), daemon=True).start()


def _serve(server: IllServer, client: socket.socket) -> None:
    client.settimeout(60)
    with contextlib.suppress(OSError, ValueError, IndexError), client:
        if server.tls is None:
            _answer(server, client)
        else:
            with server.tls.wrap_socket(client, server_side=True) as secured:
                _answer(server, secured)


def _answer(server: IllServer, client: socket.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        piece = client.recv(_PIECE)
        if not piece:
            return
        request += piece
    path = request.split(b" ", 2)[1].decode()
    fault = path.split("/")[1]
    server.seen[fault] += 1
    server.headers.setdefault(path, []).append(request)
    _ANSWERS[fault](server, client, path, request)
