"""A fake GPU with a stand-in for cuDF, in the place of CUDA, for loaders of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, pretend_gpus

from benchmarks.gpu.cudf_stand_in import stand_in
from datapipe.kernel.pytree import map_nest, tensors_of
from datapipe.kinds.tables.cudf.library import library


@contextmanager
def fake_gpu(seed: int = 7, *, kind: type[FakeDevice] = FakeDevice, **options: Any) -> Iterator[FakeDevice]:
    """A device that runs late, on which loaders of tables deliver. Checks at the end that nobody waited for it."""
    fake = kind(seed, **options)
    library.cache_clear()
    with pytest.MonkeyPatch.context() as patch, stand_in(fake):
        pretend_gpus(patch, current=2)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a fake")
        patch.setattr("datapipe.kernel.calibration.synchronize", lambda device: None)
        for runtime_of in ("kernel.delivery.runtime_of", "kinds.tables.kind.cuda_runtime"):
            patch.setattr(f"datapipe.{runtime_of}", lambda _: fake)
        yield fake
        fake.drain()
        fake.pending.reap()
        assert fake.forbidden == []
    library.cache_clear()


def on_host(fake: FakeDevice, batch: Any) -> Callable[[], Any]:
    """Let the consumer's stream read a batch; the result, to be called after `drain`, is the batch in host memory."""
    seen = {id(tensor): fake.read(tensor) for tensor in tensors_of(batch)}

    def look(tensor: Any) -> Any:
        return seen[id(tensor)]()

    return lambda: map_nest(batch, look, look)
