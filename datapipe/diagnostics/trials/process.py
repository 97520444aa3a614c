"""Try remedies on a sample of a script's data: a process of its own, started by `datapipe diagnose` after the script.

`python -m datapipe.diagnostics.trials.process SAMPLE RESULT SECONDS EVICT`: writes the result of each trial as JSON, as soon as
it is known, so that a killed process leaves its results so far.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters import ConvertOptions, Limit, OnError, Resize, convert
from datapipe.codecs.probe import probe
from datapipe.core.atomic import write_json
from datapipe.core.errors import DatapipeError
from datapipe.core.regular_files import open_file
from datapipe.diagnostics.predict.candidates import CACHED, CONVERTED, OURS, RESIZED
from datapipe.diagnostics.trials.sample import Sample, SampledFiles
from datapipe.diagnostics.trials.shards import Shards
from datapipe.diagnostics.trials.timing import Rate, index_of, own_loader, rate_of
from datapipe.index.entries import WHOLE_FILE, Entries

_SHARE = 0.1  # share of the time, for the passes of one trial
_LARGER = 1.25  # resizing pays if an image's shorter side is this many times as long


def main(argv: list[str]) -> int:
    """Try each remedy and write the results. Returns 0."""
    sample_path, result_path, seconds, evicts = Path(argv[0]), Path(argv[1]), float(argv[2]), argv[3] == "1"
    sample: Sample = pickle.loads(sample_path.read_bytes())
    facts = {"where": sample.where, "batch_size": sample.batch_size, "reads_shards": isinstance(sample.data, Shards)}
    found: dict[str, Any] = {"rates": {}, "reasons": {}, "resized_to": None, **facts}
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=result_path.parent.absolute()) as scratch:
        found["resized_to"] = resized_side(sample, Path(scratch))
        write_json(result_path, found)
        for name, attempt in trials(sample, Path(scratch), seconds=_SHARE * seconds, evicts=evicts).items():
            if time.monotonic() > until_s:
                found["reasons"][name] = "there was no time left to try it"
            else:
                try:
                    found["rates"][name] = dataclasses.asdict(attempt())
                except (DatapipeError, OSError, UnmeasurableError) as exc:
                    found["reasons"][name] = str(exc)
            write_json(result_path, found)
    return 0


class UnmeasurableError(Exception):
    """A remedy cannot be tried on this data; the text says why."""


def trials(sample: Sample, scratch: Path, *, seconds: float, evicts: bool) -> dict[str, Callable[[], Rate]]:
    """Return the trials by remedy, in the order in which they run."""
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
            raise UnmeasurableError(
                f"the decoded images take {needed / 1e9:,.1f} GB, and {stats.capacity / 1e9:,.1f} GB of memory are available"
            )
        return rate

    def converted(resize: int | None = None) -> Rate:
        if resize is None and isinstance(data, Shards):
            raise UnmeasurableError("it lies in WebDataset shards already")
        if sample.num_sources > 1:
            raise UnmeasurableError(f"it consists of {sample.num_sources} folders, and a conversion can replace only one of them")
        shards = convert_sample(sample, scratch, "kept" if resize is None else "resized", resize)
        files = [str(path) for path in shards.iterdir()] if evicts else ()
        return rate_of(own_loader(sample, str(shards)), seconds=seconds, evicts=files)

    def resized() -> Rate:
        side = resized_side(sample, scratch)
        if side is None:
            raise UnmeasurableError("the images are no larger than the crops need, or nothing crops them")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
