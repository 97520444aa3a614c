"""Videos in a store become the shards that the same files on a disk become, whatever the network does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

av = pytest.importorskip("av")

from faulty_store import FaultyStore, PlantedFault  # noqa: E402
from lerobot_files import write_lerobot  # noqa: E402
from source_trees import put  # noqa: E402
from stand_in_stores import BUCKET, moto_store, needs_moto, upload  # noqa: E402
from video_files import X264, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from converters import ConvertOptions, OnError, convert, recognise  # noqa: E402
from datapipe.cli.main import main  # noqa: E402
from datapipe.errors import MissingDataError, OptionError  # noqa: E402
from datapipe.stores.places import parse_place  # noqa: E402

pytestmark = needs_moto
TOP = f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with moto_store() as store:
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield server
    server.weather.faults.clear()


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, server: FaultyStore) -> Path:
    """Videos in folders of two classes, which lie at s3://bkt/videos as well; one without a table of contents, one bad."""
    root = tmp_path_factory.mktemp("videos") / "videos"
    for number, name in enumerate(["jump/a.mp4", "jump/b c%.mp4", "wave/deeper/c.mkv", "wave/d.mp4"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        first = {"movflags": "faststart"} if number == 1 else {}
        frames = pictures(30 + 8 * number, 96, 64, seed=number)
        write_video(root / name, frames=frames, options=x264(f"{X264}:bframes=3"), container=first)
    put(root / "wave" / "bad.mp4", b"no video" * 300)
    put(root / "wave" / "notes.txt", b"text")
    upload(root, "videos")
    return root


def shards_of(directory: Path) -> dict[str, Any]:
    """The files of a dataset; its manifest without the digest of the source, which has the etags of a store in it."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    manifest = json.loads(files["dataset.json"])
    del manifest["source_digest"], manifest["checksum"]
    return {**files, "dataset.json": manifest}


def converted(source: str | Path, out: Path, **options: Any) -> dict[str, Any]:
    convert(ConvertOptions(parse_place(str(source)), out, **{"num_workers": 1, "on_error": OnError.SKIP, "seed": 3} | options))
    return shards_of(out)


@pytest.mark.daily(1)
@pytest.mark.parametrize("options", [{}, {"video_size": 32, "video_keyframes": 8}], ids=["copied", "encoded"])
def test_a_prefix_is_the_folder(store: FaultyStore, videos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    assert recognise(ConvertOptions(parse_place(f"{TOP}/videos"), tmp_path / "x")).form == "videos"
    local = converted(videos, tmp_path / "local", **options)
    assert converted(f"{TOP}/videos", tmp_path / "out", **options) == local
    assert len([name for name in local if name.endswith(".tar")]) == 1
    clips = [dp.Clips(tmp_path / name, frames=4) for name in ("local", "out")]
    assert len(clips[0]) == len(clips[1]) > 20
    assert clips[0].classes == clips[1].classes == ("jump", "wave")


def test_one_video_and_a_list_of_parts(store: FaultyStore, videos: Path, tmp_path: Path) -> None:
    name = "jump/b%20c%25.mp4"  # as a URL
    assert converted(f"{TOP}/videos/{name}", tmp_path / "out") == converted(videos / "jump" / "b c%.mp4", tmp_path / "local")
    rows = [
        ("jump/a.mp4", 0.2, 0.9, "x"),
        ("wave/d.mp4", "", "", "y"),
        ("jump/a.mp4", 0.5, "", "y"),
        ("wave/gone.mp4", 0, 1, "x"),
    ]
    rows += [("jump/a.mp4", 90, 91, "x"), ("wave/deeper/c.mkv", 0.4, 0.8, "x"), ("wave/bad.mp4", 0.4, 0.8, "x")]
    for kind, top in (("local", f"{videos}/"), ("urls", f"{TOP}/videos/")):
        lines = "".join(f"{top}{','.join(map(str, row))}\n" for row in rows)
        put(tmp_path / f"{kind}.csv", "path,start,end,label\n" + lines)
    local = converted(tmp_path / "local.csv", tmp_path / "parts", root=videos)
    stored = converted(tmp_path / "urls.csv", tmp_path / "stored")
    assert stored["errors.jsonl"].count(b"no such object") == 1
    local["errors.jsonl"] = local["errors.jsonl"].replace(b"no such file", b"no such object")
    assert stored == local


def test_a_bad_network(store: FaultyStore, videos: Path, tmp_path: Path) -> None:
    local = converted(videos, tmp_path / "local")
    store.weather.faults = [
        PlantedFault("reset", share=0.05), PlantedFault("status", share=0.1, times=20), PlantedFault("truncate", share=0.05),
    ]  # fmt: skip
    assert converted(f"{TOP}/videos", tmp_path / "out", num_workers=2) == local


@pytest.mark.nightly
def test_by_command_and_wrong_sources(
    store: FaultyStore, videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", f"{TOP}/videos", str(tmp_path / "out"), "--to", "webdataset", "--on-error", "skip"]
    assert main(command) == 0
    assert main(["convert", f"{TOP}/videos/jump/none.mp4", str(tmp_path / "none"), "--to", "webdataset"]) == 1
    assert f"{TOP}/videos/jump/none.mp4" in capsys.readouterr().err
    write_lerobot(tmp_path / "robot")
    upload(tmp_path / "robot", "robot")
    for source, error, said in [
        (f"{TOP}/robot", OptionError, "a LeRobot dataset, which datapipe.Clips reads where it lies"),
        (f"{TOP}/none", MissingDataError, "no objects under this prefix"),
        (f"{TOP}/lists/parts.csv", OptionError, "--from videos is not read from stores|copy it to a disk"),
    ]:
        with pytest.raises(error, match=said):
            converted(source, tmp_path / "bad", form="videos")
    for lines, said in [
        (f"{TOP}/videos/jump/a.mp4\n{videos}/jump/a.mp4\n", "names files of several stores, or of a disk too"),
        (f"{TOP}/videos/jump/a.mp4\ngs://other/a.mp4\n", "names files of several stores"),
    ]:
        put(tmp_path / "list.csv", "path\n" + lines)
        with pytest.raises(OptionError, match=said):
            converted(tmp_path / "list.csv", tmp_path / "bad", form="videos")
    put(tmp_path / "list.csv", f"path\n{TOP}/videos/jump/a.mp4\n")
    with pytest.raises(OptionError, match="names URLs, which start from no folder; leave it out"):
        converted(tmp_path / "list.csv", tmp_path / "bad", form="videos", root=videos)
