"""Check a converted dataset against its manifest: every byte, and no extra files.

Shards are hashed as a whole; if a hash differs, the checksums of single fields identify the damaged samples. Those in an object
store are fetched one by one, checked as on a disk, and removed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crc32c import crc32c

from converters.publishing.destination import ERRORS_NAME, FoundSet, find_sets, holds_dataset, stem_of, strange_files, target_of
from converters.tables.conversion import read_document as read_table_document
from datapipe.containers.forms import FORMS
from datapipe.containers.shard_lists import ListedShard, ShardList, shard_list
from datapipe.core import regular_files
from datapipe.core.checks import path_name
from datapipe.core.environment import num_usable_cores
from datapipe.core.printable import counted
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.manifest import Manifest, ShardInfo, read_manifest, refuse_unfinished
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.remote_set import open_set
from datapipe.index.sidecar import SIDECAR_SUFFIX
from datapipe.index.tables import TABLE_NAME
from datapipe.stores.location import Location
from datapipe.stores.transfers import download_to

_READ_NBYTES = 4 << 20
_DIGESTS = {name for name in hashlib.algorithms_available if not name.startswith("shake")}  # of a length of their own
_MAX_NAMED = 20  # damaged samples to name per shard


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference from the manifest."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a check."""

    num_samples: int
    num_shards: int
    nbytes: int  # read
    elapsed_s: float
    problems: tuple[Problem, ...]
    is_table: bool = False  # samples are rows, shards its files


def verify(
    directory: Path, *, num_workers: int | None = None, on_bytes: Callable[[int], None] = lambda nbytes: None
) -> VerifyReport:
    """Check the dataset in `directory`, or all of its splits.

    `on_bytes` gets the number of bytes read since its last call, from several threads, one at a time. Raises MissingDataError
    if there is no dataset, UnfinishedError for an unfinished one, FormatError for a manifest that does not parse.
    """
    started = time.monotonic()
    path_name(directory, "the directory")
    refuse_unfinished(directory)
    if not directory.is_dir():
        what = "is a file, not a directory that `datapipe convert` made" if directory.exists() else "no such directory"
        raise MissingDataError(f"{directory}: {what}; check the path")
    if (directory / TABLE_NAME).is_file():
        return _verify_table(directory, started, ByteMeter(on_bytes), num_workers)
    if not holds_dataset(directory):
        lists = (shard_list(form, directory) for form, facts in FORMS.items() if facts.lists and not facts.has_splits)
        found_list = next((one for one in lists if one is not None), None)
        if found_list is not None:
            return _verify_listed(directory, found_list, started, ByteMeter(on_bytes), num_workers)
        read_manifest(directory)  # says what is missing
    sets = find_sets(directory)
    for found in sets:
        refuse_unfinished(found.directory)
    problems = [
        Problem(str(directory / name), "not part of the dataset; move it away") for name in strange_files(directory, sets)
    ]
    meter = ByteMeter(on_bytes)
    checks = [partial(check_shard, found, shard, meter) for found in sets for shard in found.manifest.shards]
    problems += run_checks(checks, num_workers)
    for found in sets:
        problems += _check_errors(found)
    return _report([found.manifest for found in sets], problems, meter, started)


def _report(manifests: Sequence[Manifest], problems: Sequence[Problem], meter: ByteMeter, started: float) -> VerifyReport:
    return VerifyReport(
        num_samples=sum(manifest.num_samples for manifest in manifests),
        num_shards=sum(len(manifest.shards) for manifest in manifests),
        nbytes=meter.nbytes,
        elapsed_s=time.monotonic() - started,
        problems=tuple(problems),
    )


