"""A finished plan, read from its file: sets, their shards, the samples of a shard."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from converters.planning import places
from converters.planning.listing import Unreadable
from converters.runs import from_json, to_json
from converters.samples.reading import PlannedSample
from datapipe.codecs.field_values import FieldSpec
from datapipe.core.database import open_read_only
from datapipe.core.regular_files import path_inside
from datapipe.errors import DatapipeError, IntegrityError

PLAN_NAME = "plan.db"
SPOOL_NAME = "spool"
_ROWS_AT_ONCE = 16  # whose values are held in memory


@dataclass(frozen=True, slots=True)
class PlannedSet:
    """One dataset of the result: all of the source, or one split of it."""

    name: str  # "" for the whole
    num_slots: int
    permutation_key: int | None
    problems: tuple[tuple[str, str], ...] = ()  # (source, reason) of directories that could not be listed


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to write."""

    number: int  # over all sets, from 0
    stem: str  # file name without suffix
    set_name: str
    first_position: int  # over all sets
    first_slot: int  # within the set
    num_slots: int
    nbytes: int  # of its source files


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The samples that are left out because an earlier one has the same content."""

    num: int = 0
    num_relabelled: int = 0  # of them, those whose label is another than that of the sample that is kept
    first: tuple[tuple[str, str], ...] = ()  # (source, the one that is kept)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A finished plan; its samples stay on disk. All but `path` and `shards` is kept as JSON in the table `facts`."""

    version: Literal[3]  # of what the listing holds: a plan of another one is refused
    options: dict[str, Any]  # ConvertOptions.as_typed() of the run that planned
    sets: tuple[PlannedSet, ...]
    fields: tuple[FieldSpec, ...]  # of every sample
    field_order: tuple[str, ...]  # by bit of `fields` in the listing
    classes: tuple[str, ...] | None  # names by label, where labels are classes
    source_digest: str  # of the listing
    field_nbytes: dict[str, int]  # by field, over all samples
    num_labels: int  # different ones
    first_class: str | None  # the class of the first sample
    made_from: dict[str, Any] | None  # which dataset or archive the source is
    unreadable: Unreadable
    duplicates: Duplicates  # also the table `duplicates`, if the options ask for them
    warnings: tuple[str, ...]  # of the source
    num_ignored: int
    num_junk: int
    loops: tuple[str, ...]  # links, relative to the source
    empty_classes: tuple[str, ...]
    path: Path = Path()
    shards: tuple[PlannedShard, ...] = ()

    @property
    def num_samples(self) -> int:
        return sum(planned.num_slots for planned in self.sets)

    @property
    def nbytes(self) -> int:
        """The size of all source files."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        return tuple(problem for planned in self.sets for problem in planned.problems)


def read_plan(path: Path) -> ConversionPlan:
    """Open a finished plan. Raises IntegrityError if it is damaged, FormatError for names that lead outside."""
    try:
        with open_read_only(path) as connection:
            plan = _read_facts(connection)
            shards = tuple(PlannedShard(*row) for row in connection.execute("SELECT * FROM shards ORDER BY number"))
        for name in {*(shard.stem for shard in shards), *filter(None, (shard.set_name for shard in shards))}:
            path_inside(str(path.parent), name, named_in=path, follows=True)
    except DatapipeError:
        raise
    except (TypeError, ValueError, msgspec.ValidationError, RecursionError) as exc:  # values of unexpected types
        problem = f"the plan is damaged, or of another version of datapipe ({exc!r:.80})"
        raise IntegrityError(f"{path}: {problem}; delete {path.parent} and convert again") from exc
    return dataclasses.replace(plan, path=path, shards=shards)


def record(plan: ConversionPlan) -> str:
    """Return the facts of a plan as the JSON that `read_plan` reads."""
    return json.dumps(to_json(dataclasses.replace(plan, shards=())))


def _read_facts(connection: sqlite3.Connection) -> ConversionPlan:
    return from_json(json.loads(connection.execute("SELECT value FROM facts").fetchone()[0]), ConversionPlan)


@contextlib.contextmanager
def open_samples(path: Path) -> Iterator[Callable[[PlannedShard], Iterator[PlannedSample]]]:
    """Open the plan at `path` and yield a function that lists a shard's samples in write order."""
    with open_read_only(path) as connection:
        order = _read_facts(connection).field_order

        def samples(shard: PlannedShard) -> Iterator[PlannedSample]:
            rows = connection.execute(
                f"SELECT position - ?, id, label, path, name, problem, listing.nbytes, fields, {', '.join(places.COLUMNS)}"
                " FROM slots CROSS JOIN listing USING (ordinal) CROSS JOIN directories USING (directory)"
                " WHERE position >= ? AND position < ? ORDER BY position",
                (shard.first_position - shard.first_slot, shard.first_position, shard.first_position + shard.num_slots),
            )
            blocks = iter(lambda: rows.fetchmany(_ROWS_AT_ONCE), [])
            return itertools.chain.from_iterable(places.planned_samples(block, order) for block in blocks)

        yield samples
