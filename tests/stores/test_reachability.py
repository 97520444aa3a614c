"""A host that is not there is an error within seconds; one that was reached before may go away for a while."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_in_stores import environment, needs_obstore

import datapipe as dp
from datapipe.stores import failures, reachability
from datapipe.stores.failures import Cause, Failure
from datapipe.stores.objects import list_names, object_facts, read_object
from datapipe.stores.patience import Patience
from datapipe.stores.places import parse_location
from datapipe.stores.transfers import write

NO_HOST = "http://no-such-host.invalid:1234"
LIMIT_S = 10.0  # of a busy machine, for what takes UNREACHED_S; other failures are retried for 20 s or 120 s
PLACE = parse_location("s3://b/x")
UNREACHED, SILENT, THROTTLED = (Failure(kind, "what") for kind in (Cause.UNREACHED, Cause.SILENT, Cause.THROTTLED))


@pytest.fixture(autouse=True)
def no_host_reached() -> Iterator[None]:
    reachability.forget_reached()
    yield
    reachability.forget_reached()


@pytest.fixture
def closed_port() -> Iterator[str]:
    """The address of a port that is taken, so that nobody else listens there, and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def failing_s(work: Callable[[], object], said: str) -> float:
    start_s = time.monotonic()
    with pytest.raises(dp.errors.StorageError, match=said):
        work()
    return time.monotonic() - start_s


@needs_obstore
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda: dp.DataLoader("s3://b/train"), id="set"),
        pytest.param(lambda: dp.DataLoader("s3://b/train-{000..003}.tar"), id="shards", marks=pytest.mark.nightly),
        pytest.param(lambda: read_object(PLACE), id="read", marks=pytest.mark.nightly),
        pytest.param(lambda: object_facts(PLACE), id="facts", marks=pytest.mark.nightly),
        pytest.param(lambda: list_names(PLACE), id="list", marks=pytest.mark.nightly),
        pytest.param(lambda: write(b"x", PLACE, overwrite=True), id="write", marks=pytest.mark.nightly),
    ],
)
def test_names_that_do_not_resolve_and_refused_connections_fail_soon(
    closed_port: str, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "UNREACHED_S", 0.5)
    for endpoint, said in ((NO_HOST, "the host's name does not resolve"), (closed_port, "the connection was refused")):
        with environment(endpoint):
            assert failing_s(work, said) < LIMIT_S


@needs_obstore
@pytest.mark.nightly
def test_a_web_server_that_is_not_there(closed_port: str) -> None:
    assert failing_s(lambda: dp.DataLoader(f"{NO_HOST}/x.tar"), "the host's name does not resolve") < LIMIT_S
    assert failing_s(lambda: dp.DataLoader(f"{closed_port}/x.tar"), "the connection was refused") < LIMIT_S


@pytest.mark.nightly
@needs_obstore
def test_the_host_is_given_its_seconds_only_once(closed_port: str) -> None:
    with environment(closed_port):
        failing_s(lambda: object_facts(PLACE), "refused")
        assert failing_s(lambda: [object_facts(PLACE)], "refused") < reachability.UNREACHED_S


def retried_s(failure: Failure, url: str = "s3://b/x", *, ago_s: float = 0.0) -> float:
    patience = Patience(parse_location(url), 1000.0)
    patience.since_s -= ago_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datapipe.stores.patience.pause_s", lambda _: 1000.0)
        return patience.pause_s(failure) or 0.0


def test_a_host_that_was_reached_is_waited_for() -> None:
    assert 0 < retried_s(UNREACHED) <= reachability.UNREACHED_S < 5
    reachability.note_reached(PLACE)
    assert retried_s(UNREACHED) > 500
    assert retried_s(UNREACHED, ago_s=1001) == 0
    assert retried_s(UNREACHED, "s3://another/x") <= reachability.UNREACHED_S


def test_an_answer_shows_that_the_host_is_there_and_silence_does_not() -> None:
    assert retried_s(SILENT) > 500
    assert retried_s(UNREACHED) <= reachability.UNREACHED_S
    assert retried_s(THROTTLED) > 500
    assert retried_s(UNREACHED) > 500


@pytest.mark.parametrize(("url", "remedy"), [("s3://b/x", "set AWS_ACCESS_KEY_ID"), ("gs://b/x", "set GOOGLE_SERVICE_ACCOUNT")])
def test_no_credentials_whatever_the_metadata_service_answers(url: str, remedy: str) -> None:
    """A virtual machine without a role gets 404 from it, another machine nothing."""
    asked = "Error performing GET http://169.254.169.254/latest/meta-data/iam/security-credentials/ in 21ms"
    for ending in (" - Server returned non-2xx status code: 404 Not Found", " - HTTP error: error sending request"):
        found = failures.examine(OSError(asked + ending), parse_location(url))
        assert found.kind is Cause.DENIED
        assert "no credentials were found" in found.what
        assert remedy in found.what


@pytest.mark.nightly
@needs_obstore
def test_a_wait_for_a_store_is_reported(
    tmp_path: Path, closed_port: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("datapipe.core.waiting.SILENT_S", 0.5)
    with environment(closed_port):
        for work in (lambda: read_object(PLACE), lambda: object_facts(PLACE)):
            reachability.forget_reached()
            caplog.clear()
            failing_s(work, "refused")
            told = [record.getMessage() for record in caplog.records]
            assert len(told) == 1
            assert told[0].startswith("waiting for s3://b/x (the connection was refused; check the endpoint and its port, since ")
