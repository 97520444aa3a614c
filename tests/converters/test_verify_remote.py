"""`datapipe verify` of a dataset in a store names the damage that it names on a disk, and survives a bad network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faulty_store import PlantedFault
from fixtures import convert, entry_of, flip_bit, make_folder
from stand_in_stores import BUCKET, directory_store, needs_obstore

import datapipe as dp
from converters.verify import Problem, verify, verify_remote
from datapipe.opening.samples import open_index
from datapipe.stores.places import parse_location

pytestmark = needs_obstore
PLACE = parse_location(f"s3://{BUCKET}/train")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("verify")
    return convert(make_folder(base / "folder"), base / "set")


def test_damage_is_named_as_on_a_disk(converted: Path, tmp_path: Path) -> None:
    with directory_store(tmp_path, train=converted):
        served = tmp_path / BUCKET / "train"
        path, offset, nbytes = entry_of(open_index(converted), 5)
        flip_bit(served / Path(path).name, offset + nbytes // 2)
        shards = sorted(served.glob("*.tar"))
        os.truncate(shards[-1], 1000)
        (served / "shard-000001.idx").unlink()
        (served / "shard-000002.tar.index.arrow").write_bytes(b"x")
        found, expected = verify_remote(PLACE), verify(served)
    assert [Problem(one.path.replace(str(PLACE), str(served)), one.what) for one in found.problems] == list(expected.problems)
    assert len(found.problems) >= 5
    assert found.num_samples == expected.num_samples


def test_a_bad_network_is_no_damage(converted: Path, tmp_path: Path) -> None:
    with directory_store(tmp_path, train=converted) as store:
        store.weather.faults = [
            PlantedFault("truncate", share=0.5, times=6),
            PlantedFault("reset", share=0.5, times=6),
            PlantedFault("status", share=0.5, times=6),
        ]
        report = verify_remote(PLACE)
        assert all(fault.done for fault in store.weather.faults)
    assert report.problems == ()
    assert report.nbytes == sum(path.stat().st_size for path in converted.glob("*.tar"))


def test_no_dataset(tmp_path: Path, converted: Path) -> None:
    with directory_store(tmp_path, train=converted), pytest.raises(dp.errors.MissingDataError, match="no dataset"):
        verify_remote(parse_location(f"s3://{BUCKET}/other"))
