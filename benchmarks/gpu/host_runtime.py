"""The host in the place of a GPU, with stand-ins for cuDF and PyNvVideoCodec: their stages run without them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu import nvdec_stand_in
from benchmarks.gpu.cudf_stand_in import stand_in
from datapipe.kernel.device_runtime import KeepAlive
from datapipe.kernel.pools import SlabPool
from datapipe.kinds.clips.choice import ClipChoice
from datapipe.kinds.clips.kind import ClipKind
from datapipe.kinds.tables.choice import TableChoice
from datapipe.kinds.tables.cudf.library import library
from datapipe.kinds.tables.kind import TableKind


class HostStream:
    """The host's own order."""

    cuda_stream = 0

    def synchronize(self) -> None:
        pass


class HostRuntime:
    """`DeviceRuntime` on the host: everything is done when it is asked for."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.pending = KeepAlive(self)
        self._stream = HostStream()

    def new_stream(self) -> HostStream:
        return HostStream()

    def current_stream(self) -> HostStream:
        return self._stream

    def enter_thread(self) -> None:
        pass

    def on_device(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def under(self, stream: Any) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record_event(self, stream: Any) -> object:
        return object()

    def wait_event(self, stream: Any, event: Any) -> None:
        pass

    def is_done(self, event: Any) -> bool:
        return True

    def copy_in(self, host: torch.Tensor) -> torch.Tensor:
        return host.clone()

    def adopt(self, memory: Any) -> torch.Tensor:
        placed: torch.Tensor = memory.placed
        return placed

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        pass

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True

    def pinned_slabs(self, nbytes: int, *, max_free: int) -> SlabPool:
        return SlabPool(nbytes, max_free=max_free)

    def free_nbytes(self) -> int:
        return 1 << 30

    def place(self, values: NDArray[np.uint8], stream: int) -> torch.Tensor:
        """Memory of the stand-in."""
        return torch.from_numpy(values)


@contextlib.contextmanager
def dry_cudf() -> Iterator[None]:
    """Let loaders with backend="tables_cudf" and device="cpu" run on the host."""
    runtime = HostRuntime()
    choose: Any = TableKind.choice

    def choice(kind: TableKind) -> Any:
        return TableChoice(True, "a dry run") if kind.backend == "tables_cudf" else choose.fget(kind)

    library.cache_clear()
    with (
        stand_in(runtime),
        mock.patch("datapipe.kinds.tables.kind.cuda_runtime", return_value=runtime),
        mock.patch("benchmarks.gpu.table_feeds.cuda_runtime", return_value=runtime),
        mock.patch.object(TableKind, "choice", property(choice)),
    ):
        yield
    library.cache_clear()


@contextlib.contextmanager
def dry_nvdec() -> Iterator[None]:
    """Let loaders with backend="clips_nvdec" and device="cpu" run on the host."""
    choose: Any = ClipKind.choice

    def choice(kind: ClipKind) -> Any:
        return ClipChoice(True, "a dry run") if kind.backend == "clips_nvdec" else choose.fget(kind)

    with (
        nvdec_stand_in.stand_in(),
        mock.patch("datapipe.kinds.clips.kind.cuda_runtime", return_value=HostRuntime()),
        mock.patch.object(ClipKind, "choice", property(choice)),
    ):
        yield
