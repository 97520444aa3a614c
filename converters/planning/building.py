"""The plan of a conversion: the destination of each sample, kept in `plan.db` while shards are built.

The listing numbers the source's files; a hash of (seed, number) assigns each to a split; within a split samples are numbered
again, and these numbers are the ids. The write order is a recorded permutation of the ids; shards are cut from it so that
each holds about the same number of source bytes. The plan is written once to a temporary file and renamed: a run finds
either all of it or none.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from converters.options import SMALL_SHARD_NBYTES, ConvertOptions
from converters.planning.duplicates import find_duplicates
from converters.planning.listing import ListingSummary, write_listing
from converters.planning.plan import SPOOL_NAME, ConversionPlan, Duplicates, PlannedSet, read_plan, record
from converters.samples.examine import refuse_treatment
from datapipe.codecs.field_values import NO_LABEL
from datapipe.core import atomic
from datapipe.core.database import attached, open_database
from datapipe.core.printable import counted
from datapipe.errors import MissingDataError, OptionError
from datapipe.index.listed import Source, Workspace
from datapipe.order.draws import Draws, key64
from datapipe.order.sample_order import Permutation
from datapipe.stores.location import Location

_SHUFFLE_PURPOSE = 0x73687566  # makes the write order's key different from those of epochs
_SPLIT_OPERATION = 0x73706C74
_BATCH = 1 << 14
_WHOLE = "shard"  # name of shards without a split
MAX_SHARD_SAMPLES = 1 << 15  # a shard's metadata is in memory while it is written, 1.5 KB per sample


def build_plan(
    path: Path, options: ConvertOptions, source: Source, *, spool: Path, on_samples: Callable[[int], None]
) -> ConversionPlan:
    """Scan the source and write the plan to `path`, completely or not at all.

    `spool`: a directory, made if the source has values that cannot be read at random; it must last as long as the plan.

    Raises MissingDataError for a source without samples, OptionError for a split that gets none or a treatment that the
    fields do not allow, StorageError if the plan cannot be written, and what the source raises.
    """
    temporary = path.with_name(path.name + atomic.TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    with open_database(temporary, temporary=path.parent) as connection:
        summary = write_listing(connection, source, space=Workspace(path.parent, spool), on_samples=on_samples)
        facts, notes = summary.facts, summary.notes
        if not summary.num_samples:
            reason = f"; {notes.problems[0].reason}" if notes.problems else ""
            raise MissingDataError(f"{options.source}: {facts.nothing} ({notes.num_ignored} other files){reason}; {facts.remedy}")
        refuse_treatment(options, facts.fields)
        duplicates = Duplicates()
        if options.dedupe:
            from converters.samples.reading import Roots

            root = source.root
            root = root if isinstance(root, Location) else root.absolute()
            roots = Roots(os.fsencode(str(root)), os.fsencode(spool))
            duplicates = find_duplicates(connection, facts, summary.field_order, roots=roots, scratch=path.parent)
        sets = _plan_sets(options, summary, summary.num_samples - duplicates.num)
        _write_slots(connection, options, sets, scratch=path.parent)
        _write_shards(connection, options, sets)
        _write_facts(connection, options, sets, summary, duplicates)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    atomic.move(temporary, path)
    return read_plan(path)


def list_source(path: Path, source: Source, *, on_samples: Callable[[int], None]) -> ListingSummary:
    """Scan the source into a temporary database at `path` and return the summary. Raises what the source raises."""
    with open_database(path, temporary=path.parent) as connection:
        return write_listing(connection, source, space=Workspace(path.parent, path.parent / SPOOL_NAME), on_samples=on_samples)


def split_of(ordinals: NDArray[np.int64], *, seed: int, shares: tuple[Fraction, ...]) -> NDArray[np.int64]:
    """Return (n,) the split of each listing position, decided by a hash, so it depends on nothing else."""
    if len(shares) == 1:
        return np.zeros(len(ordinals), np.int64)
    uniform = Draws(seed, 0, ordinals).uniform(_SPLIT_OPERATION, 1)[:, 0]
    edges = [float(sum(shares[: number + 1])) for number in range(len(shares) - 1)]
    return np.searchsorted(np.array(edges), uniform, side="right").astype(np.int64)


def _shares(options: ConvertOptions) -> tuple[Fraction, ...]:
    return tuple(split.share for split in options.split) or (Fraction(1),)


def _plan_sets(options: ConvertOptions, summary: ListingSummary, num_samples: int) -> list[PlannedSet]:
    names = [split.name for split in options.split] or [""]
    counts = np.zeros(len(names), np.int64)
    for ordinals in _batches(num_samples):
        counts += np.bincount(split_of(ordinals, seed=options.seed or 0, shares=_shares(options)), minlength=len(names))
    for name, count in zip(names, counts.tolist(), strict=True):
        if not count:
            raise OptionError(
                f"--split: {name} gets none of {counted(num_samples, 'sample')}, which are assigned one by one, by chance;"
                " give it a larger share, or pass another --seed"
            )
    key = None if options.seed is None else int(key64(options.seed, _SHUFFLE_PURPOSE))
    problems = tuple(sorted((os.fsdecode(problem.source), problem.reason) for problem in summary.notes.problems))
    return [
        PlannedSet(name, count, key, problems if number == 0 else ())
        for number, (name, count) in enumerate(zip(names, counts.tolist(), strict=True))
    ]


def _batches(count: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, count, _BATCH):
        yield np.arange(start, min(start + _BATCH, count), dtype=np.int64)


def _write_slots(connection: sqlite3.Connection, options: ConvertOptions, sets: list[PlannedSet], *, scratch: Path) -> None:
    """Write `slots(position, ordinal, id, nbytes)`: the write order, one set after the other."""
    connection.execute("CREATE TABLE slots (position INTEGER PRIMARY KEY, ordinal INTEGER, id INTEGER, nbytes INTEGER)")
    with attached(connection, scratch, "staged"):
        connection.execute("CREATE TABLE staged.slots (position INTEGER, ordinal INTEGER, id INTEGER, nbytes INTEGER)")
        where = "WHERE ordinal NOT IN (SELECT ordinal FROM duplicates)" if options.dedupe else ""
        sizes = connection.execute(f"SELECT ordinal, nbytes FROM listing {where} ORDER BY ordinal")
        sizes.arraysize = _BATCH
        num_seen = [0] * len(sets)
        first_positions = np.cumsum([0] + [planned.num_slots for planned in sets])
        for ordinals in _batches(sum(planned.num_slots for planned in sets)):
            listed, nbytes = np.array(sizes.fetchmany(len(ordinals)), np.int64).T
            splits = split_of(ordinals, seed=options.seed or 0, shares=_shares(options))
            for number, planned in enumerate(sets):
                mine = np.flatnonzero(splits == number)
                ids = num_seen[number] + np.arange(len(mine), dtype=np.int64)
                num_seen[number] += len(mine)
                slots = ids
                if planned.permutation_key is not None:
                    slots = Permutation(planned.num_slots, planned.permutation_key).inverse(ids)
                rows = np.stack([first_positions[number] + slots, listed[mine], ids, nbytes[mine]], axis=1)
                connection.executemany("INSERT INTO staged.slots VALUES (?, ?, ?, ?)", rows.tolist())
        connection.execute("INSERT INTO main.slots SELECT position, ordinal, id, nbytes FROM staged.slots ORDER BY position")


def _write_shards(connection: sqlite3.Connection, options: ConvertOptions, sets: list[PlannedSet]) -> None:
    """Cut each set where its bytes, summed in write order, pass an equal share of the total, or where samples are enough."""
    connection.execute(
        "CREATE TABLE shards (number INTEGER PRIMARY KEY, stem TEXT, set_name TEXT,"
        " first_position INTEGER, first_slot INTEGER, num_slots INTEGER, nbytes INTEGER)"
    )
    connection.execute("BEGIN")
    numbers = itertools.count()
    start = 0
    for planned in sets:
        span = (start, start + planned.num_slots)
        total = connection.execute("SELECT sum(nbytes) FROM slots WHERE position >= ? AND position < ?", span).fetchone()[0]
        _refuse_tiny_shards(options.shard_nbytes, total, planned.num_slots)
        num_shards = max(-(-total // options.shard_nbytes), -(-planned.num_slots // MAX_SHARD_SAMPLES), 1)
        share = -(-total // num_shards) or 1
        cursor = connection.execute("SELECT nbytes FROM slots WHERE position >= ? AND position < ? ORDER BY position", span)
        for in_set, (first, end, nbytes) in enumerate(_cuts(itertools.chain.from_iterable(cursor), share)):
            stem = f"{planned.name or _WHOLE}-{in_set:06d}"
            row = (next(numbers), stem, planned.name, start + first, first, end - first, nbytes)
            connection.execute("INSERT INTO shards VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        start = span[1]
    connection.execute("COMMIT")


def _cuts(sizes: Iterable[int], share: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first sample, the one after its last, bytes) of each shard. `sizes`: bytes of the samples, at least one."""
    first = end = done = in_shard = 0
    for slot, nbytes in enumerate(sizes):
        is_full = done // share > (done - in_shard) // share or slot - first == MAX_SHARD_SAMPLES
        if slot > first and is_full:
            yield first, slot, in_shard
            first, in_shard = slot, 0
        done += nbytes
        in_shard += nbytes
        end = slot + 1
    yield first, end, in_shard


