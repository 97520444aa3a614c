"""The service: it takes requests over Arrow Flight, and hands each to a process that is free.

The processes read what is sent, and the data; the service itself looks at the token alone, so that nothing which a request or a
file does to a process ends more than that process.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from datapipe.core.regular_files import bytes_in_memory
from datapipe.core.versions import DECODING, versions
from datapipe.errors import BackendError
from datapipe.kernel.pools import SlabPool
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess
from datapipe.remote_workers.connection import HEADER, authorization
from datapipe.remote_workers.wire import HELLO, LOOK, OFFER, SEATS, Hello, packed
from datapipe.serving.work import IMPORTS, SERVED, Refusal, ServedWork

_START_S = 60.0
_POLL_S = 0.5  # between looks whether who asked is still there
_LEAST_NBYTES = 1 << 20  # of memory for answers, whose sizes are powers of two, so that few sizes are pooled
_MAX_FREE = 4  # slabs of a size that are kept
_MOST_CODES = 16  # of loaders, that are kept


@dataclass(frozen=True, slots=True)
class Encryption:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """Serves until `shutdown`. `url`: where it listens; port 0 is any free one. `roots`: what may be read; None: everything.

    `allows_code`: whether who has the token may have code run here.

    Raises BackendError if its processes cannot be begun, or it cannot listen.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        roots: Sequence[str] | None,
        cores: int,
        encryption: Encryption | None = None,
        allows_code: bool = False,
    ) -> None:
        self._cores, self._num = cores, cores * SEATS
        self._work = ServedWork(None if roots is None else tuple(roots))
        self._codes = _Codes() if allows_code else None
        self._launcher = Launcher(IMPORTS)
        if not self._launcher.wait(_START_S):
            raise BackendError("the processes that decode cannot be begun: their launcher did not start; `datapipe doctor`")
        self._free: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()  # None: one is to be begun
        for _ in range(self._num):
            self._free.put(None)
        self._slabs: dict[int, SlabPool] = {}
        self._versions = versions(DECODING)
        tls = {} if encryption is None else {"tls_certificates": [(encryption.certificate, encryption.key)]}
        try:
            super().__init__(url, middleware={"token": _TokenCheck(token)}, **tls)
        except Exception as exc:  # pyarrow raises several types
            raise BackendError(f"{url}: cannot be listened on ({' '.join(str(exc).split()):.200})") from exc

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Say what this service is, or look at files."""
        if action.type == HELLO:
            return [packed(Hello(socket.gethostname(), self._cores, self._num, list(SERVED), self._versions))]
        if action.type == LOOK:
            _, _, answer, _ = self._ask(context, (LOOK, action.body.to_pybytes()))
            return [answer]
        if action.type == OFFER:
            self._ask(context, (OFFER, b"" if self._codes is None else self._codes.keep(action.body).encode()))
            return [b""]
        raise flight.FlightServerError(f"the action {action.type!r:.40} is not known")

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Make rows."""
        num, width, answer, slab = self._ask(context, ("", ticket.ticket))
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), num, [None, pa.py_buffer(slab)])
        schema = pa.schema([("rows", pa.binary(width))])
        return flight.GeneratorStream(schema, iter([(pa.record_batch([column], schema=schema), answer)]))

    def end(self) -> None:
        """End the service and its processes."""
        self.shutdown()
        self._launcher.end()

    def _ask(self, context: Any, request: tuple[str, bytes]) -> tuple[int, int, bytes, Any]:
        """Return what a process answers, and the rows in memory that is theirs until they are sent."""
        process = self._take(context)
        try:
            if process is None:
                process = WorkerProcess(self._launcher, self._work)
            answer, memory = process.ask((*request, None if self._codes is None else self._codes.places))
            if isinstance(answer, Refusal):
                error = flight.FlightUnauthorizedError if answer.is_refused else flight.FlightServerError
                raise error(answer.text)
            num, width, text = answer
            slab = self._slab(num * width)
            np.copyto(slab, np.frombuffer(memory, np.uint8, num * width))
            return num, width, text, slab
        except WorkerEndedError as exc:
            process = None
            raise flight.FlightServerError(f"a process of the service ended ({exc})") from exc
        finally:
            self._free.put(process)

    def _take(self, context: Any) -> WorkerProcess | None:
        while True:
            try:
                return self._free.get(timeout=_POLL_S)
            except queue.Empty:
                if context.is_cancelled():
                    raise flight.FlightCancelledError("who asked has gone") from None

    def _slab(self, nbytes: int) -> Any:
        size = max(_LEAST_NBYTES, 1 << (nbytes - 1).bit_length())
        pool = self._slabs.setdefault(size, SlabPool(size, max_free=_MAX_FREE))
        return pool.lease()[:nbytes]


class _Codes:
    """The code that loaders have sent, in files in memory, which are gone with this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, BinaryIO] = {}  # by digest, the oldest first

    @property
    def places(self) -> dict[str, str]:
        """The paths of these files in any process of this machine, by digest."""
        with self._lock:
            return {digest: f"/proc/{os.getpid()}/fd/{file.fileno()}" for digest, file in self._files.items()}

    def keep(self, code: pa.Buffer) -> str:
        """Keep code, in place of the oldest where there is much; return its digest."""
        digest = hashlib.sha256(code).hexdigest()
        with self._lock:
            if digest not in self._files:
                while len(self._files) >= _MOST_CODES:
                    self._files.pop(next(iter(self._files))).close()
                self._files[digest] = os.fdopen(bytes_in_memory(code), "rb")
        return digest


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets in only who has the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = authorization(token)

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:
        given = [value for name, values in headers.items() if name.lower() == HEADER for value in values]
        if len(given) != 1 or not hmac.compare_digest(_as_bytes(given[0]), self._expected):
            raise flight.FlightUnauthenticatedError("the token is not this service's")


def _as_bytes(value: Any) -> bytes:
    """Return the bytes of a header."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape")
