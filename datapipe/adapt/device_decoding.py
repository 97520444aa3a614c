"""Choose whether DALI makes deferred images; decode with it what workers sent encoded, in threads of the training process.

Batches are taken from the loader in the consumer's thread, some ahead. A thread decodes and cuts the images of a place at
once, in DALI's pipelines; what DALI does not decode, the CPU backend does from the same bytes. If those do not decode
either, the batch is made again as without DALI, by the user's code in the consumer's thread, which so sees the error.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn
from datapipe.core.observe import Observer
from datapipe.core.printable import get_logger
from datapipe.deferral import pillow_seams
from datapipe.deferral.encoded_rows import EncodedRows, PixelConversion
from datapipe.deferral.own_code import reads_batches
from datapipe.errors import DependencyError, OptionError
from datapipe.fetch.local import LocalFiles
from datapipe.kernel.device import Uploader
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.kind import BadRow
from datapipe.kernel.options import default_num_workers
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.pytree import map_nest
from datapipe.kinds.images.choice import Backend, Choice, asks_for_dali, problem_with_device
from datapipe.kinds.images.dali.gate import CutForm
from datapipe.kinds.images.dali.installation import installation, mismatch
from datapipe.kinds.images.dali.region_trial import region_problem
from datapipe.kinds.images.dali.settings import Dali, GraphOptions
from datapipe.kinds.images.dali_stage import DaliStage, Fetched, FetchWorker
from datapipe.kinds.images.images_cpu import BlockWorker
from datapipe.transforms import Recipe

HandOver = Callable[[], Any]  # returns a batch whose other tensors are on the device, for the current stream

_MOST_GRAPHS = 4  # kept at once: one per size of images, interpolation, and kind of cut

logger = get_logger(__name__)


# -- which backend -------------------------------------------------------------------------------------


def choose_decoder(loader: TorchDataLoader, backend: Backend, device: torch.device) -> Choice:
    """Return which backend makes the deferred images of a loader.

    Raises OptionError for a backend that does not exist or cannot serve it, DependencyError for DALI if it is not installed.
    """
    problem = problem_with_device(device) or _problem_for_dali(loader)
    if asks_for_dali(backend):
        installation()
        if problem is not None:
            raise OptionError(f"backend={backend!r}: {problem}; leave it out: torch's workers then make the images")
        return Choice(device, backend if isinstance(backend, Dali) else Dali(), "asked for")
    if backend == "images_cpu":
        return Choice(device, None, "asked for")
    if device.type == "cpu":
        return Choice(device, None, "on a CPU it is the faster one")
    if problem is None:
        try:
            installation()
            problem = mismatch()
        except DependencyError as exc:
            problem = f"the GPU would need DALI: {exc}"
    return Choice(device, Dali(), "the GPU decodes; not measured") if problem is None else Choice(device, None, problem)


def _problem_for_dali(loader: TorchDataLoader) -> str | None:
    if has_collate_fn(loader):
        return "a collate_fn takes samples whose tensors are made, and DALI makes those of a whole batch"
    if reads_batches(loader.dataset):
        return f"{type(loader.dataset).__qualname__} makes whole batches (__getitems__)"
    if not pillow_seams.is_available():
        return "this version of Pillow does not let its images be deferred"
    return None


# -- from the loader to the device ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodingByDali:
    """Opens what decodes the batches of a loader: the `open_mover` of a `PrefetchedLoader`, with which it is pickled.

    `device`: where the batches are to be; a GPU with its index. The loader has a `remaker`, as `TorchLoader`.
    """

    dali: Dali
    device: torch.device

    def __call__(self, inner: Any, runtime: DeviceRuntime | None, observer: Observer, max_free: int) -> DecodingMover:
        uploader = None if runtime is None else Uploader(runtime, observer=observer, max_free=max_free)
        return DecodingMover(RowsDecoder(self.dali, self.device, runtime), uploader, inner, runtime, observer)


class DecodingMover:
    """Moves batches to the device, and decodes the images in them on their way. For the consumer's thread."""

    def __init__(
        self, decoder: RowsDecoder, uploader: Uploader | None, inner: Any, runtime: DeviceRuntime | None, observer: Observer
    ) -> None:
        self._decoder, self._uploader, self._inner, self._runtime = decoder, uploader, inner, runtime
        self.observer = observer  # of uploads

    def upload(self, nest: Any, *, step: int = 0, num_samples: int = 0) -> DecodingTransfer:
        """Start to move and to decode a batch. Raises as `Uploader.upload`."""
        rows: list[EncodedRows] = []
        map_nest(nest, _same, lambda leaf: rows.append(leaf) if type(leaf) is EncodedRows else leaf)
        decoded = {id(one): self._decoder.submit(one) for one in rows}
        return DecodingTransfer(self._moved(nest, step, num_samples), decoded, rows, self._again(step), self._runtime)

    def _moved(self, nest: Any, step: int, num_samples: int) -> HandOver:
        if self._uploader is None:
            return lambda: nest
        self._uploader.observer = self.observer
        return self._uploader.upload(nest, step=step, num_samples=num_samples).hand_over

    def _again(self, step: int) -> Callable[[EncodedRows], HandOver]:
        remake = self._inner.remaker(step=step)
        return lambda rows: self._moved(remake(rows.request), step, len(rows))


