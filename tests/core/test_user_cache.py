"""Where the user's caches lie, also for users without a home."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from datapipe.core import user_cache
from datapipe.errors import StorageError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, where no cache directory is named."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    user_cache._warn_of.cache_clear()
    return tmp_path


def test_in_the_home_where_there_is_one(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(temporary / "home"))
    assert user_cache.user_cache("index") == temporary / "home" / ".cache" / "datapipe" / "index"
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary / "named"))
    assert user_cache.user_cache("index") == temporary / "named" / "datapipe" / "index"
    assert not any(temporary.iterdir()), "asking for the place makes nothing"


@pytest.mark.parametrize("home", ["a place that cannot be written", "none"])
def test_in_the_temporary_directory_elsewhere(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, home: str
) -> None:
    if home == "none":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
        reason = "there is no home directory"
    else:
        monkeypatch.setenv("HOME", "/proc/self")  # nobody can make a directory there, root included
        reason = "/proc/self/.cache/datapipe cannot be written"
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith("/proc/self"))
    instead = temporary / f"datapipe-{os.geteuid()}"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert user_cache.user_cache("index") == instead / "index"
    assert [record.getMessage() for record in caplog.records] == [
        f"{reason}: indexes and caches are kept in {instead}; set XDG_CACHE_HOME to keep them elsewhere"
    ]
    assert instead.stat().st_mode & 0o777 == 0o700


def test_never_in_another_users_directory(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the name may have made it first."""
    monkeypatch.setattr(user_cache, "_can_be_written", lambda path: False)
    instead = temporary / f"datapipe-{os.geteuid()}"
    instead.symlink_to("/")
    with pytest.raises(StorageError, match=f"{instead}: nothing can be kept there .*; set XDG_CACHE_HOME"):
        user_cache.user_cache("index")
