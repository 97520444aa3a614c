"""A user's own code on other machines: a torch Dataset and what goes with it, sent once, and asked for batches by their keys.

It runs only where the service allows it: to unpickle a Dataset is to run whatever it contains.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.utils.data
from torch._utils import ExceptionWrapper

from datapipe.core.environment import install_command
from datapipe.errors import FormatError, OptionError
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.objects import pack, unpack
from datapipe.remote_workers.wire import Bad, packed, packed_request, unpacked

CODE = "code"  # the kind of these requests
IMPORTS = (__name__,)  # by processes that run code


class CodeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that is asked for: by which code, for which worker of the loader, and which samples."""

    digest: str
    worker: int
    key: bytes  # pickled


class Code(NamedTuple):
    """A `Fetch` as it is sent."""

    data: bytes
    digest: str


@dataclass(slots=True)
class Fetch:
    """Makes a batch as a worker of torch's loader does."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], Any] | None
    num_workers: int
    is_begun: bool = False

    def begin(self, worker: int) -> None:
        """Call the user's `worker_init_fn`, in whose course `get_worker_info()` says which worker this is."""
        if self.is_begun:
            return
        self.is_begun = True
        if self.worker_init_fn is None:
            return
        module: Any = torch.utils.data._utils.worker
        seed = torch.initial_seed()
        module._worker_info = module.WorkerInfo(id=worker, num_workers=self.num_workers, seed=seed, dataset=self.dataset)
        try:
            self.worker_init_fn(worker)
        finally:
            module._worker_info = None

    def __call__(self, key: Any) -> Any:
        """Return the batch of these samples."""
        if hasattr(self.dataset, "__getitems__") and self.dataset.__getitems__:
            return self.collate_fn(self.dataset.__getitems__(key))
        return self.collate_fn([self.dataset[one] for one in key])


def code_of(fetch: Fetch) -> Code:
    """Return code as it is sent; classes and functions of the script that runs are sent with it. Raises OptionError."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = None
    try:
        data = (cloudpickle or pickle).dumps(fetch)
    except Exception as exc:  # of the user's own objects
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.200}"
        whose = type(getattr(fetch.dataset, "dataset", fetch.dataset)).__qualname__
        raise OptionError(f"workers: {whose} cannot be sent to other machines ({what})") from exc
    if cloudpickle is None and b"__main__" in data:
        raise OptionError(
            "workers: the Dataset, or what it uses, is defined in the script that runs, which other machines do not import; "
            f"{install_command('code')}, or move it to a module"
        )
    return Code(data, hashlib.sha256(data).hexdigest())


def asked(code: Code, worker: int, key: Any) -> bytes:
    """Return the request for a batch."""
    return packed_request(CODE, CodeRequest(code.digest, worker, pickle.dumps(key, pickle.HIGHEST_PROTOCOL)))


def batch_of(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """Return the batch that a worker made, whose tensors lie in this memory. Raises what the user's code raised there."""
    made = unpack(memory)
    if isinstance(made, ExceptionWrapper):
        made.reraise()  # type: ignore[no-untyped-call]
    return made


# -- in a worker's process ---------------------------------------------------------------------------


def load(digest: str, desk: Desk) -> Fetch:
    """Return code that was sent before. Raises OptionError where it is not allowed, FormatError for what was not sent."""
    if desk.codes is None:
        raise OptionError(
            "this worker runs no code of others; start `datapipe serve` with --allow-code, if you trust who has the token"
        )
    if digest not in desk.codes:
        raise FormatError(f"the code {digest:.8} is not here (any more)")
    found: Fetch = desk.opened((CODE, digest), functools.partial(_opened, desk.codes[digest]))
    return found


def _opened(path: str) -> Fetch:
    try:
        return unpickled(Path(path).read_bytes())
    except OSError as exc:
        raise FormatError(f"the code at {path} is not here any more") from exc


def unpickled(data: bytes) -> Fetch:
    """Return a `Fetch` that was sent. Raises OptionError for one that cannot be made here."""
    try:
        fetch = pickle.loads(data)
    except Exception as exc:  # of the user's own objects
        what = f"{type(exc).__name__}: {' '.join(str(exc).split()):.200}"
        raise OptionError(f"the Dataset cannot be made there ({what}); what it imports must be installed there, too") from exc
    if not isinstance(fetch, Fetch):
        raise FormatError("what was sent as code is none")
    return fetch


def serve(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Make a batch; return it as one row. Raises what `load` raises; what the user's code raises is part of the row."""
    request = unpacked(body, CodeRequest)
    fetch = load(request.digest, desk)
    nbytes = _made(fetch, request.worker, request.key, desk.take)
    return desk.taken(nbytes), packed(Bad([]))


def _made(fetch: Fetch, worker: int, key: bytes, take: Callable[[int], Any]) -> int:
    """Write the batch, or the error of the user's code, into memory; return its bytes."""
    try:
        fetch.begin(worker)
        return pack(fetch(pickle.loads(key)), take)
    except Exception:
        return pack(ExceptionWrapper(where=f"in worker {worker} on {os.uname().nodename}"), take)  # type: ignore[no-untyped-call]


class CodeWork:
    """Makes the handler of a process of this machine that runs code as workers on other machines do.

    Requests are (worker, pickled key); answers are bytes of the scratch memory, in which the batch lies.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        fetch = unpickled(self._data)

        def handle(request: tuple[int, bytes], scratch: Scratch) -> int:
            return _made(fetch, *request, scratch.take)

        return handle
