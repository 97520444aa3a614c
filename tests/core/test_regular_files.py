"""Input files: what is no regular file is refused at once, and names lead nowhere else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from datapipe.core import regular_files
from datapipe.core.regular_files import leads_out, opened_by_name, path_inside, read_bytes
from datapipe.errors import FormatError

OPENERS = {
    "read_bytes": regular_files.read_bytes,
    "open_file": regular_files.open_file,
    "open_descriptor": regular_files.open_descriptor,
    "opened_by_name": lambda path: opened_by_name(path).__enter__(),
    "refuse_irregular": regular_files.refuse_irregular,
}


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_no_regular_file_is_refused(opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("socket")  # the name of a socket must be short
        before = num_open()
        named = {"pipe": "named pipe", "folder": "folder", "link": "named pipe", "device": "device", "socket": "socket"}
        for name, what in named.items():
            with pytest.raises(FormatError, match=f"{name}: a {what}, not a regular file"):
                OPENERS[opener](tmp_path / name)
    assert num_open() == before - 1


def test_a_pipe_that_takes_the_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and the opening."""
    path, before = tmp_path / "x", num_open()
    path.write_bytes(b"x")
    opening = os.open

    def swapped(name: Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return opening(name, flags)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(FormatError, match="x: a named pipe"):
        read_bytes(path)
    assert num_open() == before


def test_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"contents")
    (tmp_path / "link").symlink_to("x")
    before = num_open()
    assert read_bytes(tmp_path / "link") == read_bytes(os.fsencode(tmp_path / "x")) == b"contents"
    with opened_by_name(tmp_path / "x") as name:
        (tmp_path / "x").unlink()
        (tmp_path / "x").write_bytes(b"others")
        assert Path(name).read_bytes() == b"contents", "the name means the file that was opened"
    assert num_open() == before
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "gone")
    regular_files.refuse_irregular(tmp_path / "gone")


def test_documents_have_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="sparse: 1099511627776 bytes, more than the limit of"):
        read_bytes(tmp_path / "sparse")
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", at_most=5) == b"12345"
    with pytest.raises(FormatError, match="x: 5 bytes, more than the limit of 4"):
        read_bytes(tmp_path / "x", at_most=4)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "x\0", "/"])
@pytest.mark.parametrize("follows", [False, True])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str, follows: bool) -> None:
    with pytest.raises(FormatError, match=r"list: names the file .* outside of"):
        path_inside(str(tmp_path), name, named_in="list", follows=follows)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    """By the way or by the end; links within are followed, and where their maker is trusted, all are."""
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "x").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"")
    (root / "within").symlink_to("a/x")
    (root / "out").symlink_to("../secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "a..b").write_bytes(b"")
    for name in ("a/x", "within", "a..b", "not there"):
        assert path_inside(str(root), name, named_in="list") == f"{root}/{name}"
    for name in ("out", "folder/secret", "folder"):
        with pytest.raises(FormatError, match=r"list: names .* a link that leads out of"):
            path_inside(str(root), name, named_in="list")
        assert path_inside(str(root), name, named_in="list", follows=True) == f"{root}/{name}"


def test_a_root_behind_a_link_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"")
    (tmp_path / "real" / "link").symlink_to("x")
    (tmp_path / "root").symlink_to("real")
    assert path_inside(str(tmp_path / "root"), "link", named_in="list")


def test_hugging_faces_cache_is_one_place(tmp_path: Path) -> None:
    """`snapshots/REVISION/NAME` are links to `blobs/HASH`; to nothing else outside of the snapshot."""
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    (snapshot / "train").mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    for name in ("blobs/1", "others"):
        (tmp_path / "hub" / name).write_bytes(b"")
    (snapshot / "x.tar").symlink_to("../../blobs/1")
    (snapshot / "train" / "x.tar").symlink_to("../../../blobs/1")
    (snapshot / "out.tar").symlink_to("../../others")
    assert path_inside(str(snapshot), "x.tar", named_in="list")
    assert path_inside(str(snapshot / "train"), "x.tar", named_in="list")
    assert leads_out(snapshot, snapshot / "out.tar")