class DecodingTransfer:
    """A batch whose images are being decoded."""

    def __init__(
        self,
        hand_over: HandOver,
        decoded: Mapping[int, Future[Decoded]],
        rows: list[EncodedRows],
        make_again: Callable[[EncodedRows], HandOver],
        runtime: DeviceRuntime | None,
    ) -> None:
        self._hand_over, self._decoded, self._rows = hand_over, decoded, rows
        self._make_again, self._runtime = make_again, runtime
        self._error: Exception | None = None

    def __del__(self) -> None:
        for future in self._decoded.values():
            future.cancel()

    def wait(self) -> None:
        """Wait, on the host, until everything is queued on the device, or decoded. May be interrupted, and called again."""
        concurrent.futures.wait(self._decoded.values())
        for rows in self._rows:
            error = self._decoded[id(rows)].exception()
            if isinstance(error, _UndecodableError):
                logger.warning("a batch is made again without DALI, in the training process: %s", error)
                try:
                    self._hand_over = self._make_again(rows)
                except Exception as exc:
                    self._error = exc
                self._rows, self._decoded = [], {}
                return

    def hand_over(self) -> Any:
        """Return the batch, as `DeviceTransfer` does. Raises what decoding raised, and the user's code if it ran again."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this object
        made = {key: future.result() for key, future in self._decoded.items()}
        nest = self._hand_over()
        if not made:
            return nest
        return map_nest(nest, _same, lambda leaf: self._tensor(made[id(leaf)]) if type(leaf) is EncodedRows else leaf)

    def _tensor(self, decoded: Decoded) -> torch.Tensor:
        if self._runtime is not None:
            stream = self._runtime.current_stream()
            self._runtime.wait_event(stream, decoded.event)
            self._runtime.record_stream(decoded.tensor, stream)
        return decoded.tensor


class Decoded(NamedTuple):
    """A tensor, and the event after which it is complete; None on the CPU."""

    tensor: torch.Tensor
    event: Any


class _UndecodableError(Exception):
    """No backend decodes an image."""


# -- in threads ----------------------------------------------------------------------------------------


class RowsDecoder:
    """Decodes encoded rows, a pipeline for each thread. Call it in one thread."""

    def __init__(self, dali: Dali, device: torch.device, runtime: DeviceRuntime | None) -> None:
        self._dali, self._device, self._runtime = dali, device, runtime
        self._stages: OrderedDict[tuple[int, int, CutForm], DaliStage] = OrderedDict()
        self._by_hand: ObjectPool[BlockWorker] = ObjectPool(lambda: BlockWorker(_NO_STEPS, LocalFiles()))
        self._streams: ObjectPool[Any] = ObjectPool(lambda: None if runtime is None else runtime.new_stream())
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0  # whose threads those are

    def submit(self, rows: EncodedRows) -> Future[Decoded]:
        """Return (n, 3, height, width), contiguous, in the making."""
        if self._threads is None or self._process != os.getpid():
            enter = None if self._runtime is None else self._runtime.enter_thread
            self._threads = ThreadPoolExecutor(self._dali.num_pipelines, "datapipe-dali", initializer=enter)
            self._process = os.getpid()
        return self._threads.submit(self._decode, self._stage_for(rows), rows)

    def _stage_for(self, rows: EncodedRows) -> DaliStage:
        (height, width), cuts = rows.size, rows.cuts
        is_windowed = bool((cuts.window[:, :2] != 0).any() or (cuts.window[:, 2:] != cuts.size).any())
        key = (height, width, CutForm(is_windowed, cuts.fill, cuts.interpolation))
        stage = self._stages.pop(key, None) or DaliStage(self._graph(*key, len(rows)), num_pipelines=self._dali.num_pipelines)
        self._stages[key] = stage
        if len(self._stages) > _MOST_GRAPHS:
            self._stages.popitem(last=False)
        return stage

    def _graph(self, height: int, width: int, form: CutForm, num_samples: int) -> GraphOptions:
        load, index = self._dali.hw_decoder_load, self._device.index if self._device.type == "cuda" else None
        return GraphOptions(
            height=height,
            width=width,
            max_batch_size=num_samples,
            device_id=index,
            form=form,
            decodes_regions=index is None or region_problem(index, hw_decoder_load=load) is None,
            num_threads=self._dali.num_threads or default_num_workers(),
            hw_decoder_load=load,
            hybrid_huffman_threshold=self._dali.hybrid_huffman_threshold,
        )

    def _decode(self, stage: DaliStage, rows: EncodedRows) -> Decoded:
        """Decode in one of the threads. Raises `_UndecodableError`, and BackendError if DALI keeps failing."""
        pipeline, by_hand, stream = stage.lanes.pool.borrow(), self._by_hand.borrow(), self._streams.borrow()
        try:
            batch = Fetched(len(rows), *rows.size)
            batch.give(0, rows.samples(), rows.cuts)
            worker = FetchWorker(by_hand, _NO_STEPS, stage.graph)
            pixels, keep = stage.run(batch, pipeline, worker, stream=stream, settle=_refuse)
            rows.release()  # `keep` has what a GPU still reads
            if self._runtime is None:
                return Decoded(_finished(pixels, batch, rows.conversion, self._device), None)
            try:
                with self._runtime.under(stream):
                    tensor = _finished(pixels, batch, rows.conversion, self._runtime.device)
            finally:  # also after an error, since DALI's work may be in progress
                event = self._runtime.record_event(stream)
                self._runtime.pending.add(event, [pixels, keep])
            return Decoded(tensor, event)
        finally:
            stage.lanes.pool.give_back(pipeline)
            self._by_hand.give_back(by_hand)
            self._streams.give_back(stream)


_NO_STEPS = Recipe.of([])


def _refuse(bad: BadRow) -> None:
    raise _UndecodableError(f"image {bad.row}: {bad.reason}")


def _finished(pixels: torch.Tensor | None, batch: Fetched, conversion: PixelConversion, device: torch.device) -> torch.Tensor:
    """Return (n, 3, height, width), contiguous, of DALI's (n, height, width, 3) uint8 pixels and the rows made by hand."""
    made = {row: torch.from_numpy(image) for row, image in batch.by_hand.items()}
    if pixels is None:
        pixels = torch.stack([made[row] for row in sorted(made)]).to(device, non_blocking=True)
    else:
        for row, image in made.items():
            pixels[row].copy_(image, non_blocking=True)
    planes = pixels.permute(0, 3, 1, 2)
    if conversion.factor is None:
        return planes.clone(memory_format=torch.contiguous_format)
    factor, shift = (
        torch.from_numpy(np.array(values, np.float32))[:, None, None].to(device, non_blocking=True)
        for values in (conversion.factor, conversion.shift)
    )
    out = torch.empty(planes.shape, dtype=torch.float32, device=device)
    return torch.addcmul(shift, planes, factor, out=out)


def _same(leaf: Any) -> Any:
    return leaf
