"""Stores that several threads and processes fill: nothing wrong ever comes out, whatever happens to them."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_driver import AMPLE, NUM_IDS, STAMP, fill, num_right, store_at, value_of
from fixtures import flip_bit

from datapipe.core.user_cache import IMAGES
from datapipe.errors import OptionError, StorageError
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.images.cache import in_memory
from datapipe.kinds.images.cache.entries import ENTRY_NBYTES, Entry, Head, pack_entry, pack_head, unpack_entry, unpack_head
from datapipe.kinds.images.cache.locations import free_memory
from datapipe.kinds.images.cache.store import Gap, Kept, Store

ROOT = Path(__file__).resolve().parents[3]
DRIVER = Path(__file__).with_name("cache_driver.py")


@contextlib.contextmanager
def driver(*arguments: object, ahead: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{DRIVER.parent}"}
    command = [*ahead, sys.executable, str(DRIVER), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def files_of(place: Path) -> tuple[Path, Path]:
    (directory,) = (path for path in place.iterdir() if path.is_dir())
    return directory / "index", directory / "data"


def test_values_come_back_under_their_stamp(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    fill(store, range(0, NUM_IDS, 2))
    assert num_right(store) == NUM_IDS // 2
    again = store_at(str(tmp_path))
    assert num_right(again) == NUM_IDS // 2
    assert isinstance(again.find(2, STAMP + 1), Gap)
    assert isinstance(again.find(1, STAMP), Gap)
    assert isinstance(again.find(10**9, STAMP), Gap)
    assert again.held() == (NUM_IDS // 2, sum(len(value_of(n)) + ENTRY_NBYTES for n in range(0, NUM_IDS, 2)))


def test_a_value_of_another_stamp_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    fill(store, [3])
    gap = store.find(3, STAMP + 1)
    assert isinstance(gap, Gap)
    store.keep(gap, b"new", (1, 1))
    assert store.find(3, STAMP + 1) == (b"new", (1, 1))
    assert store.held()[0] == 1


def test_who_comes_second_leaves_what_is_there(tmp_path: Path) -> None:
    store, other = store_at(str(tmp_path)), store_at(str(tmp_path))
    first, second = store.find(4, STAMP), other.find(4, STAMP)
    assert isinstance(first, Gap)
    assert isinstance(second, Gap)
    store.keep(first, b"first", (1, 1))
    nbytes = store.held()[1]
    other.keep(second, b"second", (1, 1))
    assert other.find(4, STAMP) == (b"first", (1, 1))
    assert other.held()[1] == nbytes


@pytest.mark.parametrize("capacity", [1, 5_000, 100_000])
def test_the_bound_holds(tmp_path: Path, capacity: int) -> None:
    store = store_at(str(tmp_path), capacity=capacity)
    fill(store, range(NUM_IDS))
    num_kept, nbytes = store.held()
    assert nbytes <= capacity
    assert num_right(store) == num_kept < NUM_IDS
    assert not store.is_open
    assert not store.admits(1)
    assert files_of(tmp_path)[1].stat().st_size + num_kept * ENTRY_NBYTES == nbytes
    if capacity > 5_000:
        assert nbytes > capacity - 5_000
    larger = store_at(str(tmp_path))
    fill(larger, range(NUM_IDS))
    assert num_right(larger) == NUM_IDS


def test_damage_is_a_miss_and_kept_anew(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    fill(store, range(10))
    index, data = files_of(tmp_path)
    flip_bit(data, len(value_of(0)) + 20)  # of sample 1
    assert isinstance(store.find(1, STAMP), Gap)
    flip_bit(index, 64 + 3 * ENTRY_NBYTES + 9)
    assert isinstance(store.find(3, STAMP), Gap)
    assert num_right(store) == 8
    fill(store, range(10))
    assert num_right(store) == 10
    os.truncate(data, data.stat().st_size - 1)
    assert num_right(store) == 9  # the last of the file, which is 3, stored again
    os.truncate(index, 64 + 5 * ENTRY_NBYTES + 10)  # in the middle of an entry
    assert num_right(store) == 4


@pytest.mark.parametrize(
    "lie",
    [{"offset": (1 << 64) - 1}, {"offset": 1 << 63}, {"nbytes": (1 << 64) - 1}, {"nbytes": 1 << 60}, {"nbytes": 1 << 40}],
    ids=str,
)
def test_an_entry_that_lies_is_a_miss(lie: dict[str, int], tmp_path: Path) -> None:
    """Whoever writes one can make its checksum too; reading what it claims would take the memory for it first."""
    store = store_at(str(tmp_path))
    fill(store, range(3))
    entry = Entry(**({"offset": 0, "nbytes": 10, "stamp": STAMP, "height": 1, "width": 1, "crc32c": 0} | lie))
    with files_of(tmp_path)[0].open("r+b") as index:
        index.seek(64 + ENTRY_NBYTES)
        index.write(pack_entry(1, entry))
    assert isinstance(store.find(1, STAMP), Gap)
    assert not store.will_need(1)
    assert num_right(store) == 2


def test_a_damaged_head_makes_the_store_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_at(str(tmp_path))
    fill(store, range(10))
    flip_bit(files_of(tmp_path)[0], 10)
    assert num_right(store) == 10
    with caplog.at_level(logging.WARNING):
        fill(store, range(10, 20))
    assert num_right(store) == 10
    assert len(caplog.records) == 1
    again = store_at(str(tmp_path))
    assert num_right(again) == 0
    fill(again, range(20))
    assert num_right(again) == num_right(store) == 20


def test_threads_fill_a_store_together(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    threads = [threading.Thread(target=fill, args=(store, range(start % 3, NUM_IDS))) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_right(store) == NUM_IDS


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["disk", "ram"])
def test_processes_fill_a_store_together(tmp_path: Path, place: str) -> None:
    where = str(tmp_path) if place == "disk" else "ram"
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(driver("fill", where, seed, tmp_path)) for seed in range(4)]
        assert [line_of(worker) for worker in workers] == ["ready"] * 4
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [line_of(worker) for worker in workers] == [str(NUM_IDS)] * 4
        assert [worker.wait(30) for worker in workers] == [0] * 4


def test_killed_in_the_middle_of_any_write(tmp_path: Path) -> None:
    with driver("die", tmp_path, *range(1, 13)) as process:
        assert line_of(process) == str(NUM_IDS)
        assert process.wait(30) == 0
    assert num_right(store_at(str(tmp_path))) == NUM_IDS


def test_a_forked_child_works_on_the_store_of_its_parent(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    fill(store, range(10))
    store.count(hits=3, misses=1)
    with store._here.lock:  # as another thread of the parent might have it
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            fill(store, range(20))
            store.count(hits=1, misses=0)
            os._exit(0 if num_right(store) == 20 and store.counts() == (1, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert num_right(store) == 20
    assert store.counts() == (3, 1)


# -- in memory --------------------------------------------------------------------------------------


def memory_files() -> list[str]:
    """The anonymous files of stores that any process here has open."""
    found = []
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    found.append(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return [name for name in found if name.startswith("/memfd:datapipe-")]


@pytest.mark.nightly
def test_memory_is_shared_and_gone_with_the_last_process_even_if_that_is_killed(tmp_path: Path) -> None:
    before = set(memory_files())
    with driver("hold", "ram", tmp_path) as first, driver("hold", "ram", tmp_path) as second:
        assert line_of(first) == line_of(second) == str(NUM_IDS)
        names = set(memory_files()) - before
        assert len(names) == 2  # index and data, once for both
        first.kill()
        first.wait()
        with driver("fill", "ram", 1, tmp_path) as third:  # from the second process, which did not make it
            assert line_of(third) == "ready"
            assert names <= set(memory_files())
        second.kill()
    assert not names & set(memory_files())
    store = store_at("ram", about=str(tmp_path))
    assert num_right(store) == 0
    fill(store, range(5))
    assert num_right(store_at("ram", about=str(tmp_path))) == 5
    assert num_right(store_at("ram", about=f"{tmp_path} another")) == 0


def test_a_forked_child_finds_its_parents_memory(tmp_path: Path) -> None:
    fill(store_at("ram", about=str(tmp_path)), range(5))
    child = os.fork()
    if child == 0:
        store = store_at("ram", about=str(tmp_path))
        fill(store, range(8))
        os._exit(0 if num_right(store) == 8 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert num_right(store_at("ram", about=str(tmp_path))) == 8


@pytest.mark.parametrize("text", ["", "[]", "[[1", "[7]", '[["a", 1, "b", "c"]]', "{}"])
def test_a_damaged_list_of_holders_is_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(in_memory, "_list_path", lambda: str(tmp_path / "list"))
    (tmp_path / "list").write_text(text)
    store = store_at("ram", about=f"{tmp_path}")
    fill(store, range(3))
    assert num_right(store) == 3
    assert [line[1] for line in json.loads((tmp_path / "list").read_text())] == [os.getpid()]


def test_a_process_number_that_was_given_anew_is_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are files of that process ever written to."""
    monkeypatch.setattr(in_memory, "_list_path", lambda: str(tmp_path / "list"))
    mine = [tmp_path / "mine", tmp_path / "too"]
    with contextlib.ExitStack() as stack:
        for path in mine:
            path.write_text("precious")
        index, data = (stack.enter_context(path.open("r+")).fileno() for path in mine)
        lines = [["a name", os.getpid(), "token", index, data], ["a name", 2**22 + 1, "token", 3, 4]]
        (tmp_path / "list").write_text(json.dumps(lines))
        files = in_memory.open_in_memory("a name")
        fill(Store(files, capacity=AMPLE), range(3))
    assert [path.read_text() for path in mine] == ["precious"] * 2
    assert len(json.loads((tmp_path / "list").read_text())) == 1


