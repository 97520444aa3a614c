"""Datasets that somebody means harm with: pipes in place of files, names that lead out, numbers that no program wrote.

Every format, through everything that opens it. No case may wait, read what lies outside, or end in a raw traceback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import (
    OF_SAMPLES,
    convert,
    write_arrow,
    write_beton,
    write_hdf5,
    write_lance,
    write_litdata,
    write_mds,
    write_parquet,
    write_tfrecord,
    write_webdataset,
)

import datapipe as dp
from converters import ConvertOptions, OnError
from converters import convert as convert_source
from converters.verify import verify
from datapipe import transforms as T
from datapipe.cli.main import main
from datapipe.errors import DatapipeError, FormatError
from datapipe.index.manifest import read_manifest
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldExtent, SidecarRows, write_sidecar
from datapipe.opening.samples import open_index

FOREIGN = {
    "tar": write_webdataset, "tfrecord": write_tfrecord, "hdf5": write_hdf5, "parquet": write_parquet, "arrow": write_arrow,
    "lance": write_lance, "mds": write_mds, "litdata": write_litdata, "beton": write_beton,
}  # fmt: skip
MAX_WAIT_S = 60  # for what takes a second or two; on a busy machine, some more


@contextlib.contextmanager
def pipe_at(path: Path) -> Iterator[None]:
    """A named pipe in place of a file. Whoever waits for it is let go after a while, and the test fails."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    has_ended = threading.Event()

    def let_go() -> None:
        while not has_ended.wait(MAX_WAIT_S):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # a writer came, and went

    started = time.monotonic()
    thread = threading.Thread(target=let_go)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
    assert time.monotonic() - started < MAX_WAIT_S, f"{path} was waited for"


def load(path: Path) -> None:
    for _ in dp.DataLoader(str(path), batch_size=8, num_workers=0, device="cpu", transform=[T.CenterCrop(8)]):
        pass


def problem_of(command: Callable[[], Any]) -> str:
    """What it says is wrong; "" where it says nothing. Anything but our own errors is raised."""
    try:
        found = command()
    except DatapipeError as exc:
        return str(exc)
    return "; ".join(map(str, getattr(found, "problems", ())))


