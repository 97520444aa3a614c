"""The paths that open_index accepts, and its messages for those that are no dataset."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import NUM_SAMPLES, convert, entry_of, jpeg, listing, make_folder, write_webdataset

from datapipe.errors import DatapipeError, DecodeError, FormatError, MissingDataError, OptionError, StorageError
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index


@pytest.fixture(scope="session")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_webdataset(folder, tmp_path_factory.mktemp("shards") / "set")


def test_a_path_a_string_a_file_and_a_pattern(shards: Path) -> None:
    assert len(open_index(shards)) == len(open_index(str(shards))) == NUM_SAMPLES
    assert len(open_index(shards / "set-001.tar")) == 10
    assert len(open_index(f"{shards}/set-00[01].tar")) == 20
    assert len(open_index(f"{shards}/*.tar")) == NUM_SAMPLES


def test_relative_paths(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards.parent)
    index = open_index("set")
    monkeypatch.chdir("/")
    assert LocalFiles().read(index.look_up(np.array([0]), "image").extents, 0)


def test_a_name_with_pattern_characters_is_a_name_first(folder: Path, tmp_path: Path) -> None:
    shards = write_webdataset(folder, tmp_path / "set[1]")
    assert len(open_index(shards)) == NUM_SAMPLES
    assert len(open_index(shards / "set-000.tar")) == 10


@pytest.mark.parametrize(("make", "error", "said"), [
    (lambda root: root / "nowhere", MissingDataError, "no such file or directory"),
    (lambda root: root / "*.tar", MissingDataError, "no file matches"),
    (lambda root: root, OptionError, "no images, videos, sound, .npy files or shards in it.*say --from what it is"),
    (lambda root: (root / "x.zip").write_bytes(b"PK") and root / "x.zip", FormatError, r"x\.zip: not a zip, or cut off"),
    (lambda root: os.mkfifo(root / "x.tar") or root, FormatError, "not a regular file of shards"),
    (lambda root: (root / "x.tar").write_bytes(b"") or root, FormatError, "empty file"),
    (lambda root: (root / "ant").mkdir() or root, MissingDataError, "no images in its 1 class folder"),
    (lambda root: (root / "a.jpg").write_bytes(b"") or root, OptionError, "images in no class folders: pass --class-from none"),
    (lambda root: (make_folder(root / "s/train"), make_folder(root / "s/val"))[0].parent, OptionError, "train/ and val/"),
], ids=["nothing", "pattern", "empty", "zip", "pipe", "empty tar", "empty class", "no folders", "two sets"])  # fmt: skip
def test_what_is_no_dataset_is_refused(make, error: type[DatapipeError], said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=said):
        open_index(make(tmp_path))


def test_converted_sets_of_a_split_are_named(folder: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        convert(folder, tmp_path / "out" / name)
    with pytest.raises(FormatError, match=r"datasets train, val; open one of them, e\.g\. .*out/train"):
        open_index(tmp_path / "out")


@pytest.mark.parametrize("names", ["train-000.tar validation-000.tar", "Train.tar test_1.tar", "training-1.tar val.tar"])
def test_shards_of_several_sets_in_one_directory_are_told_apart(shards: Path, tmp_path: Path, names: str) -> None:
    for name in names.split():
        shutil.copy(shards / "set-000.tar", tmp_path / name)
    with pytest.raises(FormatError, match=f"holds shards of .*; open one set of them, e.g. '{tmp_path}/"):
        open_index(tmp_path)
    assert len(open_index(f"{tmp_path}/*.tar")) == 20, "whoever names them by a pattern means it"


@pytest.mark.parametrize("names", ["train-000.tar train-001.tar", "a.tar test.tar", "000.tar 001.tar", "trainer.tar test.tar"])
def test_shards_of_one_set_are_read_together(shards: Path, tmp_path: Path, names: str) -> None:
    for name in names.split():
        shutil.copy(shards / "set-000.tar", tmp_path / name)
    assert len(open_index(tmp_path)) == 20


# -- folders --------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "own", num=6)


def test_desktop_files_are_no_samples(own: Path) -> None:
    for name in ("ant/.DS_Store", "ant/._0000.jpg", "ant/Thumbs.db", "bee/notes.txt"):
        (own / name).write_bytes(b"junk")
    (own / ".ipynb_checkpoints").mkdir()
    (own / ".ipynb_checkpoints" / "x.jpg").write_bytes(jpeg(0))
    assert len(open_index(own)) == 6


@pytest.mark.parametrize(
    "name", [b"with space.jpg", b"two.dots.jpg", b"new\nline.jpg", b"\xff\xfe latin.jpg", "日本.JPEG".encode(), b"-rf.png"]
)
def test_any_name_is_read(own: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(own), b"ant", name)
    with open(path, "wb") as file:
        file.write(jpeg(99))
    index = open_index(own)
    assert len(index) == 7
    place = listing(own).index(Path(os.fsdecode(path)))
    assert LocalFiles().read(index.look_up(np.array([place]), "image").extents, 0) == jpeg(99)
    str(index.describe(place)).encode(errors="surrogateescape")


def test_nested_folders_belong_to_their_class(own: Path) -> None:
    (own / "ant" / "deeper" / "still").mkdir(parents=True)
    (own / "ant" / "deeper" / "still" / "x.jpg").write_bytes(jpeg(1))
    index = open_index(own)
    assert len(index) == 7
    assert index.labels().tolist().count(0) == 4


def test_changes_in_nested_folders_are_seen(own: Path) -> None:
    (own / "ant" / "deeper").mkdir()
    assert len(open_index(own)) == 6
    (own / "ant" / "deeper" / "x.jpg").write_bytes(jpeg(1))
    assert len(open_index(own)) == 7
    (own / "dog").mkdir()
    assert open_index(own).manifest.classes == ("ant", "bee", "cat", "dog")


def test_a_loop_of_links_ends(own: Path) -> None:
    (own / "ant" / "up").symlink_to("..")
    (own / "ant" / "self").symlink_to(".")
    assert {entry_of(open_index(own), 0)[0]} == {str(own / "ant" / "0000.jpg")}


def test_links_within_the_folder_are_samples(own: Path) -> None:
    (own / "ant" / "again.jpg").symlink_to("../bee/0001.jpg")
    assert len(open_index(own)) == 7


@pytest.mark.parametrize("what", ["folder", "class"])
def test_links_to_folders_outside_are_refused(own: Path, tmp_path: Path, what: str) -> None:
    """Never read a file outside the folder one was given."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jpg").write_bytes(jpeg(7))
    (own / {"folder": "ant/x", "class": "dog"}[what]).symlink_to(outside)
    with pytest.raises(StorageError, match="leads out of the source"):
        open_index(own)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("link", "symbolic link leads out of the source"),
        ("dangling", "dangling symbolic link"),
        ("pipe", "not a regular file but a named pipe"),
    ],
)
def test_what_cannot_be_read_is_a_bad_sample(
    own: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, reason: str
) -> None:
    """Never read a file outside the folder one was given; its place in the listing remains, as in a conversion."""
    (tmp_path / "secret.jpg").write_bytes(jpeg(7))
    path = own / "ant" / "x.jpg"
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("gone.jpg" if what == "dangling" else tmp_path / "secret.jpg")
    index = open_index(own)
    assert len(index) == 7
    assert re.search(f"own: 1 of 7 samples cannot be read.*: ant/x.jpg .{reason}", caplog.text)
    with pytest.raises(DecodeError, match=reason):
        LocalFiles().read(index.look_up(np.array([listing_of(own).index("ant/x.jpg")]), "image").extents, 0)


