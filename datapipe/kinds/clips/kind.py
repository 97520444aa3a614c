"""Clips of videos as a kind of data: their order, and who makes their batches."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from datapipe.core.environment import memory_nbytes
from datapipe.errors import OptionError
from datapipe.fetch.files import Files, open_object_files
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.clips import AnyClips, Ints
from datapipe.kernel.calibration import arguments_to_measure, rates_of
from datapipe.kernel.cuda_runtime import cuda_runtime
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.explanation import TRANSFER, device_line, steps_line, threads_text
from datapipe.kernel.kind import Identity, Kind, Pass, PassFacts, Resources
from datapipe.kernel.mixing import Mixture
from datapipe.kernel.options import LoaderOptions, Shuffle, refuse_not_served, refuse_unknown_names
from datapipe.kernel.own_process import can_be_sent
from datapipe.kernel.pools import BatchMemory, ObjectPool, SlabPool
from datapipe.kernel.processes import await_launcher, launcher, wanted
from datapipe.kinds.clips.batches import ClipMaker, fields_of, visit_order
from datapipe.kinds.clips.choice import CLIP_BACKENDS, MEASURED, PACKAGES, ClipBackend, ClipChoice, choose_clip_backend
from datapipe.kinds.clips.decoding import ClipDecoder, takes_depth
from datapipe.kinds.clips.nvdec.decoder import EngineDecoder
from datapipe.kinds.clips.nvdec.trust import Trust
from datapipe.kinds.clips.process_workers import IMPORTS, ClipWork, ProcessClipDecoder
from datapipe.kinds.clips.remote_clips import RemoteClipDecoder, looked_at, refuse_unserved
from datapipe.kinds.clips.settings import LANES_NBYTES, MOST_ENGINE_THREADS, ClipSettings
from datapipe.kinds.clips.table_images import TableImages
from datapipe.kinds.clips.visits import ClipVisits
from datapipe.order.plan import Plan
from datapipe.order.sampling import own_seed
from datapipe.order.visits import Runs, VisitOrder
from datapipe.remote_workers.elsewhere import Elsewhere
from datapipe.remote_workers.settings import workers_or_none
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import described

_IMAGES_NBYTES = 512 << 20  # of encoded images that are kept, as they are read by row groups
_ANY_SIZE = (480, 640)  # of frames that differ
_MORE_FREE = 2  # visits whose memory is kept to be used again, besides one for each thread
# Arguments of a loader that clips do not serve, and what to do instead.
_NOT_SERVED = {
    "sampler": "leave it out: clips are decoded by visits, which shuffle=True shuffles",
    "batch_sampler": "leave it out: clips are decoded by visits, which shuffle=True shuffles",
    "collate_fn": "leave it out: batches are put together already; batch_transform gets each batch",
}


class ClipKind(Kind):
    """The clips of videos under a recipe. See `Kind`.

    `mixture`: how often those of each dataset come, if several are joined. `open_loader`: makes a loader from arguments, to
    measure backends.
    """

    block_sizes = (1, 1)

    def __init__(
        self,
        index: AnyClips,
        settings: ClipSettings,
        recipe: Recipe,
        *,
        mixture: Mixture | None,
        device: Callable[[], torch.device],
        open_loader: Callable[..., Iterable[Any]],
    ) -> None:
        self.index, self.settings, self.recipe, self.mixture = index, settings, recipe, mixture
        self.fingerprint = index.fingerprint
        self.num_samples = len(index) if index.choices is None else sum(len(one) - 1 for one in index.choices)
        self.num_in_epoch = self.num_samples if mixture is None else sum(mixture.counts)
        self.identity = Identity("clips", index.name, "frames, stride, step, fps, short or delta_timestamps")
        self.device, self._open_loader = device, open_loader
        self.trust = Trust()  # in the GPU's engines
        self._workers: ObjectPool[ClipDecoder] | None = None
        self.elsewhere = Elsewhere(functools.partial(looked_at, index))
        self._row_groups = RowGroups(max_nbytes=_IMAGES_NBYTES)  # of images in tables
        if recipe.rest:
            raise OptionError(
                f"{described(recipe.rest[-1])} is called per image ({recipe.rest_reason}); pass transforms of datapipe, or those "
                "of torchvision that it knows, and the others as batch_transform"
            )
        if recipe.batch:
            raise OptionError(f"{recipe.batch[0][1]!r} mixes images; mix clips in a batch_transform")
        for camera in index.cameras:
            if camera.depth is not None and not takes_depth(recipe, camera.size or _ANY_SIZE):
                raise OptionError(f"{camera.name} is depth, which takes a crop or a resize, and flips; leave others out")
        self.sizes = [recipe.check_equal_sizes(one.size, such_as="the videos differ in size") for one in index.cameras]

    def configure(self, arguments: Mapping[str, Any], options: LoaderOptions) -> None:
        refuse_not_served(arguments, _NOT_SERVED, "clips")
        backend = arguments["backend"]
        if not isinstance(backend, str) or backend not in CLIP_BACKENDS:
            raise OptionError(f"backend is {backend!r:.40}; choose one of {', '.join(CLIP_BACKENDS)}")
        refuse_unknown_names(options.rename, fields_of(self.settings, self.index))
        batch_nbytes, memory = self.clip_nbytes * options.batch_size, memory_nbytes()
        if batch_nbytes > memory:
            raise OptionError(
                f"a batch of {options.batch_size:,} clips takes {batch_nbytes / 1e9:,.0f} GB, and this machine has "
                f"{memory / 1e9:,.0f}; pass fewer frames, a smaller batch_size, or a transform that makes frames smaller"
            )
        workers = workers_or_none(arguments.get("workers"))
        if workers is not None:
            refuse_unserved(self.index, self.recipe)
        self.elsewhere.use(workers)
        self.backend: ClipBackend = backend
        self._arguments, self._options = arguments, options
        self._choice: ClipChoice | None = None
        self._workers = None

    @functools.cached_property
    def files(self) -> Files:
        """The files or objects in which the videos lie, open for reading."""
        return open_object_files(self.index.videos.urls(), remote=self.settings.remote)

    @property
    def clip_nbytes(self) -> int:
        """The bytes of a decoded clip."""
        sizes = zip(self.index.cameras, self.sizes, strict=True)
        return sum(one.num_frames * math.prod(size) * one.pixel_nbytes for one, size in sizes)

    @functools.cached_property
    def _run_starts(self) -> list[Ints]:
        """Where runs of clips begin, of each dataset: an order is made for each pass, and for the length of a loader."""
        if self.index.choices is not None:
            return [np.arange(len(one), dtype=np.int64) for one in self.index.choices]
        return self.index.run_starts(self.settings.per_visit)

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> VisitOrder:
        starts, choices, each = self._run_starts, self.index.choices, self.settings.per_visit
        offsets = itertools.accumulate((int(one[-1]) for one in choices or starts), initial=0)
        datasets = [
            Runs(one, own_seed(seed, place), each, bool(shuffle), offset, None if choices is None else choices[place])
            for place, (one, offset) in enumerate(zip(starts, offsets, strict=False))
        ]
        has_lanes = shuffle and each > 1
        num_lanes = self.settings.num_lanes(self.num_in_epoch, global_batch, self.clip_nbytes) if has_lanes else 1
        return VisitOrder(datasets, num_lanes, None if self.mixture is None else self.mixture.counts)

    def open_pass(self, settings: Pass) -> ClipMaker:
        files, source, options = self.files, settings.source, self.elsewhere.making(settings.options)
        assert isinstance(source, Plan)
        order = visit_order(source)
        delivery = Delivery.to(self.device(), settings.options, settings.observer)
        shapes = [(one.num_frames, *size, one.channels) for one, size in zip(self.index.cameras, self.sizes, strict=True)]
        of_visits = functools.partial(SlabPool, max_free=options.num_threads + _MORE_FREE)
        shares = not self.recipe.geometry  # nothing is drawn that would cut a frame differently for each clip
        room = 1 if shares else max(1, order.largest_visit)
        memory = [BatchMemory(shape[1:] if shares else shape, room=room, open_pool=of_visits) for shape in shapes]
        visits = ClipVisits(order, settings, memory, files, self.index, shares_frames=shares)
        if self._workers is None:  # for all passes: what decodes is costly to open
            self._workers = self._open_workers(files)
        resources = Resources(options, self._workers, delivery.runtime, shared=visits)
        return ClipMaker(
            self.index,
            self.settings,
            self.recipe,
            settings,
            source,
            order,
            visits,
            [delivery.memory(shape, room=settings.options.batch_size) for shape in shapes],
            delivery,
            resources,
            steps_ahead=max(1, order.num_lanes // source.global_batch),
        )

    def _open_workers(self, files: Files) -> ObjectPool[ClipDecoder]:
        """Return the decoders of threads. Call it in the consumer's thread."""
        index, row_groups, resize, trust = self.index, self._row_groups, self.settings.resize, self.trust
        cameras, videos, geometry = index.cameras, index.videos, self.recipe.geometry_alone()
        fleet, num_here = self.elsewhere.fleet, self._options.num_workers
        engines = cuda_runtime(self.device()) if self.choice.uses_nvdec else None
        begun = launcher(IMPORTS) if self.can_be_processes else None
        numbers = itertools.count()  # of decoders

        def make() -> ClipDecoder:
            number = next(numbers)
            images = TableImages(index, row_groups)
            if fleet is not None and number >= num_here:  # threads beyond those that decode here
                return RemoteClipDecoder(cameras, videos, geometry, files, resize, fleet, images=images)
            decoder = EngineDecoder(engines, trust) if engines and number < MOST_ENGINE_THREADS else None
            if begun is not None and decoder is None:
                return ProcessClipDecoder(ClipWork(cameras, videos, geometry, resize), files, begun)
            return ClipDecoder(cameras, videos, geometry, files, resize, images=images, decoder=decoder)

        return ObjectPool(make)

    @functools.cached_property
    def _can_be_sent(self) -> bool:
        """Whether a process can have what decoding needs: nothing in the recipe is the user's, and no image lies in a table.

        Those lie in row groups, which threads share once they are read.
        """
        are_videos = not any(camera.is_of_images for camera in self.index.cameras)
        return are_videos and not self.index.videos.urls() and can_be_sent(self.recipe.geometry_alone())

    @property
    def can_be_processes(self) -> bool:
        """Whether what decode threads do can be done by processes, with files that they open."""
        return wanted(self._options.num_workers) and self._can_be_sent

    @property
    def choice(self) -> ClipChoice:
        """The backend that serves passes, and why. The first access may measure."""
        if self._choice is None:
            self._choice = choose_clip_backend(self.backend, self.device(), resize=self.settings.resize, rates=self._rates)
        return self._choice

    def _rates(self) -> list[float]:
        """Measure the backends on these clips, alone on this rank."""
        options = self._options
        arguments = arguments_to_measure(self._arguments, device=self.device(), num_samples=self.num_in_epoch)

        def opened(backend: ClipBackend) -> Iterable[Any]:
            if self.can_be_processes:
                await_launcher(IMPORTS, options.num_workers)
            return self._open_loader(**{**arguments, "backend": backend})

        return rates_of(
            MEASURED,
            opened,
            device=self.device(),
            packages=PACKAGES,
            circumstances={
                "clips": self.fingerprint,
                "batch_size": options.batch_size,
                "shuffle": bool(options.shuffle),
                "per_visit": self.settings.per_visit,
                "sizes": [list(size) for size in self.sizes],
                "num_workers": options.num_workers,
                "processes": self.can_be_processes,
            },
        )

    def explain(self, facts: PassFacts) -> list[str]:
        index, settings, plan = self.index, self.settings, facts.settings.source
        options = self.elsewhere.making(facts.settings.options)
        assert isinstance(plan, Plan)
        order, each = visit_order(plan), settings.per_visit
        lines = index.explain()
        if not order.is_shuffled:
            lines.append("order     in stored order")
        elif each == 1:
            lines.append("order     shuffled in full, each clip decoded by itself")
        else:
            lines.append(f"order     shuffled: visits of {each} clips that share their decoding, in {order.num_lanes} lanes")
        lines.append(self._shown_memory(plan, options))
        if self.mixture is not None:
            lines.append(f"mix       {self.mixture.described()}")
        lines += [
            f"seed      {facts.seed}",
            f"batch     {', '.join(fields_of(settings, index))}; layout {settings.layout}",
            device_line(self.device()),
            f"backend   {self._shown_backend(options)}; a frame is decoded once for all clips of a visit",
            *(f"transform {line}" for line in self.recipe.explain_own()),
        ]
        lines += self.elsewhere.explain("visit")
        if self.device().type != "cpu":
            lines.append(TRANSFER)
        return [*lines, steps_line(plan, "clip")]

    def _shown_backend(self, options: LoaderOptions) -> str:
        """Return what decodes."""
        threads = threads_text(options) + ", each with a process" * self.can_be_processes
        on_cpu = f"clips_cpu: PyAV on {threads}, one codec context each"
        if self.backend == "clips_cpu" or self.device().type == "cpu":
            return on_cpu
        choice = self.choice
        if not choice.uses_nvdec:
            return f"{on_cpu} ({choice.reason})"
        return (
            f"clips_nvdec ({choice.reason}): the GPU's video engines for up to {MOST_ENGINE_THREADS} of {threads}, "
            "PyAV for the others, and for what engines do not decode alike"
        )

    def _shown_memory(self, plan: Plan, options: LoaderOptions) -> str:
        """Return the line about the memory of decoded clips."""
        held, most = self.most_held_nbytes(plan, options), visit_order(plan).largest_visit
        line = (
            f"memory    {self.clip_nbytes / 1e6:,.2f} MB a clip; at most {held / 1e6:,.0f} MB of decoded clips on each of"
            f" {plan.rank.world_size} ranks, besides batches"
        )
        if held > LANES_NBYTES and most > 1:
            line += "; a smaller per_visit, or smaller frames, take less"
        return line

    def most_held_nbytes(self, plan: Plan, options: LoaderOptions) -> int:
        """Return the most bytes of decoded clips that a rank holds besides batches.

        Of each lane a visit is open, or at least those of the next batch, and one more for each thread; the batches in the making
        may still hold one for each row, the memory of a few is kept to be used again, and each process has memory of its own.
        """
        order = visit_order(plan)
        ahead = max(order.num_lanes // plan.rank.world_size, plan.batch_size) + options.num_threads
        in_making = (1 + options.depth) * plan.batch_size
        in_processes = options.num_workers * self.can_be_processes
        visits = ahead + in_making + options.num_threads + _MORE_FREE + in_processes
        return visits * max(1, order.largest_visit) * self.clip_nbytes
