"""The engines that build the shards of a plan: processes of this machine, or tasks of a Ray cluster.

Both run the same code over the same plan, one shard at a time, and publish it by the same steps, so the bytes do not show which
of them was used.
"""

from __future__ import annotations

from collections.abc import Sequence

from converters.engines.local import Workers
from converters.options import ConvertOptions
from converters.planning.plan import PlannedShard
from converters.shards import OnSamples, OnShard, ShardJob
from datapipe.core.environment import num_usable_cores


def run_shards(
    job: ShardJob,
    shards: Sequence[PlannedShard],
    *,
    options: ConvertOptions,
    on_samples: OnSamples,
    on_shard: OnShard,
    workers: Workers,
) -> None:
    """Build `shards` by the engine of `options`. Raises what the first failing one raised; the others are stopped.

    `on_samples`, and `on_shard` for each one that is complete, are called in the caller's thread, and may raise to stop
    everything. The counts of `on_samples` are negative for a shard that is built again, as the machine that built it was lost.
    `workers`: processes of this machine that have been started, which end with the last shard.
    """
    if not shards:
        return
    if options.engine == "ray":
        from converters.engines.ray import run_on_cluster

        run_on_cluster(
            job, shards, address=options.address, num_workers=options.num_workers, on_samples=on_samples, on_shard=on_shard
        )
    else:
        workers.build(job, shards, options.num_workers or num_usable_cores(), on_samples=on_samples, on_shard=on_shard)
