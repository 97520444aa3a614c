"""Check the options of a conversion of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converters.options import Limit, OnError, check_run, refuse_overlap
from datapipe.core.checks import path_name
from datapipe.errors import OptionError

TARGETS = ("parquet", "hdf5")
COMPRESSIONS = ("none", "snappy", "zstd", "lz4")
GROUP_ROWS = 1 << 17
_MAX_SHARD_NBYTES = 1 << 30  # rows of a shard are sorted in memory


@dataclass(frozen=True, slots=True)
class TableConversion:
    """The source, the target and the options. `to`: "parquet", or "hdf5" for one row-major file that is shuffled in full."""

    source: Path  # a file, a directory or a glob pattern
    destination: Path
    to: str = "parquet"
    schema: Mapping[str, str] = field(default_factory=dict)  # type names by column or pattern; the others are found by a scan
    names: tuple[str, ...] = ()  # of the columns of CSV without a header
    delimiter: str | None = None
    compression: str = "snappy"
    group_rows: int = GROUP_ROWS
    shard_nbytes: int = 256_000_000  # of rows in memory, per file: a target
    seed: int | None = 0  # of the order in which rows are written; None: as they come
    on_error: OnError = OnError.FAIL
    max_errors: Limit | None = None
    num_workers: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        path_name(self.source, "source")
        path_name(self.destination, "destination")
        _require(self.to in TARGETS, f"--to {self.to!r}: tables become {' or '.join(TARGETS)}")
        _require(self.compression in COMPRESSIONS, f"--compression {self.compression!r}: choose of {', '.join(COMPRESSIONS)}")
        _require(self.group_rows >= 1, f"--group-rows is {self.group_rows}; it must be at least 1")
        _require(
            1 <= self.shard_nbytes <= _MAX_SHARD_NBYTES, "--shard-size of a table is at most 1GiB: its rows are sorted in memory"
        )
        _require(
            self.on_error is not OnError.QUARANTINE, "--on-error quarantine is for files; errors.jsonl keeps the text of bad rows"
        )
        _require(
            self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter.isascii() and self.delimiter not in '\r\n"\0'),
            f"--delimiter {self.delimiter!r}: pass one ASCII character, neither a line break nor a quote, such as ';' or '\\t'",
        )
        _require(len(set(self.names)) == len(self.names), "--names names a column twice")
        check_run(self.num_workers, self.on_error, self.max_errors)
        refuse_overlap(self.source, self.destination)

    def as_typed(self) -> dict[str, Any]:
        """Return the options on which the written bytes depend, JSON-safe."""
        return {
            "to": self.to,
            "schema": dict(self.schema),
            "names": list(self.names),
            "delimiter": self.delimiter,
            "compression": self.compression,
            "group_rows": self.group_rows,
            "shard_size": self.shard_nbytes,
            "seed": self.seed,
            "on_error": self.on_error.value,
            "max_errors": None if self.max_errors is None else str(self.max_errors),
        }


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise OptionError(message)