def _verify_table(directory: Path, started: float, meter: ByteMeter, num_workers: int | None) -> VerifyReport:
    """Check a converted table: the bytes of its files, and no extra ones."""
    document = read_table_document(directory)
    known = {TABLE_NAME, ERRORS_NAME, *(file.name for file in document.files)}
    strange = sorted(name for name in os.listdir(directory) if name not in known)
    problems = [Problem(str(directory / name), "not part of the table; move it away") for name in strange]
    infos = [ShardInfo(file.name, file.num_rows, file.nbytes, 0, file.num_rows, file.sha256) for file in document.files]
    problems += run_checks([partial(_check_bytes, directory / info.name, info, None, meter) for info in infos], num_workers)
    elapsed_s = time.monotonic() - started
    return VerifyReport(document.num_rows, len(document.files), meter.nbytes, elapsed_s, tuple(problems), is_table=True)


def _verify_listed(directory: Path, listed: ShardList, started: float, meter: ByteMeter, num_workers: int | None) -> VerifyReport:
    """Check the shards of another loader against the checksums in their list. Raises FormatError if it has none."""
    names = {name for shard in listed.shards for name, _ in (*shard.digests, *shard.packed_digests)}
    if names.isdisjoint(_DIGESTS):
        recorded = f"those of {', '.join(sorted(names))} alone" if names else "no checksums of shards"
        raise FormatError(f"{listed.place}: has {recorded}, so there is nothing to compare; convert the set, which records them")
    problems = run_checks([partial(_check_listed, directory, shard, meter) for shard in listed.shards], num_workers)
    num_samples = sum(shard.num_samples for shard in listed.shards)
    return VerifyReport(num_samples, len(listed.shards), meter.nbytes, time.monotonic() - started, tuple(problems))


def _check_listed(directory: Path, shard: ListedShard, meter: ByteMeter) -> list[Problem]:
    path = directory / shard.file_in(directory)
    wanted = dict(shard.packed_digests if shard.is_packed_in(directory) else shard.digests)
    hashes = {name: hashlib.new(name) for name in wanted if name in _DIGESTS}
    if not hashes:
        return [Problem(str(path), "its list has no checksum of it, unlike of others; not compared")]
    try:
        with regular_files.open_file(path) as file:
            while data := file.read(_READ_NBYTES):
                meter.add(len(data))
                for one in hashes.values():
                    one.update(data)
    except FileNotFoundError:
        return [Problem(str(path), "is missing; get it again")]
    except (FormatError, OSError) as exc:
        return [Problem(str(path), f"cannot be read ({exc})")]
    wrong = [name for name, one in hashes.items() if one.hexdigest() != wanted[name].lower()]
    return [Problem(str(path), f"its {wrong[0]} differs from the list's: damaged, or replaced; get it again")] if wrong else []


def run_checks(checks: Iterable[Callable[[], list[Problem]]], num_workers: int | None) -> list[Problem]:
    """Run the checks in threads, as many as the usable cores for None; return what they find, in the order of the checks."""
    with ThreadPoolExecutor(num_workers or num_usable_cores()) as pool:
        return [problem for found in pool.map(lambda check: check(), checks) for problem in found]


def _problem(path: Path, exc: FormatError) -> Problem:
    return Problem(str(path), str(exc).removeprefix(f"{path}: "))


