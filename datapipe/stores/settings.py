"""What users may set about reading from object stores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from datapipe.core.checks import real_number, whole_number
from datapipe.errors import OptionError
from datapipe.stores.failures import TIMEOUT_S
from datapipe.stores.window import MAX_REQUESTS


@dataclass(frozen=True, slots=True)
class Remote:
    """How samples are read from an object store. Credentials come from the environment and are no part of it.

    >>> data = datapipe.Images("s3://bucket/train", remote=datapipe.Remote(cache_dir="/ssd/shards", cache_nbytes=200_000_000_000))

    cache_dir: a directory on a local disk in which shards are kept, shared by the processes of a node; None: none are kept.
    cache_nbytes: how much that may take, in bytes; None: 80 % of the disk that is free.
    requests: how many may be under way at once in this process, at most.
    timeout_s: seconds without success after which a request has failed.

    Raises OptionError for values that make no sense.
    """

    cache_dir: str | os.PathLike[str] | None = None
    cache_nbytes: int | None = None
    requests: int = MAX_REQUESTS
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        whole_number(self.requests, "Remote(requests)", least=1)
        if self.cache_nbytes is not None:
            whole_number(self.cache_nbytes, "Remote(cache_nbytes)", least=1)
        if real_number(self.timeout_s, "Remote(timeout_s)") <= 0:
            raise OptionError(f"Remote(timeout_s) is {self.timeout_s}; it must be more than 0 seconds")

    @property
    def cache_path(self) -> Path | None:
        return None if self.cache_dir is None else Path(self.cache_dir)


def remote_settings(remote: object) -> Remote:
    """Return what was passed as `remote=`, the defaults for None. Raises OptionError for anything but a `Remote`."""
    if remote is None:
        return Remote()
    if not isinstance(remote, Remote):
        raise OptionError(f"remote is {remote!r:.60}; pass datapipe.Remote(...), or nothing")
    return remote
