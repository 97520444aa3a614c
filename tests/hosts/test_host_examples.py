"""The examples other than train.py run as their texts say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from host_ranks import in_a_process, needs, on_ranks

from converters import ConvertOptions, convert
from datapipe.testing.synthetic_images import make_image_folder

pytestmark = pytest.mark.nightly

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(name: str, *arguments: object) -> str:
    return str(in_a_process("script_runs:run_example", EXAMPLES / name, list(map(str, arguments))))


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """70 photos to train on and 21 to validate on."""
    root = tmp_path_factory.mktemp("splits")
    for name, num in (("train", 70), ("val", 21)):
        photos = make_image_folder(root / "photos" / name, num_images=num, num_classes=3, scale="small", seed=num)
        convert(ConvertOptions(photos, root / "shards" / name, num_workers=1))
    return [root / "shards" / name for name in ("train", "val")]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn scenes, converted as the examples say, by the command line's own options."""
    root = tmp_path_factory.mktemp("scenes")
    subprocess.run([sys.executable, EXAMPLES / "make_scenes.py", root / "drawn", "--num", "120"], check=True, timeout=60)
    convert(ConvertOptions(root / "drawn" / "pairs", root / "scenes", form="pairs", num_workers=1))
    convert(ConvertOptions(root / "drawn" / "annotations.json", root / "boxes", root=root / "drawn" / "pairs", num_workers=1))
    return root


@pytest.mark.parametrize(("name", "data", "options", "least"), [
    ("segmentation.py", "scenes", ["--epochs", "6"], 60),
    ("captions.py", "scenes", ["--epochs", "8"], 40),
    ("detection.py", "boxes", ["--epochs", "8"], 40),
])  # fmt: skip
def test_fields_are_learned_from(scenes: Path, name: str, data: str, options: list[str], least: int) -> None:
    """Chance finds far fewer: image and field belong together after the crop."""
    out = run_example(name, scenes / data, *options)
    shares = [int(found) for found in re.findall(r"(\d+)%", out)]
    assert shares[-1] >= least, out


def test_lightning_stops_and_goes_on(splits: list[Path], tmp_path: Path) -> None:
    """70 samples are 8 steps of 8: three of them, then the rest of two epochs."""
    needs("lightning")
    arguments = [*splits, "--batch-size", 8, "--directory", tmp_path / "run"]
    assert "step 3:" in run_example("lightning_fit.py", *arguments, "--max-steps", 3)
    assert "step 16: accuracy" in run_example("lightning_fit.py", *arguments, "--resume", tmp_path / "run" / "last.ckpt")


def test_accelerate_stops_and_goes_on(splits: list[Path], tmp_path: Path) -> None:
    """Nine steps an epoch; all 21 validation samples are counted on two processes."""
    needs("accelerate")
    arguments = [*map(str, splits), "--state", str(tmp_path / "state"), "--batch-size", "4"]
    run = ("script_runs:run_example", 2, EXAMPLES / "accelerate_loop.py")
    on_ranks(*run, [*arguments, "--max-steps", "3"], ACCELERATE_USE_CPU="true")
    out = on_ranks(*run, arguments, ACCELERATE_USE_CPU="true")[0]
    assert "going on in epoch 0" in out
    assert re.search(r"epoch 0, 6 steps: \d+ of 21 right", out), out
    assert re.search(r"epoch 1, 15 steps: \d+ of 21 right", out), out


def test_trainer_stops_and_goes_on(splits: list[Path], tmp_path: Path) -> None:
    needs("transformers")
    arguments = [*splits, "--batch-size", 8, "--directory", tmp_path / "vit"]
    assert "step 4:" in run_example("trainer_vit.py", *arguments, "--max-steps", 4)
    assert re.search(r"step 18: [\d.]+ of 21 right", run_example("trainer_vit.py", *arguments))


@pytest.mark.parametrize("flags", [[], ["--trainer"]])
def test_a_small_vision_language_model_learns_from_packed_conversations(tmp_path: Path, flags: list[str]) -> None:
    needs("transformers")
    out = run_example("train_vision_language.py", "--out", tmp_path, "--num", 80, "--epochs", 3, *flags)
    losses = [float(found) for found in re.findall(r"loss ([\d.]+) per token", out)]
    assert len(losses) == 3
    assert losses[2] < 0.7 * losses[0]
