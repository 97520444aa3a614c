"""Which names are those of shards, in which format, and which of them belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from datapipe.containers.listing import held_apart_names
from datapipe.core.errors import FormatError

_T = TypeVar("_T")

_FORMATS = {
    "tar": re.compile(r".+\.tar"),
    # `x.tfrecord`, `x.tfrecords`, `x.tfrecord.gz` (refused, with the reason), TFDS's `x.tfrecord-00000-of-00010`, and the
    # `train-00000-of-01024` of TensorFlow's own scripts
    "tfrecord": re.compile(r".+\.tfrecords?([.-].*)?|.+-\d{5}-of-\d{5}"),
    "hdf5": re.compile(r".+\.(h5|hdf5|he5)"),
    "parquet": re.compile(r".+\.parquet"),
    "arrow": re.compile(r"(?!.+\.index\.).+\.arrow"),
}
_OTHERS = re.compile(r".*\.(idx|index|json|txt|tmp|part)", re.IGNORECASE)  # what lies beside shards


def refuse_several_sets(shards: Sequence[str], where: str) -> None:
    """Raise FormatError for `train-*` beside `test-*`: sets of their own, as on Hugging Face's hub. `shards`: their names."""
    names = grouped(shards, lambda name: re.split(r"[^A-Za-z]", name, maxsplit=1)[0])
    sets = held_apart_names(names)
    if sets:
        pattern = sets[0] + names[sets[0]][0][len(sets[0])] + "*"
        raise FormatError(
            f"{where}: holds shards of {', '.join(sets)}; open one set of them, e.g. '{where.rstrip('/')}/{pattern}'"
        )


def grouped(items: Iterable[_T], name_of: Callable[[_T], str]) -> dict[str, list[_T]]:
    """Return the items by name, in their order."""
    groups: dict[str, list[_T]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    return groups


def container_of(name: str) -> str | None:
    """The format of a file of that name, None for a file that is no shard; hidden files, as macOS's `._x.tar`, are none."""
    if name.startswith(".") or _OTHERS.fullmatch(name):
        return None
    return next((container for container, pattern in _FORMATS.items() if pattern.fullmatch(name)), None)
