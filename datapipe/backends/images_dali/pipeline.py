"""One DALI pipeline, run a batch at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from datapipe.backends.images_dali.settings import GraphOptions
from datapipe.errors import BackendError
from datapipe.transforms.protocols import Cuts


class RunError(Exception):
    """A run gave no pixels: DALI's words, which name a sample at best by its place in the batch."""


class DaliPipeline:
    """Decodes, crops, resizes and flips batches. For one thread at a time.

    Built at the first run, and again for a batch larger than all before. After a run that fails the next one goes on;
    if that fails too, the pipeline is built anew for the one after it.
    """

    def __init__(self, options: GraphOptions) -> None:
        self.options = options
        self._pipeline: Any = None
        self._num_failures = 0  # in a row

    def run(self, encoded: Sequence[bytes], cuts: Cuts, stream: torch.cuda.Stream | None) -> tuple[torch.Tensor, object]:
        """(b, height, width, 3) uint8 of b samples, and what must be kept while it is made.

        On a GPU the tensor lies in DALI's memory and is complete for work queued on `stream`; it and the second
        value are to be kept until that work is done. On the CPU `stream` is None and the tensor is complete. Every
        sample must be one that `gate.can_decode`. Raises RunError if a sample does not decode or anything else goes
        wrong, BackendError if there cannot be a pipeline at all.
        """
        inputs = _arguments(cuts, is_windowed=self.options.form.is_windowed)
        inputs["encoded"] = [np.frombuffer(data, np.uint8) for data in encoded]
        self._build(len(encoded))
        is_fed = False
        try:
            for name, values in inputs.items():
                self._pipeline.feed_input(name, values)
            is_fed = True
            self._pipeline.schedule_run()
            (images,) = self._pipeline.outputs(cuda_stream=stream)
            with torch.cuda.stream(stream):
                pixels: torch.Tensor = from_dlpack(images.as_tensor())
        except RuntimeError as exc:
            self._num_failures += 1
            if self._num_failures > 1 or not is_fed:
                self._pipeline = None
            raise RunError(_first_lines(exc)) from exc
        self._num_failures = 0
        return pixels, inputs

    def _build(self, num_samples: int) -> None:
        """Have a pipeline that takes so many samples."""
        from datapipe.backends.images_dali.graph import build_graph  # DALI is imported where it is used first

        if num_samples > self.options.max_batch_size:
            self.options = dataclasses.replace(self.options, max_batch_size=num_samples)
            self._pipeline = None
        if self._pipeline is None:
            try:
                self._pipeline = build_graph(self.options)
            except RuntimeError as exc:
                raise BackendError(f"DALI's pipeline cannot be built: {_first_lines(exc)}; see `datapipe doctor`") from exc

    @property
    def num_failures(self) -> int:
        """Runs that failed since the last one that did not."""
        return self._num_failures


def _arguments(cuts: Cuts, *, is_windowed: bool) -> dict[str, Any]:
    """What to feed beside the encoded bytes, in the layout that DALI takes over without a copy."""
    arguments = {
        "region_at": np.ascontiguousarray(cuts.region[:, :2], np.int32),
        "region_size": np.ascontiguousarray(cuts.region[:, 2:], np.int32),
        "flip_vertical": cuts.flip[:, 0].astype(np.int32),
        "flip_horizontal": cuts.flip[:, 1].astype(np.int32),
    }
    if is_windowed:
        arguments["size"] = cuts.size.astype(np.float32)
        arguments["window_at"] = np.ascontiguousarray(cuts.window[:, :2], np.int32)
    return arguments


def _first_lines(exc: RuntimeError) -> str:
    """DALI's messages without the stack trace and the graph's definition that follow."""
    text = str(exc).split("Stacktrace", 1)[0].split("C++ context:", 1)[0]
    return " ".join(text.split())[:500]
