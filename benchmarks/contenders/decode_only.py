"""What no loader on these threads can pass: JPEG decoding alone, from memory, nothing kept."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import simplejpeg

from benchmarks.contenders.crops import random_resized_crop
from benchmarks.task import Task

Decode = Callable[[bytes], object]
_Item = TypeVar("_Item")


def make(task: Task, *, decoder: str) -> Iterator[Sized]:
    """Lists as long as a batch; "whole" images by simplejpeg, or a crop's "region" by nvImageCodec."""
    files = sorted((Path(task.data) / "folder").glob("*/*"))
    random.Random(task.seed).shuffle(files)
    opener = _open_whole if decoder == "whole" else _open_region

    def open_own() -> Callable[[list[bytes]], object]:
        decode = opener(task.seed + threading.get_ident())
        return lambda part: [None for data in part if decode(data) is not None]

    return in_threads(task, [path.read_bytes() for path in files[: task.num_images]], open_own)


def in_threads(task: Task, items: Sequence[_Item], open_own: Callable[[], Callable[[list[_Item]], object]]) -> Iterator[Sized]:
    """Lists as long as a batch, of items that were worked on, over and over, two batches ahead.

    `open_own` returns the work of one thread: on a list of items, its share of a batch.
    """
    endless = itertools.cycle(items)
    share = math.ceil(task.batch_size / task.num_threads)
    own = threading.local()

    def start() -> None:
        own.work = open_own()

    def work_on(part: list[_Item]) -> list[_Item]:
        own.work(part)
        return part

    with ThreadPoolExecutor(task.num_threads, initializer=start) as pool:

        def submit() -> Future[list[_Item]]:
            return pool.submit(work_on, list(itertools.islice(endless, share)))

        ahead = [submit() for _ in range(2 * task.num_threads)]
        while True:
            batch = []
            for _ in range(task.num_threads):
                batch += ahead.pop(0).result()
                ahead.append(submit())
            yield batch


def _open_whole(seed: int) -> Decode:
    return lambda data: simplejpeg.decode_jpeg(data)


def _open_region(seed: int) -> Decode:
    from nvidia import nvimgcodec

    rng = random.Random(seed)
    decoder = nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)],
    )

    def decode(data: bytes) -> object:
        stream = nvimgcodec.CodeStream(data)
        top, left, height, width = random_resized_crop(rng, stream.height, stream.width)
        return decoder.decode(stream.get_sub_code_stream(0, nvimgcodec.Region(top, left, top + height, left + width)))

    return decode