@pytest.fixture(scope="module")
def sets(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A converted dataset of each format, with a bad sample left out. Not to be changed."""
    source = tmp_path_factory.mktemp("hostile")
    shutil.copytree(folder, source / "in")
    (source / "in" / "ant" / "bad.jpg").write_bytes(b"no")
    return {to: convert(source / "in", source / to, to=to, on_error=OnError.SKIP) for to in OF_SAMPLES}


# -- pipes ----------------------------------------------------------------------------------------

SUFFIXES = (".tar", ".h5", ".parquet", ".tfrecord")
MEMBERS = {
    "shard": lambda root: next(path for path in sorted(root.iterdir()) if path.suffix in SUFFIXES),
    "sidecar": lambda root: next(root.glob(f"*{SIDECAR_SUFFIX}")),
    "dataset.json": lambda root: root / "dataset.json",
    "errors.jsonl": lambda root: root / "errors.jsonl",
    "idx": lambda root: next(iter(root.glob("*.idx")), None),
}  # fmt: skip
UNREAD = {("load", "errors.jsonl"), ("load", "idx"), ("inspect", "errors.jsonl"), ("inspect", "idx")}


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("to", OF_SAMPLES)
def test_a_pipe_in_a_dataset_is_not_waited_for(
    to: str, member: str, sets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(sets[to], tmp_path / "set")
    path = MEMBERS[member](root)
    if path is None:
        pytest.skip(f"{to} has no such file")
    with pipe_at(path):
        said = {"load": problem_of(lambda: load(root)), "verify": problem_of(lambda: verify(root))}
        status = main(["inspect", str(root)])
        said["inspect"] = capsys.readouterr().err if status else ""
    for command, text in said.items():
        wanted = "" if (command, member) in UNREAD else f"{path}: a named pipe, not a regular file"
        assert wanted in text, (command, member)
        assert bool(text) == bool(wanted), (command, member)


@pytest.mark.parametrize("container", FOREIGN)
def test_a_pipe_in_a_kept_index_is_not_waited_for(container: str, folder: Path, tmp_path: Path) -> None:
    """Beside shards of others."""
    root = FOREIGN[container](folder, tmp_path / "set")
    load(root)
    home = open_index(root).sidecar_directory
    assert home.is_relative_to(root)
    for path in (home / "dataset.json", home / "source.json", next(home.rglob(f"*{SIDECAR_SUFFIX}"))):
        kept = path.read_bytes()
        with pipe_at(path):
            assert "a named pipe, not a regular file" in problem_of(lambda: load(root))
        path.unlink()
        path.write_bytes(kept)
    load(root)


@pytest.mark.parametrize("container", FOREIGN)
def test_a_pipe_in_place_of_an_indexed_shard_is_not_waited_for(container: str, folder: Path, tmp_path: Path) -> None:
    root = FOREIGN[container](folder, tmp_path / "set")
    loader = dp.DataLoader(str(root), batch_size=8, num_workers=0, device="cpu", transform=[T.CenterCrop(8)])
    files = sorted(root.glob("_versions/*")) or sorted(root.iterdir())
    path = next(path for path in files if path.is_file() and path.suffix != ".json")
    with pipe_at(path):
        assert f"{path}: a named pipe, not a regular file" in problem_of(lambda: list(loader))
        assert "not a regular" in problem_of(lambda: open_index(root))


def test_pipes_given_to_a_conversion_are_not_waited_for(folder: Path, sets: dict[str, Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    shutil.copytree(sets["webdataset"], tmp_path / "tars")
    tar = MEMBERS["shard"](tmp_path / "tars")

    def converted(source: Path, form: str = "image-folder", **options: Any) -> str:
        return problem_of(lambda: convert_source(ConvertOptions(source, tmp_path / "out", form=form, num_workers=1, **options)))

    with pipe_at(pipe):
        assert "pipe: a named pipe" in converted(folder, class_map=pipe)
        for form in ("manifest", "coco", "tar"):
            for suffix in (".csv", ".jsonl", ".json", ".tar"):
                named = pipe.with_name(f"x{suffix}")
                if not named.exists():
                    os.link(pipe, named)
                assert "not a regular file" in converted(named, form) or "no manifest" in converted(named, form)
    with pipe_at(tar):
        assert "a named pipe, not a regular file" in converted(tmp_path / "tars", "tar")
    assert not (tmp_path / "out").exists()


def interrupted(options: ConvertOptions, place: str) -> Path:
    """Where a conversion that got as far as this function of `converters` left what it had built."""

    def interrupt(*unused: object, **ignored: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"converters.{place}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_source(options)
    return options.destination / ".building"


@pytest.mark.parametrize("name", ["plan.db", "done", "final.json"])
def test_pipes_in_a_conversion_under_way_are_not_waited_for(name: str, folder: Path, tmp_path: Path) -> None:
    """A directory that somebody prepared, or damaged."""
    options = ConvertOptions(folder, tmp_path / "out", num_workers=1)
    building = interrupted(options, "publishing.placing.place")
    path = building / name if name != "done" else building / "done" / "shard-000000.json"
    with pipe_at(path):
        assert f"{path}: a named pipe, not a regular file" in problem_of(lambda: convert_source(options))


# -- names that lead out --------------------------------------------------------------------------

SECRET = b"what nobody was to see"


def folder_of(root: Path, source: str) -> Path:
    """What a conversion never writes: a dataset of loose files, one of which is `source`."""
    root.mkdir()
    rows = SidecarRows(("image",))
    extent = {"image": FieldExtent("", 0, len(SECRET), None)}
    rows.append(id=0, key=b"x", source=os.fsencode(source), label=0, size=(0, 0), extents=extent)
    digest = write_sidecar(root / f"part-0{SIDECAR_SUFFIX}", rows, "part-0")
    shard = {"name": "part-0", "num_samples": 1, "nbytes": len(SECRET), "first_slot": 0, "num_slots": 1, "index_sha256": digest}
    manifest = {
        "version": 1, "num_samples": 1, "container": "folder", "fields": [{"name": "image", "kind": "bytes"}],
        "shards": [shard], "classes": None, "class_to_idx": None, "permutation_key": None, "image_size": None, "options": {},
        "is_listing": True,
    }  # fmt: skip
    (root / "dataset.json").write_text(json.dumps(manifest))
    return root


@pytest.mark.parametrize("source", ["/ABSOLUTE", "../secret", "a/../../secret", "x"])
def test_a_dataset_of_loose_files_is_refused(source: str, tmp_path: Path) -> None:
    """Its paths would lead the loader to any file there is."""
    (tmp_path / "secret").write_bytes(SECRET)
    root = folder_of(tmp_path / "set", source.replace("/ABSOLUTE", str(tmp_path / "secret")))
    with pytest.raises(FormatError, match=r"dataset\.json: of a folder, which no conversion writes"):
        dp.DataLoader(dp.Images(str(root), fields=("image",)), batch_size=1, num_workers=0)


@pytest.mark.parametrize("source", ["/ABSOLUTE", "../secret", "a/../../secret"])
def test_the_kept_index_of_a_folder_leads_nowhere_else(source: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    name = source.replace("/ABSOLUTE", str(tmp_path / "secret"))
    home = folder_of(tmp_path / "home", name)
    index = SampleIndex(read_manifest(home), data_directory=folder, sidecar_directory=home)
    for ask in (lambda: index.look_up(index.ids(np.zeros(1, np.int64)), "image"), lambda: index.describe(0)):
        with pytest.raises(FormatError, match=r"names the file .* outside of"):
            ask()


@pytest.mark.parametrize("member", ["shard", "sidecar"])
@pytest.mark.parametrize("to", OF_SAMPLES)
def test_links_out_of_a_dataset_are_not_followed(to: str, member: str, sets: dict[str, Path], tmp_path: Path) -> None:
    root = shutil.copytree(sets[to], tmp_path / "set")
    path = MEMBERS[member](root)
    path.rename(tmp_path / "secret")
    path.symlink_to(tmp_path / "secret")
    assert "a link that leads out of" in problem_of(lambda: load(root))
    path.unlink()
    (tmp_path / "secret").rename(root / "within")
    path.symlink_to("within")
    load(root)


def test_a_kept_index_is_believed_about_its_own_shards_only(folder: Path, tmp_path: Path) -> None:
    """Not for other splits, not for loose files, and not for the targets of links."""
    root = write_webdataset(folder, tmp_path / "set")
    home = open_index(root).sidecar_directory
    manifest = read_manifest(home)
    other = dataclasses.replace(manifest.shards[0], name="other.tar")
    changes = (
        {"container": "folder"},
        {"shards": (other, *manifest.shards[1:])},
        {"shards": manifest.shards[:1]},
    )
    for change in changes:
        value = dataclasses.replace(manifest, **change).to_json()  # type: ignore[arg-type]
        (home / "dataset.json").write_text(json.dumps(value))
        with pytest.raises(FormatError, match="an index of other data than"):
            open_index(root)
    shard = root / manifest.shards[0].name
    shard.rename(tmp_path / "elsewhere.tar")
    shard.symlink_to(tmp_path / "elsewhere.tar")
    index = open_index(root)
    assert not index.sidecar_directory.is_relative_to(root), "what lies beside a link that leads out is not asked"
    load(root)


@pytest.mark.parametrize("which", [".datapipe-index", "its folder"])
def test_no_index_is_written_where_a_link_leads(which: str, folder: Path, tmp_path: Path) -> None:
    """It would take the place of another dataset's dataset.json."""
    root = write_webdataset(folder, tmp_path / "set")
    beside = open_index(root).sidecar_directory
    shutil.rmtree(root / ".datapipe-index")
    link = root / ".datapipe-index" if which == ".datapipe-index" else beside
    link.parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    assert not open_index(root).sidecar_directory.is_relative_to(root)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_split_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    """`convert --overwrite` would delete what it leads to."""
    elsewhere = convert(folder, tmp_path / "elsewhere")
    before = sorted(path.name for path in elsewhere.iterdir())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train").symlink_to(elsewhere)
    said = problem_of(lambda: convert(folder, tmp_path / "out", overwrite=True))
    assert "a link that leads out of" in said
    assert "a link that leads out of" in problem_of(lambda: verify(tmp_path / "out"))
    assert sorted(path.name for path in elsewhere.iterdir()) == before


@pytest.mark.parametrize("names", [{"remove": ["../kept"]}, {"remove": ["/KEPT"]}, {"remove": ["link/kept"]}, {"remove": "x"}])
def test_what_a_conversion_under_way_deletes_lies_in_its_destination(names: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    options = ConvertOptions(folder, tmp_path / "out", num_workers=1)
    building = interrupted(options, "publishing.placing.place")
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    final = json.loads((building / "final.json").read_text())
    replaced = json.loads(json.dumps(names).replace("/KEPT", str(tmp_path / "kept")))
    (building / "final.json").write_text(json.dumps({**final, **replaced}))
    said = problem_of(lambda: convert_source(options))
    assert "final.json: " in said
    assert (tmp_path / "kept").exists()


def test_the_plan_of_a_conversion_under_way_names_files_of_its_source(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(next(folder.rglob("*.jpg")).read_bytes())
    options = ConvertOptions(folder, tmp_path / "out", num_workers=1)
    building = interrupted(options, "conversion.run_shards")
    with contextlib.closing(sqlite3.connect(building / "plan.db")) as connection, connection:
        connection.execute("UPDATE directories SET path = ?", (b"..",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("converters.conversion._Conversion._refuse_changed_source", lambda self, plan: None)
        said = problem_of(lambda: convert_source(options))
    assert "the plan of the conversion: names the file" in said
