"""List possible changes to a loader, for replay, from measurements of the loader and from trials.

Nothing is assumed about a remedy that was not measured: the speed of another loader or format comes from trials. What could
not be tried is left out, with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from datapipe.analysis.judge.analysis import Analysis
from datapipe.analysis.predict.instructions import Instruction, Snippet, argument_of, taken_over, where_made
from datapipe.analysis.predict.measured_workload import MAKING
from datapipe.analysis.predict.remedies import Remedy
from datapipe.analysis.predict.replay import Delivery, Setup
from datapipe.analysis.predict.workload import Change, Contention, Workload, contention_of, production_parts
from datapipe.core.observe import Stage, StageEvent
from datapipe.instruments.attach.settings import Applied
from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.trials.choosing import MOSTLY, mostly_waits, worker_counts
from datapipe.instruments.trials.results import CACHED, CONVERTED, OURS, RESIZED, Trials

_DEEPER = 4
_SYNCED = 0.05  # share of the steps
_NOTICED = 0.05  # share of the time to make a batch from which waiting for a store is worth a remedy
# Cores of other machines that decode too: what was measured, with room (benchmarks/results/elsewhere.json).
_MADE_ELSEWHERE = tuple(f"datapipe.kinds.{kind}" for kind in ("images.data.Images", "clips.data.Clips", "audio.data.Audio"))
_CORES_ELSEWHERE = (8, 32)
_RATE_ELSEWHERE = 0.9  # of a core there, over that of a core here
_CPU_OF_RECEIVING = 0.2  # of a sample from there, over that of making it here
_ELSEWHERE = (
    "in DataLoader(...): nodes of a Ray cluster, or machines that run `datapipe serve`; assumed, not measured: their cores are "
    "as fast as these, the network is fast enough, and what comes from there takes a fifth of the CPU time that it takes here; "
    "`datapipe bench PATH --workers` measures it"
)
_LEAST_WORK = 0.01  # share of the time that is always left
_NOT_STREAMED = "how fast the store sends whole shards was not measured; with a cache_dir, windows read each shard as one stream"


@dataclass(slots=True)
class Candidates:
    """Remedies, the easier ones first; `left_out` gives the reason for those that are missing, by name."""

    remedies: list[Remedy] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    applied: dict[str, Applied] = field(default_factory=dict)  # by name, the remedies that need no edit of the script
    contention: Contention | None = None  # of more workers; None: the loader has none

    def add(
        self,
        name: str,
        change: Change,
        how: Instruction,
        *,
        applied: Applied | None = None,
        changes_results: bool = False,
        needs_machines: bool = False,
    ) -> None:
        """Add a remedy. `applied`: the same without an edit of the script; None: there is no such way."""
        self.remedies.append(Remedy(name, change, how, changes_results, needs_machines))
        if applied is not None:
            self.applied[name] = applied


def candidates_for(found: Analysis, workload: Workload, trials: Trials) -> Candidates:
    """Return the remedies that make sense for this loader."""
    assert found.loader is not None
    result = Candidates()
    is_ours = workload.setup.delivery is Delivery.SHARED
    if workload.setup.num_workers:
        _add_prefetch(result, found.loader, workload, is_ours=is_ours)
    if not is_ours and workload.setup.num_workers > 1 and found.loader.in_order:
        _add_order(result, found.loader, workload)
    network = network_share(found.events)
    waits = network > MOSTLY if is_ours else mostly_waits([profile.made for profile in found.profiles])
    if not is_ours:
        result.contention = contention_of(workload, trials.scaling)
    _add_workers(result, found.loader, workload, waits=waits)
    if is_ours and network > _NOTICED:
        _add_kept_shards(result, found.loader, network)
    if found.figures.basis == "device" and (found.figures.sync_share or 0.0) > _SYNCED:
        names = sorted(found.process.context.syncs, key=lambda name: -found.process.context.syncs[name].host_s)
        note = f"avoid {' and '.join(names[:2]) or 'waiting for the device'} in each step, or call it every 100 steps"
        result.add("do not wait for the device", Change(drops_syncs=True), Instruction(note=note))
    _add_batch(result, found.loader)
    if is_ours:
        if found.loader.dataset in _MADE_ELSEWHERE:
            _add_elsewhere(result, found.loader, workload)
        result.left_out["another loader"] = "the loader is already datapipe's"
    else:
        _add_tried(result, found, workload, trials)
    return result


def _add_prefetch(result: Candidates, loader: LoaderFacts, workload: Workload, *, is_ours: bool) -> None:
    setup, factor = workload.setup, loader.prefetch_factor or 2
    name = f"prefetch_factor={_DEEPER * factor}"
    applied = None if is_ours else Applied(loader.site, prefetch_factor=_DEEPER * factor)
    change = Change(replace(setup, depth=_DEEPER * setup.depth))
    result.add(name, change, argument_of(loader, name, factor), applied=applied)


def _add_order(result: Candidates, loader: LoaderFacts, workload: Workload) -> None:
    """Add delivery of batches in the order of completion, so that a slow batch or worker does not delay the others."""
    name = "in_order=False"
    how = argument_of(loader, name, "True; batches then come in the order of completion, which differs from run to run")
    change = Change(replace(workload.setup, delivery=Delivery.COMPLETION))
    result.add(name, change, how, applied=Applied(loader.site, in_order=False))


def _add_workers(result: Candidates, loader: LoaderFacts, workload: Workload, *, waits: bool) -> None:
    setup, now, contention = workload.setup, workload.setup.num_workers, result.contention
    if loader.num_workers is None:
        result.left_out["more workers"] = f"{loader.kind} has no workers"
        return
    if loader.is_iterable and not now:
        result.left_out["more workers"] = "an IterableDataset yields every sample once per worker unless it divides them itself"
        return
    each = loader.prefetch_factor or 2
    stall, cpu = production_parts(workload)
    for num in worker_counts(now, int(setup.num_cores or 1), waits=waits):
        depth = setup.depth if contention is None else max(1, num * each)
        name = f"num_workers={num}"
        change = Change(replace(setup, num_workers=num, depth=depth))
        note, applied = str(now), None
        if contention is not None:
            added_s = contention.added_s(num)
            stalled = float((stall.mean() + added_s) / (stall.mean() + added_s + cpu.mean()))
            change = replace(
                change,
                stall_added_s=added_s,
                worst_stall_added_s=contention.worst_added_s(num),
                production_spread=contention.spread * stalled if added_s else 0.0,
            )
            if change.worst_stall_added_s is not None:
                note += f"; if workers do not wait for each other, which is not known: {contention.why_unknown}"
            applied = Applied(loader.site, num_workers=num)
        result.add(name, change, argument_of(loader, name, note), applied=applied)


def _add_elsewhere(result: Candidates, loader: LoaderFacts, workload: Workload) -> None:
    """Add cores of other machines that decode too, as `Workers`.

    What comes from there takes some CPU time here, which those that decode here lack.
    """
    setup = workload.setup
    for cores in _CORES_ELSEWHERE:
        there, here = _RATE_ELSEWHERE * cores, setup.num_cores
        if here is not None:
            there = min(there, here / _CPU_OF_RECEIVING)
            here = max(0.0, here - _CPU_OF_RECEIVING * there) if setup.num_workers else 0.0
        both = None if here is None else here + there
        change = Change(replace(setup, num_workers=setup.num_workers + max(1, int(there)), num_cores=both), production_spread=0.1)
        code = Snippet("python", f'workers=datapipe.Workers("ray", num_cpus={cores})')
        how = Instruction((code,), where_made(loader), _ELSEWHERE)
        result.add(f"{cores} cores elsewhere", change, how, needs_machines=True)


def network_share(events: Iterable[StageEvent]) -> float:
    """Return the share of the time to make batches in which threads waited for a store."""
    made_ns = network_ns = 0
    for event in events:
        if event.stage in MAKING:
            made_ns += event.duration_ns
            network_ns += event.duration_ns if event.stage is Stage.NETWORK else 0
    return network_ns / made_ns if made_ns else 0.0


def _add_kept_shards(result: Candidates, loader: LoaderFacts, network: float) -> None:
    """Add keeping shards on a local disk, after which nothing is waited for.

    `network`: the share of waiting in the time to make a batch.
    """
    note = "in datapipe.Images(...), with a directory of a local disk; helps from the second epoch on, if the dataset fits"
    code = Snippet("python", 'remote=datapipe.Remote(cache_dir="/local/shards")')
    change = Change(production_factor=max(_LEAST_WORK, 1 - network))
    result.add("shards kept on a local disk", change, Instruction((code,), where_made(loader), note))
    result.left_out["shuffle='windows'"] = _NOT_STREAMED


def _add_batch(result: Candidates, loader: LoaderFacts) -> None:
    if loader.batch_size and loader.batch_size > 0:
        name = f"batch_size={2 * loader.batch_size}"
        how = argument_of(loader, name, f"{loader.batch_size}; this changes the training")
        result.add(name, Change(batch_factor=2.0), how, changes_results=True)


def _add_tried(result: Candidates, found: Analysis, workload: Workload, trials: Trials) -> None:
    assert found.loader is not None
    loader = replace(found.loader, batch_size=found.loader.batch_size or trials.batch_size)
    side = trials.resized_to
    hows = {
        OURS: ("datapipe's loader", taken_over(loader)),
        CONVERTED: ("datapipe's loader on converted data", _on_converted(loader, trials)),
        CACHED: ("datapipe's loader, images in memory", _cached(loader)),
        RESIZED: ("datapipe's loader on smaller images", _on_converted(loader, trials, side)),
    }
    if trials.deferral is not None:
        _add_deferral(result, loader, workload, trials.deferral)
    general = trials.reasons.get("")
    if general is not None:
        result.left_out["datapipe's loader, converted data, a cache"] = general
        return
    for key, (name, how) in hows.items():
        rate = trials.rates.get(key)
        if rate is None:
            result.left_out[name] = trials.reasons.get(key, "it was not tried")
            continue
        applied = Applied(loader.site, from_torch=True) if key == OURS else None
        result.add(name, change_to_ours(workload, rate, loader), how, applied=applied, changes_results=key == RESIZED)


def _add_deferral(result: Candidates, loader: LoaderFacts, workload: Workload, tried: Mapping[str, Any]) -> None:
    """Add `from_torch` over a Dataset of the script's own: its rows are gathered, its clips decoded, or its code goes on running.

    Gathered rows wait for no storage; clips, and images that torch's workers leave undecoded, wait for it as they do now.
    """
    stall, cpu = (part.mean() for part in production_parts(workload))
    setup, left = None, stall
    if "clips" in tried:
        name, note = "datapipe's clips of the same videos", "neighbouring frames are decoded together"
        tried, threads = tried["clips"], int(loader.num_workers or workload.setup.num_cores or 1)
        setup = Setup(threads, _depth_of_ours(loader, workload), Delivery.SHARED, workload.setup.num_cores)
    elif "rows" in tried:
        name, note = "whole batches gathered from memory", "rows are gathered a batch at a time"
        tried, left = tried["rows"], 0.0
        setup = Setup(0, 1, Delivery.ROUND_ROBIN, workload.setup.num_cores)
    else:
        name, note = "datapipe.from_torch, the Dataset as it is", "images are decoded together after the Dataset's code"
    if "ratio" not in tried:
        result.left_out[name] = str(tried["reason"])
        return
    factor = max(float((left + cpu * tried["ratio"]) / (stall + cpu)), 1e-9)
    change = Change(setup, production_factor=factor, production_spread=tried["spread"])
    result.add(name, change, taken_over(loader, note=note), applied=Applied(loader.site, from_torch=True))


def change_to_ours(workload: Workload, rate: Mapping[str, Any], loader: LoaderFacts) -> Change:
    """Return the change to datapipe's loader at the tried time per sample, with all cores available to it."""
    stall, cpu = production_parts(workload)
    cores = workload.setup.num_cores or float(rate["num_threads"])
    threads = int(rate["num_threads"])
    depth = _depth_of_ours(loader, workload)
    thread_s = rate["sample_s"] * (loader.batch_size or 1) * min(float(threads), cores)
    return Change(
        setup=Setup(threads, depth, Delivery.SHARED, workload.setup.num_cores),
        production_factor=thread_s / float((stall + cpu).mean()),
        production_spread=rate["spread"],
    )


def _depth_of_ours(loader: LoaderFacts, workload: Workload) -> int:
    """Return the batches that datapipe's loader makes ahead, as `from_torch` sets it."""
    return 2 if loader.prefetch_factor in (None, 2) else workload.setup.depth


def _on_converted(loader: LoaderFacts, trials: Trials, side: int | None = None) -> Instruction:
    source, resize = shlex.quote(trials.where or "SRC"), f" --resize shorter:{side}" if side else ""
    command = Snippet("shell", f"datapipe convert {source} DST --to webdataset{resize}")
    note = "pixels differ" if side else ""
    if trials.reads_shards:
        return Instruction((command,), where_made(loader), "; ".join(filter(None, ["let the pipeline read DST's shards", note])))
    how = taken_over(loader, 'data="DST"', note=note)
    return replace(how, code=(command, *how.code))


def _cached(loader: LoaderFacts) -> Instruction:
    return taken_over(loader, 'data=datapipe.Images({loader}.dataset, cache="ram")', note="helps from the second epoch on")
