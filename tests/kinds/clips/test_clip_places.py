"""Clips of videos in tars and in stores are those of the same files in a folder, whatever the network does."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

av = pytest.importorskip("av")

from faulty_store import FaultyStore, PlantedFault  # noqa: E402
from lerobot_files import CAMERAS, write_lerobot  # noqa: E402
from stand_in_stores import BUCKET, directory_store, moto_store, needs_moto, needs_obstore, repeated_until_quiet, upload  # noqa: E402
from video_files import X264, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.cli.main import main  # noqa: E402
from datapipe.errors import FormatError, MissingDataError, OptionError, StorageError  # noqa: E402
from datapipe.stores.requests import apply_settings  # noqa: E402

TOP = f"s3://{BUCKET}"
HOW: dict[str, Any] = {"frames": 4, "stride": 2, "step": 4, "fields": ["video", "label", "times", "id"]}
WITHOUT_LABELS = HOW | {"fields": ["video", "times", "id"]}


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six videos in folders of two classes, some with their table of contents first, one not an mp4. Not to be changed."""
    root = tmp_path_factory.mktemp("videos") / "folder"
    for label in range(2):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(3):
            frames = pictures(24 + 16 * number, 96, 64, seed=10 * label + number)
            suffix, first = ("mkv" if label and number == 2 else "mp4"), {"movflags": "faststart"} if number == 1 else {}
            path = root / f"class{label}" / f"{number}.{suffix}"
            write_video(path, frames=frames, options=x264(f"{X264}:bframes=3"), container=first)
    return root


@pytest.fixture(scope="module")
def tars(folder: Path) -> Path:
    """The same videos in two tars, in the same order."""
    place = folder.parent / "tars"
    place.mkdir()
    for label in range(2):
        files = sorted((folder / f"class{label}").glob("[01].mp4"))
        members = {}
        for file in files:
            members[f"{label}{file.stem}.mp4"] = file.read_bytes()
            members[f"{label}{file.stem}.cls"] = str(label).encode()
            members[f"{label}{file.stem}.json"] = b"{}"
        write_tar(place / f"train-{label:03d}.tar", members)
    return place


@pytest.fixture(scope="module")
def in_tars(folder: Path) -> Path:
    """A folder of the videos that are in the tars."""
    place = folder.parent / "in-tars"
    for label in range(2):
        (place / f"class{label}").mkdir(parents=True)
        for number in range(2):
            shutil.copy(folder / f"class{label}" / f"{number}.mp4", place / f"class{label}")
    return place


@pytest.fixture(scope="module")
def lerobot(folder: Path) -> Path:
    return write_lerobot(folder.parent / "lerobot")


@pytest.fixture(scope="module")
def lerobot_old(folder: Path) -> Path:
    return write_lerobot(folder.parent / "lerobot-old", "v2.1")


@pytest.fixture(scope="module")
def server(folder: Path, tars: Path, lerobot: Path, lerobot_old: Path) -> Iterator[FaultyStore]:
    with moto_store() as store:
        for path in (folder, tars, lerobot, lerobot_old):
            upload(path, path.name)
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.log.clear()
    yield server
    server.weather.faults.clear()
    apply_settings(dp.Remote())


