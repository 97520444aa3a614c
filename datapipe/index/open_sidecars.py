"""The sidecars of a dataset that are open at a time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import FormatError, MissingDataError
from datapipe.core.regular_files import path_inside
from datapipe.index.manifest import MANIFEST_NAME, Manifest, ShardInfo
from datapipe.index.remote_set import ConvertedSet, RemoteShards
from datapipe.index.sidecar import ROW_NBYTES, SIDECAR_SUFFIX, Sidecar
from datapipe.stores.pending import waiting

MAX_OPEN_SIDECARS = 4096  # one map each; Linux allows a process 65,530


class OpenSidecars:
    """The sidecars of an index by shard number, opened when first needed; the least recently used are closed."""

    def __init__(
        self, manifest: Manifest, *, data_directory: Path, sidecar_directory: Path, remote: ConvertedSet | RemoteShards | None
    ) -> None:
        self._manifest = manifest
        self._data, self._directory = str(data_directory), str(sidecar_directory)
        self._named_in = os.path.join(self._directory, MANIFEST_NAME)
        self._follows = sidecar_directory != data_directory  # the user named these shards or their folder
        self._remote = remote
        self._fetching = threading.Lock()
        self._open: OrderedDict[int, Sidecar] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> Sidecar:
        with self._lock:
            sidecar = self._open.get(shard)
            if sidecar is None:
                sidecar = self._open[shard] = self.opened(shard)
                if len(self._open) > MAX_OPEN_SIDECARS:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return sidecar

    def fetch(self, shards: NDArray[np.int64] | None = None) -> None:
        """Copy the sidecars of these shards, None for all, several at once if they lie in a store."""
        if self._remote is not None:
            numbers = range(len(self._manifest.shards)) if shards is None else np.unique(shards).tolist()
            with waiting(), self._fetching:  # so that a sidecar that two batches need is fetched once
                self._remote.fetch_sidecars(self._manifest.shards[number] for number in numbers if number not in self._open)

    def opened(self, shard: int) -> Sidecar:
        """Return one sidecar, opened for the caller alone and checked against the manifest."""
        about = self._manifest.shards[shard]
        if self._remote is not None:
            self._remote.fetch_sidecars([about])
        path_inside(self._data, about.name, named_in=self._named_in, follows=self._follows)
        try:
            return Sidecar(self._path(about), shard=about)
        except (FormatError, MissingDataError):
            if self._remote is None:
                raise
        self._remote.fetch_again(about)  # the local copy was damaged
        return Sidecar(self._path(about), shard=about)

    def refuse_claims(self) -> None:
        """Raise FormatError if a manifest counts more samples than its sidecars, by their sizes, have room for.

        Call it before allocating memory for the number of samples in the manifest.
        """
        self.fetch()
        for shard, about in enumerate(self._manifest.shards):
            path, num = self._path(about), about.num_samples
            try:
                nbytes = os.stat(path).st_size
            except OSError:
                self.opened(shard)  # raises what is wrong with it
                continue
            if num * ROW_NBYTES > nbytes:
                raise FormatError(f"{path}: too small for the {num} samples that the manifest counts; index or convert again")

    def _path(self, about: ShardInfo) -> Path:
        return Path(path_inside(self._directory, about.name + SIDECAR_SUFFIX, named_in=self._named_in))
