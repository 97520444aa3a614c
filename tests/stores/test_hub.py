"""Datasets on the Hub, by a stand-in: as on a disk, each thing asked for once on a machine, at the commit that was opened."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batches import equal
from faulty_store import PlantedFault
from fixtures import convert, make_folder, open_images, write_parquet, write_webdataset
from stand_in_hub import TOKEN, StandInHub, stand_in_hub
from stand_in_stores import needs_obstore

import converters
import datapipe as dp
from datapipe.remote_workers.desk import Desk
from datapipe.stores.hub import commits, requests, targets
from datapipe.stores.opening import forget_stores
from datapipe.stores.places import parse_location

pytestmark = needs_obstore

DRIVER = Path(__file__).parent / "hub_driver.py"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("sets")
    folder = make_folder(top / "photos", size=(40, 48))
    parquet, tars = write_parquet(folder, top / "parquet"), write_webdataset(folder, top / "tars")
    return {"photos": folder, "parquet": parquet, "tars": tars, "converted": convert(folder, top / "converted", to="webdataset")}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandInHub]:
    with stand_in_hub(tmp_path / "hub") as (found, _):
        yield found


def batches(source: Any) -> list[Any]:
    return list(open_images(source, 8, shuffle=True, seed=1, output="dict"))


@pytest.mark.parametrize(
    ("name", "folder", "num_files"), [("parquet", "data/", 4), ("tars", "default/train/", 4), ("converted", "", 12)]
)
def test_a_dataset_on_the_hub_is_that_on_a_disk(
    hub: StandInHub, sets: dict[str, Path], name: str, folder: str, num_files: int
) -> None:
    """Of the repository's name alone; each file is asked for once, and all of them together."""
    commit = hub.push("o/n", {folder + path.name: path for path in sets[name].iterdir()})
    data = dp.Images("hf://datasets/o/n")
    assert data.root == f"hf://datasets/o/n@{commit}" + f"/{folder}".rstrip("/")
    assert equal(batches(data), batches(sets[name]))
    assert hub.counts["api"] == 1
    assert hub.counts["resolve"] <= 2 * num_files  # those in git are answered after a redirect of the Hub's own
    before = hub.counts.total()
    forget_stores()
    assert equal(batches("hf://datasets/o/n"), batches(data))
    assert hub.counts.total() == before


@pytest.mark.parametrize(
    "place",
    ["data/train-*.parquet", "data/train-{00000..00003}-of-00004.parquet", "@main/data", "@refs/convert/parquet/data"],
)
def test_what_a_url_names(hub: StandInHub, sets: dict[str, Path], place: str) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    hub.push("o/n", {"data": sets["parquet"]}, "refs/convert/parquet")
    url = f"hf://datasets/o/n{place}" if place.startswith("@") else f"hf://datasets/o/n/{place}"
    assert equal(batches(url), batches(sets["parquet"]))


def test_several_sets_are_asked_about(hub: StandInHub, sets: dict[str, Path]) -> None:
    shards = sorted(sets["parquet"].iterdir())
    hub.push("o/n", {"data/train.parquet": shards[0], "test/x.parquet": shards[1]})
    with pytest.raises(dp.errors.OptionError, match=r"its folder hf://datasets/o/n@\w{40}/test holds shards: pass that folder"):
        dp.Images("hf://datasets/o/n")
    assert parse_location("hf://datasets/o/n").key == ""


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("o/none", dp.errors.MissingDataError, "no such dataset on the Hub, or a private one; check its name"),
        ("o/secret", dp.errors.MissingDataError, "HF_TOKEN"),
        ("o/gated", dp.errors.StorageError, "the dataset is gated: accept its terms on its page"),
        ("o/n@v9", dp.errors.MissingDataError, "hf://datasets/o/n@v9: the dataset has no such branch, tag or commit"),
        ("o/n/no-folder", dp.errors.MissingDataError, "nothing under this prefix; check the URL"),
        ("o/n/data/no.parquet", dp.errors.MissingDataError, "no such object; check the URL"),
        ("o/photos", dp.errors.OptionError, "image-folder is not read from stores by loaders; convert it"),
    ],
)
def test_what_cannot_be_read_is_named(
    hub: StandInHub, sets: dict[str, Path], url: str, error: type[Exception], said: str
) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    hub.push("o/photos", {"photos": sets["photos"]})
    for names in (hub.private, hub.gated):
        names.add("o/secret" if names is hub.private else "o/gated")
        hub.push(next(iter(names)), {"data": sets["parquet"]})
    with pytest.raises(error, match=said):
        dp.Images(f"hf://datasets/{url}")


