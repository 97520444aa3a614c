"""The lines of `explain` about samples: where they are read, decoded, augmented and kept."""

from __future__ import annotations

from collections.abc import Callable

import torch

from datapipe.codecs.decode import default_decoder_name
from datapipe.core.printable import counted, size_text
from datapipe.fetch.files import Files, can_keep_shards
from datapipe.fetch.remote import RemoteFiles, StoreFacts
from datapipe.index.concat import AnyIndex
from datapipe.kernel.explanation import TRANSFER, device_line, threads_text
from datapipe.kernel.kind import PassFacts
from datapipe.kernel.mixing import Mixture
from datapipe.kinds.images.assembly import can_be_processes, options_of_making
from datapipe.kinds.images.buckets import BucketPlan
from datapipe.kinds.images.choice import Choice
from datapipe.kinds.images.dali.installation import installation, mismatch
from datapipe.kinds.images.dali.region_trial import region_problem
from datapipe.kinds.images.dali.settings import Dali
from datapipe.kinds.images.device_images import DeviceImages
from datapipe.kinds.images.fields import BatchFields
from datapipe.kinds.images.kept_images import KeptImages
from datapipe.kinds.images.samples import BatchSamples
from datapipe.remote_workers.elsewhere import Elsewhere
from datapipe.stores.window import MAX_NBYTES
from datapipe.transforms import Recipe


def explain(
    facts: PassFacts,
    *,
    choice: Choice,
    samples: BatchSamples,
    recipe: Recipe,
    files: Files,
    cache: KeptImages | DeviceImages | None,
    elsewhere: Elsewhere,
    plan: BucketPlan | None,
    decodes_on: Callable[[], str],
) -> list[str]:
    """Return the lines about the passes over such data. `decodes_on`: says where DALI decodes, "gpu" or "cpu"; may raise."""
    options = options_of_making(facts.settings.options, choice, samples, num_remote=elsewhere.num_seats)
    is_copied = choice.device.type != "cpu"
    manifest, threads, order = samples.index.manifest, threads_text(options), facts.order
    on_device = is_copied and options.collate_fn is None  # the pixel operations
    shards = manifest.container if manifest.is_listing else f"{manifest.container}, {counted(len(manifest.shards), 'shard')}"
    lines = [
        f"data      {counted(len(samples), 'sample')} in {shards}, {_order(order, samples.mixture)}",
        f"seed      {facts.seed}",
        f"fields    {_fields(samples.fields, samples.index)}",
        device_line(choice.device),
        f"backend   {choice.backend}: {choice.reason}",
    ]
    if not samples.fields.has_image:
        return lines[:-1]
    if choice.dali is None:
        kept = cache if isinstance(cache, KeptImages) else None
        in_blocks = recipe.geometry_alone() if on_device else recipe
        if can_be_processes(options, samples=samples, recipe=in_blocks, files=files, kept=kept):
            threads += ", each with a process"
        lines.append(f"decoder   {default_decoder_name()} on {threads}; Pillow for images that it does not decode")
        lines += elsewhere.explain("block")
        if samples.settings.decode == "scaled":
            lines.append(
                "          JPEGs that become less than half as large: by libjpeg at a half, a quarter or an eighth of their size"
            )
    else:
        num_workers = facts.settings.options.num_workers
        lines += _about_dali(choice.dali, threads, decodes_on(), num_workers=num_workers, device=choice.device)
    if isinstance(files, RemoteFiles):
        lines += store_lines(
            files.facts(),
            ranks=facts.num_ranks,
            in_windows=order.startswith("windows "),
            has_shards=can_keep_shards(samples.index),
        )
    if plan is not None:
        about = plan.order(0, batch_size=options.batch_size, num_ranks=facts.num_ranks, tail=options.tail, shuffle=True)
        described = plan.describe(None if order == "sampler" else about)
        lines += [f"{'buckets' if not number else '':<10}{line}" for number, line in enumerate(described)]
    if cache is not None:
        lines.append(f"cache     {cache.describe()}")
    steps = recipe.explain()
    where = "device" if on_device else "CPU"
    lines += [f"{'recipe' if number == 0 else '':<10}{step}" for number, step in enumerate(steps)]
    lines.append(f"pixels    uint8 until the pixel operations, which run on the {where}")
    if options.may_draw is not None:
        lines.append(
            "collate   by your collate_fn, one batch at a time, in the thread that iterates, seeded for each step: it may draw "
            f"random numbers (it uses {options.may_draw})"
        )
    if is_copied:
        lines.append(TRANSFER)
    lines.append(f"ahead     at least {counted(options.depth, 'batch')} in the making")
    return lines


def _fields(fields: BatchFields, index: AnyIndex) -> str:
    named = [spec.name + (" (cut with the image)" if spec in fields.moved else "") for spec in fields.specs]
    others = [spec.name for spec in index.manifest.fields if spec not in fields.specs]
    return ", ".join(named) + (f"; not loaded: {', '.join(others)}" if others else "")


S3_REQUESTS_PER_S = 5_500  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html

_ORDERS = {
    "sequential": "in stored order",
    "shuffled": "shuffled in full",
    "windowed": "shuffled in windows, as its row groups can only be read whole",
    "sampler": "in your sampler's order",
}


def _order(kind: str, mixture: Mixture | None) -> str:
    if mixture is not None:
        kind = kind.rpartition(" ")[0]
        return f"{kind}, {mixture.described()}"
    if kind.startswith("windows "):
        return f"shuffled in {kind}, each of which is read once"
    return _ORDERS.get(kind, kind)


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
        return [*lines, f"{'':<10}{without}, by Images(..., remote=datapipe.Remote(cache_dir=...))"]
    if facts.cached is None:
        once = "each shard would be one stream an epoch" if in_windows else "what fits is asked for in the first epoch alone"
        return [*lines, f"{'':<10}shards are not cached: Images(..., remote=datapipe.Remote(cache_dir=...)) caches them; {once}"]
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


def _about_dali(dali: Dali, threads: str, decodes_on: str, *, num_workers: int, device: torch.device) -> list[str]:
    found, on_gpu = installation(), device.type == "cuda"
    lines = [
        f"decoder   DALI {found.version} (CUDA {found.cuda_major}) on the {decodes_on.upper()} in "
        f"{dali.num_pipelines} pipelines of {dali.num_threads or max(1, num_workers)} threads, fed by {threads}; "
        "images_cpu for samples that DALI does not decode as Pillow does",
    ]
    if on_gpu:
        problem = region_problem(device.index, hw_decoder_load=dali.hw_decoder_load)
        how = "decodes only the crop's region" if problem is None else f"decodes whole images, then crops: {problem}"
        lines.append(f"          {how}; {dali.hw_decoder_load:.0%} of the JPEGs on the GPU's JPEG engines, if it has any")
    problem = mismatch()
    return [*lines, f"          {problem}"] if problem else lines