def batches(data: dp.Clips, **more: Any) -> list[dict[str, Any]]:
    """The batches of two epochs."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 2} | more
    loader = dp.DataLoader(data, **options)
    return [batch for epoch in range(2) for batch in loader if loader.set_epoch(epoch + 1) or True]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name], name


@pytest.mark.parametrize("form", ["folder", "pattern", "file"])
def test_clips_of_tars_are_those_of_their_files(tars: Path, in_tars: Path, form: str) -> None:
    source = {"folder": tars, "pattern": f"{tars}/*.tar", "file": tars / "train-000.tar"}[form]
    found = dp.Clips(source, **HOW)
    assert found.classes is None
    if form == "file":
        assert {int(label) for batch in batches(found) for label in batch["label"]} == {0}
        return
    assert_same(batches(found), batches(dp.Clips(in_tars, **HOW)))


def test_what_lies_in_tars_is_recognised(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=r"holds videos; say how many frames a clip has: datapipe\.Clips"):
        dp.DataLoader(tars, batch_size=2)
    assert main(["inspect", str(tars), "--grid", str(tmp_path / "sheet.png")]) == 0
    assert "4 videos, 128 frames in all" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (
            {"a.mp4": b"1", "a.cls": b"0", "b.mp4": b"1"},
            r"sample 'b' has no label, which others have: 1 of 2 videos; convert --on-error skip",
        ),
        ({"a.front.mp4": b"1", "a.side.mp4": b"1"}, "each sample must have one video, and they have front_mp4, side_mp4"),
        ({"a.mp4": b"1", "b.mkv": b"1"}, "they have none in common"),
        ({"a.mp4": b"1" * 99}, r"a\.tar, byte 512: no video file \(99 bytes"),
    ],
)
def test_odd_tars_are_refused_by_name(tmp_path: Path, members: dict[str, bytes], problem: str) -> None:
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises((FormatError, OptionError), match=problem):
        dp.Clips(path, **WITHOUT_LABELS)


def test_a_cut_tar_and_a_bad_member_are_told_apart(tmp_path: Path, tars: Path) -> None:
    whole = (tars / "train-000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"cut\.tar: member at byte \d+ reaches to"):
        dp.Clips(tmp_path / "cut.tar", **HOW)
    with tarfile.open(tars / "train-000.tar") as tar:
        good = {member.name: tar.extractfile(member).read() for member in tar if member.name.endswith(".mp4")}  # type: ignore[union-attr]
    write_tar(tmp_path / "bad.tar", {"0.mp4": b"\0" * 700, **good})
    assert len(dp.Clips(tmp_path / "bad.tar", **WITHOUT_LABELS, skip_bad=True).index.videos) == 3


def test_images_beside_videos_stay_images(tmp_path: Path, tars: Path) -> None:
    with tarfile.open(tars / "train-000.tar") as tar:
        video = tar.extractfile("00.mp4").read()  # type: ignore[union-attr]
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    path = write_tar(tmp_path / "a.tar", {"0.mp4": video, "0.png": png.getvalue(), "1.png": png.getvalue(), "1.mp4": video})
    ((images,),) = dp.DataLoader(dp.Images(path, fields=["image"]), batch_size=2)
    assert images.shape == (2, 3, 8, 8)


@needs_moto
def test_a_store_that_stays_away_is_no_set_without_videos(store: FaultyStore) -> None:
    """What a place holds is asked of its first tar: no answer is not taken for "no videos"."""
    store.weather.faults += [PlantedFault("status", path=".tar")]
    with pytest.raises(StorageError, match=r"s3://bkt/tars/train-000\.tar: .*no success in"):
        dp.Clips(f"{TOP}/tars", **HOW, remote=dp.Remote(timeout_s=0.3))


@needs_moto
def test_tars_that_were_replaced_are_seen_as_they_are_now(store: FaultyStore, folder: Path, tars: Path, tmp_path: Path) -> None:
    """What an earlier opening pinned holds for its own loader, not for who opens the place again."""
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    for label in range(2):
        (tmp_path / "replaced").mkdir(exist_ok=True)
        write_tar(tmp_path / "replaced" / f"train-{label:03d}.tar", {f"{label}.png": png.getvalue()})
    upload(tmp_path / "replaced", "replaced")
    ((images,),) = dp.DataLoader(dp.Images(f"{TOP}/replaced", fields=["image"]), batch_size=2)
    assert images.shape == (2, 3, 8, 8)
    upload(tars, "replaced")
    assert_same(batches(dp.Clips(f"{TOP}/replaced", **HOW)), batches(dp.Clips(tars, **HOW)))


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("source", ["folder", "tars", "pattern", "braces"])
def test_clips_in_a_store_are_those_of_the_disk(store: FaultyStore, folder: Path, tars: Path, source: str) -> None:
    here = {"folder": folder, "tars": tars, "pattern": tars, "braces": tars}[source]
    url = {
        "folder": f"{TOP}/folder", "tars": f"{TOP}/tars", "pattern": f"{TOP}/tars/train-*.tar",
        "braces": f"{TOP}/tars/train-{{000..001}}.tar",
    }[source]  # fmt: skip
    expected = batches(dp.Clips(here, **HOW))
    assert_same(batches(dp.Clips(url, **HOW)), expected)
    store.log.clear()
    again = dp.Clips(url, **HOW)  # the index is kept, and says that videos are in tars
    assert not [one for one in store.log if one.startswith("GET") and one.endswith((".mp4", ".mkv", ".tar"))]
    store.weather.faults += [PlantedFault(kind, share=0.1) for kind in ("truncate", "status", "reset")]
    assert_same(batches(again), expected)


@needs_moto
def test_lists_name_objects(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    names = ["class0/0.mp4", "class1/2.mkv"]
    expected = batches(dp.Clips([folder / name for name in names], **WITHOUT_LABELS))
    assert_same(batches(dp.Clips([f"{TOP}/folder/{name}" for name in names], **WITHOUT_LABELS)), expected)
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{TOP}/folder/{name},{name[5]}\n" for name in names))
    listed = batches(dp.Clips(tmp_path / "list.csv", **HOW))
    assert_same([{name: batch[name] for name in WITHOUT_LABELS["fields"]} for batch in listed], expected)
    with pytest.raises(FormatError, match=r"nothing\.mp4: no such object"):
        dp.Clips([f"{TOP}/folder/class0/0.mp4", f"{TOP}/folder/nothing.mp4"], **WITHOUT_LABELS)
    with pytest.raises(MissingDataError, match="no objects under this prefix"):
        dp.Clips(f"{TOP}/nowhere", **HOW)


@needs_moto
def test_objects_are_kept_on_a_disk(store: FaultyStore, folder: Path, tmp_path: Path) -> None:
    data = dp.Clips(f"{TOP}/folder", **HOW, remote=dp.Remote(cache_dir=tmp_path / "kept"))
    expected = batches(dp.Clips(folder, **HOW))
    repeated_until_quiet(store, lambda: assert_same(batches(data), expected))


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("version", ["lerobot", "lerobot-old"])
def test_lerobot_datasets_in_a_store(store: FaultyStore, folder: Path, version: str) -> None:
    deltas = {CAMERAS[0]: [-0.1, 0.0], "action": [0.0, 0.1]}
    here = batches(dp.Clips(folder.parent / version, delta_timestamps=deltas))
    assert_same(batches(dp.Clips(f"{TOP}/{version}", delta_timestamps=deltas)), here)
    with pytest.raises(OptionError, match=r"is a LeRobot dataset; pass datapipe\.Clips"):
        dp.DataLoader(f"{TOP}/{version}", batch_size=2)


@needs_obstore
def test_lerobot_datasets_of_a_web_server_which_lists_nothing(
    tmp_path: Path, lerobot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with directory_store(tmp_path, robots=lerobot) as store:
        found = batches(dp.Clips(f"{store.url}/{BUCKET}/robots"))
    assert_same(found, batches(dp.Clips(lerobot)))
