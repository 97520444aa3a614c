"""Put a loader's parts together: from a choice of backend to the maker of batches."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import torch

from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.concat import Repeats, wholes
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.kind import Pass, Resources
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.own_process import can_be_sent
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.processes import launcher, wanted
from datapipe.kinds.images.batches import SampleBatchMaker, Worker
from datapipe.kinds.images.buckets import BucketPlan
from datapipe.kinds.images.choice import Choice
from datapipe.kinds.images.collate import Collator
from datapipe.kinds.images.dali.gate import choose_cut_form
from datapipe.kinds.images.dali.region_trial import region_problem
from datapipe.kinds.images.dali.settings import Dali, GraphOptions
from datapipe.kinds.images.dali_stage import DaliStage, FetchWorker
from datapipe.kinds.images.device_images import DeviceImages
from datapipe.kinds.images.fields import FurtherFields
from datapipe.kinds.images.images_cpu import BlockWorker
from datapipe.kinds.images.kept_images import KeptImages
from datapipe.kinds.images.process_workers import IMPORTS, ProcessBlockWorker
from datapipe.kinds.images.remote_blocks import RemoteBlockWorker
from datapipe.kinds.images.samples import BatchSamples
from datapipe.transforms import Recipe
from datapipe.transforms.recipe import Size

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet

FETCHING = 2  # threads that fetch for DALI, which has threads of its own: more of them would only fight over Python's lock
_ALL = 0.95  # share of samples from which on DALI decodes so many that its threads need no help
_LEAST_SENT = 16  # images that are asked of another machine at once
REMOTE_SAMPLES_AHEAD = 512  # 2,000 a second with 170 ms of latency each, and half as many again


def assemble(
    choice: Choice,
    settings: Pass,
    *,
    samples: BatchSamples,
    recipe: Recipe,
    files: Files,
    kept: KeptImages | None,
    device_images: DeviceImages | None,
    fleet: Fleet | None,
    plan: BucketPlan | None,
) -> SampleBatchMaker:
    """Return the maker of a pass's batches. Call it in the consumer's thread: for a GPU it creates a stream there.

    `fleet`: workers on other machines, greeted; None: there are none. `plan`: of buckets, of one of which each batch is.
    """
    index, fields, options = samples.index, samples.fields, settings.options
    stored_size = index.manifest.image_size
    size = recipe.output_size(stored_size) if fields.has_image else None
    making = options_of_making(options, choice, samples, num_remote=0 if fleet is None else fleet.num_seats)
    stream = None if device_images is None else device_images.stream
    delivery = Delivery.to(choice.device, making, settings.observer, stream=stream)
    collator = Collator(
        recipe=recipe,
        options=options,
        rank=settings.source.rank,
        fields=fields,
        memory_format=samples.settings.memory_format,
        boxes=samples.settings.boxes,
        delivery=delivery,
    )
    leaves_pixels = collator.finishes_pixels and (size is not None or plan is not None)
    geometry = recipe.geometry_alone()
    in_blocks = geometry if device_images is None else device_images.front  # the rest is the device's
    block_size = size if device_images is None else device_images.shape
    stage = None
    if choice.dali is not None:
        assert block_size is not None  # checked by `BackendRequest`
        stage = DaliStage(
            _graph_options(choice.dali, choice.device, in_blocks, stored_size, block_size, options),
            num_pipelines=choice.dali.num_pipelines,
        )
    worker_recipe = in_blocks if stage is not None or leaves_pixels else recipe

    begun = None
    if stage is None and can_be_processes(options, samples=samples, recipe=worker_recipe, files=files, kept=kept):
        begun = launcher(IMPORTS)

    decode = samples.settings.decode
    opened = itertools.count()

    def open_worker() -> Worker:
        if fleet is not None and next(opened) >= options.num_workers:  # threads beyond those that decode here
            return RemoteBlockWorker(worker_recipe, files, fleet, decode)
        if begun is not None:
            return ProcessBlockWorker(worker_recipe, files, begun, decode)
        buckets = None if plan is None else plan.buckets
        worker = BlockWorker(worker_recipe, files, decode=decode, kept=kept, buckets=buckets)
        return worker if stage is None else FetchWorker(worker, in_blocks, stage.graph)

    most = min(options.batch_size, len(index))
    row_shape: tuple[int, ...] | None = None if block_size is None else (*block_size, 3)
    if plan is not None:  # flat, so that a batch of any bucket fits
        most, row_pixels = plan.row_pixels(options.batch_size)
        row_shape = (row_pixels * 3,)
    lanes = None if stage is None else stage.lanes
    return SampleBatchMaker(
        settings=settings,
        resources=Resources(making, ObjectPool(open_worker), delivery.runtime, lanes=lanes),
        index=index,
        has_image=fields.has_image,
        looked_up=fields.looked_up(index),
        has_label=fields.has_label,
        further=FurtherFields(fields.further, index=index, files=files, geometry=geometry if fields.moved else None),
        recipe=in_blocks if leaves_pixels else recipe,
        files=files,
        memory=None if row_shape is None else delivery.memory(row_shape, room=most),
        dali=stage,
        collator=collator,
        repeats=Repeats.of(index),
        kept=kept,
        device_images=device_images,
        plan=plan,
    )


def can_be_processes(
    options: LoaderOptions, *, samples: BatchSamples, recipe: Recipe, files: Files, kept: KeptImages | None
) -> bool:
    """Return whether what decode threads do can be done by processes: with files that they open, and without the user's code."""
    return (
        wanted(options.num_workers)
        and samples.fields.has_image
        and recipe.output_size(samples.index.manifest.image_size) is not None
        and isinstance(files, LocalFiles)
        and kept is None
        and not recipe.rest
        and can_be_sent(recipe)
        and not any(part.manifest.has_row_groups for part in wholes(samples.index))  # which threads share once they are read
    )


