"""Find the fields that all samples of a set of shards have.

If some shards lack the image or the label, the set is refused, as training on it would not be what was meant; any other
field that some samples lack is left out, which is reported once for the whole set.
"""

from __future__ import annotations

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.field_names import IMAGE, LABEL
from datapipe.core.errors import FormatError
from datapipe.core.printable import get_logger
from datapipe.index.sidecar import SidecarRows

_NUM_NAMED = 8  # fields in a message
_NEEDED = frozenset((IMAGE, LABEL))

logger = get_logger(__name__)


class CommonFields:
    """Collects the fields of one shard after the other. Not thread-safe."""

    def __init__(self) -> None:
        self._num_samples = self._num_shards = 0
        self._kinds: dict[str, set[FieldKind]] = {}
        self._num_whole: dict[str, int] = {}  # shards in which all samples have the field
        self._num_having: dict[str, int] = {}  # samples that have it
        self._unread: dict[str, str] = {}

    def add(self, rows: SidecarRows, fields: tuple[FieldSpec, ...], where: str) -> None:
        """Add a shard named `where`. Raises FormatError if only it, or only the others, have the image or the label."""
        needed = {spec.name for spec in fields} & _NEEDED
        before = self._kinds.keys() & _NEEDED
        if self._num_shards and needed != before:
            had = ", ".join(self._kinds)
            has = ", ".join(spec.name for spec in fields)
            raise FormatError(f"{where}: has fields {has}, the shards before it {had}; open them separately")
        self._num_shards += 1
        self._num_samples += len(rows)
        self._unread |= rows.unread
        for spec in fields:
            self._kinds.setdefault(spec.name, set()).add(spec.kind)
            self._num_whole[spec.name] = self._num_whole.get(spec.name, 0) + 1
            self._num_having[spec.name] = self._num_having.get(spec.name, 0) + len(rows)
        for name, num in rows.lacking.items():
            self._kinds.setdefault(name, set())
            self._num_having[name] = self._num_having.get(name, 0) + len(rows) - num

    def fields(self) -> tuple[FieldSpec, ...]:
        """Return the fields of every sample, in the order in which they came."""
        return tuple(FieldSpec(name, next(iter(kinds))) for name, kinds in self._kinds.items() if self._is_common(name))

    def say_what_is_left_out(self, where: str) -> None:
        """Log one warning of the fields that are left out, and one note of columns that cannot be fields."""
        left_out = [
            f"{name!r}, which {self._num_samples - self._num_having[name]} of {self._num_samples} samples lack"
            if self._num_having[name] < self._num_samples
            else f"{name!r}, of other kinds in other shards ({', '.join(sorted(kind.value for kind in kinds))})"
            for name, kinds in self._kinds.items()
            if not self._is_common(name)
        ]
        if left_out:
            logger.warning("%s: left out: %s", where, _listed(left_out))
        if self._unread:
            logger.info("%s: not read: %s", where, _listed([f"{name!r} ({why})" for name, why in self._unread.items()]))

    def _is_common(self, name: str) -> bool:
        return self._num_whole.get(name) == self._num_shards and len(self._kinds[name]) == 1


def _listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - _NUM_NAMED} more" if len(texts) > _NUM_NAMED else ""
    return "; ".join(texts[:_NUM_NAMED]) + more
