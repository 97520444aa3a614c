"""Options of running DALI, which do not change its results."""

from __future__ import annotations

from dataclasses import dataclass

from datapipe.core.checks import real_number, whole_number
from datapipe.errors import OptionError
from datapipe.kinds.images.dali.gate import CutForm

HUFFMAN_THRESHOLD = 1_000_000  # pixels; DALI's default


@dataclass(frozen=True, slots=True)
class Dali:
    """Options of running DALI: pass it as `backend=` to set what is otherwise measured or derived.

    >>> loader = datapipe.DataLoader("shards", batch_size=256, shuffle=True, backend=datapipe.Dali(hw_decoder_load=0.9))

    num_threads: DALI's threads per pipeline; None for the loader's `num_workers`.
    num_pipelines: batches that are in DALI at once, each in its own pipeline.
    hw_decoder_load: share of the JPEGs decoded by the GPU's JPEG engines, 0 to 1, if it has any; the CUDA cores decode the
      others. No effect on a CPU. Above 0, batches are decoded one at a time: docs/loader.md explains why.
    hybrid_huffman_threshold: pixels of an image above which the GPU also decodes its Huffman codes; the CPU does so for smaller
      ones. No effect on a CPU.
    """

    num_threads: int | None = None
    num_pipelines: int = 2
    hw_decoder_load: float = 0.0
    hybrid_huffman_threshold: int = HUFFMAN_THRESHOLD

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            whole_number(self.num_threads, "Dali(num_threads=)", least=1)
        whole_number(self.num_pipelines, "Dali(num_pipelines=)", least=1)
        whole_number(self.hybrid_huffman_threshold, "Dali(hybrid_huffman_threshold=)", least=0)
        if not 0 <= real_number(self.hw_decoder_load, "Dali(hw_decoder_load=)") <= 1:
            raise OptionError(f"Dali(hw_decoder_load={self.hw_decoder_load}): it must be a share, 0 to 1")


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """The options that a graph is built for."""

    height: int  # of every output image, pixels
    width: int
    max_batch_size: int
    device_id: int | None  # of the GPU; None: run on the CPU
    form: CutForm
    decodes_regions: bool  # otherwise the whole image is decoded, and then the region cut out
    num_threads: int
    hw_decoder_load: float
    hybrid_huffman_threshold: int = HUFFMAN_THRESHOLD
