"""Read masks of loss that lie beside token ids: a byte for each token, 1 where it carries loss, else 0.

OLMo has `labels_mask_part_0000.npy` beside `token_ids_part_0000.npy`, and `label_mask.npy` beside `input_ids.npy`: bare bytes in
spite of their names, as the ids are; what numpy saved is read as well. datatrove has `x.ds.loss` beside `x.ds`.

A mask is read once, and the runs of its tokens with loss are kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.codecs.npy import NPY_MAGIC, read_npy_header
from datapipe.core import atomic
from datapipe.core.ranges import ranges
from datapipe.core.regular_files import open_file, read_bytes
from datapipe.core.user_cache import INDEXES, index_directory
from datapipe.core.waiting import reported_wait
from datapipe.errors import DecodeError, FormatError
from datapipe.index.tokens import Ints, LossRuns, ShardFacts, TokenShard

_READ_NBYTES = 1 << 24
_HEADER_NBYTES = 1 << 12
_DATATROVE = ".ds.loss"
_MASK = re.compile(r"labels?_mask")
_MASKS, _IDS = ("labels_mask", "label_mask"), ("token_ids", "input_ids")  # how names begin


def is_mask(path: Path) -> bool:
    """Return whether a file is a mask by its name."""
    return _MASK.match(path.name) is not None or path.name.endswith(_DATATROVE)


def ids_beside(mask: Path) -> list[Path]:
    """Return which files of ids a mask may belong to."""
    if mask.name.endswith(_DATATROVE):
        return [mask.with_suffix("")]
    return [mask.with_name(_MASK.sub(name, mask.name, count=1)) for name in _IDS]


def mask_beside(ids: Path) -> Path | None:
    """Return the mask of a file of ids; None if it has none."""
    begins = next((name for name in _IDS if ids.name.startswith(name)), None)
    names = [f"{ids.name}.loss"] if ids.name.endswith(".ds") else []
    names += [name + ids.name.removeprefix(begins) for name in _MASKS if begins is not None]
    return next((ids.with_name(name) for name in names if ids.with_name(name).is_file()), None)


def masked(facts: ShardFacts, mask: Path) -> ShardFacts:
    """Return a shard whose tokens carry loss as a mask says. Raises FormatError for a mask that does not fit it."""
    runs = _runs(mask, facts.num_tokens)

    def opened() -> TokenShard:
        shard = facts.open()
        return dataclasses.replace(shard, loss=_by_document(runs, shard.num_tokens))

    return dataclasses.replace(facts, crc32c=crc32c(runs.tobytes(), facts.crc32c), open=opened)


def _runs(path: Path, num_tokens: int) -> Ints:
    """Return (k, 2) the runs of tokens with loss in a file: the first, and the one after the last."""
    with open_file(path) as file:
        head = file.read(_HEADER_NBYTES)
        status = os.fstat(file.fileno())
    start = _start(path, head, status.st_size, num_tokens)
    stamp = os.path.realpath(path), start, status.st_size, status.st_mtime_ns
    name = hashlib.sha256(repr(stamp).encode(errors="surrogateescape")).hexdigest()
    kept = index_directory(INDEXES, name[:32]) / "runs"
    with contextlib.suppress(FileNotFoundError):
        found = np.frombuffer(read_bytes(kept, at_most=1 << 40), np.int64)
        if not len(found) % 2 and (np.diff(found, prepend=-1, append=num_tokens + 1) > 0).all():
            return found.reshape(-1, 2)
    with reported_wait(f"the mask {path}", "it is read once, to find the tokens that carry loss"):
        edges = _edges(path, start, num_tokens)
    with atomic.atomic_writer(kept, mode=0o600) as written:
        written.write(edges.tobytes())
    return edges.reshape(-1, 2)


def _start(path: Path, head: bytes, nbytes: int, num_tokens: int) -> int:
    """Return where the bytes of a mask begin. Raises FormatError for a mask of another number of tokens."""
    start = 0
    if head.startswith(NPY_MAGIC):
        try:
            header = read_npy_header(head)
        except DecodeError as exc:
            raise FormatError(f"{path}: {exc}; save it again") from exc
        if header.dtype.itemsize != 1 or len(header.shape) != 1:
            raise FormatError(f"{path}: holds {header.dtype.str} {header.shape}, and not one row of bool; save it as one")
        start = header.start
    if nbytes - start != num_tokens:
        raise FormatError(f"{path}: a mask of {nbytes - start} tokens beside {num_tokens} token ids; get both files again")
    return start


def _edges(path: Path, start: int, num_tokens: int) -> Ints:
    """Return where runs begin and end, in turn. Raises FormatError for other bytes than 0 and 1."""
    found: list[NDArray[np.int64]] = []
    before = 0
    with open_file(path) as file:
        for place in range(0, num_tokens, _READ_NBYTES):
            part = np.frombuffer(os.pread(file.fileno(), min(_READ_NBYTES, num_tokens - place), start + place), np.uint8)
            if part.max(initial=0) > 1:
                raise FormatError(f"{path}: no mask of loss, which has a byte of 0 or 1 for each token; get it again")
            found.append(np.flatnonzero(np.diff(part, prepend=np.uint8(before))) + place)
            before = int(part[-1])
    edges = np.concatenate([np.zeros(0, np.int64), *found])
    return np.append(edges, num_tokens) if before else edges


def _by_document(runs: Ints, num_tokens: Ints) -> LossRuns:
    """Return runs of a file divided among its documents. `num_tokens`: (n,) of each."""
    ends = np.cumsum(num_tokens)
    begins = ends - num_tokens
    first = np.searchsorted(ends, runs[:, 0], side="right")
    num = np.searchsorted(ends, runs[:, 1]) - first + 1
    document = ranges(first, num)
    begin = np.maximum(np.repeat(runs[:, 0], num), begins[document]) - begins[document]
    end = np.minimum(np.repeat(runs[:, 1], num), ends[document]) - begins[document]
    has = begin < end
    counts = np.bincount(document[has], minlength=len(num_tokens))
    return LossRuns(np.concatenate([[0], np.cumsum(counts)]), np.stack([begin[has], end[has]], axis=1).astype(np.int32))
