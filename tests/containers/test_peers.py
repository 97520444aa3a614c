"""Sets that other loaders' own writers made, against what their own readers read (`make_peers.py`)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe as dp
from datapipe import transforms as T
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.field_values import FieldKind, value_of
from datapipe.codecs.probe import probe
from datapipe.containers.foreign import INDEX_DIRECTORY_NAME
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index

SETS = ("mds", "mds-zstd", "litdata", "litdata-batches", "litdata-rows", "ffcv.beton")
NUM = 7
OTHER_NAMES = {"x": "image", "y": "label", "class": "label"}  # of fields


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("peers")
    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(top, filter="data")
    return top


def expected(peers: Path, name: str) -> list[dict[str, Any]]:
    """By field, what the set's own reader says of each sample."""
    samples: list[dict[str, Any]] = json.loads((peers / "expected.json").read_text())[name]
    return [{OTHER_NAMES.get(key, key): _parsed(value) for key, value in one.items()} for one in samples]


def _parsed(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "values"}:
        return np.array(value["values"], value["dtype"]).reshape(value["shape"])
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) and "hex" in value else value


def are_equal(found: Any, value: Any) -> bool:
    if not isinstance(found, np.ndarray):
        return bool(found == value)
    if isinstance(value, np.ndarray):
        is_grey = found.ndim == value.ndim + 1 == 3  # decoders give all images three channels
        return found.dtype == value.dtype and np.array_equal(found, np.repeat(value[:, :, None], 3, 2) if is_grey else value)
    return found.shape == () and found.item() == pytest.approx(value)


@pytest.mark.promise("form: mds", "form: litdata", "form: beton")
@pytest.mark.parametrize("name", SETS)
def test_values_are_those_of_the_sets_own_reader(peers: Path, name: str) -> None:
    samples, index = expected(peers, name), open_index(peers / name)
    files, decoder = LocalFiles(), open_decoder()
    assert len(index) == NUM
    assert {field.name for field in index.manifest.fields} == samples[0].keys()
    assert index.labels().tolist() == [sample["label"] for sample in samples]
    for field in index.manifest.fields:
        if field.kind is FieldKind.LABEL:
            continue
        extents = index.look_up(np.arange(NUM), field.name).extents
        for row, sample in enumerate(samples):
            data = files.read(extents, row)
            found = decoder(data, probe(data)) if field.kind is FieldKind.IMAGE else value_of(field.kind, data)
            assert are_equal(found, sample[field.name]), (field.name, row)


@pytest.mark.parametrize("name", SETS)
def test_a_state_goes_on_over_the_converted_set(peers: Path, name: str, tmp_path: Path) -> None:
    """Ids are the same order in both, so that a run that was saved over one goes on over the other."""
    from converters import ConvertOptions, convert

    options = {"batch_size": 2, "shuffle": True, "seed": 3, "num_workers": 0, "transform": [T.CenterCrop(8)], "output": "dict"}
    data = [dp.Images(peers / name, fields=["image", "label"])]
    convert(ConvertOptions(source=peers / name, destination=tmp_path / "shards", to="webdataset"))
    data.append(dp.Images(tmp_path / "shards", fields=["image", "label"]))
    whole = [batch["id"].tolist() for batch in dp.DataLoader(data[0], **options)]
    loader = dp.DataLoader(data[0], **options)
    iterator = iter(loader)
    first = [next(iterator)["id"].tolist() for _ in range(2)]
    other = dp.DataLoader(data[1], **options)
    other.load_state_dict(loader.state_dict())
    assert first + [batch["id"].tolist() for batch in other] == whole
    for one, two in zip(dp.DataLoader(data[0], **options), dp.DataLoader(data[1], **options), strict=True):
        assert one["image"].equal(two["image"])
        assert one["label"].equal(two["label"])


