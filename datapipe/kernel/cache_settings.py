"""Choose where what was decoded is kept between epochs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from datapipe.core.checks import path_name, whole_number
from datapipe.core.user_cache import user_cache
from datapipe.errors import OptionError


@dataclass(frozen=True, slots=True)
class Cache:
    """A place in which decoded data is kept between epochs, and its capacity.

    >>> data = datapipe.Images("photos", cache=datapipe.Cache("ram", nbytes=32_000_000_000))

    where: "ram", the node's memory, shared by its processes until the last one ends; "disk", in the user's cache directory; a
      directory; or "gpu", the memory of the device that batches go to.
    nbytes: its capacity in bytes; None: half of the memory, 80 % of the disk, or a quarter of the GPU's memory that is free. A
      full cache stays as it is.

    Raises OptionError for a place or a capacity that makes no sense.
    """

    where: str | os.PathLike[str]
    nbytes: int | None = None

    def __post_init__(self) -> None:
        where = self.where
        if not isinstance(where, (str, os.PathLike)):
            raise OptionError(f"cache is {where!r:.60}; choose 'ram', 'gpu', 'disk' or a directory")
        if where not in ("ram", "gpu", "disk"):
            if isinstance(where, str) and os.sep not in where and not os.path.isdir(where):
                remedy = f"choose 'ram', 'gpu' or 'disk', or write a new directory as {'./' + where!r}"
                raise OptionError(f"cache is {where!r}; {remedy}")
            path_name(where, "cache")
        if self.nbytes is not None:
            whole_number(self.nbytes, "Cache(nbytes)", least=1)

    @classmethod
    def of(cls, cache: Cache | str | os.PathLike[str] | None) -> Cache | None:
        """Return what was passed as `cache=`, a place alone being enough."""
        return cache if cache is None or isinstance(cache, Cache) else cls(cache)

    def directory(self, room: str) -> Path | None:
        """Return the directory that it is in, None for memory. `room`: the part of the user's cache that "disk" means."""
        if self.where in ("ram", "gpu"):
            return None
        return user_cache(room) if self.where == "disk" else Path(self.where)
