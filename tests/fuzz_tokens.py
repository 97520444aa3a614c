"""What `fuzz` looks at of token ids: files of Megatron, datatrove and numpy, indexes of converted shards, plans of packs.

Megatron and datatrove have two files, which are damaged as one: the index, `BETWEEN`, the ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from crc32c import crc32c
from token_corpora import random_documents, write_datatrove, write_megatron

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.tokens import TokenFacts
from datapipe.errors import DatapipeError
from datapipe.index.manifest import Manifest, ShardInfo, write_manifest
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldColumn, SidecarRows, write_sidecar
from datapipe.index.tokens import TokenIndex, TokenShard
from datapipe.opening.tokens.opening import open_tokens
from datapipe.packing.kept_plans import open_plan
from datapipe.packing.packs import Packs, Segments
from datapipe.packing.plan import PackPlan
from datapipe.packing.settings import PackSettings
from datapipe.packing.single import DocumentPacks
from datapipe.packing.stream import StreamPacks

BETWEEN = b"<between>"
DOCUMENTS = random_documents(40, most=70)
LENGTH = 16
PLANNED = [[int(size) for size in np.random.default_rng(1).integers(0, 50, num)] for num in (70, 1, 30)]
SETTINGS = PackSettings(LENGTH, labels="shifted")


def megatron_files() -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for dtype, per_document in (("uint16", 1), ("int32", 1), ("uint16", 3)):
            path = write_megatron(Path(directory) / "x", DOCUMENTS, dtype, per_document=per_document)
            found.append(path.with_suffix(".idx").read_bytes() + BETWEEN + path.read_bytes())
    return found


def datatrove_files() -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for dtype in ("uint16", "uint32"):
            path = write_datatrove(Path(directory), DOCUMENTS, dtype) / "x.ds"
            found.append(path.with_suffix(".ds.index").read_bytes() + BETWEEN + path.read_bytes())
    return found


def numpy_files() -> list[bytes]:
    found = []
    for array in (np.concatenate(DOCUMENTS).astype(np.uint16), np.arange(500, dtype=np.int64), np.zeros(0, np.uint32)):
        sink = io.BytesIO()
        np.save(sink, array)
        found.append(sink.getvalue())
    return found


def index_files() -> list[bytes]:
    """Indexes of converted shards, of texts and of chats."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        texts = [document.astype("<u2").tobytes() for document in DOCUMENTS]
        nbytes = np.array([len(text) for text in texts], np.int64)
        checksums = np.array([crc32c(text) for text in texts], np.uint32)
        for runs in (b"", np.array([[0, 1], [1, 2]], "<i4").tobytes()):
            rows = SidecarRows(())
            for number in range(len(texts)):
                rows.append(id=number, key=b"%d" % number, source=b"s", label=-1, size=(0, 0), extents={})
            of_each = [runs if len(document) > 1 else b"" for document in DOCUMENTS]
            column = FieldColumn(nbytes.cumsum() - nbytes, nbytes, encoding="tokens", crc32c=checksums, runs=of_each)
            rows.add_column("tokens", column)
            write_sidecar(Path(directory) / "x", rows, "x.bin")
            found.append((Path(directory) / "x").read_bytes())
    return found


def plan_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        open_plan(planned_index(), SETTINGS, [Path(directory)])
        (path,) = Path(directory).glob("packs-*.arrow")
        return [path.read_bytes()]


@cache
def planned_index() -> TokenIndex:
    """Documents of the sizes `PLANNED`, whose files do not exist."""

    def open_shard(number: int) -> TokenShard:
        num = np.array(PLANNED[number], np.int64)
        return TokenShard(f"{number}", np.dtype("<u2"), 2 * (np.cumsum(num) - num), num)

    return TokenIndex("corpus", [len(one) for one in PLANNED], open_shard, fingerprint="f", facts=TokenFacts("uint16"))


def look_at_megatron(data: bytes, scratch: Path) -> object:
    return _read_pair(data, scratch.with_suffix(".idx"), scratch.with_suffix(".bin"))


def look_at_datatrove(data: bytes, scratch: Path) -> object:
    return _read_pair(data, scratch.with_suffix(".ds.index"), scratch.with_suffix(".ds"))


def _read_pair(data: bytes, index_path: Path, path: Path) -> object:
    index, _, ids = data.partition(BETWEEN)
    index_path.write_bytes(index)
    path.write_bytes(ids)
    return read_everything(path)


def look_at_numpy(data: bytes, scratch: Path) -> object:
    path = scratch.with_suffix(".npy")
    path.write_bytes(data)
    os.utime(path, ns=(0, crc32c(data)))  # within a tick of the clock, files of one size would count as the same
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache), named(path):
        ends = len(open_tokens(path, eos=3))
    return ends, read_everything(path)