def options_of_making(options: LoaderOptions, choice: Choice, samples: BatchSamples, *, num_remote: int = 0) -> LoaderOptions:
    """Return the user's options with those of `num_workers`, `prefetch_factor` and `min_block` with which batches are made.

    Each of `num_remote` requests that workers on other machines can take at once has a thread.

    One batch more than there are pipelines is ahead; for a store, as many samples as hide its latency. Where DALI does all of the
    decoding, few threads fetch for it.
    """
    least, num_workers = 0, options.num_workers
    if choice.dali is not None:
        least = choice.dali.num_pipelines + 1
        if choice.share_for_dali >= _ALL and not samples.fields.further:
            num_workers = min(num_workers, FETCHING)
    if samples.index.is_remote:
        least = max(least, -(-REMOTE_SAMPLES_AHEAD // options.batch_size))
    return dataclasses.replace(
        options,
        num_workers=num_workers,
        num_remote=num_remote,
        prefetch_factor=max(options.prefetch_factor, least),
        min_block=max(options.min_block, _LEAST_SENT) if num_remote else options.min_block,
    )


def _graph_options(
    dali: Dali, device: torch.device, recipe: Recipe, stored_size: Size | None, size: Size, options: LoaderOptions
) -> GraphOptions:
    on_gpu = device.type == "cuda"
    form = choose_cut_form(recipe, stored_size)
    return GraphOptions(
        height=size[0],
        width=size[1],
        max_batch_size=options.batch_size,
        device_id=device.index if on_gpu else None,
        form=form,
        decodes_regions=not on_gpu or region_problem(device.index, hw_decoder_load=dali.hw_decoder_load) is None,
        num_threads=dali.num_threads or max(1, options.num_workers),
        hw_decoder_load=dali.hw_decoder_load,
        hybrid_huffman_threshold=dali.hybrid_huffman_threshold,
    )
