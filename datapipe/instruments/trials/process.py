"""Try remedies on a sample of a script's data: a process of its own, started by `datapipe diagnose` after the script.

`python -m datapipe.instruments.trials.process SAMPLE RESULT SECONDS EVICT`: writes the result of each trial as JSON, as soon as
it is known, so that a killed process leaves its results so far.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters import ConvertOptions, Limit, OnError, Resize, convert
from datapipe.codecs.probe import probe
from datapipe.containers.foreign import ForeignShards, open_foreign
from datapipe.core.atomic import write_json
from datapipe.core.regular_files import open_descriptor, open_file
from datapipe.errors import DatapipeError, OptionError
from datapipe.index.concat import AnyIndex, select
from datapipe.index.entries import WHOLE_FILE, Entries
from datapipe.index.file_list import FileListIndex
from datapipe.instruments.trials.forking import spread_of
from datapipe.instruments.trials.results import CACHED, CONVERTED, OURS, RESIZED
from datapipe.instruments.trials.sample import MAX_SAMPLES, Sample, SampledFiles, Shards
from datapipe.kinds.images.data import Images
from datapipe.kinds.loader import DataLoader

_SHARE = 0.1  # share of the time, for the passes of one trial
_MIN_PASSES, _MAX_PASSES = 3, 20
_LARGER = 1.25  # resizing pays if an image's shorter side is this many times as long


def main(argv: list[str]) -> int:
    """Try each remedy and write the results. Returns 0."""
    sample_path, result_path, seconds, evicts = Path(argv[0]), Path(argv[1]), float(argv[2]), argv[3] == "1"
    sample: Sample = pickle.loads(sample_path.read_bytes())
    facts = {"where": sample.where, "batch_size": sample.batch_size, "reads_shards": isinstance(sample.data, Shards)}
    found: dict[str, Any] = {"rates": {}, "reasons": {}, "resized_to": None, **facts}
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=result_path.parent.absolute()) as scratch:
        found["resized_to"] = side = resized_side(sample, Path(scratch))
        write_json(result_path, found)
        for name, attempt in trials(sample, Path(scratch), side=side, seconds=_SHARE * seconds, evicts=evicts).items():
            if time.monotonic() > until_s:
                found["reasons"][name] = "there was no time left to try it"
            else:
                try:
                    found["rates"][name] = dataclasses.asdict(attempt())
                except (DatapipeError, OSError) as exc:
                    found["reasons"][name] = str(exc)
            write_json(result_path, found)
    return 0


def trials(sample: Sample, scratch: Path, *, side: int | None, seconds: float, evicts: bool) -> dict[str, Callable[[], Rate]]:
    """Return the trials by remedy, in the order in which they run. One raises OptionError if it cannot be tried on this data.

    `side`: what `resized_side` returned.
    """
    data = sample.data
    paths = data.paths if evicts else ()

    def ours() -> Rate:
        return rate_of(own_loader(sample, index_of(sample, scratch)), seconds=seconds, evicts=paths)

    def cached() -> Rate:
        loader = own_loader(sample, index_of(sample, scratch), cache="ram")
        rate = rate_of(loader, seconds=seconds)
        stats = loader.cache_stats
        assert stats is not None
        needed = stats.nbytes / max(1, stats.num_kept) * num_samples_of(sample, scratch)
        if needed > stats.capacity:
            raise OptionError(
                f"the decoded images take {needed / 1e9:,.1f} GB, and {stats.capacity / 1e9:,.1f} GB of memory are available"
            )
        return rate

    def converted(resize: int | None = None) -> Rate:
        if resize is None and isinstance(data, Shards):
            raise OptionError("it lies in WebDataset shards already")
        if sample.num_sources > 1:
            raise OptionError(f"it consists of {sample.num_sources} folders, and a conversion can replace only one of them")
        shards = convert_sample(sample, scratch, "kept" if resize is None else "resized", resize)
        files = [str(path) for path in shards.iterdir()] if evicts else ()
        return rate_of(own_loader(sample, str(shards)), seconds=seconds, evicts=files)

    def resized() -> Rate:
        if side is None:
            raise OptionError("the images are no larger than the crops need, or nothing crops them")
        return converted(side)

    return {OURS: ours, CONVERTED: converted, CACHED: cached, RESIZED: resized}


def convert_sample(sample: Sample, scratch: Path, name: str, resize: int | None) -> Path:
    """Convert the sample to WebDataset shards as `datapipe convert` would. Returns their directory."""
    paths, labels = files_of(sample, scratch)
    manifest = scratch / f"{name}.csv"
    with manifest.open("w", newline="", errors="surrogateescape") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label"])
        rows.writerows(zip(paths, labels, strict=True))
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    convert(
        ConvertOptions(
            manifest,
            scratch / name,
            form="manifest",
            root=Path(root),
            resize=None if resize is None else Resize("shorter", resize),
            on_error=OnError.SKIP,
            max_errors=Limit.parse("50%"),
        ),
        lambda advance: None,
    )
    return scratch / name


def files_of(sample: Sample, scratch: Path) -> tuple[Sequence[str], Sequence[int]]:
    """Return the sample's images as files, with their labels; images in shards are copied out."""
    if isinstance(sample.data, SampledFiles):
        return sample.data.paths, sample.data.labels
    directory, entries = scratch / "members", _entries(sample, scratch)
    directory.mkdir()
    paths = [str(directory / f"{number:06}.jpg") for number in range(len(entries.labels))]
    for path, place in zip(paths, _places(entries), strict=True):
        Path(path).write_bytes(_read(*place))
    return paths, entries.labels.tolist()


