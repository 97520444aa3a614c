"""What the probes in torch's workers would have seen of a virtual loader's batches."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.diagnostics.virtual_loader import VirtualLoader, Work
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.torch_stages.profile import BatchProfile, Counters, Making, Passage, TransformTime


def facts_of(num_workers: int) -> LoaderFacts:
    """A loader of torch's, the only one."""
    return LoaderFacts(
        key=0,
        kind="torch.utils.data.dataloader.DataLoader",
        site=None,
        dataset=None,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        in_order=True,
        start_method=None,
        is_iterable=False,
        looks_inside=True,
    )


def profiles_of(loader: VirtualLoader) -> tuple[BatchProfile, ...]:
    """One for each batch that was returned; collating is the last of its work."""
    return tuple(
        _profile(place, loader.made_by[number] if loader.num_workers else None, window, loader.profile.work[number])
        for place, (number, window) in enumerate(zip(loader.numbers, loader.windows, strict=True))
    )


def _profile(number: int, worker: int | None, window: tuple[float, float], work: list[Work]) -> BatchProfile:
    asked_ns, taken_ns = map(_ns, window)
    made = _making(worker, work)
    opened_ns = max(asked_ns, made.ready_ns)
    moved = None if worker is None else Passage(made.ready_ns, made.ready_ns, opened_ns, taken_ns)
    return BatchProfile(0, 0, number, asked_ns, taken_ns, made, moved, pinned=None)


def _making(worker: int | None, work: list[Work]) -> Making:
    dataset, collating = work[:-1], work[-1]
    transforms = [one for one in dataset if one.stage[0] == "transform"]
    took_s = sum(one.end_s - one.start_s for one in work if one.cpu_s)
    cpu_ns, collate_cpu_ns = _cpu_ns(dataset), _ns(collating.cpu_s)
    return Making(
        iterator=(0, 0),
        pid=0 if worker is None else 1 + worker,
        worker=worker,
        num_samples=None,
        nbytes=None,
        start_ns=_ns(work[0].start_s),
        collate_start_ns=_ns(collating.start_s),
        ready_ns=_ns(collating.end_s),
        dataset_cpu_ns=cpu_ns,
        collate_cpu_ns=collate_cpu_ns,
        process_cpu_ns=None if worker is None else cpu_ns + collate_cpu_ns,
        transforms=tuple(
            TransformTime(one.stage[1] or "", _ns(one.end_s - one.start_s), _ns(one.cpu_s), num_timed=1) for one in transforms
        ),
        transform_ns=_ns(sum(one.end_s - one.start_s for one in transforms)),
        counters=Counters(None, None, None, max(0, _ns(took_s) - cpu_ns - collate_cpu_ns)),
    )


def _cpu_ns(work: Iterable[Work]) -> int:
    return _ns(sum(one.cpu_s for one in work))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
