"""Sound in object stores is that of the same files on a disk, whatever the network does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from faulty_store import FaultyStore, PlantedFault
from sound_files import sound, write_sound
from stand_in_stores import BUCKET, moto_store, needs_moto, repeated_until_quiet, upload

import datapipe as dp
from datapipe.cli.main import main
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError, StorageError
from datapipe.stores.requests import apply_settings

TOP = f"s3://{BUCKET}"
SUFFIXES = ("flac", "wav", "mp3", "ogg", "flac", "aiff", "caf", "wav")
HOW: dict[str, Any] = {"seconds": 0.5, "rate": 8000}
FIELDS = ["audio", "lengths", "id"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with the same eight recordings: in classes, in two tars, in Parquet, and in a converted set. Not to be changed."""
    top = tmp_path_factory.mktemp("places")
    for name in ("tars", "parquet", "compressed"):
        (top / name).mkdir()
    files = [
        write_sound(top / "folder" / f"class{n // 4}" / f"{n}.{suffix}", sound(0.4 + n / 5, seed=n))
        for n, suffix in enumerate(SUFFIXES)
    ]
    for shard in range(2):
        with tarfile.open(top / "tars" / f"s-{shard}.tar", "w") as tar:
            for n in range(4 * shard, 4 * shard + 4):
                data = write_sound(top / "x.flac", sound(0.4 + n / 5, seed=n)).read_bytes()
                for suffix, value in {"flac": data, "txt": f"says {n}".encode(), "cls": b"%d" % shard}.items():
                    entry = tarfile.TarInfo(f"{n}.{suffix}")
                    entry.size = len(value)
                    tar.addfile(entry, io.BytesIO(value))
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    table = pa.table({"audio": rows, "text": [f"says {n}" for n in range(8)]})
    pq.write_table(table, top / "parquet" / "train.parquet", compression="none", use_dictionary=False, row_group_size=3)
    pq.write_table(table, top / "compressed" / "train.parquet", compression="snappy", row_group_size=3)
    assert main(["convert", str(top / "folder"), str(top / "converted"), "--to", "webdataset", "--shard-size", "100KB"]) == 0
    return top


@pytest.fixture(scope="module")
def server(places: Path) -> Iterator[FaultyStore]:
    with moto_store() as store:
        for name in ("folder", "tars", "parquet", "compressed", "converted"):
            upload(places / name, name)
        yield store


@pytest.fixture
def store(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server.log.clear()
    yield server
    server.weather.faults.clear()
    apply_settings(dp.Remote())


def loader_of(data: dp.Audio, **more: Any) -> Any:
    return dp.DataLoader(data, **({"batch_size": 3, "shuffle": True, "seed": 3, "num_workers": 2} | more))


def batches(data: dp.Audio, **more: Any) -> list[dict[str, Any]]:
    """The batches of two epochs."""
    loader = loader_of(data, **more)
    return [batch for _ in range(2) for batch in loader]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name], name


URLS = {
    "folder": "folder", "tars": "tars", "tars/s-*.tar": "tars", "tars/s-{0..1}.tar": "tars", "parquet": "parquet",
    "parquet/train.parquet": "parquet", "converted": "converted", "compressed": "compressed",
}  # fmt: skip


@pytest.mark.nightly
@needs_moto
@pytest.mark.parametrize("url", URLS)
def test_sound_in_a_store_is_that_of_the_disk(store: FaultyStore, places: Path, url: str) -> None:
    here = places / URLS[url]
    expected = batches(dp.Audio(here, **HOW))
    found = dp.Audio(f"{TOP}/{url}", **HOW)
    assert found.classes == dp.Audio(here, **HOW).classes
    assert_same(batches(found), expected)
    store.log.clear()
    again = dp.Audio(f"{TOP}/{url}", **HOW)  # the index is kept
    assert [one for one in store.log if one.startswith("GET") and one.endswith((".flac", ".wav", ".mp3"))] == []
    store.weather.faults += [PlantedFault(kind, share=0.1) for kind in ("truncate", "status", "reset")]
    assert_same(batches(again), expected)
    whole = {"whole": True, "rate": 8000}
    assert_same(batches(dp.Audio(f"{TOP}/{url}", **whole)), batches(dp.Audio(here, **whole)))


@needs_moto
def test_a_state_of_files_resumes_on_objects(store: FaultyStore, places: Path) -> None:
    here, there = (loader_of(dp.Audio(one, whole=True, rate=8000)) for one in (places / "folder", f"{TOP}/folder"))
    expected = list(here)
    steps = iter(loader := loader_of(dp.Audio(places / "folder", whole=True, rate=8000)))
    next(steps)
    there.load_state_dict(loader.state_dict())
    assert_same(list(there), expected[1:])


