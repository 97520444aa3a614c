"""Credentials from AWS's files, read by boto3, and never shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_store import FaultyStore
from stand_in_stores import BUCKET, moto_store, needs_moto, upload

import datapipe as dp
from datapipe.stores.objects import read_object
from datapipe.stores.opening import forget_stores
from datapipe.stores.places import parse_location

pytestmark = needs_moto
PLACE = parse_location(f"s3://{BUCKET}/data/x")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    root = tmp_path_factory.mktemp("x")
    (root / "x").write_bytes(b"hello")
    with moto_store() as store:
        upload(root, "data")
        yield store


@pytest.fixture
def home(server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """AWS's files with the profile `lab`, and nothing of it in the environment."""
    pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = AKIALAB\naws_secret_access_key = very-secret\n")
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-central-1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    forget_stores()
    yield tmp_path
    forget_stores()


def signatures(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Authorization header of each request from now on."""
    seen: list[str] = []
    origin = server._origin

    async def noting(request: object) -> object:
        seen.append(request.headers.get("authorization", ""))  # type: ignore[attr-defined]
        return await origin(request)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "_origin", noting)
    return seen


def test_a_profile_signs_requests_with_its_key_and_region(
    server: FaultyStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lab")
    seen = signatures(server, monkeypatch)
    assert read_object(PLACE) == b"hello"
    assert seen
    assert all("Credential=AKIALAB/" in header and "/eu-central-1/s3/" in header for header in seen)


def test_the_environment_goes_before_a_profile(server: FaultyStore, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_PROFILE", "lab"),
        ("AWS_ACCESS_KEY_ID", "FROMENV"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_REGION", "r-1"),
    ):
        monkeypatch.setenv(name, value)
    seen = signatures(server, monkeypatch)
    assert read_object(PLACE) == b"hello"
    assert all("Credential=FROMENV/" in header and "/r-1/s3/" in header for header in seen)


def test_a_profile_that_does_not_exist_is_named_without_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(
        dp.errors.OptionError, match=r"the AWS profile cannot be used \(ProfileNotFound\); check AWS_PROFILE"
    ) as caught:
        read_object(PLACE)
    assert "very-secret" not in str(caught.value)


def test_a_profile_needs_boto3(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(dp.errors.DependencyError, match="AWS_PROFILE names a profile, which boto3 reads; pip install boto3"):
        read_object(PLACE)
