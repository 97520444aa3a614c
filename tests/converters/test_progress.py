"""Progress: a line after three seconds and then every ten where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import time

import pytest

from datapipe.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_after_three_seconds_and_then_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Progress(1000, "samples", "write", stream=stream) as progress:
        for _ in range(25):
            now += 1.0
            progress.update(20, errors=1)
    assert stream.getvalue().splitlines() == [
        "write: 60 of 1000 samples (6%), 20 samples/s, 47 s left, 3 errors",
        "write: 260 of 1000 samples (26%), 20 samples/s, 37 s left, 13 errors",
        "write: 460 of 1000 samples (46%), 20 samples/s, 27 s left, 23 errors",
    ]


def test_the_time_left_is_told_once_a_hundredth_is_done() -> None:
    """Before that, the time to start would count for all."""
    progress = Progress(1000, "photos", "photos", stream=io.StringIO())
    progress.update(9)
    assert progress.line(4.0) == "photos: 9 of 1000 photos (1%), 2 photos/s"
    progress.update(1)
    assert progress.line(4.0) == "photos: 10 of 1000 photos (1%), 2 photos/s, 396 s left"


def test_bytes_have_prefixes_and_totals_may_be_unknown() -> None:
    progress = Progress(None, "B", "verify", stream=io.StringIO())
    progress.update(2_500_000)
    assert progress.line(elapsed_s=2.0) == "verify: 2.5 MB, 1.25 MB/s"


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with Progress(10, "samples", "write", stream=stream) as progress:
        progress.update(10, errors=3)
    assert "write" in stream.getvalue()
    assert "errors=3" in stream.getvalue()
