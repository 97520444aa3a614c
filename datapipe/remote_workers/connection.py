"""Talk to one worker over Arrow Flight: what it says of itself, files that it looks at, and rows that it makes."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import torch
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.remote_workers.wire import HELLO, LOOK, OFFER, Hello, Look, Seen, packed, place_of, unpacked

HEADER = "authorization"
_BEFORE = re.compile(r"^Flight returned [\w ]+ error, with message: ")
_APPENDED = re.compile(r"\. (gRPC client debug context|Client context|Detail):")  # by Flight to what a worker says
# Rows come as megabytes: large frames and reads take a tenth off the CPU time. See grpc/impl/channel_arg_names.h.
_LARGE = [
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 1 << 26),
    ("grpc.experimental.tcp_read_chunk_size", 4 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 1 << 20),
    ("grpc.experimental.tcp_max_read_chunk_size", 8 << 20),
]


def authorization(token: str) -> bytes:
    """Return the value of the header that lets a loader in."""
    return f"Bearer {token}".encode()


class LostError(Exception):
    """A worker that does not answer, or not in time."""


class LateError(LostError):
    """A worker that does not answer in time."""


class UnableError(Exception):
    """A request that a worker refused, or could not serve: it cannot read a file, or a process of it ended."""


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a worker, with the token and the certificates for it."""

    url: str
    token: str = field(repr=False)
    trusted: bytes | None = None  # certificates, PEM; None: those that gRPC brings
    hostname: str | None = None  # the one that the worker's certificate is for; None: that of the URL

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return self.url.partition("://")[2]


class Connection:
    """A connection to a worker, for one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._who = f"the worker at {address.place}"
        self._token = (HEADER.encode(), authorization(address.token))
        encryption: dict[str, Any] = {"tls_root_certs": address.trusted, "override_hostname": address.hostname}
        encryption = {name: value for name, value in encryption.items() if value is not None}
        self._client = flight.FlightClient(address.url, generic_options=_LARGE, **encryption)
        _clients.add(self._client)

    def hello(self, timeout_s: float) -> Hello:
        """Return what the worker says of itself. Raises LostError, and OptionError where it refuses the token."""
        return unpacked(self._act(HELLO, b"", timeout_s), Hello)

    def look(self, paths: Sequence[str], timeout_s: float) -> Seen:
        """Return what the worker finds at these paths. Raises LostError and UnableError."""
        return unpacked(self._act(LOOK, packed(Look([place_of(path) for path in paths])), timeout_s), Seen)

    def offer(self, code: bytes, timeout_s: float) -> None:
        """Send code to a worker, which loads it. Raises LostError, and UnableError where it is refused."""
        self._act(OFFER, code, timeout_s)

    def fill(self, out: torch.Tensor, request: bytes, timeout_s: float) -> bytes:
        """Fill a contiguous tensor with the rows that a worker makes as a request asks; return its answer.

        Raises LostError and UnableError.
        """
        column, answer = self._get(request, timeout_s)
        width = out[0].nbytes if len(out) else 0
        if column.type != pa.binary(width) or len(column) != len(out):
            raise LostError(f"{self._who} sent other rows than were asked for")
        if out.nbytes:
            np.copyto(out.view(-1).view(torch.uint8).numpy(), _bytes_of(column, out.nbytes))
        return answer

    def row(self, request: bytes, timeout_s: float) -> NDArray[np.uint8]:
        """Return the bytes of the one row that a worker makes as a request asks. Raises LostError and UnableError."""
        column, _ = self._get(request, timeout_s)
        if not pa.types.is_fixed_size_binary(column.type) or len(column) != 1:
            raise LostError(f"{self._who} sent other rows than were asked for")
        return _bytes_of(column, column.type.byte_width).copy()

    def _get(self, request: bytes, timeout_s: float) -> tuple[Any, bytes]:
        """Return the column that a worker sends, and its answer."""
        try:
            chunk = self._client.do_get(flight.Ticket(request), self._options(timeout_s)).read_chunk()
        except Exception as exc:
            raise self._told(exc) from exc
        if chunk.data.num_columns != 1 or chunk.app_metadata is None:
            raise LostError(f"{self._who} sent other rows than were asked for")
        return chunk.data.column(0), chunk.app_metadata.to_pybytes()

    def _act(self, action: str, body: bytes, timeout_s: float) -> bytes:
        try:
            (result,) = self._client.do_action(flight.Action(action, body), self._options(timeout_s))
            return result.body.to_pybytes()  # type: ignore[no-any-return]
        except Exception as exc:
            raise self._told(exc) from exc

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout_s, headers=[self._token])

    def _told(self, exc: Exception) -> Exception:
        """Return what an error of Flight means."""
        who, text = self._who, _BEFORE.sub("", " ".join(_APPENDED.split(str(exc))[0].split()))
        if isinstance(exc, flight.FlightUnauthenticatedError):
            return OptionError(f"{who} refuses the token; pass the one that its `datapipe serve` has")
        if isinstance(exc, (flight.FlightServerError, flight.FlightUnauthorizedError)):
            return UnableError(f"{who}: {text:.400}")
        if isinstance(exc, flight.FlightTimedOutError):
            return LateError(f"{who} does not answer in time")
        return LostError(f"{who} does not answer ({text:.300})")


def _bytes_of(column: Any, nbytes: int) -> NDArray[np.uint8]:
    """Return the bytes of a column of fixed-size binaries, not copied."""
    return np.frombuffer(column.buffers()[1].slice(column.offset * column.type.byte_width, nbytes), np.uint8)


_clients: weakref.WeakSet[flight.FlightClient] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: gRPC's threads are not there, and freeing a client would wait for them."""
    was_on = gc.isenabled()
    gc.disable()
    for client in list(_clients):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))  # it is never freed
    if was_on:
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)