class ByteMeter:
    """A count of bytes over threads."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        self.nbytes = 0
        self._on_bytes = on_bytes
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes
            self._on_bytes(nbytes)


def check_shard(found: FoundSet, shard: ShardInfo, meter: ByteMeter) -> list[Problem]:
    """Return what is wrong with a shard, its index and its companions."""
    path = found.directory / shard.name
    try:
        sidecar, problems = _check_sidecar(path, shard)
        problems += _check_bytes(path, shard, sidecar, meter)
        if sidecar is not None:
            problems += _check_companions(found, shard, sidecar)
    except OSError as exc:
        return [Problem(exc.filename or str(path), f"cannot be read ({exc.strerror})")]
    return problems


def _check_sidecar(path: Path, shard: ShardInfo) -> tuple[Sidecar | None, list[Problem]]:
    index = path.with_name(path.name + SIDECAR_SUFFIX)
    try:
        return Sidecar(index, shard=shard), []
    except MissingDataError:
        return None, [Problem(str(index), "missing")]
    except FormatError as exc:
        return None, [_problem(index, exc)]


def _check_bytes(path: Path, shard: ShardInfo, sidecar: Sidecar | None, meter: ByteMeter) -> list[Problem]:
    try:
        with regular_files.open_file(path, buffering=0) as file:
            nbytes = os.fstat(file.fileno()).st_size
            digest = _sha256(file.fileno(), meter)
    except FileNotFoundError:
        return [Problem(str(path), "missing")]
    except FormatError as exc:
        return [_problem(path, exc)]
    if digest == shard.sha256:
        return []
    if nbytes != shard.nbytes:
        kind = "truncated" if nbytes < shard.nbytes else "too long"
        whole = Problem(str(path), f"{kind}: {nbytes} bytes, {shard.nbytes} were written")
    else:
        whole = Problem(str(path), "differs from what was written (sha256)")
    if sidecar is None:
        return [whole]
    damaged = list(_damaged_fields(path, sidecar))
    if not damaged:
        return [whole, Problem(str(path), "every field of every sample is intact; headers, padding or the end differ")]
    more = [f"and {len(damaged) - _MAX_NAMED} more damaged fields"] if len(damaged) > _MAX_NAMED else []
    return [whole, *(Problem(str(path), text) for text in damaged[:_MAX_NAMED] + more)]


def _sha256(descriptor: int, meter: ByteMeter) -> str:
    digest, buffer = hashlib.sha256(), bytearray(_READ_NBYTES)
    view = memoryview(buffer)
    while count := os.readv(descriptor, [buffer]):
        digest.update(view[:count])
        meter.add(count)
    return digest.hexdigest()


def _damaged_fields(path: Path, sidecar: Sidecar) -> Iterator[str]:
    with regular_files.open_file(path, buffering=0) as file:
        for name in sidecar.field_names:
            offsets, sizes, checksums = sidecar.offsets(name), sidecar.nbytes(name), sidecar.crc32c(name)
            for row in range(sidecar.num_samples):
                data = os.pread(file.fileno(), int(sizes[row]), int(offsets[row]))
                if len(data) < sizes[row] or crc32c(data) != checksums[row]:
                    source = sidecar.source(row).decode(errors="backslashreplace")
                    what = "is truncated" if len(data) < sizes[row] else "differs (crc32c)"
                    yield f"sample {sidecar.ids[row]} ({source}): field {name!r} {what}"


def _check_companions(found: FoundSet, shard: ShardInfo, sidecar: Sidecar) -> list[Problem]:
    """Check that a shard's additional files, for other readers, belong to it."""
    target = target_of(found.manifest)
    try:
        expected = target.companions(found.directory / shard.name, sidecar)
    except (FormatError, FileNotFoundError):  # the shard itself is damaged, and reported
        return []
    problems = []
    for suffix, contents in expected.items():
        path = found.directory / (stem_of(shard.name, target) + suffix)
        try:
            if regular_files.read_bytes(path) != contents:
                problems.append(Problem(str(path), "does not match its shard; convert again"))
        except FileNotFoundError:
            problems.append(Problem(str(path), "missing"))
        except FormatError as exc:
            problems.append(_problem(path, exc))
    return problems


def _check_errors(found: FoundSet) -> list[Problem]:
    """Check that errors.jsonl names as many bad samples as the shards left out."""
    num_skipped = found.manifest.num_slots - found.manifest.num_samples
    path = found.directory / ERRORS_NAME
    if not path.exists():
        were = "was" if num_skipped == 1 else "were"
        return [Problem(str(path), f"missing, though {counted(num_skipped, 'sample')} {were} left out")] if num_skipped else []
    try:
        with regular_files.open_file(path) as file:
            named = [json.loads(line)["id"] is not None for line in file]
    except FormatError as exc:
        return [_problem(path, exc)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [Problem(str(path), "does not parse")]
    num_named = sum(named)
    return [] if num_named == num_skipped else [Problem(str(path), f"names {num_named} bad samples, {num_skipped} were left out")]


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
    return _report([manifest], problems, meter, started)


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
