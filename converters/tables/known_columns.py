"""Merge what a scan finds about the columns of a table, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from converters.tables import MAX_COLUMNS, Parsed, Place
from converters.tables.kinds import OBJECT, are_together, called, together
from converters.tables.types import Facts, is_left_out, types_of
from datapipe.errors import FormatError, OptionError


class KnownColumns:
    """The columns of the blocks so far. `kinds`: of their values, where rows are objects. Not thread-safe."""

    def __init__(self, *, is_text: bool) -> None:
        self.facts: dict[str, Facts] = {}
        self.kinds: dict[Place, str] = {}
        self._is_text = is_text
        self._num_rows = 0

    def goes_with(self, parsed: Parsed) -> bool:
        """Return True if the rows of a block that were read on their own are those that are good after the blocks so far."""
        return not any(bad.is_relative for bad in parsed.bad) and are_together(self.kinds, parsed.kinds)

    def add(self, parsed: Parsed, found: Mapping[str, Facts], *, where: str) -> None:
        """Add the columns of a block. Raises FormatError where values do not go together, and for too many columns of JSON."""
        for name in {**self.facts, **found}:
            before = self.facts.get(name) or Facts(pa.null(), self._num_rows, self._num_rows)
            added = found.get(name) or Facts(pa.null(), parsed.num_rows, parsed.num_rows)
            try:
                self.facts[name] = before.joined(added, name, is_text=self._is_text)
            except FormatError as exc:
                raise FormatError(f"{where}: {exc}") from exc
        for place, kind in parsed.kinds.items():
            self.kinds[place] = together(self.kinds.get(place, kind), kind) or kind
        self._num_rows += parsed.num_rows
        if self.kinds and len(self.facts) > MAX_COLUMNS:
            raise FormatError(
                f"{where}: there are {len(self.facts):,} different members by now, and each would be a column, {MAX_COLUMNS:,} "
                "at most, mostly empty; write keys that are values, such as ids, as values of a member"
            )

    def schema(self, schema: Mapping[str, str]) -> Any:
        """Return Arrow's schema of the table. `schema`: type names by column or pattern. Raises OptionError if none is left."""
        declared = types_of(schema, self.facts)
        objects = {called(place) for place, kind in self.kinds.items() if kind == OBJECT and None not in place}
        fields = [
            pa.field(name, declared.get(name) or one.target(), nullable=one.num_nulls > 0)
            for name, one in self.facts.items()
            if not (pa.types.is_null(one.kind) and name in objects)  # an object that was null in places
            and not is_left_out(schema, name)
        ]
        if not fields:
            raise OptionError("--schema leaves out every column")
        return pa.schema(fields)
