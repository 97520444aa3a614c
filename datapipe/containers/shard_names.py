"""Which format a file is a shard of, by its name."""

from __future__ import annotations

import re

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


def container_of(name: str) -> str | None:
    """The format of a file of that name, None for a file that is no shard; hidden files, as macOS's `._x.tar`, are none."""
    if name.startswith(".") or _OTHERS.fullmatch(name):
        return None
    return next((container for container, pattern in _FORMATS.items() if pattern.fullmatch(name)), None)