def listing_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("container", ["folder", "tar"])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_indexed_nevertheless(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str, problem: int
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = folder if container == "folder" else write_webdataset(folder, tmp_path / "tars")
    monkeypatch.setattr("fcntl.flock", refuse)
    assert len(open_index(path)) == NUM_SAMPLES
    assert len(open_index(path)) == NUM_SAMPLES


def test_an_index_in_the_users_cache_is_the_users_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        home = open_index(folder).sidecar_directory
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home, home.parent, home.parent.parent, tmp_path / "cache")} == {0o700}


def test_links_to_folders_around_them_are_left_out_and_named(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They would double every sample, under the class that the link lies in."""
    directory = listing(own)[0].parent
    (directory / "up").symlink_to("..")
    assert len(open_index(own)) == 6
    assert f"{own}: 1 symbolic link to a folder around it not followed: {directory.name}/up" in caplog.text


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 256, "d/" * 2500], ids=["NUL", "half a character", "long", "deep"])
@pytest.mark.parametrize("pattern", ["", "*"])
def test_a_name_that_no_file_can_have_is_refused(name: str, pattern: str) -> None:
    with pytest.raises(OptionError, match=r"the path to the dataset is .* cannot be a file name"):
        open_index(name + pattern)


@pytest.mark.parametrize("path", [b"set", 3, None])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(OptionError, match="it must be a path: a str or a Path"):
        open_index(path)


def test_a_list_says_where_its_files_may_be(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,label\na.jpg,1\n")
    with pytest.raises(MissingDataError, match=r"a\.csv: none of the first 1 files is there.* as --root"):
        open_index(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("height,weight\n1,2\n")
    with pytest.raises(OptionError, match=r"none of its columns names files .*--field COLUMN=image.*--to parquet"):
        open_index(tmp_path / "b.csv")
