"""Files are written whole, and only where a regular file or nothing is: in `atomic`, and by every command that writes."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures import make_folder

from datapipe.cli.main import main
from datapipe.core.atomic import atomic_writer, refuse_to_replace, write_json
from datapipe.errors import StorageError


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


IRREGULAR: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a device": _device,
    "a directory": os.mkdir,
    "a symbolic link": lambda path: path.symlink_to("elsewhere"),
}


@pytest.mark.parametrize("what", IRREGULAR)
def test_nothing_but_a_regular_file_is_replaced(what: str, tmp_path: Path) -> None:
    path = tmp_path / "there"
    IRREGULAR[what](path)
    before = os.lstat(path)
    with pytest.raises(StorageError, match=f"there: is {what} and would be replaced; choose another place"):
        write_json(path, 1)
    assert (os.lstat(path).st_ino, os.lstat(path).st_mode) == (before.st_ino, before.st_mode)
    assert os.listdir(tmp_path) == ["there"]


def test_a_regular_file_is_replaced_and_a_new_one_made(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)  # a name so long leaves no room for a longer temporary one
    for value in (b"1", b"2"):
        with atomic_writer(path) as file:
            file.write(value)
        assert path.read_bytes() == value
    write_json(path, 3, mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(os.listdir(tmp_path)) == 1


def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a\\x00b: is not a valid file name"):
        refuse_to_replace(tmp_path / "a\0b")
    with pytest.raises(StorageError, match=r"nn: cannot be written \(File name too long\); choose another place"):
        refuse_to_replace(tmp_path / ("n" * 256))


def test_two_threads_that_write_one_file_leave_one_of_them_whole(tmp_path: Path) -> None:
    path, together = tmp_path / "x", threading.Barrier(2, timeout=60)

    def write(value: bytes) -> None:
        with atomic_writer(path) as file:
            together.wait()
            file.write(value)
            file.flush()
            together.wait()
            file.write(value)

    threads = [threading.Thread(target=write, args=(value,)) for value in (b"a" * 10, b"b" * 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert path.read_bytes() in (b"a" * 20, b"b" * 20)
    assert os.listdir(tmp_path) == ["x"]


OUTPUTS = {
    "inspect": (("inspect", "{data}", "--grid", "{out}/sheet.png"), "sheet.png"),
    "train": (("train", "{data}", "--device", "cpu", "--out", "{out}"), "metrics.jsonl"),
    "train's record": (("train", "{data}", "--device", "cpu", "--out", "{out}"), "run.json"),
    "train's checkpoint": (("train", "{data}", "--device", "cpu", "--out", "{out}", "--resume", "auto"), "last.pt"),
    "train's best": (("train", "{data}", "--device", "cpu", "--out", "{out}", "--resume", "auto"), "best.pt"),
    "diagnose": (("diagnose", "--out", "{out}", "{out}/script.py"), "diagnosis.json"),
    "diagnose's page": (("diagnose", "--out", "{out}", "{out}/script.py"), "diagnosis.html"),
    "diagnose's trace": (("diagnose", "--out", "{out}", "{out}/script.py"), "trace.json"),
    "convert": (("convert", "{data}", "{out}/shards", "--to", "webdataset"), "shards"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_commands_write_over_no_pipe(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, output = OUTPUTS[name]
    out, data = tmp_path / "out", make_folder(tmp_path / "data", num=4)
    out.mkdir()
    (out / "script.py").write_text("raise SystemExit('it ran')\n")
    os.mkfifo(out / output)
    assert main([word.format(out=out, data=data) for word in command]) in (1, 2)
    printed = capsys.readouterr()
    assert f"datapipe: {out / output}" in printed.err
    assert stat.S_ISFIFO(os.lstat(out / output).st_mode)
    assert sorted(os.listdir(out)) == sorted(["script.py", output])
