"""The listing: torchvision's order, and what real folders contain besides images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.containers.listing import ListedFile, held_apart, is_image_name, list_folders, walk
from datapipe.errors import MissingDataError
from datapipe.index.listed import ScanNotes, join


def listing(root: Path) -> tuple[list[ListedFile], ScanNotes]:
    notes = ScanNotes()
    files = [file for name in folders(root) for file in walk(root, name, notes, is_image_name)]
    return sorted(files, key=lambda file: (file.directory.partition(b"/")[0], file.directory, file.name)), notes


def source_of(file: ListedFile) -> bytes:
    return join(file.directory, file.name)


def folders(root: Path) -> list[bytes]:
    return list_folders(root, otherwise="pass a folder")


def touch(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def image_folder_order(root: Path) -> list[str]:
    """torchvision's `make_dataset`, restated: classes by name, then (directory, name)."""
    found = []
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for folder, _, names in sorted(os.walk(root / name)):
            found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if name.endswith(".jpg")]
    return found


names = st.text(st.sampled_from("ab -_Z0é"), min_size=1, max_size=3).filter(lambda name: name.strip())


@settings(max_examples=60)
@given(paths=st.sets(st.tuples(names, st.lists(names, max_size=2).map(tuple), names), min_size=1, max_size=12))
def test_order_is_image_folders(paths: set[tuple[str, tuple[str, ...], str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("listing")
    for label, folders, name in paths:
        touch(root.joinpath(label, *(f"{folder}.d" for folder in folders), f"{name}.jpg"))
    found, _ = listing(root)
    assert [os.fsdecode(source_of(file)) for file in found] == image_folder_order(root)


def test_suffixes_are_case_insensitive_and_others_counted(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.Jpeg", "c.png", "d.webp", "e.txt", "f", "g.jpg.bak"):
        touch(tmp_path / "k" / name)
    found, notes = listing(tmp_path)
    assert [file.name for file in found] == [b"a.JPG", b"b.Jpeg", b"c.png", b"d.webp"]
    assert notes.num_ignored == 3


def test_junk_is_no_sample_and_no_class(tmp_path: Path) -> None:
    for name in (".DS_Store", "._a.jpg", ".hidden.jpg", "Thumbs.db", "a.jpg"):
        touch(tmp_path / "k" / name)
    touch(tmp_path / ".cache" / "b.jpg")
    touch(tmp_path / "k" / ".thumbnails" / "c.jpg")
    found, notes = listing(tmp_path)
    assert folders(tmp_path) == [b"k"]
    assert [source_of(file) for file in found] == [b"k/a.jpg"]
    assert notes.num_junk == 5


def test_names_of_any_bytes(tmp_path: Path) -> None:
    odd = [b"new\nline.jpg", b"\xff\xfe.jpg", b"sp ace.jpg", b"a.b.c.jpg", "ünï.jpg".encode(), b"it's.jpg"]
    folder = os.fsencode(tmp_path) + b"/cl\xffass"
    os.mkdir(folder)
    for name in odd:
        with open(folder + b"/" + name, "wb") as file:
            file.write(b"x")
    found, _ = listing(tmp_path)
    assert [file.name for file in found] == sorted(odd)
    assert {file.directory for file in found} == {b"cl\xffass"}


def test_links_inside_are_followed_and_links_outside_are_not(tmp_path: Path) -> None:
    outside = touch(tmp_path / "elsewhere" / "secret.jpg")
    root = tmp_path / "root"
    real = touch(root / "k" / "real.jpg", b"12345")
    (root / "k" / "inner.jpg").symlink_to(real)
    (root / "k" / "outer.jpg").symlink_to(outside)
    (root / "k" / "dangling.jpg").symlink_to(root / "nothing")
    (root / "k" / "ring.jpg").symlink_to("ring.jpg")
    (root / "ring").symlink_to("ring")
    (root / "m").mkdir()
    (root / "m" / "folder").symlink_to(outside.parent)
    (root / "m" / "shared").symlink_to(root / "k")
    found, notes = listing(root)
    by_source = {source_of(file): file for file in found}
    assert by_source[b"k/inner.jpg"].nbytes == 5
    assert by_source[b"k/inner.jpg"].problem is None
    assert by_source[b"m/shared/real.jpg"].nbytes == 5
    assert "leads out of the source" in str(by_source[b"k/outer.jpg"].problem)
    assert "dangling" in str(by_source[b"k/dangling.jpg"].problem)
    assert "dangling" in str(by_source[b"k/ring.jpg"].problem)
    assert [(problem.source, "leads out" in problem.reason) for problem in notes.problems] == [(b"m/folder", True)]


def test_a_class_that_links_outside_is_reported(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere" / "a.jpg")
    root = tmp_path / "root"
    touch(root / "k" / "a.jpg")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    found, notes = listing(root)
    assert [source_of(file) for file in found] == [b"k/a.jpg"]
    assert [problem.source for problem in notes.problems] == [b"linked"]


def test_loops_end(tmp_path: Path) -> None:
    touch(tmp_path / "k" / "deep" / "a.jpg")
    (tmp_path / "k" / "deep" / "up").symlink_to(tmp_path / "k")
    (tmp_path / "k" / "self").symlink_to(".")
    found, notes = listing(tmp_path)
    assert [source_of(file) for file in found] == [b"k/deep/a.jpg"]
    assert sorted(notes.loops) == [b"k/deep/up", b"k/self"]


def test_a_link_to_the_root_or_a_folder_between_is_left_out(tmp_path: Path) -> None:
    for source in ("a/0.jpg", "b/c/1.jpg"):
        touch(tmp_path / source)
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "b" / "c" / "up").symlink_to(tmp_path)
    (tmp_path / "all").symlink_to(".")  # a class by its place, of everything by what it holds
    (tmp_path / "b" / "a").symlink_to("../a")  # another folder: followed, as far as that leads up
    found, notes = listing(tmp_path)
    assert [source_of(file) for file in found] == [b"a/0.jpg", b"b/a/0.jpg", b"b/c/1.jpg"]
    assert sorted(notes.loops) == [b"a/up", b"all", b"b/a/up", b"b/c/up"]


def test_pipes_and_sockets_are_listed_but_marked(tmp_path: Path) -> None:
    touch(tmp_path / "k" / "a.jpg")
    os.mkfifo(tmp_path / "k" / "pipe.jpg")
    found, _ = listing(tmp_path)
    assert [(file.name, file.problem) for file in found] == [
        (b"a.jpg", None),
        (b"pipe.jpg", "not a regular file but a named pipe"),
    ]


def test_unreadable_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "k" / "a.jpg")
    touch(tmp_path / "k" / "closed" / "b.jpg")
    scandir = os.scandir

    def refuse(path: bytes) -> object:
        if os.fsencode(path).endswith(b"closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found, notes = listing(tmp_path)
    assert [source_of(file) for file in found] == [b"k/a.jpg"]
    assert [(problem.source, problem.reason) for problem in notes.problems] == [
        (b"k/closed", "directory cannot be read: Permission denied")
    ]


@pytest.mark.parametrize("held_out", ["val", "validation", "test", "VAL"])
def test_two_sets_are_recognised(tmp_path: Path, held_out: str) -> None:
    touch(tmp_path / "train" / "k" / "a.jpg")
    touch(tmp_path / held_out / "k" / "a.jpg")
    assert held_apart(tmp_path, folders(tmp_path)) == (b"train", held_out.encode())


def test_classes_called_train_and_val_are_one_set(tmp_path: Path) -> None:
    touch(tmp_path / "train" / "a.jpg")  # a picture of a train
    touch(tmp_path / "val" / "a.jpg")
    assert held_apart(tmp_path, folders(tmp_path)) == ()


def test_no_classes(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg")
    assert folders(tmp_path) == []
    with pytest.raises(MissingDataError, match="not a directory; pass a folder"):
        folders(tmp_path / "a.jpg")
    with pytest.raises(MissingDataError, match="no such file or directory"):
        folders(tmp_path / "nothing")
