"""`Desk`: what a worker's process has at hand for the requests that it serves: the files below its roots, and memory."""

from __future__ import annotations

import functools
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from datapipe.core.regular_files import is_within
from datapipe.errors import FormatError, OptionError
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.fetch.remote import RemoteFiles
from datapipe.kernel.process_main import Scratch
from datapipe.remote_workers.wire import MAX_NBYTES, MAX_ROWS
from datapipe.stores.location import HUB_SCHEME, Location, is_url, located
from datapipe.stores.settings import Remote

Codes: TypeAlias = dict[str, str] | None  # files of code that loaders have sent, by digest; None: no code of others runs here

_OPENED = 8  # recipes that are kept ready


def _dataset_of(location: Location) -> str:
    """Return what a root must be equal in: of a dataset on the Hub its name, as a worker serves all its commits."""
    return location.root.rpartition("@")[0] if location.scheme == HUB_SCHEME else location.root


class Desk:
    """Serves one request after the other.

    `roots`: folders, with all links followed, and URLs. What lies below none of them is not opened. None: everything is.
    """

    def __init__(self, roots: Sequence[str] | None) -> None:
        self.codes: Codes = None
        self._is_free, roots = roots is None, roots or ()
        self._folders = [os.fsencode(os.path.realpath(root)) for root in roots if not is_url(root)]
        self._prefixes = [located(root) for root in roots if is_url(root)]
        self._real_folder = functools.lru_cache(maxsize=1 << 16)(os.path.realpath)
        self._opened: OrderedDict[Hashable, Any] = OrderedDict()
        self._scratch: Scratch | None = None
        self._local = LocalFiles()
        self._stored: RemoteFiles | None = None

    def files(self, paths: Sequence[str]) -> Files:
        """Return the reader of these files and objects. Raises OptionError if one lies below none of the roots."""
        stored = False
        for path in dict.fromkeys(paths):
            stored |= self.check(path)
        if not stored:
            return self._local
        if self._stored is None:
            self._stored = RemoteFiles(self._local, Remote())
        return self._stored

    def check(self, path: str) -> bool:
        """Raise OptionError for a path that lies below none of the roots. Returns whether it is a URL."""
        stored = is_url(path)
        if stored:
            is_below = self._is_below(path)
        else:
            real = self._real(path)
            is_below = any(is_within(real, folder) for folder in self._folders)
        if not (is_below or self._is_free):
            raise OptionError(f"{path}: lies below none of the roots that this worker serves")
        return stored

    def _is_below(self, url: str) -> bool:
        """Return whether an object lies below one of the prefixes."""
        there = located(url)
        if any(part in ("", ".", "..") for part in there.key.split("/")):
            return False
        return any(
            (there.scheme, _dataset_of(there)) == (prefix.scheme, _dataset_of(prefix))
            and (not prefix.key or there.key == prefix.key or there.key.startswith(f"{prefix.key}/"))
            for prefix in self._prefixes
        )

    def _real(self, path: str) -> bytes:
        """Return a path with all links followed. Folders are remembered: they hold many samples."""
        if "\0" in path:
            raise OptionError(f"{path!r:.80}: is no path")
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or not os.path.isabs(folder):
            raise OptionError(f"{path!r:.80}: is no absolute path of a file")
        found = os.path.join(self._real_folder(folder), name)
        return os.fsencode(os.path.realpath(found) if os.path.islink(found) else found)

    def use(self, scratch: Scratch, codes: Codes = None) -> None:
        """Make rows in this memory, and find code at these places, from now on."""
        self._scratch, self.codes = scratch, codes

    def rows(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory for the rows of the answer, uninitialised. Raises FormatError for too many."""
        if not shape or shape[0] > MAX_ROWS or min(shape) < 0 or math.prod(shape) * dtype.itemsize > MAX_NBYTES:
            raise FormatError(f"rows of the shape {tuple(shape)!r:.80} are asked for, which is too much at once")
        assert self._scratch is not None
        nbytes = math.prod(shape) * dtype.itemsize
        return torch.from_numpy(np.frombuffer(self._scratch.take(nbytes), np.uint8, nbytes)).view(dtype).view(*shape)

    def take(self, nbytes: int) -> memoryview:
        """Return memory for so many bytes of the answer. Raises FormatError for too many."""
        if nbytes > MAX_NBYTES:
            raise FormatError(f"a batch has {nbytes:,} bytes, more than {MAX_NBYTES:,}, which is too much at once")
        assert self._scratch is not None
        return self._scratch.take(nbytes)

    def taken(self, nbytes: int) -> torch.Tensor:
        """Return the bytes that were taken and filled as one row."""
        assert self._scratch is not None
        return torch.from_numpy(np.frombuffer(self._scratch.take(nbytes), np.uint8, nbytes)).view(1, nbytes)

    def opened(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this key, lately."""
        if key not in self._opened:
            self._opened[key] = make()
            while len(self._opened) > _OPENED:
                self._opened.popitem(last=False)
        self._opened.move_to_end(key)
        return self._opened[key]
