"""Servers that do what none should: a request ends by its deadline, takes little memory, and says what the deadline was."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ill_server import FAULTS, IllServer, ill_server
from stand_in_stores import needs_obstore

import datapipe as dp
from datapipe.stores import requests as requests_module
from datapipe.stores.objects import object_facts, read_object
from datapipe.stores.opening import forget_stores
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.places import parse_location
from datapipe.stores.requests import apply_settings, requests
from datapipe.stores.settings import Remote
from datapipe.stores.transfers import download

pytestmark = needs_obstore
TIMEOUT_S = 1.5
MOST_S = 12  # for what takes 1.5 s on an idle machine; without a deadline, 20 s and more
BODY = bytes(range(256)) * 4
ONCE = {"loop", "chain", "endless", "endless-range"}  # not to be tried again
MAX_REDIRECTS = 10  # of a request; as many are looked at once more, for the target that the error names


@pytest.fixture
def server() -> Iterator[IllServer]:
    with ill_server({"set/a": BODY}) as server:
        forget_stores()
        assert dp.DataLoader  # is imported when it is first asked for, which takes memory
        apply_settings(Remote(timeout_s=TIMEOUT_S))
        yield server
        apply_settings(Remote())
        forget_stores()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_a_dataset_is_given_up_by_its_deadline(fault: str, server: IllServer) -> None:
    apply_settings(Remote())  # the loader applies its own
    started_s, before_kb = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(dp.errors.StorageError) as caught:
        dp.DataLoader(dp.Images(server.url(fault), remote=dp.Remote(timeout_s=TIMEOUT_S)), batch_size=4, device="cpu")
    assert time.monotonic() - started_s < MOST_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10 < 200
    assert f"/{fault}/set/dataset.json: " in str(caught.value)
    if fault in ONCE:
        assert server.seen[fault] <= 2 * MAX_REDIRECTS + 1
    else:
        assert "with 1.5 s at most: " in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", sorted({*FAULTS} - {"endless", "endless-range", "drip", "too-large", "too-large-closed"}))
def test_the_head_of_an_object_too(fault: str, server: IllServer) -> None:
    """Some servers answer this well, and only the body is ill."""
    if fault == "endless-chunks":
        pytest.skip("without a body there are no chunks")
    started_s = time.monotonic()
    with pytest.raises(dp.errors.StorageError, match=fault):
        object_facts(parse_location(server.url(fault)))
    assert time.monotonic() - started_s < MOST_S


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["drip", "too-large", "unavailable", "silent"])
def test_a_download_that_does_not_get_on_ends(fault: str, server: IllServer) -> None:
    got: list[int] = []
    started_s = time.monotonic()
    with pytest.raises(dp.errors.StorageError, match=r"with 1\.5 s at most"):
        download(parse_location(server.url(fault)), lambda piece, offset: got.append(len(piece)))
    assert time.monotonic() - started_s < MOST_S
    assert not got


@pytest.mark.parametrize("has_checksum", [True, False])
def test_no_more_is_read_than_was_asked_for(has_checksum: bool, server: IllServer) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target = RemoteObject(parse_location(server.url("endless-range")), '"e"', 1_000_000)
    wanted = PendingBytes(target, 0, 100, is_urgent=True, has_checksum=has_checksum)
    requests().submit([wanted])
    with pytest.raises(dp.errors.StorageError, match="endless-range"):
        wanted.wait()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10 < 200


@pytest.mark.nightly
def test_the_failure_that_went_before_is_told_not_the_end_of_the_time(server: IllServer) -> None:
    with pytest.raises(dp.errors.StorageError, match=r"attempts, with 1\.5 s at most: the store throttles requests"):
        read_object(parse_location(server.url("unavailable")))


def test_a_request_of_the_library_can_be_interrupted(server: IllServer) -> None:
    async def never() -> None:
        import asyncio

        await asyncio.Event().wait()

    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        requests_module.requests().call(never, 0.1)
    assert time.monotonic() - started_s < MOST_S


def test_a_sound_server_is_read(server: IllServer, tmp_path: Path) -> None:
    place = parse_location(server.url("well", "set/a"))
    assert read_object(place) == BODY
    found = bytearray()
    assert download(place, lambda piece, offset: found.extend(piece)) == len(BODY)
    assert found == BODY