def test_a_holder_that_cannot_be_joined_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_memory, "_list_path", lambda: str(tmp_path / "list"))
    (tmp_path / "list").write_text(json.dumps([["another name", 1, "token", 3, 4]]))
    real_open, real_readlink = os.open, os.readlink

    def refuse(call: Any, path: Any, *rest: Any) -> Any:
        if str(path).startswith("/proc/1/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return call(path, *rest)

    monkeypatch.setattr(os, "open", lambda *arguments: refuse(real_open, *arguments))
    monkeypatch.setattr(os, "readlink", lambda *arguments: refuse(real_readlink, *arguments))
    store = Store(in_memory.open_in_memory("another name"), capacity=AMPLE)
    assert "that of process 1 cannot be shared" in caplog.text
    fill(store, range(3))
    assert num_right(store) == 3


def test_another_users_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list").write_text("[]")
    monkeypatch.setattr(in_memory, "_list_path", lambda: str(tmp_path / "list"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StorageError, match="belongs to another user"):
        store_at("ram", about=f"{tmp_path}")
    (tmp_path / "link").symlink_to(tmp_path / "list")
    monkeypatch.setattr(in_memory, "_list_path", lambda: str(tmp_path / "link"))
    with pytest.raises(StorageError, match="cannot be opened"):
        store_at("ram", about=f"{tmp_path}")


# -- whose it is ------------------------------------------------------------------------------------


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.rglob("*"))}


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_nobody_else_may_look_into_a_cache(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = store_at(str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    (directory,) = (tmp_path / "a" / "b").iterdir()
    assert modes(tmp_path / "a") == {
        "a": 0o700, "b": 0o700, directory.name: 0o700, "about.json": 0o600, "index": 0o600, "data": 0o600,
    }  # fmt: skip
    fill(store, range(3))
    assert num_right(store) == 3


def test_a_cache_that_others_could_look_into_is_closed_to_them(tmp_path: Path) -> None:
    fill(store_at(str(tmp_path)), range(3))
    (directory,) = tmp_path.iterdir()
    for path in (directory, directory / "index", directory / "data"):
        path.chmod(0o777)
    assert num_right(store_at(str(tmp_path))) == 3
    assert {modes(directory)[name] for name in ("index", "data")} == {0o600}
    assert modes(directory)[directory.name] == 0o700


@pytest.mark.parametrize("name", ["index", "data", ""])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    store_at(str(tmp_path / "cache"))
    (directory,) = (tmp_path / "cache").iterdir()
    place, elsewhere = directory / name, tmp_path / "elsewhere"
    if name:
        place.unlink()
        elsewhere.write_bytes(b"precious")
    else:
        place.rename(tmp_path / "gone")
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="cannot be written"):
        store_at(str(tmp_path / "cache"))
    assert elsewhere.read_bytes() == b"precious" if name else not os.listdir(elsewhere)


@pytest.mark.parametrize("name", ["index", "data"])
def test_a_pipe_is_no_cache(tmp_path: Path, name: str) -> None:
    store_at(str(tmp_path))
    (directory,) = tmp_path.iterdir()
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(StorageError, match="not a regular file"):
        store_at(str(tmp_path))


def test_another_users_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_at(str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StorageError, match=r"belongs to another user.*; pass a directory that can"):
        store_at(str(tmp_path))


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("place", ["ram", "disk"])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, problem: int) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StorageError, match=f"{re.escape(os.strerror(problem))}.*local disk"):
        store_at("ram" if place == "ram" else str(tmp_path), about=f"{tmp_path}")