def _refuse_tiny_shards(shard_nbytes: int, nbytes: int, num_samples: int) -> None:
    """Raise OptionError for a size that no sample fits into, as is 5 for 5MB. Samples may exceed a size that makes sense."""
    if shard_nbytes < SMALL_SHARD_NBYTES and num_samples > 1 and nbytes > shard_nbytes * num_samples:
        raise OptionError(
            f"--shard-size is {counted(shard_nbytes, 'byte')}, and a sample takes {round(nbytes / num_samples):,} on average:"
            f" each of {num_samples:,} samples would be a shard of its own; pass a size with its unit, such as 256MB"
        )


def _write_facts(
    connection: sqlite3.Connection,
    options: ConvertOptions,
    sets: list[PlannedSet],
    summary: ListingSummary,
    duplicates: Duplicates,
) -> None:
    num_labels, first_class = _labels_met(connection, summary.facts.classes)
    plan = ConversionPlan(
        version=3,
        options=options.as_typed(),
        sets=tuple(sets),
        fields=summary.facts.fields,
        field_order=summary.field_order,
        classes=summary.facts.classes,
        source_digest=summary.digest,
        field_nbytes=summary.field_nbytes,
        num_labels=num_labels,
        first_class=first_class,
        made_from=None if summary.facts.made_from is None else dict(summary.facts.made_from),
        unreadable=summary.unreadable,
        duplicates=duplicates,
        warnings=summary.facts.warnings,
        num_ignored=summary.notes.num_ignored,
        num_junk=summary.notes.num_junk,
        loops=tuple(sorted(map(os.fsdecode, summary.notes.loops))),
        empty_classes=summary.facts.empty_classes,
    )
    connection.execute("CREATE TABLE facts (value TEXT)")
    connection.execute("INSERT INTO facts VALUES (?)", (record(plan),))


def _labels_met(connection: sqlite3.Connection, classes: tuple[str, ...] | None) -> tuple[int, str | None]:
    """Return how many different labels there are, and the class of the first sample that has one."""
    num = connection.execute("SELECT count(DISTINCT label) FROM listing WHERE label != ?", (NO_LABEL,)).fetchone()[0]
    first = connection.execute("SELECT label FROM listing WHERE label >= 0 ORDER BY ordinal LIMIT 1").fetchone()
    return num, classes[first[0]] if classes is not None and first is not None and first[0] < len(classes) else None