def num_samples_of(sample: Sample, scratch: Path) -> int:
    """Return the samples of the whole dataset; for shards, estimated from their sizes."""
    if isinstance(sample.data, SampledFiles):
        return sample.data.num_samples
    return round(index_of(sample, scratch).manifest.num_samples / max(sample.data.part, 1e-9))


def _entries(sample: Sample, scratch: Path, *, every: int = 1) -> Entries:
    index = index_of(sample, scratch)
    return index.look_up(index.ids(np.arange(0, len(index), every, dtype=np.int64)), "image")


def _places(entries: Entries) -> Iterable[tuple[str, int, int]]:
    """Yield (file, offset, bytes) of each sample."""
    extents = entries.extents
    return zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)


def _read(path: str, offset: int, nbytes: int) -> bytes:
    with open_file(path) as file:
        file.seek(offset)
        return file.read(-1 if nbytes == WHOLE_FILE else nbytes)


def resized_side(sample: Sample, scratch: Path) -> int | None:
    """Return the shorter side, in pixels, to which images could be resized, like 256 for crops of 224; None: none."""
    size = next((getattr(op, "size", None) for _, op in sample.recipe.geometry if type(op).__name__ == "RandomResizedCrop"), None)
    if size is None:
        return None
    side = math.ceil(max(size) * 8 / 7)
    shorter = []
    for place in _places(_entries(sample, scratch, every=max(1, len(index_of(sample, scratch)) // 20))):
        with contextlib.suppress(DatapipeError, OSError):
            header = probe(_read(*place))
            shorter.append(min(header.height, header.width))
    return side if shorter and sorted(shorter)[len(shorter) // 2] >= _LARGER * side else None


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of passes over a sample without a consumer."""

    sample_s: float  # seconds per sample, median over passes
    spread: float  # relative standard error
    num_threads: int
    num_samples: int


def rate_of(loader: DataLoader, *, seconds: float, evicts: Sequence[str] = ()) -> Rate:
    """Time passes for about `seconds`, at least three, after one that does not count.

    `evicts`: files to drop from the page cache before each pass, as far as the kernel does so.
    """
    num_samples, times = 0, list[float]()
    until_s = time.perf_counter() + seconds
    while len(times) < 1 + _MIN_PASSES or (time.perf_counter() < until_s and len(times) < _MAX_PASSES):
        drop_from_page_cache(evicts)
        started_s = time.perf_counter()
        num_samples = _exhaust(loader)
        times.append(time.perf_counter() - started_s)
    if not num_samples:
        raise OptionError("none of the samples can be read")
    return Rate(statistics.median(times[1:]) / num_samples, spread_of(times[1:]), loader.num_workers, num_samples)


def index_of(sample: Sample, scratch: Path) -> AnyIndex:
    """Return an index of the sample as it is. For shards an index is made, once, in `scratch`."""
    data = sample.data
    if isinstance(data, Shards):
        directory = scratch / "linked"
        names = tuple(f"{number:06}.tar" for number in range(len(data.paths)))
        if not directory.exists():
            directory.mkdir()
            for name, path in zip(names, data.paths, strict=True):
                (directory / name).symlink_to(path)
        index = open_foreign(ForeignShards("tar", directory, names))
        return select(index, np.arange(min(MAX_SAMPLES, len(index)), dtype=np.int64))
    labels = None if min(data.labels) < 0 else np.array(data.labels, np.int64)
    return FileListIndex(list(data.paths), labels, where=sample.where)


def own_loader(sample: Sample, data: AnyIndex | str, cache: str | None = None) -> DataLoader:
    """Return the loader that `from_torch` would make, over `data`: an index, or a path."""
    images = Images(data, fields=sample.data.fields if isinstance(sample.data, Shards) else None, cache=cache)
    return DataLoader(
        images,
        batch_size=max(1, min(sample.batch_size, len(images) // 8)),  # so that a pass has several batches
        shuffle=True,
        seed=0,
        num_workers=sample.num_workers or None,
        transform=sample.recipe,
        device="cpu",
        backend="images_cpu",
        on_error="skip",
    )


def drop_from_page_cache(paths: Iterable[str]) -> None:
    """Ask the kernel to drop these files from its cache, so that they are read from storage again; dirty pages stay."""
    for path in paths:
        descriptor, _ = open_descriptor(path)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _exhaust(loader: DataLoader) -> int:
    num = 0
    for batch in loader:
        num += len(batch[0])
        del batch
    return num


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
