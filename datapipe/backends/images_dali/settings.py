"""How DALI is run; nothing about what it computes."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.backends.images_dali.form import CutForm
from datapipe.checks import real_number, whole_number
from datapipe.errors import OptionError


@dataclass(frozen=True, slots=True)
class Dali:
    """How DALI is to be run: pass it as `backend=` to choose by hand what is otherwise measured or derived.

    num_threads: DALI's threads per pipeline; None for the loader's `num_workers`.
    num_pipelines: batches that are in DALI at once, each in a pipeline of its own.
    hw_decoder_load: share of the JPEGs that goes to the GPU's JPEG engines, 0 to 1, where it has any; the CUDA
      cores decode the others. Of no meaning on a CPU. Above 0 one batch at a time is decoded, and a JPEG whose body is
      damaged may come out as rubbish instead of as a bad sample: docs/loader.md says why.
    """

    num_threads: int | None = None
    num_pipelines: int = 2
    hw_decoder_load: float = 0.0

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            whole_number(self.num_threads, "Dali(num_threads=)", least=1)
        whole_number(self.num_pipelines, "Dali(num_pipelines=)", least=1)
        if not 0 <= real_number(self.hw_decoder_load, "Dali(hw_decoder_load=)") <= 1:
            raise OptionError(f"Dali(hw_decoder_load={self.hw_decoder_load}): it is a share, 0 to 1")


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What a graph is built for."""

    height: int  # of every image that leaves, pixels
    width: int
    max_batch_size: int
    device_id: int | None  # of the GPU; None: on the CPU
    form: CutForm
    decodes_regions: bool  # else the whole image is decoded and the region cut out of it
    num_threads: int
    hw_decoder_load: float
