"""Note what a torch loader reads, and its transforms, for a later trial, without reading any data: files, or shards."""

from __future__ import annotations

import copy
import io
import os
import pickle
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datapipe.adapt.loaders import has_collate_fn, unwrap_torch_loader
from datapipe.core.environment import is_of_datapipe
from datapipe.errors import OptionError
from datapipe.instruments.trials.forking import batch_size_of

if TYPE_CHECKING:
    from datapipe.datasets import DatasetFiles

MAX_SAMPLES = 1000
_ENOUGH = 100_000_000  # bytes of shards
_BY_HAND = "to try shards by hand: datapipe convert FOLDER DST --to webdataset, then datapipe.DataLoader('DST', ...)"
_CONTAINERS = ("torch.utils.data.dataset.Subset", "torch.utils.data.dataset.ConcatDataset")
_HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset")


@dataclass(frozen=True, slots=True)
class SampledFiles:
    """Some files of a folder of images, drawn at random."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]  # -1 if there are none
    num_samples: int  # of the whole dataset


@dataclass(frozen=True, slots=True)
class Shards:
    """Some shards of a stream, drawn at random."""

    paths: tuple[str, ...]  # absolute
    fields: tuple[str, ...]  # of the stream's samples, in datapipe's names
    part: float  # share of the stream's bytes
    directory: str  # the one that holds the stream's shards and no others; "" if there is none


@dataclass(frozen=True, slots=True)
class Sample:
    """Some of the data, and a loader's recipe. Pickles without any of the user's code."""

    data: SampledFiles | Shards
    recipe: Any  # transforms.Recipe
    batch_size: int
    num_workers: int
    where: str  # the dataset's root, if it has one
    num_sources: int = 1  # folders, or sets of shards, that the dataset consists of


def pickled_sample(loader: Any) -> bytes | str:
    """Return a pickled `Sample`, or the reason why datapipe's loader cannot be tried on this one's data."""
    found = sample_of(loader)
    return found if isinstance(found, str) else pickle.dumps(found)


def sample_of(loader: Any) -> Sample | str:
    """Return the sample or the reason, unpickled. Takes some tenths of a second for a dataset of a million files."""
    dataset = getattr(loader, "dataset", None)
    if is_of_datapipe(loader):
        return "the loader is already datapipe's"
    if dataset is None:
        return "it has no dataset"
    is_stream = type(dataset).__module__.startswith("webdataset.")
    if not is_stream and (reason := why_no_files(dataset)):
        return reason
    try:
        loader = unwrap_torch_loader(loader)
    except OptionError as exc:
        return str(exc).removeprefix("from_torch: ")
    if has_collate_fn(loader):
        collate = loader.collate_fn
        return f"its collate_fn is custom Python code ({getattr(collate, '__qualname__', type(collate).__qualname__)})"
    return _of_stream(loader, dataset) if is_stream else _of_folders(loader, dataset)


def _of_folders(loader: Any, dataset: Any) -> Sample | str:
    from datapipe.datasets import DatasetFiles, see_through
    from datapipe.transforms import Recipe

    seen = see_through(dataset)
    if not isinstance(seen, DatasetFiles):
        return f"datapipe cannot read its dataset: {seen}"
    recipe = Recipe.of(seen.transform, input_kind="pil")
    if recipe.rest:
        return f"its transforms: {recipe.rest_reason}"
    batch_size = batch_size_of(loader)
    if not batch_size or not len(seen.index):
        return "its batch size is unknown"
    num = min(MAX_SAMPLES, len(seen.index))
    chosen = np.sort(np.random.default_rng(0).choice(len(seen.index), num, replace=False))  # not the script's random state
    entries = seen.index.look_up(seen.index.ids(chosen), "image")
    files = SampledFiles(tuple(map(os.path.abspath, entries.extents.paths)), tuple(entries.labels.tolist()), len(seen.index))
    parts = _parts(dataset)
    where = str(getattr(parts[0], "root", ""))
    return Sample(files, recipe, batch_size, loader.num_workers, where=where, num_sources=len(parts))


def _of_stream(loader: Any, pipeline: Any) -> Sample | str:
    from datapipe.transforms import Recipe

    found = _shards_of(pipeline)
    if isinstance(found, str):
        return found
    shards, stream = found
    recipe = Recipe.of(stream.transform, input_kind="pil")
    if recipe.rest:
        return f"its transforms: {recipe.rest_reason}"
    if (loader.batch_size is None) == (stream.batch_size is None):
        return "its batches are made neither by the loader nor by the pipeline, or by both"
    batch_size = loader.batch_size or stream.batch_size or 1
    return Sample(shards, recipe, batch_size, loader.num_workers, where=shards.directory)


def _shards_of(pipeline: Any) -> tuple[Shards, DatasetFiles] | str:
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
    return _some(urls, stream.fields or ()), stream


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


def why_no_files(dataset: Any) -> str | None:
    """Return why the files are unknown. It compares names only, so that nothing is imported for an unrelated dataset."""
    for part in _parts(dataset):
        kind = type(part)
        if is_of_datapipe(part):
            return f"datapipe.from_torch has taken its Dataset over already; {_BY_HAND}"
        if kind.__module__ in _HUGGING_FACE:
            made_by = "the script's own Python code (set_transform, or the collate_fn)"
            return f"the images of its Hugging Face dataset are processed by {made_by}"
        if not any(base.__module__.partition(".")[0] == "torchvision" for base in kind.__mro__):
            return f"datapipe sees no files in {kind.__qualname__}; {_BY_HAND}"
    return None


def _parts(dataset: Any, depth: int = 0) -> list[Any]:
    """Return the datasets inside torch's `Subset` and `ConcatDataset`."""
    kind = type(dataset)
    if f"{kind.__module__}.{kind.__qualname__}" not in _CONTAINERS or depth == 8:
        return [dataset]
    within = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    return [part for one in within for part in _parts(one, depth + 1)]