def test_what_is_not_read_is_named(peers: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    caplog.set_level("INFO")
    open_index(tmp_path / "mds")
    assert "not read: 'pickled' (pickled, and reading it could run code); 'several' (a list of images)" in caplog.text
    (tmp_path / "mds" / "shard.00009.mds").write_bytes(b"of a run that was interrupted")
    open_index(tmp_path / "mds")
    assert "1 file not in its list of shards, so not read: shard.00009.mds" in caplog.text


def test_compressed_shards_are_unpacked_once(peers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = open_index(peers / "mds-zstd").fingerprint
    monkeypatch.setattr("datapipe.opening.unpacking._unpack", lambda *_: pytest.fail("unpacked again"))
    assert open_index(peers / "mds-zstd").fingerprint == first
    assert not (peers / "mds-zstd" / INDEX_DIRECTORY_NAME).exists(), "all that is kept lies in the user's cache"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda shard: shard.unlink(), MissingDataError, "is in .*index.json, but not there"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), FormatError, "its list says .*: cut off"),
        (lambda shard: (shard.parent / "index.json").write_text("{"), FormatError, "does not parse as MosaicML's"),
        (lambda shard: (shard.parent / "index.json").write_text('{"shards": []}'), FormatError, "names no shards"),
        (lambda shard: _rename(shard, "below/shard.mds"), MissingDataError, "below/shard.mds: is in .*index.json, but not there"),
        (lambda shard: _rename(shard, "../shard.mds"), FormatError, "names a shard outside of its folder"),
        (lambda shard: _rename(shard, "/etc/passwd"), FormatError, "names a shard outside of its folder"),
    ],
)
def test_a_set_that_is_not_whole_is_refused(
    peers: Path, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    change(tmp_path / "mds" / "shard.00001.mds")
    with pytest.raises(error, match=message):
        open_index(tmp_path / "mds")


def _rename(shard: Path, name: str) -> None:
    index = shard.parent / "index.json"
    index.write_text(index.read_text().replace(shard.name, name))


def test_shards_in_folders_of_a_merged_index_are_read(peers: Path, tmp_path: Path) -> None:
    """As MosaicML's `merge_index` writes it, for sets that several processes wrote."""
    whole = json.loads((peers / "mds" / "index.json").read_text())
    for number, shard in enumerate(whole["shards"]):
        name = shard["raw_data"]["basename"]
        (tmp_path / "set" / f"part{number % 2}").mkdir(parents=True, exist_ok=True)
        shard["raw_data"]["basename"] = f"part{number % 2}/{name}"
        (tmp_path / "set" / f"part{number % 2}" / name).write_bytes((peers / "mds" / name).read_bytes())
    (tmp_path / "set" / "index.json").write_text(json.dumps(whole))
    index = open_index(tmp_path / "set")
    assert index.labels().tolist() == [sample["label"] for sample in expected(peers, "mds")]
    index.look_up(np.arange(NUM), "image")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("litdata", '"encryption": null', '"encryption": {"algorithm": "fernet"}', "encrypted"),
        ("litdata", '"item_loader": "PyTreeLoader"', '"item_loader": "TokensLoader"', "TokensLoader"),
        ("litdata-batches", '"compression_level": "batch"', '"compression_level": "sample"', "zstd per chunk or batch is read"),
    ],
)
def test_chunks_that_are_not_read_say_why(peers: Path, tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    index = tmp_path / name / "index.json"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))
    with pytest.raises(FormatError, match=message):
        open_index(tmp_path / name)


def test_a_chunk_alone_needs_its_index(peers: Path, tmp_path: Path) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes((peers / "litdata" / "chunk-0-0.bin").read_bytes())
    with pytest.raises((MissingDataError, OptionError), match=r"index.json: is missing|say which"):
        open_index(tmp_path / "chunk-0-0.bin")


@pytest.mark.parametrize("name", ["mds", "mds-zstd"])
def test_checksums_of_shards_are_compared(peers: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from datapipe.cli.main import main

    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    assert main(["verify", str(tmp_path / name)]) == 0
    assert f"intact; {NUM} samples in 4 shards" in capsys.readouterr().out
    shard = sorted((tmp_path / name).glob("*.mds*"))[2]
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(tmp_path / name)]) == 1
    assert f"{shard}: its sha1 differs from the list's" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "litdata")]) != 0
    assert "has no checksums of shards, so there is nothing to compare" in capsys.readouterr().err


def test_a_shard_without_a_checksum_is_not_called_intact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datapipe.cli.main import main

    with tarfile.open(Path(__file__).with_name("peers.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    index = tmp_path / "mds" / "index.json"
    about = json.loads(index.read_text())
    about["shards"][1]["raw_data"]["hashes"] = {}
    index.write_text(json.dumps(about))
    assert main(["verify", str(tmp_path / "mds")]) == 1
    assert "shard.00001.mds: its list has no checksum of it" in capsys.readouterr().out
