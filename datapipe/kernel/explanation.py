"""Describe what a loader does where, and why, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from datapipe.codecs.decode import default_decoder_name
from datapipe.core.errors import OptionError
from datapipe.core.printable import counted, printable, size_text
from datapipe.fetch.files import can_keep_shards
from datapipe.fetch.remote import StoreFacts
from datapipe.kernel.accelerators import torch_build
from datapipe.kinds.images.assembly import far_enough_ahead
from datapipe.kinds.images.dali.installation import installation, mismatch
from datapipe.kinds.images.dali.region_trial import region_problem
from datapipe.kinds.images.dali.settings import Dali
from datapipe.kinds.images.loader import DataLoader
from datapipe.kinds.tables.kind import sharing_problem
from datapipe.kinds.tables.loader import TableLoader
from datapipe.order.row_order import PLACE_NBYTES, FirstWindowed, ShuffledRows, WindowedRows
from datapipe.stores.window import MAX_NBYTES


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The text that `explain` returns: `print` shows it, and so does an interactive session or a notebook by itself."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines))

    __repr__ = __str__


def explain(loader: Any) -> Explanation:
    """Return a loader's device and backend and why, its decoder, which part runs where, and its order, as text to print.

    `loader`: a datapipe.DataLoader or TableLoader, or the result of `from_torch` or `prefetch`. Raises OptionError for
    anything else.

    Chooses a backend if that has not been done yet, which on a GPU may take some seconds of measuring.
    """
    if isinstance(loader, (DataLoader, TableLoader)):
        return Explanation(tuple(explanation(loader) if isinstance(loader, DataLoader) else table_explanation(loader)))
    if isinstance(loader, (str, bytes)) or not hasattr(loader, "__iter__"):
        raise OptionError(f"explain({loader!r:.60}): pass a loader, such as datapipe.DataLoader(path, ...)")
    origin = getattr(loader, "origin", "") or f"{type(loader).__qualname__}: unchanged"
    own = getattr(loader, "explanation", ())  # of a loader that `from_torch` left to torch's workers
    return Explanation((f"from      {origin}", f"device    {getattr(loader, 'device', 'cpu')}", *own))


def explanation(loader: DataLoader) -> list[str]:
    """Return the lines of `explain`."""
    options, choice = loader.options, loader.choice
    is_copied = choice.device.type != "cpu"
    manifest = loader.dataset.index.manifest
    threads = counted(options.num_workers, "thread") if options.num_workers else "the caller's thread"
    lines = [f"from      {loader.origin}"] if loader.origin else []
    lines += [
        f"data      {counted(len(loader.dataset), 'sample')} in {manifest.container}, {counted(len(manifest.shards), 'shard')}, "
        f"{_order(loader)}",
        f"seed      {loader._progress.seed.describe()}",
        f"fields    {_fields(loader)}",
        f"device    {choice.device}" + ("" if is_copied else f" (torch is {torch_build()})"),
        f"backend   {choice.backend}: {choice.reason}",
    ]
    if not loader.fields.has_image:
        return lines[:-1]
    if choice.dali is None:
        lines.append(f"decoder   {default_decoder_name()} on {threads}; Pillow for images that it does not decode")
    else:
        lines += _about_dali(choice.dali, threads, loader, device=choice.device)
    lines += _about_store(loader)
    if kept := loader._passes.cache():
        lines.append(f"cache     {kept.describe()}")
    steps = loader.recipe.explain()
    where = "device" if is_copied and options.collate_fn is None else "CPU"
    lines += [f"{'recipe' if number == 0 else '':<10}{step}" for number, step in enumerate(steps)]
    lines.append(f"pixels    uint8 until the pixel operations, which run on the {where}")
    if options.may_draw is not None:
        lines.append(
            "collate   by your collate_fn, one batch at a time, in the thread that iterates, seeded for each step: it may draw "
            f"random numbers (it uses {options.may_draw})"
        )
    if is_copied:
        lines.append("transfer  pinned memory, a copy stream of its own; your stream waits for events, the host does not")
    ahead = far_enough_ahead(options, choice.dali, is_remote=loader.dataset.index.is_remote)
    lines.append(f"ahead     at least {counted(ahead.depth, 'batch')} in the making")
    return lines


def _fields(loader: DataLoader) -> str:
    moved = loader.fields.moved
    named = [spec.name + (" (cut with the image)" if spec in moved else "") for spec in loader.fields.specs]
    others = [spec.name for spec in loader.dataset.index.manifest.fields if spec not in loader.fields.specs]
    return ", ".join(named) + (f"; not loaded: {', '.join(others)}" if others else "")


S3_REQUESTS_PER_S = 5_500  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html

_ORDERS = {
    "sequential": "in stored order",
    "shuffled": "shuffled in full",
    "windowed": "shuffled in windows, as its row groups can only be read whole",
    "sampler": "in your sampler's order",
}


def _order(loader: DataLoader) -> str:
    kind: str = loader.state_dict()["order"]
    mixture = loader.dataset.mixture
    if mixture is not None:
        kind = kind.rpartition(" ")[0]
        shares = ", ".join(f"{count / sum(mixture.counts):.1%}" for count in mixture.counts)
        return f"{kind}, {sum(mixture.counts)} an epoch" + (f" in shares of {shares}" if len(mixture.counts) > 1 else "")
    if kind.startswith("windows "):
        return f"shuffled in {kind}, each of which is read once"
    return _ORDERS.get(kind, kind)


def _about_store(loader: DataLoader) -> list[str]:
    """What is to say of the store that samples are read from; nothing for others."""
    facts = loader.store_facts()
    if facts is None:
        return []
    has_shards, in_windows = can_keep_shards(loader.dataset.index), loader.state_dict()["order"].startswith("windows ")
    return store_lines(facts, ranks=loader._progress.rank.world_size, in_windows=in_windows, has_shards=has_shards)


def store_lines(facts: StoreFacts, *, ranks: int, in_windows: bool, has_shards: bool) -> list[str]:
    """Return how samples are read from a store, what that comes to over all ranks, and what a change would bring.

    `has_shards`: whether there are shards that could be kept in a cache.
    """
    lines = [
        f"store     a request for each sample that is not kept; {facts.num_under_way} in flight now for "
        f"{size_text(facts.nbytes_under_way)}, {facts.limit} for {size_text(MAX_NBYTES)} at most, "
        f"latency of 95% below {1000 * facts.p95_s:.0f} ms"
    ]
    share = facts.rate * ranks / S3_REQUESTS_PER_S
    if facts.rate:
        total = f"{facts.rate:.0f} requests/s in this process, {facts.rate * ranks:.0f} over {ranks} ranks"
        lines.append(f"{'':<10}{total}: {share:.0%} of the {S3_REQUESTS_PER_S} that S3 allows for one prefix")
    if share > 1:
        lines.append(f"{'':<10}too many: S3 answers the rest with 503; lower dp.Remote(requests=...), or keep shards")
    if not has_shards:
        without = "the store gives no etags, so shards of others are not kept; converted ones could be"
        return [*lines, f"{'':<10}{without}, by datapipe.Remote(cache_dir=...)"]
    if facts.cached is None:
        once = "each shard would be one stream an epoch" if in_windows else "what fits is asked for in the first epoch alone"
        return [*lines, f"{'':<10}shards are not cached: remote=datapipe.Remote(cache_dir=...) caches them; {once}"]
    num_there, num_all, hits, misses = facts.cached
    kept = hits / max(1, hits + misses)
    lines.append(
        f"{'':<10}{num_there} of {num_all} shards are kept in {facts.cache_place}; {kept:.0%} of the samples came from there"
    )
    if facts.missing_nbytes > 0:
        lines.append(
            f"{'':<10}a cache larger by {facts.missing_nbytes / 1e9:.1f} GB would hold all of them, for all epochs but the first"
        )
        if not in_windows:
            lines.append(f"{'':<10}shuffle='windows' would fetch each of the {num_all} shards once an epoch, as a stream")
    return lines


def _about_dali(dali: Dali, threads: str, loader: DataLoader, *, device: torch.device) -> list[str]:
    found, on_gpu = installation(), device.type == "cuda"
    lines = [
        f"decoder   DALI {found.version} (CUDA {found.cuda_major}) on the {loader.decoder_device().upper()} in "
        f"{dali.num_pipelines} pipelines of {dali.num_threads or max(1, loader.options.num_workers)} threads, fed by {threads}; "
        "images_cpu for samples that DALI does not decode as Pillow does",
    ]
    if on_gpu:
        problem = region_problem(device.index, hw_decoder_load=dali.hw_decoder_load)
        how = "decodes only the crop's region" if problem is None else f"decodes whole images, then crops: {problem}"
        lines.append(f"          {how}; {dali.hw_decoder_load:.0%} of the JPEGs on the GPU's JPEG engines, if it has any")
    problem = mismatch()
    return [*lines, f"          {problem}"] if problem else lines


# -- tables ------------------------------------------------------------------------------------------

_ARROW = "backend   tables_arrow: row groups decoded by Arrow, packed row-major and gathered on "
_CUDF = "backend   tables_cudf: row groups decoded by cuDF, packed row-major and gathered on the GPU, by "


def table_explanation(loader: TableLoader) -> list[str]:
    """Return the lines of `explain` for a `TableLoader`."""
    index, layout, options, plan = loader.dataset.index, loader.layout, loader.options, loader.plan()
    is_copied = loader.device.type != "cpu"
    about = index.describe()
    least, median, most = about["rows per group"]
    lines = [
        f"data      {counted(len(index), 'row')} in {counted(about['files'], 'file')},"
        f" {counted(about['row groups'], 'row group')} of "
        + (counted(most, "row") if least == most else f"{least:,} to {most:,} rows (median {median:,})"),
        *(f"          {line}" for line in index.widened),
        f"order     {_row_order(loader)}",
        f"seed      {loader._progress.seed.describe()}",
        *(f"matrix    {one.name}: {'(b,)' if one.is_vector else f'(b, {one.width})'} {one.dtype}" for one in layout.matrices),
        f"device    {loader.device}" + ("" if is_copied else f" (torch is {torch_build()})"),
        _backend(loader) + (counted(options.num_workers, "thread") if options.num_workers else "the caller's thread"),
    ]
    if is_copied:
        lines.insert(-1, f"choice    {loader.choice().backend}: {loader.choice().reason}")
    if is_copied and not loader.choice().uses_cudf:
        lines.append("transfer  pinned memory, a copy stream of its own; your stream waits for events, the host does not")
    ranks = plan.rank.world_size
    lines.append(f"steps     {plan.num_steps} of {plan.batch_size} rows on each of {ranks} ranks, tail={options.tail.value}")
    return lines


def _backend(loader: TableLoader) -> str:
    if loader.dataset.index.is_row_major:
        return "backend   rows mapped and gathered on "
    return _CUDF if loader.choice().uses_cudf else _ARROW


def _row_order(loader: TableLoader) -> str:
    order = loader.plan().order
    later = ""
    if isinstance(order, FirstWindowed):
        order, later = order.first, "; later epochs in full, from what the first one keeps"
    if isinstance(order, ShuffledRows):
        return "shuffled in full: any row is as near as any other"
    if not isinstance(order, WindowedRows):
        return "in stored order"
    row_nbytes = loader.layout.row_nbytes + PLACE_NBYTES
    window = order.max_window * row_nbytes
    text = (
        f"shuffled in windows of {counted(order.groups_per_window, 'row group')} in each of "
        f"{counted(order.num_lanes, 'lane')}: {window / 1e6:.3g} MB a window, two in each lane"
    )
    return text + later + (f"; {problem}" if (problem := sharing_problem(loader.plan(), loader.dataset.index)) else "")
