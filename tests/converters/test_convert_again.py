"""The same command on a finished dataset: nothing to do, if options and source are what they were; else it says what is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from source_trees import SOURCES
from trees import contents, encoded_image, make_tree, run_cli, run_main

from converters import ConvertOptions, OnError, Part, Split, convert
from datapipe.errors import IntegrityError, OptionError
from datapipe.index.manifest import read_manifest


@pytest.mark.promise("convert: Stopping and resuming")
def test_the_same_again_writes_nothing(tree: Path, tmp_path: Path, to: str) -> None:
    options = ConvertOptions(tree, tmp_path / "out", to=to, num_workers=1)
    assert convert(options).compared is None
    before = contents(tmp_path / "out")
    again = convert(options)
    assert (again.num_samples, again.num_written, again.is_finished) == (24, 0, True)
    assert again.compared == "with the same options, and from files of the same names, sizes and labels"
    assert contents(tmp_path / "out") == before


@pytest.mark.nightly
def test_the_command_says_so(tree: Path, tmp_path: Path) -> None:
    command = ("convert", tree, tmp_path / "out", "--to", "webdataset", "--split", "train=0.5,val=0.5")
    assert run_main(*command) == 0
    again = run_cli(*command)
    assert again.returncode == 0, again.stderr
    assert f"{tmp_path}/out: already converted: 24 samples, with the same options" in again.stdout
    assert json.loads(run_cli(*command, "--json").stdout)["compared"].startswith("with the same options")
    other = run_cli(*command[:-1], "train=0.6,val=0.4")
    assert other.returncode == 2
    assert "made with other options: split was {'train': '1/2', 'val': '1/2'}, now {'train': '3/5', 'val': '2/5'}" in other.stderr
    (tree / "class_0" / "img 0.jpg").unlink()
    assert run_main(*command) == 1
    assert run_main(*command, "--overwrite") == 0
    assert run_main(*command) == 0


CHANGES: dict[str, Callable[[Path], object]] = {
    "new": lambda tree: (tree / "class_0" / "new.jpg").write_bytes(encoded_image(5)),
    "gone": lambda tree: (tree / "class_0" / "img 0.jpg").unlink(),
    "renamed": lambda tree: (tree / "class_0" / "img 0.jpg").rename(tree / "class_0" / "img 0b.jpg"),
    "grown": lambda tree: (tree / "class_0" / "img 0.jpg").open("ab").write(b"x"),
    "unreadable": lambda tree: (tree / "class_0" / "img 0.jpg").unlink() or os.mkfifo(tree / "class_0" / "img 0.jpg"),
    "other labels": lambda tree: (tree / "class_0").rename(tree / "class_9"),
}


@pytest.mark.promise("convert: Stopping and resuming")
@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changed_is_said(tree: Path, tmp_path: Path, change: str) -> None:
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1)
    convert(options)
    before = contents(tmp_path / "out")
    CHANGES[change](tree)
    with pytest.raises(IntegrityError, match=rf"made of 24 samples; {tree} now has 2[345], or other names.*pass --overwrite"):
        convert(options)
    assert contents(tmp_path / "out") == before


def test_a_class_map_that_changed_is_said(tree: Path, tmp_path: Path) -> None:
    names = ["class_0", "class_1", "class_2"]
    class_map = tmp_path / "map.json"
    class_map.write_text(json.dumps({name: label for label, name in enumerate(names)}))
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1, class_map=class_map)
    convert(options)
    assert convert(options).compared
    class_map.write_text(json.dumps({name: label for label, name in enumerate(reversed(names))}))
    with pytest.raises(IntegrityError, match="or other names, sizes or labels"):
        convert(options)


@pytest.mark.parametrize("form", SOURCES)
def test_what_is_compared_does_not_depend_on_place_and_time(form: str, tmp_path: Path) -> None:
    """A copy elsewhere, written at another time, is the same source."""
    made = SOURCES[form](tmp_path / "source")
    convert(ConvertOptions(made.source, tmp_path / "out", num_workers=1, **made.options))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "source").rename(tmp_path / "elsewhere" / "source")
    for path in (tmp_path / "elsewhere").rglob("*"):
        os.utime(path, ns=(1, 1))
    root = {name: tmp_path / "elsewhere" / value.relative_to(tmp_path) for name, value in made.options.items() if name == "root"}
    source = tmp_path / "elsewhere" / made.source.relative_to(tmp_path)
    assert convert(ConvertOptions(source, tmp_path / "out", num_workers=1, **(made.options | root))).compared


@pytest.mark.promise("convert: Several machines")
def test_parts_and_bad_samples(tree: Path, tmp_path: Path) -> None:
    (tree / "class_1" / "img 3.jpg").write_bytes(b"no image")
    for number in (1, 2):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, part=Part(number, 2), on_error=OnError.SKIP))
    for part in (None, Part(1, 2), Part(3, 5)):
        again = convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, part=part, on_error=OnError.SKIP))
        assert (again.num_samples, again.num_errors) == (23, 1)
        assert again.compared
    with pytest.raises(OptionError, match="on_error was 'skip', now 'fail'"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1))


def test_datasets_that_do_not_tell_their_source(tree: Path, tmp_path: Path) -> None:
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1)
    convert(options)
    path = tmp_path / "out" / "dataset.json"
    manifest = json.loads(path.read_text())
    del manifest["source_digest"], manifest["checksum"]
    path.write_text(json.dumps(manifest))
    compared = convert(options).compared
    assert compared is not None
    assert "the source was not compared" in compared


def test_a_run_killed_while_it_cleared_up_is_finished(tree: Path, tmp_path: Path) -> None:
    """With --overwrite, too; but not if other options are given."""
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1, overwrite=True)
    convert(options)
    before = contents(tmp_path / "out")
    (tmp_path / "out" / ".finished").mkdir()
    assert convert(options).compared
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / ".finished").mkdir()
    report = convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, overwrite=True, seed=None))
    assert (report.compared, report.num_written) == (None, 1)
    assert read_manifest(tmp_path / "out").permutation_key is None


def test_splits_share_one_source(tmp_path: Path) -> None:
    tree, split = make_tree(tmp_path / "source"), Split.parse_all("train=0.5,val=0.5")
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, split=split))
    train, val = (read_manifest(tmp_path / "out" / name) for name in ("train", "val"))
    assert train.source_digest == val.source_digest != ""
    shutil.rmtree(tmp_path / "out" / "val")
    with pytest.raises(OptionError, match="of train, val there is train; pass --overwrite"):
        convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, split=split))


@pytest.mark.parametrize("is_cut", [False, True])
def test_shards_that_are_not_there_are_said(tree: Path, tmp_path: Path, is_cut: bool) -> None:
    options = ConvertOptions(tree, tmp_path / "out", num_workers=1)
    convert(options)
    shard = tmp_path / "out" / "shard-000000.tar"
    if is_cut:
        os.truncate(shard, 512)
    else:
        shard.unlink()
    with pytest.raises(IntegrityError, match=r"shard-000000.tar: .*(is missing|has 512 bytes).*pass --overwrite"):
        convert(options)
    convert(ConvertOptions(tree, tmp_path / "out", num_workers=1, overwrite=True))
    assert convert(options).compared
