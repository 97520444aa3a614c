"""`datapipe doctor`: the facts, what is kept on the disk, and advice that fits them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

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


def test_a_gpu_that_decodes_whole_images_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {0: None, 1: "its trial was ended by SIGSEGV"}
    room = "datapipe.backends.images_dali"
    monkeypatch.setattr(f"{room}.installation.installation", lambda: None)
    monkeypatch.setattr(f"{room}.installation.mismatch", lambda: None)
    monkeypatch.setattr(f"{room}.region_trial.region_problem", lambda number, hw_decoder_load: problems[number])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H100")
    (advice,) = [line for line in doctor.examine()["advice"] if "JPEG" in line]
    assert advice.startswith("GPU 1 decodes whole JPEGs, not the crop's region alone: its trial was ended by SIGSEGV; another ")
