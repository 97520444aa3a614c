"""Serve requests in a process of the service: read them, which are not trusted, and make the rows that they ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from datapipe.core.regular_files import open_descriptor
from datapipe.errors import DatapipeError, FormatError
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kinds.registry import KINDS, part
from datapipe.remote_workers import own_code
from datapipe.remote_workers.desk import Codes, Desk
from datapipe.remote_workers.wire import LOOK, OFFER, ZEROS, Bad, Look, Request, Seen, Zeros, packed, placed, unpacked

SERVED = ("images", "clips", "conversations", "audio")  # the kinds that have a module `served`
IMPORTS = (__name__, *(f"{KINDS[kind]}.served" for kind in SERVED))  # by processes
_MOST_LOOKED_AT = 1000

Serve = Callable[[msgspec.Raw, Desk], tuple[torch.Tensor, bytes]]  # makes the rows of a request, and the answer


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not served. `is_refused`: it asks for what this service does not give; otherwise it failed."""

    text: str
    is_refused: bool


@dataclass(frozen=True, slots=True)
class ServedWork:
    """Makes the handler of a process.

    Requests are (what, body, codes), `what` being `LOOK`, `OFFER` or "", and codes those of a `Desk`; answers are (rows, bytes of
    each, answer to the loader), or a `Refusal`.
    """

    roots: tuple[str, ...] | None  # None: all files

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        desk = Desk(self.roots)

        def handle(request: tuple[str, bytes, Codes], scratch: Scratch) -> tuple[int, int, bytes] | Refusal:
            what, body, codes = request
            desk.use(scratch, codes)
            try:
                if what == OFFER:
                    own_code.load(body.decode(errors="replace"), desk)
                    return 0, 0, b""
                return (0, 0, _looked(body, desk)) if what == LOOK else _rows(body, desk)
            except DatapipeError as exc:
                return Refusal(f"{type(exc).__name__}: {exc}", isinstance(exc, ValueError) and not isinstance(exc, OSError))
            except Exception as exc:  # of a request that no loader sends, or a fault here: the process goes on
                return Refusal(f"{type(exc).__name__}: {exc}", is_refused=False)

        return handle


def _rows(body: bytes, desk: Desk) -> tuple[int, int, bytes]:
    request = unpacked(body, Request)
    serve = _OTHERS.get(request.kind)
    if serve is None and request.kind not in SERVED:
        raise FormatError(f"data of the kind {request.kind!r:.40} is not served")
    serve = serve or part(request.kind, "served").serve
    rows, answer = serve(request.body, desk)
    return len(rows), rows[0].nbytes if len(rows) else 0, answer


def _zeros(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Return as many zeros as are asked for."""
    size = unpacked(body, Zeros)
    return desk.rows((size.num_rows, size.nbytes), torch.uint8).zero_(), packed(Bad([]))


_OTHERS: dict[str, Serve] = {ZEROS: _zeros, own_code.CODE: own_code.serve}  # that are no kinds of data


def _looked(body: bytes, desk: Desk) -> bytes:
    return packed(Seen([_seen(placed(path), desk) for path in unpacked(body, Look).paths[:_MOST_LOOKED_AT]]))


def _seen(path: str, desk: Desk) -> int | str:
    """Return the size of a file in bytes, or why it cannot be read."""
    try:
        if desk.check(path):
            return 0
        descriptor, status = open_descriptor(path)
        os.close(descriptor)
        return status.st_size
    except DatapipeError as exc:
        return str(exc)
    except OSError as exc:
        return str(exc.strerror)
