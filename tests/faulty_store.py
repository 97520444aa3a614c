"""Serve objects over HTTP with latency, limited bandwidth and faults on request.

It answers from a directory, as a store of static objects would, or passes requests on to another server such as moto. It
listens on the loopback interface and checks no signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

FaultKind = Literal["reset", "status", "truncate", "stall", "slow", "whole", "flip"]
_SLOW_PIECES = 8
_REASONS = {200: "OK", 206: "Partial Content", 403: "Forbidden", 404: "Not Found", 412: "Precondition Failed",
            416: "Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Slow Down"}  # fmt: skip


@dataclass
class PlantedFault:
    """A fault of some of the requests. Faults are tried in order; the first that applies happens.

    reset: the connection is cut before the answer. status: answered with `status`. truncate: half of the body, then the end.
    stall: half of the body, then nothing. slow: the body in pieces over `seconds`. whole: the range is ignored, 200 in place
    of 206. flip: one bit of the body is inverted.
    """

    kind: FaultKind
    share: float = 1.0  # share of the requests that match
    times: int = -1  # limit; -1: none
    path: str = ""  # suffix of the paths of requests that match
    method: str = "GET"
    status: int = 503
    seconds: float = 1.0
    code: str = ""  # S3's name of the error; by default that of the status
    done: int = 0  # how often it happened
    spares_again: bool = False  # whether bytes that were asked for once are given as they are when they are asked for again
    asked: set[tuple[str, str]] = field(default_factory=set)  # path and range of the requests that it has happened to

    def applies(self, request: ReceivedRequest, chance: random.Random) -> bool:
        """Return True if this request gets the fault, and count it."""
        if request.method != self.method or not request.path.endswith(self.path) or 0 <= self.times <= self.done:
            return False
        if chance.random() >= self.share:
            return False
        bytes_asked = request.path, request.headers.get("range", "")
        if self.spares_again and bytes_asked in self.asked:
            return False
        self.asked.add(bytes_asked)
        self.done += 1
        return True


@dataclass
class Weather:
    """The conditions under which requests are served; may be changed while the server runs."""

    latency_s: float = 0.0  # before each answer
    bandwidth: float = 0.0  # bytes per second and connection; 0: no limit
    faults: list[PlantedFault] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def fault_of(self, request: ReceivedRequest) -> PlantedFault | None:
        """Return the fault that this request gets."""
        return next((fault for fault in self.faults if fault.applies(request, self.chance)), None)


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as received."""

    method: str
    target: str  # path and query
    headers: dict[str, str]  # by lower-case name
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)


@dataclass(frozen=True)
class Answer:
    """An answer to send."""

    status: int
    headers: dict[str, str]
    body: bytes


Origin = Callable[[ReceivedRequest], Awaitable[Answer]]