def test_a_token_is_for_the_hub_alone(hub: StandInHub, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in refuses requests for bytes that carry one."""
    hub.private.add("o/secret")
    hub.push("o/secret", {"data": sets["parquet"]})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    data = dp.Images("hf://datasets/o/secret")
    assert equal(batches(data), batches(sets["parquet"]))
    assert TOKEN.encode() not in pickle.dumps(data)


def test_a_folder_of_images_is_converted(hub: StandInHub, sets: dict[str, Path], tmp_path: Path) -> None:
    hub.push("o/photos", {"photos": sets["photos"]})
    place = converters.parse_place("hf://datasets/o/photos")
    assert not isinstance(place, Path)
    converters.convert(converters.ConvertOptions(source=place, destination=tmp_path / "out", to="webdataset", num_workers=1))
    assert equal(batches(tmp_path / "out"), batches(sets["converted"]))


def test_many_files_are_listed_by_pages(hub: StandInHub, sets: dict[str, Path]) -> None:
    hub.most_listed, hub.page = 3, 2
    hub.push("o/n", {"data": sets["parquet"]})
    assert equal(batches("hf://datasets/o/n"), batches(sets["parquet"]))
    assert hub.counts["api"] == 4, hub.counts


@pytest.mark.parametrize("num", [4, pytest.param(64, marks=pytest.mark.nightly)])
def test_processes_share_what_the_hub_has_answered(hub: StandInHub, sets: dict[str, Path], num: int) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    asked = [sys.executable, str(DRIVER), "hf://datasets/o/n", str(num)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split()[0] == "37", done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert (hub.counts["api"], hub.counts["resolve"], hub.refused) == (1, 4, 0)


@pytest.mark.parametrize("says_ratelimit", [False, True])
def test_a_wait_that_the_hub_asks_for_is_waited_once_and_said(
    tmp_path: Path, sets: dict[str, Path], caplog: pytest.LogCaptureFixture, says_ratelimit: bool
) -> None:
    with stand_in_hub(tmp_path / "hub", limit=3, window_s=2.0, says_ratelimit=says_ratelimit) as (hub, _):
        hub.push("o/n", {"data": sets["parquet"]})
        with caplog.at_level(logging.WARNING):
            found = batches("hf://datasets/o/n")
        assert equal(found, batches(sets["parquet"]))
        told = [record.getMessage() for record in caplog.records if "429" in record.getMessage()]
        assert len(told) == 1
        assert 1 <= hub.refused <= 4  # threads that asked at that moment
        assert "allows no more requests for " in told[0]


def test_a_wait_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    with (
        stand_in_hub(tmp_path / "hub", limit=0, window_s=90_000.0),
        pytest.raises(dp.errors.StorageError, match=r"the Hub allows no more requests for \d+ s \(429\); try again then"),
    ):
        dp.Images("hf://datasets/o/n")


def test_a_signature_that_is_not_accepted_any_more_is_renewed(
    hub: StandInHub, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    monkeypatch.setattr(targets, "_MARGIN_S", 0.2)
    loader = open_images("hf://datasets/o/n", 8, output="dict")
    first = list(loader)
    before = hub.counts["resolve"]
    time.sleep(0.3)
    hub.key = "another"
    assert equal(list(loader), first)
    assert hub.counts["resolve"] == before + 4


def test_a_signature_is_used_until_it_expires(hub: StandInHub, sets: dict[str, Path]) -> None:
    hub.signed_s = targets._MARGIN_S + 1.0
    hub.push("o/n", {"data": sets["parquet"]})
    known = targets._expiry_s("https://x/a?X-Amz-Date=20261130T000000Z&X-Amz-Expires=60", 0.0)
    assert known == 1795996860.0
    assert equal(batches("hf://datasets/o/n"), batches(sets["parquet"]))


# -- commits -------------------------------------------------------------------------------------------


@pytest.fixture
def moving(hub: StandInHub, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> StandInHub:
    """A hub whose branches are asked for each time."""
    monkeypatch.setattr(commits, "WINDOW_S", 0.0)
    hub.push("o/n", {"data": sets["parquet"]})
    return hub


def push_less(hub: StandInHub, sets: dict[str, Path], tmp_path: Path) -> None:
    fewer = shutil.copytree(sets["parquet"], tmp_path / "fewer")
    (fewer / "train-00003-of-00004.parquet").unlink()
    hub.push("o/n", {"data": fewer})


def test_a_training_continues_at_the_commit_it_began_with(
    moving: StandInHub, sets: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "output": "dict"}
    begun = open_images("hf://datasets/o/n", 8, **options)
    running = iter(begun)
    head = [next(running) for _ in range(2)]
    state = begun.state_dict()
    assert state["versions"] == {"hf://datasets/o/n@main": begun.dataset.root.partition("@")[2].partition("/")[0]}
    push_less(moving, sets, tmp_path)
    for source in ("hf://datasets/o/n", dp.Images("hf://datasets/o/n", fields=["image", "label"])):
        resumed = open_images(source, 8, **options)
        assert len(resumed) == 4
        with caplog.at_level(logging.WARNING):
            resumed.load_state_dict(state)
        assert "training continues with what it was" in caplog.text
        assert resumed.dataset.root == begun.dataset.root
        assert len(resumed) == 5
        assert equal([*head, *resumed], list(open_images(sets["parquet"], 8, **options)))
        assert resumed.state_dict()["versions"] == state["versions"]
    assert equal(list(running), list(open_images(sets["parquet"], 8, **options))[2:])  # what was open reads on


def test_a_selection_says_which_commit_it_was_of(moving: StandInHub, sets: dict[str, Path], tmp_path: Path) -> None:
    state = open_images(dp.Images("hf://datasets/o/n").take(20), 8).state_dict()
    push_less(moving, sets, tmp_path)
    loader = open_images(dp.Images("hf://datasets/o/n").take(20), 8)
    loader.load_state_dict({**state, "dataset": loader.state_dict()["dataset"]})
    with pytest.raises(dp.errors.StateError, match=r"hf://datasets/o/n@main was at \w{40}, and is at \w{40}; open it at what"):
        loader.load_state_dict(state)


def test_what_a_commit_changed_besides_is_no_matter(moving: StandInHub, sets: dict[str, Path]) -> None:
    state = open_images("hf://datasets/o/n", 8).state_dict()
    moving.push("o/n", {"data": sets["parquet"], "README.md": b"# More\n"})
    resumed = open_images("hf://datasets/o/n", 8)
    resumed.load_state_dict(state)
    assert resumed.dataset.versions != state["versions"]


def test_copies_in_other_processes_are_of_the_same_commit(moving: StandInHub, tmp_path: Path) -> None:
    def table(num_rows: int) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"x": np.arange(num_rows, dtype=np.float32)}), sink)
        return sink.getvalue().to_pybytes()

    moving.push("o/t", {"data/x.parquet": table(20)})
    data = dp.Table("hf://datasets/o/t/data/x.parquet")
    moving.push("o/t", {"data/x.parquet": table(30)})
    assert len(pickle.loads(pickle.dumps(data))) == len(data) == 20
    assert len(dp.Table("hf://datasets/o/t/data/x.parquet")) == 30


def test_a_branch_is_asked_for_once_in_some_minutes(hub: StandInHub, sets: dict[str, Path], tmp_path: Path) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    first = dp.Images("hf://datasets/o/n").root
    push_less(hub, sets, tmp_path)
    assert dp.Images("hf://datasets/o/n").root == first


def test_offline_what_is_kept_is_read(hub: StandInHub, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("o/n", {"data": sets["parquet"]})
    dp.Images("hf://datasets/o/n")
    forget_stores()
    monkeypatch.setattr(commits, "WINDOW_S", 0.0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(dp.Images("hf://datasets/o/n")) == 37
    with pytest.raises(dp.errors.StorageError, match="HF_HUB_OFFLINE is set, and this was not asked for before"):
        dp.Images("hf://datasets/o/other")


def test_a_worker_serves_all_commits_of_a_dataset_and_no_other() -> None:
    """Without asking the Hub: what a trainer reads is a commit already."""
    desk = Desk(["hf://datasets/o/n/data"])
    assert desk.check(f"hf://datasets/o/n@{'a' * 40}/data/x.tar")
    for other in ("o/other", "o/n", "o/nn"):
        with pytest.raises(dp.errors.OptionError, match="lies below none of the roots"):
            desk.check(f"hf://datasets/{other}@{'a' * 40}/x.tar")


# -- answers that are not the Hub's --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "an answer that is no JSON"),
        (b"[]", "no commit in its answer"),
        (b'{"sha": "../../x", "siblings": []}', "no commit in its answer"),
        (b'{"sha": "%s", "siblings": [{"rfilename": 3}]}', "an entry without path, size or digest"),
        (b'{"sha": "%s", "siblings": [{"rfilename": "a", "size": -1, "blobId": "b"}]}', "an entry without path, size or digest"),
        (b'{"sha": "%s", "siblings": [{"rfilename": "../a", "size": 1, "blobId": "b"}]}', "a path that leads elsewhere"),
    ],
)
def test_answers_that_are_not_the_hubs(hub: StandInHub, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str) -> None:
    body = answer.replace(b"%s", b"a" * 40)
    monkeypatch.setattr(requests, "_body", lambda _: body)
    hub.push("o/n", {})
    with pytest.raises(dp.errors.StorageError, match=f"the Hub's answer is not understood: {said}"):
        dp.Images("hf://datasets/o/n")


def test_an_endpoint_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.local")
    with pytest.raises(dp.errors.StorageError, match=r"HF_ENDPOINT is 'hub.local', which is not a URL"):
        dp.Images("hf://datasets/o/n")


def test_faults_on_the_way_change_nothing(tmp_path: Path, sets: dict[str, Path]) -> None:
    with stand_in_hub(tmp_path / "hub") as (hub, store):
        hub.push("o/n", {"data": sets["parquet"]})
        store.weather.faults = [
            PlantedFault("status", times=1, path="/revision/main", status=502),
            PlantedFault("truncate", times=1, path="/revision/main"),
            PlantedFault("status", times=2, path=".parquet", method="HEAD", status=500),
            PlantedFault("reset", share=0.2, times=5, path=".parquet"),
            PlantedFault("truncate", share=0.2, times=5, path=".parquet"),
        ]
        assert equal(batches("hf://datasets/o/n"), batches(sets["parquet"]))


def test_what_is_kept_is_for_this_user_alone(hub: StandInHub, sets: dict[str, Path]) -> None:
    """Signed URLs let anyone read who has them."""
    from datapipe.core.user_cache import HUB, user_cache

    hub.push("o/n", {"data": sets["parquet"]})
    batches("hf://datasets/o/n")
    kept = [path for path in user_cache(HUB).rglob("url-*.json") if str(hub.port) in path.read_text()]
    assert len(kept) == 4
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in [*kept, user_cache(HUB)])
