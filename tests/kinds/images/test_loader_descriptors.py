"""More shards than a process may have files open: the usual limit is 1,024."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures import (
    NUM_SAMPLES,
    OF_SAMPLES,
    convert,
    write_arrow,
    write_hdf5,
    write_hdf5_pixels,
    write_parquet,
    write_tfrecord,
    write_webdataset,
)

ROOT = Path(__file__).resolve().parents[3]
DRIVER = Path(__file__).with_name("few_descriptors.py")
LIMIT = 34  # of open files; there is a shard for each of the 37 samples

SETS: dict[str, Callable[[Path, Path], Path]] = {
    **{f"converted to {to}": lambda source, out, to=to: convert(source, out, to=to, shard_nbytes=1_500) for to in OF_SAMPLES},
    "webdataset": lambda source, out: write_webdataset(source, out, per_shard=1),
    "tfrecord": lambda source, out: write_tfrecord(source, out, per_shard=1),
    "hdf5": lambda source, out: write_hdf5(source, out, per_shard=1),
    "hdf5, by rows": lambda source, out: write_hdf5_pixels(source, out, per_shard=1, compression="gzip"),
    "parquet": lambda source, out: write_parquet(source, out, per_shard=1),
    "parquet, by rows": lambda source, out: write_parquet(source, out, per_shard=1, compression="zstd"),
    "arrow": lambda source, out: write_arrow(source, out, per_shard=1),
    "folder": lambda source, out: source,
}
NUM_LOADERS = 2  # with nothing special, and with a cache and bad samples skipped


@pytest.fixture(scope="module")
def epochs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What came of each set, with each of the options; all of them in one process."""
    root = tmp_path_factory.mktemp("descriptors")
    paths = [str(make(folder, root / name)) for name, make in SETS.items()]
    assert all(sum(file.is_file() for file in Path(path).rglob("*")) > LIMIT for path in paths)
    cached = str(root / "cache"), {"on_error": "skip"}  # one in memory stays open until the process ends
    asked = json.dumps([[path, *how] for path in paths for how in ((None, {}), cached)])
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(LIMIT), asked],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    came = json.loads(done.stdout)
    return {name: came[place * NUM_LOADERS :][:NUM_LOADERS] for place, name in enumerate(SETS)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SETS)
def test_more_shards_than_descriptors(name: str, epochs: dict[str, list[Any]]) -> None:
    assert epochs[name] == [[NUM_SAMPLES] * 2] * NUM_LOADERS