class Directory:
    """Serves the files of a directory as objects: GET and HEAD, with ranges, If-Match and ETag."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    async def __call__(self, request: ReceivedRequest) -> Answer:
        path = (self._root / request.path.lstrip("/")).resolve()
        if not path.is_relative_to(self._root) or not path.is_file():
            return refusal(404, "NoSuchKey")
        descriptor, size, etag = _opened(str(path), *_stamp(path))
        if request.headers.get("if-match", etag) != etag:
            return refusal(412, "PreconditionFailed")
        headers = {"ETag": etag, "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        start, end = _range_of(request.headers.get("range"), size)
        if start >= max(size, 1):
            return refusal(416, "InvalidRange")
        if request.method == "HEAD":
            return Answer(200, {**headers, "Content-Length": str(size)}, b"")
        body = os.pread(descriptor, end - start, start)
        if "range" not in request.headers:
            return Answer(200, headers, body)
        return Answer(206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}, body)


def passed_on(host: str, port: int) -> Origin:
    """Return an origin that passes requests on to another server."""

    async def ask(request: ReceivedRequest) -> Answer:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        try:
            headers = {**request.headers, "connection": "close"}
            headers.pop("expect", None)
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"{request.method} {request.target} HTTP/1.1\r\n{head}\r\n".encode() + request.body)
            await writer.drain()
            status, answered = await _read_head(reader)
            if request.method == "HEAD":
                return Answer(int(status.split(" ")[1]), answered, b"")
            body = await reader.read(-1)
            answered.pop("content-length", None)
            return Answer(int(status.split(" ")[1]), answered, body)
        finally:
            writer.close()

    return ask


class FaultyStore:
    """The server, in a thread of its own for the time of the `with` block; `url` is its address."""

    def __init__(self, origin: Origin, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.num_requests = 0
        self.log: list[str] = []  # "METHOD path" of each request, in order
        self._origin = origin
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    def __enter__(self) -> FaultyStore:
        self._thread.start()
        if not self._started.wait(30):
            raise RuntimeError("the server did not start within 30 s")
        return self

    def __exit__(self, *unused: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self.listen())
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def listen(self) -> asyncio.Server:
        """Start to listen, in the running loop."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether the connection can be used for another one."""
        request = await _read_request(reader)
        self.num_requests += 1
        self.log.append(f"{request.method} {request.path}")
        weather = self.weather
        if weather.latency_s:
            await asyncio.sleep(weather.latency_s)
        fault = weather.fault_of(request)
        kind = None if fault is None else fault.kind
        if kind == "reset":
            writer.transport.abort()
            return False
        if fault is not None and kind == "status":
            answer = refusal(fault.status, fault.code)
        else:
            if kind == "whole":
                plain = {name: value for name, value in request.headers.items() if name != "range"}
                answer = await self._origin(ReceivedRequest(request.method, request.target, plain, request.body))
            else:
                answer = await self._origin(request)
        body = answer.body
        if kind == "flip" and body:
            place = weather.chance.randrange(len(body))
            body = body[:place] + bytes([body[place] ^ 1 << weather.chance.randrange(8)]) + body[place + 1 :]
        headers = {**answer.headers}
        if not any(name.lower() == "content-length" for name in headers):
            headers["Content-Length"] = str(len(body))
        headers.pop("connection", None)
        headers.pop("transfer-encoding", None)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'X')}\r\n{head}\r\n".encode())
        if request.method == "HEAD":
            body = b""
        if kind in ("truncate", "stall") and body:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            if kind == "stall":
                await reader.read(1)  # until the other side gives up
            return False
        seconds = fault.seconds if fault is not None and kind == "slow" else 0.0
        if weather.bandwidth:
            seconds += len(body) / weather.bandwidth
        await _send(writer, body, seconds)
        return True


async def _send(writer: asyncio.StreamWriter, body: bytes, seconds: float) -> None:
    pieces = _SLOW_PIECES if seconds else 1
    size = max(1, -(-len(body) // pieces))
    for start in range(0, len(body), size):
        if seconds:
            await asyncio.sleep(seconds / pieces)
        writer.write(body[start : start + size])
    await writer.drain()


def refusal(status: int, code: str = "") -> Answer:
    """Return an error in S3's form."""
    name = code or _REASONS.get(status, "Error").replace(" ", "")
    return Answer(status, {"Content-Type": "application/xml"}, f"<Error><Code>{name}</Code></Error>".encode())


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return first, {name.lower(): value.strip() for name, value in pairs}


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    first, headers = await _read_head(reader)
    method, target, _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return ReceivedRequest(method, target, headers, body)


def _range_of(header: str | None, size: int) -> tuple[int, int]:
    if header is None:
        return 0, size
    start, _, end = header.removeprefix("bytes=").partition("-")
    if not start:
        return max(0, size - int(end)), size
    return int(start), min(size, int(end) + 1) if end else size


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _opened(path: str, inode: int, size: int, mtime_ns: int) -> tuple[int, int, str]:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), size, f'"{inode:x}-{size:x}-{mtime_ns:x}"'
