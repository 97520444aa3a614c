"""Megatron Energon's splits: which tars a path means."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fixtures import make_folder, write_webdataset
from stand_in_stores import BUCKET, moto_store, needs_moto, needs_obstore, upload

from converters import ConvertOptions, convert
from datapipe.cli.main import main
from datapipe.errors import DatapipeError, FormatError, MissingDataError, OptionError
from datapipe.opening.samples import open_index

SPLITS = """
split_parts:
  train:
  - shards/{00000..00001}.tar
  - shards/00002.tar
  val: [shards/00003.tar]
  test: []
exclude:
- shards/00001.tar
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Four tars in a folder of a dataset, as `energon prepare` leaves it."""
    tars = sorted(write_webdataset(make_folder(tmp_path / "folder", num=40, size=(12, 16)), tmp_path / "tars").glob("*.tar"))
    (tmp_path / "set" / "shards").mkdir(parents=True)
    for number, tar in enumerate(tars):
        shutil.copy(tar, tmp_path / "set" / "shards" / f"{number:05d}.tar")
    (tmp_path / "set" / ".nv-meta").mkdir()
    (tmp_path / "set" / ".nv-meta" / "split.yaml").write_text(SPLITS)
    return tmp_path / "set"


def sizes(dataset: Path) -> list[int]:
    return [len(open_index(path)) for path in sorted((dataset / "shards").glob("*.tar"))]


@pytest.mark.promise("form: energon")
def test_a_split_is_its_tars_without_those_excluded(dataset: Path, tmp_path: Path) -> None:
    each = sizes(dataset)
    train, val = open_index(dataset / "train"), open_index(dataset / "val")
    assert (len(train), len(val)) == (each[0] + each[2], each[3])
    assert val.labels().tolist() == open_index(dataset / "shards" / "00003.tar").labels().tolist()
    report = convert(ConvertOptions(source=dataset / "val", destination=tmp_path / "out", to="webdataset"))
    assert report is not None
    assert len(open_index(tmp_path / "out")) == each[3]


def test_a_list_in_json_is_read_as_well(dataset: Path) -> None:
    expected = open_index(dataset / "val").fingerprint
    (dataset / ".nv-meta" / "split.yaml").unlink()
    (dataset / ".nv-meta" / "split.json").write_text(json.dumps({"split_parts": {"val": ["shards/00003.tar"]}}))
    assert open_index(dataset / "val").fingerprint == expected
    assert open_index(dataset).fingerprint == expected, "the only split"


def test_several_splits_are_asked_about(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=r"split.yaml: has the splits train, val; open one, as .*/set/train"):
        open_index(dataset)
    assert main(["inspect", str(dataset)]) == 2
    assert "has the splits train, val; open one, as" in capsys.readouterr().err
    assert main(["inspect", str(dataset / "val")]) == 0
    assert f"{sizes(dataset)[3]} samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("- shards/00001.tar\n", "- shards/00000.tar/17\n", FormatError, "excludes single samples"),
        ("- shards/00002.tar", "- ../00002.tar", FormatError, "names a shard outside of its folder"),
        ("- shards/00002.tar", "- shards/00009.tar", MissingDataError, "00009.tar: is in .*split.yaml, but not there"),
        ("- shards/00002.tar", "- {a: [", FormatError, "does not parse as Energon's"),
        ("- shards/00002.tar", "- 5", FormatError, "its splits are no lists of names"),
        ("- shards/00002.tar", "- shards/{3..1}.tar", FormatError, "counts down"),
    ],
)
def test_a_list_that_cannot_be_followed_is_refused(
    dataset: Path, old: str, new: str, error: type[DatapipeError], message: str
) -> None:
    (dataset / ".nv-meta" / "split.yaml").write_text(SPLITS.replace(old, new, 1))
    with pytest.raises(error, match=message):
        open_index(dataset / "train")


@needs_obstore
@needs_moto
def test_splits_in_a_store_are_those_on_a_disk(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with moto_store():
        upload(dataset, "energon")
        train, val = open_index(f"s3://{BUCKET}/energon/train"), open_index(dataset / "val")
        assert train.labels().tolist() == open_index(dataset / "train").labels().tolist()
        assert len(open_index(f"s3://{BUCKET}/energon/val")) == len(val)
        with pytest.raises(OptionError, match="has the splits train, val; open one, as s3://"):
            open_index(f"s3://{BUCKET}/energon")
        with pytest.raises(MissingDataError, match="nothing under this prefix"):
            open_index(f"s3://{BUCKET}/energon/dev")


def test_a_split_that_is_not_there_is_missing_data(dataset: Path) -> None:
    with pytest.raises(MissingDataError, match="no such file or directory"):
        open_index(dataset / "dev")
