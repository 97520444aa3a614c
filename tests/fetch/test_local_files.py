"""Bytes from files: right whichever threads ask, checked, and few files open."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import crc32c
import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.codecs.probe import MAX_SAMPLE_NBYTES
from datapipe.codecs.stored import PLAIN, prefixed
from datapipe.errors import DecodeError, FormatError, IntegrityError, MissingDataError, MissingSampleError, StorageError
from datapipe.fetch.local import LocalFiles, plan_reads
from datapipe.index.entries import Extents

NBYTES = 4096


def extents(paths: list[Path], offset: int = 0, nbytes: int = NBYTES, *, crc: int | None = None, whole: bool = False) -> Extents:
    num = len(paths)
    return Extents(
        [str(path) for path in paths], np.full(num, offset), np.full(num, nbytes), np.full(num, crc or 0, np.uint32),
        np.full(num, crc is not None, np.uint8), whole,
    )  # fmt: skip


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """40 files, each of one byte value."""
    paths = [tmp_path / f"{number:02d}.tar" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * NBYTES)
    return paths


@pytest.fixture
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_push_out_each_others_files_read_the_right_ones(shards: list[Path]) -> None:
    """With one file kept open every read closes another's; a descriptor must outlive the reads that use it."""
    files, where, wrong = LocalFiles(max_open=1), extents(shards), []

    def read(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, len(shards), 1200).tolist():
            try:
                files.will_need(extents([shards[row]]))
                data = files.read(where, row)
                if data != bytes([row]) * NBYTES:
                    wrong.append(f"{row}: {data[:1]!r}")
            except Exception as exc:
                wrong.append(f"{row}: {exc}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_few_files_stay_open(shards: list[Path]) -> None:
    before, files = open_files(), LocalFiles(max_open=5)
    for row in range(len(shards)):
        files.read(extents(shards), row)
    assert open_files() - before == 5
    files.close()
    assert open_files() == before
    assert files.read(extents(shards), 7) == bytes([7]) * NBYTES
    del files
    assert open_files() == before


def test_whole_files_are_closed_at_once(shards: list[Path]) -> None:
    before, files = open_files(), LocalFiles()
    assert files.read(extents(shards, nbytes=3, whole=True), 4) == bytes([4]) * NBYTES  # whatever the listing said
    assert open_files() == before


def test_parts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(bytes(range(200)))
    files = LocalFiles()
    assert files.read(extents([path], 17, 5), 0) == bytes(range(17, 22))
    assert files.read(extents([path], 17, 0), 0) == b""
    assert files.read(extents([path], 199, 1), 0) == b"\xc7"


def test_prefixes_come_before_the_bytes_and_not_under_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(bytes(range(200)))
    plain = extents([path, path], 17, 5, crc=crc32c.crc32c(bytes(range(17, 22))))
    where = dataclasses.replace(plain, codecs=[prefixed(b"header"), PLAIN])
    files = LocalFiles()
    assert [files.read(where, row) for row in range(2)] == [b"header" + bytes(range(17, 22)), bytes(range(17, 22))]


def test_a_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.tar"
    path.write_bytes(bytes(100))
    with pytest.raises(IntegrityError, match=r"short\.tar: ends within bytes 90\.\.110: truncated"):
        LocalFiles().read(extents([path], 90, 20), 0)


@pytest.mark.parametrize("rows", [range(1, 4), [3, 1, 2]], ids=["in a row", "picked"])
def test_a_fault_stands_in_place_of_the_bytes(tmp_path: Path, rows: list[int]) -> None:
    paths = [tmp_path / f"{number}.tar" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (10 if number == 2 else 64))
    found = LocalFiles().read_each(extents(paths, 0, 64), rows)
    assert [data for data in found if isinstance(data, bytes)] == [bytes([row]) * 64 for row in rows if row != 2]
    fault = found[list(rows).index(2)]
    assert isinstance(fault, IntegrityError)
    assert "2.tar: ends within" in str(fault)
    paths[3].unlink()
    with pytest.raises(MissingDataError, match=r"3\.tar: is missing"):
        LocalFiles().read_each(extents(paths, 0, 64), rows)


def test_every_flipped_bit_is_named(tmp_path: Path) -> None:
    path, contents = tmp_path / "x.tar", bytes(range(64))
    where = extents([path], 0, 64, crc=crc32c.crc32c(contents))
    path.write_bytes(contents)
    assert LocalFiles().read(where, 0) == contents
    for bit in range(0, 512, 7):
        damaged = bytearray(contents)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"x\.tar: bytes 0\.\.64 have crc32c .* damaged"):
            LocalFiles().read(where, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_missing_and_unreadable_files_are_named(tmp_path: Path, whole: bool) -> None:
    files = LocalFiles()
    with pytest.raises(MissingDataError, match=r"gone\.jpg: is missing"):
        files.read(extents([tmp_path / "gone.jpg"], whole=whole), 0)
    with pytest.raises(MissingSampleError if whole else FormatError, match="a folder, not a regular file"):
        files.read(extents([tmp_path], whole=whole), 0)
    loop = tmp_path / "loop.jpg"
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="cannot be read"):
        files.read(extents([loop], whole=whole), 0)
    files.will_need(extents([tmp_path / "gone.jpg"], whole=whole))  # only a wish: errors are left to read


