"""What would help a datapipe loader that waits for an object store. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from datapipe.core.observe import Stage, StageEvent
from datapipe.diagnostics.instruction import Instruction, Snippet
from datapipe.diagnostics.remedies import Remedy
from datapipe.diagnostics.workload import Change

MAKING = (Stage.PLAN, Stage.NETWORK, Stage.READ, Stage.DECODE, Stage.AUGMENT, Stage.COLLATE)  # stages that make a batch
NOT_STREAMED = "how fast the store sends whole shards was not measured; with a cache_dir, windows read each shard as one stream"
_LEAST_WORK = 0.01  # share of the time that is always left


def network_share(events: Iterable[StageEvent]) -> float:
    """Return the share of the time to make batches in which threads waited for a store."""
    made_ns = network_ns = 0
    for event in events:
        if event.stage in MAKING:
            made_ns += event.duration_ns
            network_ns += event.duration_ns if event.stage is Stage.NETWORK else 0
    return network_ns / made_ns if made_ns else 0.0


def kept_shards(network: float, *, where: str | None) -> Remedy:
    """Return the remedy to keep shards on a local disk, after which nothing is waited for.

    `network`: the share of waiting in the time to make a batch. `where`: file:line of the loader.
    """
    note = "in DataLoader(...), with a directory of a local disk; helps from the second epoch on, if the dataset fits"
    code = Snippet("python", 'remote=datapipe.Remote(cache_dir="/local/shards")')
    change = Change(production_factor=max(_LEAST_WORK, 1 - network))
    return Remedy("shards kept on a local disk", change, Instruction((code,), where, note))
