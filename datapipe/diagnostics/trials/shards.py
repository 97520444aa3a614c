"""Find the shards that a webdataset pipeline reads, for a later trial, without reading any."""

from __future__ import annotations

import copy
import io
import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datapipe.datasets import SeenStream

_ENOUGH = 100_000_000  # bytes of shards


@dataclass(frozen=True, slots=True)
class Shards:
    """Some shards of a stream, drawn at random."""

    paths: tuple[str, ...]  # absolute
    fields: tuple[str, ...]  # of the stream's samples, in datapipe's names
    part: float  # share of the stream's bytes
    directory: str  # the one that holds the stream's shards and no others; "" if there is none


def shards_of(pipeline: Any) -> tuple[Shards, SeenStream] | str:
    """Return some of a pipeline's shards and its processing of samples, or the reason why these are unknown.

    None of the pipeline's own functions is called, and no shard is opened: a shard of one sample is used instead.
    """
    from datapipe.datasets import webdataset_stream

    stages = list(getattr(pipeline, "pipeline", ()))
    place = next((number for number, stage in enumerate(stages) if type(stage).__name__ == "SimpleShardList"), None)
    if place is None:
        return "its webdataset pipeline is not over a list of shards"
    urls = [os.fspath(url).removeprefix("file:") for url in stages[place].urls]
    far = next((url for url in urls if ":" in url or not os.path.isfile(url)), None)
    if far is not None:
        return f"its webdataset pipeline reads {far}, which is not a local file"
    if len({os.path.dirname(os.path.abspath(url)) for url in urls}) != 1:
        return "its webdataset pipeline reads shards of several directories"
    with tempfile.TemporaryDirectory() as scratch:
        stages[place] = copy.copy(stages[place])
        stages[place].urls = [_stand_in(Path(scratch))]
        alike = copy.copy(pipeline)
        alike.pipeline = stages
        stream = webdataset_stream(alike)
    if stream is None or isinstance(stream, str):
        return f"datapipe cannot read its dataset: {stream}"
    return _some(urls, stream.fields), stream


def _some(urls: list[str], fields: tuple[str, ...]) -> Shards:
    sizes = [os.path.getsize(url) for url in urls]
    order = np.random.default_rng(0).permutation(len(urls))  # not the script's random state
    num = 1 + int(np.searchsorted(np.cumsum([sizes[number] for number in order[:-1]]), _ENOUGH))
    chosen = sorted(order[:num].tolist())
    part = sum(sizes[number] for number in chosen) / max(1, sum(sizes))
    directory = os.path.dirname(os.path.abspath(urls[0]))
    held = {name for name in os.listdir(directory) if name.endswith(".tar")}
    is_whole = held == {os.path.basename(url) for url in urls}
    paths = tuple(os.path.abspath(urls[number]) for number in chosen)
    return Shards(paths, fields, part, directory if is_whole else "")


def _stand_in(directory: Path) -> str:
    from PIL import Image

    image = io.BytesIO()
    Image.new("RGB", (1, 1)).save(image, "JPEG")
    path = directory / "one.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("0.jpg", image.getvalue()), ("0.cls", b"0")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)
