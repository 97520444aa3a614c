"""`TableLoader` over Parquet in a store: the batches and states of the local files, whatever the network does."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_store import FaultyStore, PlantedFault
from stand_in_stores import BUCKET, moto_store, needs_moto, upload
from table_values import table_of, write_table

import datapipe as dp
from datapipe.stores.failures import TIMEOUT_S
from datapipe.stores.requests import apply_settings, requests
from datapipe.stores.settings import Remote
from datapipe.stores.window import MAX_REQUESTS

pytestmark = needs_moto
URL = f"s3://{BUCKET}/table"
NUM_ROWS = 3210
OPTIONS: dict[str, Any] = {
    "batch_size": 64, "shuffle": True, "seed": 5, "num_workers": 2, "label": "label",
    "columns": {"dense": ["I*"], "ids": ["C*", "row"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_table(root / "part-a.parquet", 2000)
    write_table(root / "part-b.parquet", NUM_ROWS - 2000, first=2000)
    return root


@pytest.fixture(scope="module")
def server(table: Path) -> Iterator[FaultyStore]:
    with moto_store() as store:
        upload(table, "table")
        yield store


@pytest.fixture
def store(server: FaultyStore) -> Iterator[FaultyStore]:
    yield server
    server.weather.faults.clear()
    apply_settings(Remote())


def rows_of(loader: dp.TableLoader) -> list[list[int]]:
    """The row numbers of each batch, once everything else in it is what they say."""
    found = []
    for x, y in loader:
        rows = x["ids"][:, 2].numpy()
        expected = table_of(rows)
        assert np.array_equal(x["dense"].numpy(), np.stack([expected[f"I{j}"].to_numpy() for j in range(3)], 1))
        assert np.array_equal(y.numpy(), expected["label"].to_numpy())
        found.append(rows.tolist())
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "source", [URL, f"{URL}/*.parquet", f"{URL}/part-{{a,b}}.parquet", [f"{URL}/part-a.parquet", f"{URL}/part-b.parquet"]]
)
def test_batches_and_states_are_those_of_the_local_files(store: FaultyStore, table: Path, source: Any) -> None:
    here, there = dp.TableLoader(table, **OPTIONS), dp.TableLoader(source, **OPTIONS)
    expected = rows_of(here)
    assert rows_of(there) == expected
    here = dp.TableLoader(table, **OPTIONS)
    iterator = iter(here)
    next(iterator), next(iterator)
    there.load_state_dict(here.state_dict())
    assert rows_of(there) == expected[2:]


@pytest.mark.nightly
def test_few_requests_and_only_the_wanted_columns(store: FaultyStore, table: Path) -> None:
    loader = dp.TableLoader(URL, **{**OPTIONS, "num_workers": 1})
    before = store.num_requests
    assert sorted(sum(rows_of(loader), [])) == list(range(NUM_ROWS))  # noqa: RUF017
    assert store.num_requests - before <= 33 + 2 * 2, "one for each row group, and the footer of each file for a reader"


@pytest.mark.nightly
def test_a_bad_network_changes_nothing(store: FaultyStore, table: Path) -> None:
    store.weather.faults = [
        PlantedFault("truncate", share=0.3, times=8),
        PlantedFault("reset", share=0.3, times=8),
        PlantedFault("status", share=0.3, times=8),
    ]
    assert rows_of(dp.TableLoader(URL, **OPTIONS)) == rows_of(dp.TableLoader(table, **OPTIONS))
    assert sum(fault.done for fault in store.weather.faults) > 10


@pytest.mark.nightly
def test_a_store_that_stays_away_is_an_error_under_every_policy(store: FaultyStore) -> None:
    loader = dp.TableLoader(URL, **OPTIONS, on_error="skip", remote=dp.Remote(timeout_s=0.5))
    store.weather.faults = [PlantedFault("status", status=503, path=".parquet")]
    with pytest.raises(dp.errors.StorageError, match=r"no success in \d s and \d+ attempts, with 0.5 s at most"):
        rows_of(loader)
    assert loader.bad_samples == []


def test_settings_of_requests_hold_for_the_opening(store: FaultyStore) -> None:
    store.weather.faults = [PlantedFault("status", status=503, path=".parquet")]
    with pytest.raises(dp.errors.StorageError, match=r"attempts, with 0.5 s at most"):
        dp.TableLoader([f"{URL}/part-a.parquet"], **OPTIONS, remote=dp.Remote(timeout_s=0.5))


@pytest.mark.daily(1)
@pytest.mark.parametrize("is_pickled", [False, True])
def test_settings_of_requests_hold_for_each_pass(store: FaultyStore, table: Path, is_pickled: bool) -> None:
    """Also where another loader had its own in the meantime."""
    loader = dp.TableLoader(URL, **OPTIONS, remote=dp.Remote(requests=3, timeout_s=60))
    if is_pickled:
        loader = pickle.loads(pickle.dumps(loader))
    expected = rows_of(dp.TableLoader(table, **OPTIONS))
    dp.TableLoader(URL, **OPTIONS)
    assert (requests().window.most, requests().timeout_s) == (MAX_REQUESTS, TIMEOUT_S)
    assert rows_of(loader) == expected
    assert (requests().window.most, requests().timeout_s) == (3, 60)
    dp.TableLoader(table, **OPTIONS, remote=dp.Remote(requests=5, cache_dir="/no/such"))  # of local files it changes nothing
    assert requests().window.most == 3


def test_a_cache_of_shards_is_refused(store: FaultyStore, tmp_path: Path) -> None:
    for source in (URL, [f"{URL}/part-a.parquet"]):
        with pytest.raises(dp.errors.OptionError, match=r"keeps shards of images, and this is a table; .* pass cache='disk'"):
            dp.TableLoader(source, **OPTIONS, remote=dp.Remote(cache_dir=tmp_path))


def test_the_cache_of_rows_takes_its_place(store: FaultyStore, table: Path, tmp_path: Path) -> None:
    here = dp.TableLoader(table, **OPTIONS, cache=tmp_path / "here")
    there = dp.TableLoader(URL, **OPTIONS, cache=tmp_path / "there")
    assert rows_of(there) == rows_of(here)
    before = store.num_requests
    assert rows_of(there) == rows_of(here)
    assert store.num_requests == before


@pytest.mark.parametrize("remote", [{"timeout_s": 1}, 5, "s3"])
def test_settings_of_another_type_are_refused(remote: Any, table: Path) -> None:
    with pytest.raises(dp.errors.OptionError, match=r"remote is .*; pass datapipe\.Remote"):
        dp.TableLoader(table, **OPTIONS, remote=remote)


def test_a_file_replaced_since_the_table_was_opened(store: FaultyStore, table: Path, tmp_path: Path) -> None:
    upload(table, "replaced")
    loader = dp.TableLoader(f"s3://{BUCKET}/replaced", **OPTIONS)
    write_table(tmp_path / "part-a.parquet", 2000, first=7)
    upload(tmp_path, "replaced")
    with pytest.raises(dp.errors.StorageError, match="changed since the loader opened it"):
        rows_of(loader)


def test_what_is_no_table_is_refused(store: FaultyStore, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"x" * 1024)
    upload(tmp_path, "tars")
    with pytest.raises(dp.errors.FormatError, match="of the tables in stores Parquet is read, not tar"):
        dp.TableLoader(f"s3://{BUCKET}/tars", **OPTIONS)
    (tmp_path / "x.tar").rename(tmp_path / "x.parquet")
    upload(tmp_path, "damaged")
    with pytest.raises(dp.errors.FormatError, match=r"x\.parquet: not a Parquet file, or truncated"):
        dp.TableLoader(f"s3://{BUCKET}/damaged", **OPTIONS)
    with pytest.raises(dp.errors.MissingDataError):
        dp.TableLoader(f"s3://{BUCKET}/none", **OPTIONS)
