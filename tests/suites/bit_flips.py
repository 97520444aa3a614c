"""Run as a program: flips bits of one file, one after the other, and says what became of each reading of it.

    bit_flips.py WHAT DIRECTORY NUM

A process of its own, as a reader that trusts a file may die of it. Prints a JSON object: how many readings were refused,
how many gave what was written, and how many something else.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datapipe.errors import FormatError, IntegrityError
from datapipe.index.manifest import MANIFEST_NAME, read_manifest
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.kinds.images.cache.locations import open_on_disk
from datapipe.kinds.images.cache.store import Kept, Store

STAMP = 7


def values_of(sidecar: Sidecar) -> list[Any]:
    """All that a sidecar tells, read as the loader reads it."""
    rows = range(sidecar.num_samples)
    told: list[Any] = [sidecar.field_names, sidecar.prefixes, sidecar.row_columns, sidecar.row_groups.tolist()]
    told += [column.tolist() for column in (sidecar.ids, sidecar.labels, sidecar.heights, sidecar.widths)]
    for name in sidecar.field_names:
        told += [column(name).tolist() for column in (sidecar.offsets, sidecar.nbytes, sidecar.crc32c, sidecar.has_crc)]
        told.append([sidecar.encoding(name, row) for row in rows])
    return [*told, [sidecar.key(row) for row in rows], [sidecar.source(row) for row in rows]]


def sidecar_and_reader(directory: Path, *, is_known: bool) -> tuple[Path, Callable[[], Any]]:
    """`is_known`: whether the manifest says what its bytes hash to."""
    shard = read_manifest(directory).shards[0]
    path = directory / (shard.name + SIDECAR_SUFFIX)
    return path, lambda: values_of(Sidecar(path, shard=shard if is_known else None))


def cache_and_reader(directory: Path, name: str, num_kept: int = 20) -> tuple[Path, Callable[[], Any]]:
    """Values of a store with some of its entries; what it finds, with what it should have found for a miss."""
    values = {sample: bytes([sample]) * (100 + sample) for sample in range(num_kept)}

    def opened() -> Store:
        return Store(open_on_disk(directory, {}), capacity=1 << 30)

    store = opened()
    for sample, value in values.items():
        found = store.find(sample, STAMP)
        if not isinstance(found, Kept):
            store.keep(found, value, (3, 4))

    def read() -> dict[int, Any]:
        found = {sample: opened().find(sample, STAMP) for sample in values}
        return {
            sample: (kept.data, kept.size) if isinstance(kept, Kept) else (values[sample], (3, 4))
            for sample, kept in found.items()
        }

    return directory / name, read


READERS: dict[str, Callable[[Path], tuple[Path, Callable[[], Any]]]] = {
    "sidecar": lambda directory: sidecar_and_reader(directory, is_known=True),
    "sidecar without hash": lambda directory: sidecar_and_reader(directory, is_known=False),
    "dataset.json": lambda directory: (directory / MANIFEST_NAME, lambda: read_manifest(directory)),
    "cache index": lambda directory: cache_and_reader(directory, "index"),
    "cache data": lambda directory: cache_and_reader(directory, "data"),
}


def main(what: str, directory: Path, num: int) -> None:
    path, read = READERS[what](directory)
    whole, expected = path.read_bytes(), read()
    counts = {"refused": 0, "right": 0, "wrong": 0}
    rng = random.Random(0)
    for _ in range(num):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            found = read()
        except (FormatError, IntegrityError):
            counts["refused"] += 1
        else:
            counts["right" if found == expected else "wrong"] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
