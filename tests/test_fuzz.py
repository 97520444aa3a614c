"""Damaged files of every format: a few here, a million by `make fuzz`."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import fuzz
import fuzz_http
import pytest
from fixtures import mostly_nightly, quick
from fuzz import KINDS, NUMBERS, TARGETS, Change, Target, examine, input_of
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.containers.tables import parquet_rows

CHANGES = st.builds(
    Change,
    kind=st.sampled_from(sorted(set(KINDS))),
    at=st.floats(0, 1, exclude_max=True),
    length=st.sampled_from([1, 2, 3, 4, 7, 8, 60, 512]),
    value=st.sampled_from(NUMBERS) | st.integers(0, 65535),
)


@functools.cache
def sound_files(name: str) -> list[bytes]:
    return TARGETS[name].make()


@pytest.mark.parametrize("name", TARGETS)
def test_sound_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else everything is refused for a reason of no interest."""
    monkeypatch.setattr(fuzz_http, "TIMEOUT_S", 30.0)  # on a busy machine
    for data in sound_files(name):
        TARGETS[name].look(data, tmp_path / "x")


SLOW = [name for name, target in TARGETS.items() if target.max_s is not None]


@pytest.mark.nightly
@pytest.mark.parametrize("name", SLOW)
def test_what_has_limits_of_its_own_keeps_them(name: str, tmp_path: Path) -> None:
    assert not fuzz.fuzz(name, seed=1, num=6, keep=tmp_path / "keep")


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", mostly_nightly([name for name in TARGETS if name not in SLOW], *({*TARGETS} - {"http"})))
@settings(quick, max_examples=150)
@given(number=st.integers(0, 20), changes=st.lists(CHANGES, min_size=1, max_size=4), mended=st.booleans())
def test_damage_leads_to_a_result_or_an_error_of_ours(
    name: str, number: int, changes: list[Change], mended: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = TARGETS[name]
    data = target.damaged(sound_files(name), number, changes, mended=mended)
    examine(target, data, tmp_path_factory.getbasetemp() / f"fuzz-{os.getpid()}")


@pytest.mark.nightly
def test_rows_that_are_believed_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A reader of tables that takes every number of rows from the footer."""
    monkeypatch.setattr(parquet_rows, "check_parquet_rows", lambda rows, **facts: None)
    assert fuzz.fuzz("table-parquet", seed=1, num=400, keep=tmp_path / "keep")


@pytest.mark.daily(2)
@pytest.mark.parametrize("fault", ["exception", "crash", "hang", "memory"])
def test_the_driver_finds_what_it_is_for(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A reader that fails on one input of fifty: the input is named and kept, and the others are still tried."""
    culprit = input_of(TARGETS["header"], sound_files("header"), "header:5:17")
    seen = tmp_path / "seen"
    kept: list[bytes] = []

    def look(data: bytes, scratch: Path) -> None:
        with seen.open("a") as file:
            file.write("x")
        if data != culprit:
            return
        if fault == "exception":
            raise ZeroDivisionError
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        while fault == "hang":
            pass
        kept.append(b"x" * 80_000_000)  # more than malloc ever takes from what it has kept

    monkeypatch.setattr(fuzz, "MAX_S", 1)
    monkeypatch.setattr(fuzz, "MAX_GROWTH_MB", 5)
    monkeypatch.setitem(TARGETS, "header", Target(TARGETS["header"].make, look))
    assert fuzz.fuzz("header", seed=5, num=50, keep=tmp_path / "keep") == ["header:5:17"]
    assert (tmp_path / "keep" / "header-5-17").read_bytes() == culprit
    assert seen.stat().st_size >= 50 + 2 * len(sound_files("header"))
    assert "FOUND header:5:17" in capfd.readouterr().out