# -- no room ----------------------------------------------------------------------------------------


def test_a_limit_of_file_sizes_ends_admission_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, limits = store_at(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
        with caplog.at_level(logging.WARNING):
            fill(store, range(NUM_IDS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert 10 < num_right(store) < NUM_IDS
    assert not store.is_open
    (record,) = caplog.records
    assert "takes nothing more" in record.getMessage()


def test_a_full_file_system_ends_admission(tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with the process."""
    mounts = (
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"',
        "sh",
    )
    try:
        possible = subprocess.run([*mounts, "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        possible = False
    if not possible:
        pytest.skip("no file system can be mounted here")
    with driver("overflow", tmp_path, ahead=mounts) as process:
        num, is_open = line_of(process).split()
        assert process.wait(30) == 0
    assert 10 < int(num) < NUM_IDS
    assert is_open == "False"


def test_free_memory_is_the_least_of_machine_and_cgroups(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert free_memory(tmp_path) == 5000 * 1024
    write("proc/self/cgroup", "0::/job/step\n")
    write("sys/fs/cgroup/job/memory.max", "3000\n")
    write("sys/fs/cgroup/job/memory.current", "2500\n")
    write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 700\n")
    write("sys/fs/cgroup/job/step/memory.max", "max\n")
    write("sys/fs/cgroup/job/step/memory.current", "10\n")
    assert free_memory(tmp_path) == 3000 - 2500 + 700
    write("proc/self/cgroup", "4:memory:/far\n3:cpu:/\n")
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n")
    assert free_memory(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory/far/memory.limit_in_bytes", "500\n")
    write("sys/fs/cgroup/memory/far/memory.usage_in_bytes", "600\n")
    assert free_memory(tmp_path) == 0
    assert free_memory() > 0


# -- what users ask for -----------------------------------------------------------------------------


def test_sizes_that_nobody_says_are_shares_of_what_is_free(tmp_path: Path) -> None:
    from datapipe.kinds.images.cache.locations import open_store

    about = {"what": str(tmp_path)}
    memory, disk = open_store(Cache("ram", None), about=about), open_store(Cache(tmp_path, None), about=about)
    assert memory.capacity == pytest.approx(free_memory() / 2, rel=0.3)
    status = os.statvfs(tmp_path)
    assert disk.capacity == pytest.approx(status.f_bavail * status.f_frsize * 0.8, rel=0.1)


@pytest.mark.parametrize(
    ("cache", "nbytes", "problem"),
    [
        ("rma", None, "cache is 'rma'; choose 'ram', 'gpu' or 'disk', or write a new directory as './rma'"),
        (7, None, "cache is 7; choose"),
        ("ram", 0, r"Cache\(nbytes\) is 0; it must be at least 1"),
        ("ram", 1.5, r"Cache\(nbytes\) is 1.5; it must be a whole number"),
        (None, 10, "cache is None; choose"),
    ],
)
def test_wrong_arguments_are_refused(cache: object, nbytes: object, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Cache(cache, nbytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 256])
def test_a_name_that_no_directory_can_have_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"cache is .* cannot be a file name"):
        Cache(f"./{name}")


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert Cache.of(None) is None
    assert Cache.of("ram") == Cache("ram") == Cache.of(Cache("ram"))
    assert Cache("ram", 5).directory(IMAGES) is None
    assert Cache("disk").directory(IMAGES) == tmp_path / "home/datapipe/decoded"
    assert Cache(tmp_path).directory(IMAGES) == tmp_path
    assert Cache("./here").directory(IMAGES) == Path("here")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/.*: cannot be written"):
        store_at(str(tmp_path / "file"))


def test_torn_heads_and_entries_are_recognised() -> None:
    head, entry = pack_head(Head(2**40, 3)), pack_entry(9, Entry(1, 2, 2**64 - 1, 4, 5, 6))
    assert unpack_head(head) == (2**40, 3)
    assert unpack_entry(9, entry) == (1, 2, 2**64 - 1, 4, 5, 6)
    assert unpack_entry(8, entry) is None
    for at in range(len(entry)):
        assert unpack_entry(9, entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :]) is None
        assert unpack_head(head[:at] + bytes(len(head) - at)) is None
    assert unpack_entry(0, bytes(ENTRY_NBYTES)) is None


def test_reading_and_filling_at_once(tmp_path: Path) -> None:
    """A reader never sees what a writer has not finished."""
    writer, reader = store_at(str(tmp_path)), store_at(str(tmp_path))
    thread = threading.Thread(target=fill, args=(writer, range(NUM_IDS)))
    thread.start()
    seen = 0
    while thread.is_alive():
        seen = max(seen, num_right(reader))
    thread.join()
    assert seen <= num_right(reader) == NUM_IDS
    assert isinstance(reader.find(0, STAMP), Kept)
    assert isinstance(reader, Store)
    assert reader.capacity == AMPLE
