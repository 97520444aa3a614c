"""The way of a dataset into a real store and out of it again, where DATAPIPE_TEST_URL names an empty prefix of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from fixtures import convert, make_folder

import datapipe as dp
from converters import ConvertOptions
from converters import convert as convert_again
from converters.to_store import convert_to_store
from converters.verify import verify_remote
from datapipe.stores.objects import list_below
from datapipe.stores.places import parse_location
from datapipe.stores.transfers import delete, write
from datapipe.testing.loaders.kind import copies, same

URL = os.environ.get("DATAPIPE_TEST_URL", "")

pytestmark = pytest.mark.skipif(not URL, reason="needs DATAPIPE_TEST_URL, an empty prefix of a bucket that may be written")


def test_into_a_real_store_and_out_again(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder", size=(40, 48))
    local = convert(folder, tmp_path / "set")
    place = parse_location(URL) / secrets.token_hex(8)
    try:
        convert_to_store(ConvertOptions(folder, Path("unused"), shard_nbytes=12_000, num_workers=1), place)
        assert verify_remote(place).problems == ()
        options = {"batch_size": 8, "shuffle": True, "seed": 0}
        here, there = dp.DataLoader(str(local), **options), dp.DataLoader(str(place), **options)
        assert same(copies(here), copies(there))
        cached = dp.DataLoader(dp.Images(str(place), remote=dp.Remote(cache_dir=tmp_path / "shards")), **options)
        here.set_epoch(0)
        assert same(copies(here), copies(cached))
        photos = place / "photos"
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            write(path.read_bytes(), photos / str(path.relative_to(folder)), overwrite=False)
        convert_again(ConvertOptions(photos, tmp_path / "again", shard_nbytes=12_000, num_workers=1))
        shards = [path.name for path in local.iterdir() if path.name != "dataset.json"]
        assert all((tmp_path / "again" / name).read_bytes() == (local / name).read_bytes() for name in shards)
    finally:
        for page in list_below(place):
            for one in page:
                delete(place / one.name)
