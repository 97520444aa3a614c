"""What a training step costs the device, and what the device could do at best: a roofline of the model.

Samuel Williams, Andrew Waterman, David Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (4), 2009.
"""

from __future__ import annotations

import msgspec


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of a few training steps, counted operation by operation, and the peaks of the device that they ran on."""

    device: str  # its name
    dtype: str  # in which most floating point operations are done
    flops: float  # floating point operations of a step: matrix products, convolutions and attention
    nbytes: float  # that its operations read and write, each by itself: fused, they move fewer
    num_operations: float  # that write something, each of which is a kernel or more
    uncounted: tuple[str, ...] = ()  # operations that compute, but for which torch has no formula
    peak_flops_per_s: float  # of large matrix products in this dtype,
    peak_nbytes_per_s: float  # of large copies, reading and writing,
    launch_s: float  # and of an operation on a few numbers

    @property
    def intensity(self) -> float:
        """Floating point operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def limits_s(self) -> dict[str, float]:
        """The least time of a step by what bounds it."""
        return {
            "compute": self.flops / self.peak_flops_per_s,
            "memory": self.nbytes / self.peak_nbytes_per_s,
            "launches": self.num_operations * self.launch_s,
        }
