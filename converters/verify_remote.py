"""Checks a converted dataset in an object store: each shard is fetched, checked as on a disk, and removed again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from converters.inventory import FoundSet, stem_of, target_of
from converters.verify import ByteMeter, Problem, VerifyReport, check_shard, run_checks
from datapipe.core.errors import MissingDataError
from datapipe.index.manifest import Manifest, ShardInfo
from datapipe.index.remote_set import open_set
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.stores.location import Location
from datapipe.stores.transfers import download_to


def verify_remote(
    location: Location, *, num_workers: int | None = None, on_bytes: Callable[[int], None] = lambda nbytes: None
) -> VerifyReport:
    """Check the dataset at `location`; takes room for a shard per worker in the system's temporary directory.

    Raises MissingDataError where there is no dataset, FormatError for a manifest that does not parse, StorageError where the
    store refuses.
    """
    started = time.monotonic()
    manifest, _ = open_set(location)
    meter = ByteMeter(on_bytes)
    problems = run_checks([partial(_check, manifest, location, shard, meter) for shard in manifest.shards], num_workers)
    return VerifyReport(
        num_samples=manifest.num_samples,
        num_shards=len(manifest.shards),
        nbytes=meter.nbytes,
        elapsed_s=time.monotonic() - started,
        problems=tuple(problems),
    )


def _check(manifest: Manifest, location: Location, shard: ShardInfo, meter: ByteMeter) -> list[Problem]:
    """Check one shard with what belongs to it, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="datapipe-verify-") as name:
        directory = Path(name)
        target = target_of(manifest)
        companions = [stem_of(shard.name, target) + suffix for suffix in target.companion_suffixes]
        for wanted in (shard.name, shard.name + SIDECAR_SUFFIX, *companions):
            try:
                download_to(directory / wanted, location / wanted)
            except MissingDataError:
                (directory / wanted).unlink()  # found missing below
        found = check_shard(FoundSet("", directory, manifest), shard, meter)
    return [Problem(one.path.replace(str(directory), str(location), 1), one.what.replace(f"{directory}/", "")) for one in found]
