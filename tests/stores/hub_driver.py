"""Open a dataset on the Hub as ranks and workers do, each in a process of its own."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys

import numpy as np

from datapipe.fetch.files import open_files
from datapipe.opening.samples import open_index
from datapipe.stores.settings import Remote

_AT_ONCE = 32


def read_some(url: str, answers: multiprocessing.Queue[str] | None = None) -> str:
    """Return how many samples there are, and a digest of one sample of each shard."""
    index = open_index(url)
    firsts = np.array([shard.first_slot for shard in index.manifest.shards], np.int64)
    found = index.look_up(index.ids(firsts), index.manifest.fields[0].name)
    digest = hashlib.sha256()
    for data in open_files(index, remote=Remote()).read_each(found.extents, range(len(firsts))):
        assert isinstance(data, bytes), data
        digest.update(data)
    answer = f"{len(index)} {digest.hexdigest()}"
    if answers is not None:
        answers.put(answer)
    return answer


def main(url: str, num_processes: int) -> None:
    """Print what that many processes have read, once if all have read the same."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([read_some.__module__, "obstore.store", "datapipe.containers.parquet.scanner"])
    answers: multiprocessing.Queue[str] = context.Queue()
    found = set()
    for first in range(0, num_processes, _AT_ONCE):
        some = [
            context.Process(target=read_some, args=(url, answers), daemon=True)
            for _ in range(min(_AT_ONCE, num_processes - first))
        ]
        for process in some:
            process.start()
        found |= {answers.get(timeout=120) for _ in some}
        for process in some:
            process.join(60)
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
