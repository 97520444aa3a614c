"""datapipe's DataLoader for a GPU, with DALI's settings as plain values."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sized
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from benchmarks.contenders.ours import open_loader
from benchmarks.task import Task
from datapipe import Dali
from datapipe.kernel.cuda_runtime import CudaRuntime
from datapipe.kernel.processes import await_launcher
from datapipe.kinds.images import assembly
from datapipe.kinds.images.process_workers import IMPORTS


def make(
    task: Task,
    *,
    device: str = "cuda",
    backend: str = "auto",
    dali: Mapping[str, Any] | None = None,
    part: str = "shards",
    copy_priority: int | None = None,
    workers: str | None = None,
    fetching: int | None = None,
) -> Iterator[Sized]:
    """Batches for ever. Raises RuntimeError unless the decoder's graph is on `device`.

    `dali`: arguments of `Dali`, in place of `backend`; under "auto" the loader measures and chooses first.
    `copy_priority`: of the stream on which batches are copied; -1 is before 0. It is no setting of datapipe's: here it is put in
    from outside, as is `fetching`, the threads that fetch for DALI. `workers`: "threads" for decode threads without processes.
    """
    chosen: Any = backend if dali is None else Dali(**dali)
    with ExitStack() as patches:
        if fetching is not None:
            patches.enter_context(mock.patch.object(assembly, "FETCHING", fetching))
        if copy_priority is not None:
            patches.enter_context(mock.patch.object(CudaRuntime, "new_stream", functools.partialmethod(_stream, copy_priority)))
        with mock.patch.dict(os.environ, {} if workers is None else {"DATAPIPE_WORKERS": workers}):
            if dali is None:
                await_launcher(IMPORTS, task.num_threads)  # rates are those of an epoch, not of its first seconds
            loader = open_loader(task, part=part, dtype="float32", device=device, backend=chosen)
            check_decoder(loader, device)
        while True:
            yield from (images for images, _ in loader)


def check_decoder(loader: Any, device: str) -> None:
    """Raise RuntimeError if a loader decodes by DALI and its graph, once built, does not on `device`: "cuda" or "cpu"."""
    decodes_on = loader._passes.kind.decoder_device(loader._passes.settings())
    if loader.choice.dali is not None and decodes_on != ("gpu" if device == "cuda" else "cpu"):
        raise RuntimeError(f"DALI's graph decodes on the {decodes_on}, and batches were asked for on {device}")


def _stream(runtime: CudaRuntime, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(runtime.device, priority=priority)  # type: ignore[no-untyped-call]