def test_storage_that_fails_is_no_bad_sample(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(StorageError, match=r"00\.tar: cannot be read"):
        LocalFiles().read(extents(shards, whole=True), 0)


@pytest.mark.parametrize("whole", [False, True])
def test_more_than_a_sample_may_have_is_not_read(tmp_path: Path, whole: bool) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(MAX_SAMPLE_NBYTES + 1)  # no blocks on disk
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=f"{MAX_SAMPLE_NBYTES + 1} bytes exceed the limit of {MAX_SAMPLE_NBYTES}"):
            LocalFiles().read(extents([tmp_path / "huge.jpg"], nbytes=MAX_SAMPLE_NBYTES + 1, whole=whole), 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    """As a loose file it is a bad sample; in place of a shard an error of its own."""
    os.mkfifo(tmp_path / "pipe.jpg")
    for whole, error in ((True, IntegrityError), (False, FormatError)):
        with pytest.raises(error, match=r"pipe\.jpg: a named pipe, not a regular file"):
            LocalFiles().read(extents([tmp_path / "pipe.jpg"], whole=whole), 0)


def test_memory_is_not_taken_for_bytes_that_are_not_there(shards: list[Path]) -> None:
    """An index may claim exabytes: `pread` would allocate them before it read."""
    with pytest.raises(IntegrityError, match="ends within bytes"):
        LocalFiles().read(extents([shards[0]], nbytes=MAX_SAMPLE_NBYTES), 0)


def test_a_file_that_grew_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(bytes(10))
    where = extents([path], whole=True)
    path.write_bytes(bytes(3_000_000))
    assert len(LocalFiles().read(where, 0)) == 3_000_000


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 500), st.integers(0, 80)), max_size=20), st.integers(0, 60))
def test_spans_cover_what_is_asked_and_little_more(asked: list[tuple[str, int, int]], max_gap: int) -> None:
    paths = [path for path, _, _ in asked]
    offset, nbytes = (np.array([entry[n] for entry in asked], np.int64) for n in (1, 2))
    spans = plan_reads(Extents(paths, offset, nbytes, offset.astype(np.uint32), offset.astype(np.uint8), False), max_gap=max_gap)
    for path, start, size in asked:
        holders = [s for s in spans if s.path == path and s.offset <= start and start + size <= s.offset + s.nbytes]
        assert len(holders) == 1 or (size == 0 and holders)
    for before, after in itertools.pairwise(spans):
        assert before.path < after.path or before.offset + before.nbytes + max_gap < after.offset
    needed = {(path, byte) for path, start, size in asked for byte in range(start, start + size)}
    covered = {(span.path, byte) for span in spans for byte in range(span.offset, span.offset + span.nbytes)}
    assert needed <= covered
    for path, byte in covered - needed:  # a byte read for nothing lies in a gap that was worth reading over
        ends = [b for p, b in needed if p == path and b < byte]
        starts = [b for p, b in needed if p == path and b > byte]
        zero = [start for p, start, size in asked if p == path and size == 0]
        assert ends or zero
        assert starts or zero
