"""The time that ranks which train together wait for each other. Each rank measures its own; nothing is sent."""

from __future__ import annotations

import msgspec


class Exchange(msgspec.Struct, frozen=True):
    """One iteration of a DistributedDataParallel module, as torch's own logging of it timed this rank; in seconds."""

    module: int  # counted from 0
    iteration: int  # counted by the module, alike on all ranks
    read_ns: int  # when it was read, on the clock of the steps
    forward_s: float
    backward_s: float  # until the last gradient of this rank is there,
    wait_s: float  # and from then on until those of all ranks are there, exchanged
    syncs_in_forward: bool  # buffers, or statistics of batches, are exchanged in forward, which then may wait for other ranks