def look_at_index(data: bytes, scratch: Path) -> object:
    """A set whose manifest is sound, and made for this index."""
    root = scratch.with_name("token-set")
    root.mkdir(exist_ok=True)
    ids = np.concatenate(DOCUMENTS).astype("<u2").tobytes()
    (root / "x.bin").write_bytes(ids)
    (root / f"x.bin{SIDECAR_SUFFIX}").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    num = len(DOCUMENTS)
    shard = ShardInfo("x.bin", num, len(ids), 0, num, index_sha256=digest)
    facts = TokenFacts("uint16", vocab_size=1000)
    write_manifest(root, Manifest("tokens", (FieldSpec("tokens", FieldKind.TOKENS),), (shard,), tokens=facts))
    return read_everything(root)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Let errors of ours name the file, in one line."""
    try:
        yield
    except DatapipeError as exc:
        if str(path.with_suffix("")) not in str(exc) or "\n" in str(exc):
            raise AssertionError(f"does not name the file in one line: {exc}") from exc
        raise


def read_everything(path: Path) -> int:
    """Open a corpus; read its documents, and pack them in every way. Returns how many tokens it has."""
    with named(path):
        index = open_tokens(path)
        num_tokens = 0
        for number in range(index.num_shards):
            shard = index.shard(number)
            if not shard.num_tokens.any():
                continue
            ids, _ = shard.mapped
            begins = (shard.offset - shard.offset[0]) // shard.dtype.itemsize
            assert begins.min() >= 0
            assert (begins + shard.num_tokens).max() <= len(ids), "a document reaches beyond the file"
            num_tokens += int(shard.num_tokens.sum())
        assert num_tokens <= 1 << 24, "more than the file has"
        for settings in (PackSettings(LENGTH, "concat"), PackSettings(LENGTH, "pad"), SETTINGS):
            packs = _packs(index, settings)
            found = packs.segments(np.arange(len(packs)), seed=3, epoch=1)
            packs.cost(np.arange(len(packs)), seed=3, epoch=1)
            losses = packs.loss(np.arange(len(packs)), seed=3, epoch=1)
            assert (losses >= 0).all()
            assert (losses <= LENGTH).all()
            left_out = num_tokens % LENGTH if settings.packing == "concat" else 0
            assert int(found.num.sum()) == num_tokens - left_out
    return num_tokens


def _packs(index: TokenIndex, settings: PackSettings) -> Packs:
    if settings.packing == "best-fit":
        with tempfile.TemporaryDirectory() as home:
            return open_plan(index, settings, [Path(home)])
    return StreamPacks(index, settings) if settings.packing == "concat" else DocumentPacks(index, settings)


def look_at_plan(data: bytes, scratch: Path) -> object:
    """A plan is whole: what it has of each pack is what was written."""
    sound = expected_plan()
    index, plan = planned_index(), _opened_plan(data, scratch)
    assert len(plan) == len(sound[1])
    every = np.arange(len(plan))
    found = plan.segments(every, seed=None, epoch=0)
    assert _tokens(found) == Counter({(s, d): size for s, sizes in enumerate(PLANNED) for d, size in enumerate(sizes) if size}), (
        "other tokens than those of the documents"
    )
    for one, other in zip(found, sound[0], strict=True):
        assert np.array_equal(one, other), "other rows than were planned"
    assert np.array_equal(plan.loss(every, seed=None, epoch=0), sound[1])
    assert np.array_equal(plan.cost(every, seed=None, epoch=0), sound[2])
    return index


@cache
def expected_plan() -> tuple[Segments, Any, Any]:
    with tempfile.TemporaryDirectory() as directory:
        plan = open_plan(planned_index(), SETTINGS, [Path(directory)])
    every = np.arange(len(plan))
    return (plan.segments(every, seed=None, epoch=0), plan.loss(every, seed=None, epoch=0), plan.cost(every, seed=None, epoch=0))


def look_at_forged_plan(data: bytes, scratch: Path) -> object:
    """Whoever changed it also made its checksums: numbers may differ, as long as they are possible."""
    with patch.object(PackPlan, "checksum", lambda plan, window: int(plan.checksums[window])):
        plan = _opened_plan(data, scratch)
        every = np.arange(len(plan))
        found = plan.segments(every, seed=None, epoch=0)
        plan.segments(every[::-1].copy(), seed=3, epoch=1)
    assert found.num.min(initial=1) > 0
    assert (found.first >= 0).all()
    assert (found.first + found.num <= found.total).all()
    assert np.bincount(found.row, found.num).max(initial=0) <= LENGTH
    return plan


def _opened_plan(data: bytes, scratch: Path) -> Packs:
    index = planned_index()
    path = scratch.with_name(f"packs-{SETTINGS.name}-{index.fingerprint}.arrow")
    path.write_bytes(data)
    with named(path):
        return open_plan(index, SETTINGS, [scratch.parent])


def _tokens(segments: Segments) -> Counter[tuple[int, int]]:
    """How many tokens of each document are in these parts."""
    found = Counter[tuple[int, int]]()
    for shard, document, num in zip(segments.shard.tolist(), segments.document.tolist(), segments.num.tolist(), strict=True):
        found[shard, document] += num
    return found
