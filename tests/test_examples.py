"""The examples run as their texts say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from converters import ConvertOptions, convert
from datapipe.testing.synthetic_images import make_image_folder

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    photos = make_image_folder(root / "photos", num_images=80, num_classes=4, scale="small")
    convert(ConvertOptions(photos, root / "shards", num_workers=1))
    return root / "shards"


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example as a script in this process, which has imported torch already; what it printed."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def run_process(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_training_stops_and_goes_on(shards: Path, tmp_path: Path, run_here: Callable[..., str]) -> None:
    """80 samples are five steps of 16: two before the stop, three after it, on twice the processes with half the batch."""
    arguments = [str(shards), "--checkpoint", str(tmp_path / "run.pt")]
    assert "step 2 of 5" in run_here("train.py", *arguments, "--batch-size", "16", "--max-steps", "2")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    out = run_process(*launcher, str(ROOT / "examples" / "train.py"), *arguments, "--batch-size", "8")
    assert "going on after step 2" in out
    assert "step 5 of 5" in out
    assert "step 10 of 10" in run_here("train.py", *arguments, "--batch-size", "16", "--epochs", "2")


@pytest.mark.nightly
def test_the_click_models_learn(tmp_path: Path, run_here: Callable[..., str]) -> None:
    clicks = tmp_path / "clicks"
    words = run_here("click_through.py", "--directory", str(clicks), "--rows", "20000", "--batch-size", "256").split()
    first, last = (float(words[words.index("loss") + 1 + step]) for step in (0, 3))
    assert last < 0.95 * first
    boosted = [str(ROOT / "examples" / "boosted_clicks.py"), "--table", str(clicks / "clicks.parquet")]
    words = run_process(*boosted, "--batch-size", "3000").replace(",", "").split()
    assert words[:2] == ["20000", "rows"]
    assert float(words[-1]) < 0.95 * float(words[words.index("loss") + 1])


@pytest.mark.nightly
def test_a_small_gpt_learns_from_text_files(tmp_path: Path, run_here: Callable[..., str]) -> None:
    def trained(epochs: int) -> list[float]:
        options = {"out": tmp_path / "gpt", "length": 64, "vocab-size": 400, "epochs": epochs}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words = run_here("train_gpt.py", str(ROOT / "docs" / "guides"), *flags).split()
        return [float(words[place + 1]) for place, word in enumerate(words) if word == "loss"]

    (first,) = trained(1)
    (second,) = trained(2)  # where the first run ended
    assert second < 0.95 * first


@pytest.mark.nightly
def test_a_small_network_learns_actions_from_videos(tmp_path: Path, run_here: Callable[..., str]) -> None:
    pytest.importorskip("av")

    def trained(epochs: int) -> list[float]:
        options = {"out": tmp_path / "actions", "epochs": epochs, "videos-per-class": 3}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words = run_here("train_actions.py", *flags).replace(",", "").split()
        return [float(words[place + 1]) for place, word in enumerate(words) if word == "loss"]

    (first,) = trained(1)
    (second,) = trained(2)  # where the first run ended
    assert second < 0.95 * first


@pytest.mark.nightly
def test_a_policy_learns_to_reach_from_demonstrations(tmp_path: Path, run_here: Callable[..., str]) -> None:
    pytest.importorskip("av")

    def trained(epochs: int) -> tuple[list[float], list[int]]:
        options = {"out": tmp_path / "policy", "epochs": epochs, "episodes": 40}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words = run_here("train_policy.py", *flags).replace(",", "").split()
        losses, shares = ([words[place + 1] for place, word in enumerate(words) if word == what] for what in ("loss", "reached"))
        return [float(loss) for loss in losses], [int(share.rstrip("%")) for share in shares]

    (first, *_), _ = trained(1)
    later, shares = trained(6)  # from where the first run ended
    assert len(later) == 5
    assert later[-1] < 0.75 * first
    assert max(shares) >= 30


def test_a_keyword_spotter_learns_from_speech(tmp_path: Path, run_here: Callable[..., str]) -> None:
    pytest.importorskip("soundfile")

    def trained(epochs: int) -> list[float]:
        options = {"out": tmp_path / "keywords", "epochs": epochs, "files-per-word": 12}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words = run_here("train_keywords.py", *flags).replace(",", "").split()
        return [float(words[place + 1]) for place, word in enumerate(words) if word == "loss"]

    (first,) = trained(1)
    (second,) = trained(2)  # where the first run ended
    assert second < 0.95 * first
