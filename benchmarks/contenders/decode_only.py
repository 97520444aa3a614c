"""What no loader on these threads can pass: JPEG decoding alone, from memory, nothing kept."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import simplejpeg

from benchmarks.task import Task

Decode = Callable[[bytes], object]


def make(task: Task, *, decoder: str) -> Iterator[Sized]:
    """Lists as long as a batch; "whole" images by simplejpeg, or a crop's "region" by nvImageCodec."""
    files = sorted((Path(task.data) / "folder").glob("*/*"))
    random.Random(task.seed).shuffle(files)
    contents = itertools.cycle([path.read_bytes() for path in files[: task.num_images]])
    opener = _open_whole if decoder == "whole" else _open_region
    share = math.ceil(task.batch_size / task.num_threads)
    own = threading.local()  # a decoder serves one thread

    def open_own() -> None:
        own.decode = opener(task.seed + threading.get_ident())

    def decode_share(part: list[bytes]) -> list[None]:
        return [None for data in part if own.decode(data) is not None]

    with ThreadPoolExecutor(task.num_threads, initializer=open_own) as pool:

        def submit() -> Future[list[None]]:
            return pool.submit(decode_share, list(itertools.islice(contents, share)))

        ahead = [submit() for _ in range(2 * task.num_threads)]  # two batches in the making
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
        top, left, height, width = _random_resized_crop(rng, stream.height, stream.width)
        return decoder.decode(stream.get_sub_code_stream(0, nvimgcodec.Region(top, left, top + height, left + width)))

    return decode


def _random_resized_crop(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """A box of 8 to 100% of the area and 3:4 to 4:3, or the whole image after ten misses."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    return 0, 0, height, width
