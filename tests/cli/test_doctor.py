"""`datapipe doctor`: the facts, what is kept on the disk, and advice that fits them."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_device import pretend_gpus

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
    monkeypatch.setattr(doctor, "_ADVICE_NBYTES", 1e6)
    assert main(["doctor"]) == 0
    assert f"advice    rm -r {caches / 'decoded'} frees 2.0 MB; what is needed again is cached again\n" in capsys.readouterr().out


def test_too_little_shared_memory_and_too_long_names_of_sockets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for nbytes, length in ((64 << 20, 76), (8 << 30, 75)):
        monkeypatch.setattr(doctor, "_shared_memory_nbytes", lambda nbytes=nbytes: nbytes)
        monkeypatch.setattr("tempfile.tempdir", "/" + "t" * (length - 1))
        assert main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert ("advice    /dev/shm has 67.1 MB," in text) == (nbytes < 1 << 30)
        assert (f"advice    TMPDIR is {'/' + 't' * 75}:" in text) == (length > 75)


def test_a_gpu_that_decodes_whole_images_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {0: None, 1: "its test was killed by SIGSEGV"}
    room = "datapipe.kinds.images.dali"
    monkeypatch.setattr(f"{room}.installation.installation", lambda: None)
    monkeypatch.setattr(f"{room}.installation.mismatch", lambda: None)
    monkeypatch.setattr(f"{room}.region_trial.region_problem", lambda number, hw_decoder_load: problems[number])
    pretend_gpus(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H100")
    (advice,) = [line for line in doctor.examine()["advice"] if "JPEG" in line]
    assert advice.startswith("GPU 1 decodes whole JPEGs, not only the crop's region: its test was killed by SIGSEGV; another ")


@pytest.fixture
def _modules_apart() -> Iterator[None]:
    """Those of torchvision and timm are forgotten for the test, and are again what they were after it."""

    def named() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("torchvision", "timm")}

    before = named()
    for name in before:
        del sys.modules[name]
    yield
    for name in named():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("caches", "_modules_apart")
def test_a_torchvision_for_another_torch_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is installed, and raises when it is imported; timm imports it."""

    def install(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        (tmp_path / f"{name}-9.9.dist-info").mkdir(exist_ok=True)
        (tmp_path / f"{name}-9.9.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        importlib.invalidate_caches()
        sys.modules.pop(name, None)

    def advice() -> str:
        assert main(["doctor"]) == 0
        return capsys.readouterr().out

    monkeypatch.syspath_prepend(str(tmp_path))
    install("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    install("timm", "import torchvision")
    text = advice()
    assert "torchvision 9.9 (cannot be imported), timm 9.9 (cannot be imported)" in text
    installed = importlib.metadata.version("torch")  # PyPI's build for CUDA has no `+cu132` there, unlike `torch.__version__`
    version, _, build = installed.partition("+")
    said = "advice    torchvision 9.9 (RuntimeError: operator torchvision::nms does not exist); timm 9.9 (RuntimeError: "
    assert said in text
    assert f"with torch {installed}" in text
    assert f"pip install --force-reinstall torch=={version} torchvision" in text
    assert (f"--index-url https://download.pytorch.org/whl/{build}\n" in text) == bool(build)
    install("torchvision", "")
    assert "timm 9.9" in advice()
    install("timm", "import a_module_that_is_not_there")
    text = advice()
    assert "timm 9.9 (ModuleNotFoundError: No module named 'a_module_that_is_not_there') cannot be imported" in text
    assert "unavailable: pip install --upgrade timm\n" in text
    install("timm", "")
    assert "cannot be imported" not in advice()
