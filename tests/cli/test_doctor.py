"""`datapipe doctor`: the facts, what is kept on the disk, and advice that fits them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from datapipe.cli import doctor
from datapipe.cli.main import main


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "datapipe"


@pytest.mark.usefixtures("caches")
def test_facts_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores_usable"] == len(os.sched_getaffinity(0))
    assert facts["packages"]["numpy"]
    assert facts["caches"] == []
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"python    {facts['python']} on ")
    assert "\ncache " not in text


def test_kept_images_are_counted_and_may_be_too_many(
    caches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (caches / "decoded" / name).mkdir(parents=True)
        (caches / "decoded" / name / "data").write_bytes(bytes(1_000_000))
    (kept,) = doctor.examine()["caches"]
    assert (kept["directory"], kept["entries"]) == (str(caches / "decoded"), 2)
    assert 2_000_000 <= kept["nbytes"] < 2_200_000
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"cache     2.0 MB in 2 parts in {caches / 'decoded'}\n" in text
    assert "rm -r" not in text
    monkeypatch.setattr(doctor, "_MUCH_NBYTES", 1e6)
    assert main(["doctor"]) == 0
    assert f"advice    rm -r {caches / 'decoded'} frees 2.0 MB; what is used again is kept again\n" in capsys.readouterr().out
