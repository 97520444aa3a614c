"""Errors of a store are one line each: what, where, what was found, what to do; nothing secret is in them."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_store import FaultyStore, PlantedFault
from fixtures import convert, make_folder
from stand_in_stores import BUCKET, moto_store, needs_moto, upload

import datapipe as dp
from datapipe import transforms as T
from datapipe.cli.main import main
from datapipe.testing.loaders.kind import copies, same

pytestmark = needs_moto


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("moto")
    return convert(make_folder(base / "folder", size=(40, 48)), base / "set")


@pytest.fixture(scope="module")
def server(converted: Path) -> Iterator[FaultyStore]:
    with moto_store() as store:
        upload(converted, "data/train")
        yield store


@pytest.fixture
def store(server: FaultyStore) -> Iterator[FaultyStore]:
    yield server
    server.weather.faults.clear()


@pytest.mark.nightly
def test_batches_are_those_of_the_local_set(store: FaultyStore, converted: Path) -> None:
    options = {"batch_size": 8, "shuffle": True, "seed": 5, "transform": [T.RandomResizedCrop(24)]}
    here, there = dp.DataLoader(str(converted), **options), dp.DataLoader(f"s3://{BUCKET}/data/train", **options)
    assert same(copies(here), copies(there))
    assert here.state_dict() == there.state_dict()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"s3://{BUCKET}/data", f"s3://{BUCKET}/data: holds the datasets train; open one of them"),
        (f"s3://{BUCKET}/none", f"s3://{BUCKET}/none: nothing under this prefix; check the URL"),
        ("s3://no-such-bucket/x", "no bucket 'no-such-bucket'; check its name"),
    ],
)
def test_what_is_not_there_is_named(store: FaultyStore, url: str, said: str) -> None:
    with pytest.raises((dp.errors.MissingDataError, dp.errors.FormatError), match=said):
        dp.DataLoader(url)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "forbidden .403 AccessDenied.; the credentials lack the right"),
        (403, "InvalidAccessKeyId", "does not know the access key; check AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "the secret key does not fit"),
        (403, "RequestTimeTooSkewed", "clock differs too much from the store's; set the clock"),
        (400, "ExpiredToken", "the credentials have expired; renew them"),
        (301, "PermanentRedirect", "the bucket is in another region; set AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region; set AWS_REGION"),
        (401, "Unauthorized", "the credentials are missing or not accepted"),
    ],
)
def test_refusals_are_one_line_with_a_remedy(store: FaultyStore, status: int, code: str, said: str) -> None:
    store.weather.faults.append(PlantedFault("status", status=status, code=code))
    with pytest.raises(dp.errors.StorageError, match=said) as caught:
        dp.DataLoader(f"s3://{BUCKET}/data/train")
    told = "".join(traceback.format_exception(caught.value))
    assert "very-secret" not in told
    assert "id-of-key" not in told
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"s3://{BUCKET}/data/train/dataset.json: ")


@pytest.mark.nightly
def test_nothing_secret_is_pickled_or_kept(store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loader = dp.DataLoader(f"s3://{BUCKET}/data/train", batch_size=8, transform=[T.Resize((24, 24))], seed=0)
    next(iter(loader))
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kept
    for text in (pickle.dumps(loader), repr(loader.state_dict()).encode(), kept):
        assert b"very-secret" not in text
        assert b"id-of-key" not in text
    again = pickle.loads(pickle.dumps(loader))
    assert same(
        copies(again), copies(dp.DataLoader(f"s3://{BUCKET}/data/train", batch_size=8, transform=[T.Resize((24, 24))], seed=0))
    )


@pytest.mark.nightly
def test_commands_take_urls(store: FaultyStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["inspect", f"s3://{BUCKET}/data/train", "--grid", str(tmp_path / "sheet.png")]) == 0
    assert "37 samples" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").stat().st_size > 0
    assert main(["verify", f"s3://{BUCKET}/data/train"]) == 0
    assert "intact; 37 samples" in capsys.readouterr().out
    assert main(["index", f"s3://{BUCKET}/data/train"]) == 0
    assert "37 samples (tar)" in capsys.readouterr().out
    assert (
        main(["bench", f"s3://{BUCKET}/data/train", "--batch-size", "8", "--size", "24", "--images", "16", "--rounds", "1"]) == 0
    )
    assert "images/s" in capsys.readouterr().out
    assert main(["inspect", "s3://no-such-bucket/x"]) == 1
    assert "no bucket" in capsys.readouterr().err