@needs_moto
def test_lists_name_objects(store: FaultyStore, places: Path, tmp_path: Path) -> None:
    names = ["class0/0.flac", "class1/7.wav"]
    expected = batches(dp.Audio([places / "folder" / name for name in names], **HOW, fields=FIELDS))
    assert_same(batches(dp.Audio([f"{TOP}/folder/{name}" for name in names], **HOW, fields=FIELDS)), expected)
    rows = f"{TOP}/folder/class1/7.wav,0.5,1.25,one\n{TOP}/folder/class0/0.flac,0,,two\nhere.wav,0,,three\n"
    write_sound(tmp_path / "here.wav", sound(0.6))
    (tmp_path / "list.csv").write_text("path,start,end,text\n" + rows)
    (batch,) = dp.DataLoader(dp.Audio(tmp_path / "list.csv", whole=True), batch_size=3)
    assert batch["text"] == ["one", "two", "three"]
    local = dp.Audio(places / "folder/class1/7.wav", whole=True)
    (whole,) = dp.DataLoader(local, batch_size=1)
    assert torch.equal(batch["audio"][0, :12_000], whole["audio"][0, 8000:20_000])
    with pytest.raises(FormatError, match=r"nothing\.wav: no such object"):
        dp.Audio([f"{TOP}/folder/class0/0.flac", f"{TOP}/folder/nothing.wav"], **HOW)
    with pytest.raises(MissingDataError, match="no objects under this prefix"):
        dp.Audio(f"{TOP}/nowhere", **HOW)
    with pytest.raises(OptionError, match=r"list\.csv: lists are read from disks; copy it here"):
        dp.Audio(f"{TOP}/list.csv", **HOW)


@needs_moto
def test_objects_are_asked_for_before_they_are_needed_and_once(store: FaultyStore) -> None:
    data = dp.Audio(f"{TOP}/folder", **HOW)
    store.log.clear()
    assert sum(len(batch["audio"]) for batch in loader_of(data, num_workers=1)) == 8
    asked = [one.split()[1] for one in store.log if one.startswith("GET")]
    assert len(asked) == len({*asked}) == 8


@pytest.mark.nightly
@needs_moto
def test_what_a_store_refuses_is_no_bad_file(store: FaultyStore, tmp_path: Path) -> None:
    remote = dp.Remote(timeout_s=0.5)
    store.weather.faults.append(PlantedFault("status", share=1.0))
    with pytest.raises(StorageError):
        dp.Audio([f"{TOP}/folder/class0/0.flac"], **HOW, skip_bad=True, remote=remote)
    store.weather.faults.clear()
    data = dp.Audio([f"{TOP}/folder/class0/0.flac"], **HOW, remote=remote)
    store.weather.faults.append(PlantedFault("status", share=1.0))
    with pytest.raises(StorageError):
        list(loader_of(data, on_error="skip"))


@needs_moto
def test_damaged_and_replaced_objects(store: FaultyStore, tmp_path: Path) -> None:
    data = bytearray(write_sound(tmp_path / "up" / "0.flac", sound(2)).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    (tmp_path / "up" / "1.flac").write_bytes(data)
    (tmp_path / "up" / "2.flac").write_bytes(b"no sound")
    upload(tmp_path / "up", "odd")
    with pytest.raises(FormatError, match=rf"{TOP}/odd/2\.flac: cannot be decoded"):
        dp.Audio(f"{TOP}/odd", whole=True)
    odd = dp.Audio(f"{TOP}/odd", whole=True, skip_bad=True)
    with pytest.raises(DecodeError, match=r"1\.flac"):
        list(loader_of(odd))
    assert sum(len(batch["audio"]) for batch in loader_of(odd, on_error="skip")) == 1
    (tmp_path / "up" / "0.flac").write_bytes((tmp_path / "up" / "1.flac").read_bytes())
    upload(tmp_path / "up", "odd")
    with pytest.raises(StorageError, match=r"0\.flac.*changed"):
        list(loader_of(odd, on_error="skip"))


@needs_moto
def test_objects_are_kept_on_a_disk(store: FaultyStore, places: Path, tmp_path: Path) -> None:
    data = dp.Audio(f"{TOP}/tars", **HOW, remote=dp.Remote(cache_dir=tmp_path / "kept"))
    expected = batches(dp.Audio(places / "tars", **HOW))
    repeated_until_quiet(store, lambda: assert_same(batches(data), expected))


@pytest.mark.nightly
@needs_moto
def test_what_lies_in_a_store_is_inspected(store: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("tars", "parquet/train.parquet", "folder", "folder/class0/0.flac"):
        assert main(["inspect", f"{TOP}/{url}", "--from", "audio"]) == 0
        assert "16,000 Hz" in capsys.readouterr().out
