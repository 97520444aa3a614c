"""The trial of region decoding: what works is told from what fails, dies, hangs, is wrong or is a CPU's work; made once."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.kinds.images.dali import region_decoding
from datapipe.kinds.images.dali import region_trial as room
from datapipe.kinds.images.dali.installation import installation, loaded_nvjpeg
from datapipe.kinds.images.dali.region_trial import RegionTrial, region_problem, region_trial

nvidia = pytest.importorskip("nvidia.dali", reason="DALI is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(room, "_uncertain", {})
    return tmp_path


def end_child_by(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child run this in place of the trial."""
    run = room.subprocess.run

    def other(command: list[str], **options: Any) -> Any:
        return run([*command[:-1], code], **options)

    monkeypatch.setattr(room.subprocess, "run", other)


@pytest.mark.nightly
def test_the_cpu_decodes_regions() -> None:
    """The trial itself, in a process of its own, on the one device that every machine has."""
    assert region_trial(None, hw_decoder_load=0.0) == RegionTrial(True, "")


ANSWER = {"on_cpu": [], "nvjpeg": "nvJPEG 13.2.1 (/x/libnvjpeg.so.13)", "too_old": False, "failure": "", "difference": 0.2}


def answering(**changes: Any) -> str:
    """Code that gives this answer."""
    return f"print({json.dumps(ANSWER | changes)!r})"


ENDINGS: dict[str, tuple[str, str, bool]] = {  # what the child runs, the problem, whether it is certain
    "crashed": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its test was killed by SIGSEGV", True),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its test was killed by SIGKILL", False),
    "crashed without memory": (
        "import os, sys; print('std::bad_alloc', file=sys.stderr, flush=True); os.abort()",
        "its test was killed by SIGABRT", False,
    ),
    "failed around it": ("raise RuntimeError('error 8')", "its test failed: RuntimeError: error 8", False),
    "failed": (answering(failure="error 8"), "its test failed: error 8", True),
    "failed without memory": (
        answering(failure="CUDA allocation failed"), "its test failed: CUDA allocation failed", False,
    ),
    "busy": (
        answering(failure="all CUDA-capable devices are busy or unavailable"),
        "its test failed: all CUDA-capable devices are busy or unavailable", False,
    ),
    "wrong": (answering(difference=41.5), "its pixels are 41.5 of 255 off on average", True),
    "not a number": (answering(difference=float("nan")), "its pixels are nan of 255 off on average", True),
    "on the CPU": (
        answering(on_cpu=["4:2:0 of 375 x 500"]),
        "regions fall back to the CPU with nvJPEG 13.2.1 (/x/libnvjpeg.so.13): 4:2:0 of 375 x 500", True,
    ),
    "on the CPU for want of memory": (
        "import sys; print('decoding image #0 (out of memory)', file=sys.stderr); " + answering(on_cpu=["4:2:0"], nvjpeg=""),
        "regions fall back to the CPU: 4:2:0", False,
    ),
    "an old library": (
        answering(too_old=True, nvjpeg="nvJPEG 12.4.0 (/y/libnvjpeg.so.12)"),
        "nvJPEG 12.4.0 (/y/libnvjpeg.so.12) is loaded, which is older than 13.2", True,
    ),
    "hangs": ("import time; time.sleep(60)", "its test did not end within 1 s", False),
}  # fmt: skip


@pytest.mark.daily(12)
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_does_not_work_is_said_and_remembered_if_it_is_certain(
    ending: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, problem, is_certain = ENDINGS[ending]
    end_child_by(monkeypatch, code)
    if "sleep" in code:
        monkeypatch.setattr(room, "_LIMIT_S", 1.0)
    for _ in range(2):
        assert region_trial(None, hw_decoder_load=0.0) == RegionTrial(False, problem, is_certain)
        monkeypatch.setattr(room, "_try_in_child", None)  # this process tries once
    assert len(list(cache.rglob("*.json"))) == is_certain


def test_what_may_pass_is_tried_again_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RegionTrial(False, "out of memory", is_certain=False), RegionTrial(True, "")])
    monkeypatch.setattr(room, "_try_in_child", lambda device_id, uses_engines: next(answers))
    assert not region_trial(None, hw_decoder_load=0.0).works
    room._uncertain.clear()
    assert [region_trial(None, hw_decoder_load=0.0).works for _ in range(2)] == [True, True]


def test_regions_that_only_a_cpu_decodes_are_seen() -> None:
    """The backends of a GPU decode nothing here: what DALI decodes all the same is the CPU's work."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (200, 160), (9, 99, 199)).save(file, "JPEG")
    cuts = region_decoding._cuts(np.array([(160, 200), (160, 200)], np.int64))
    ask = functools.partial(region_decoding.regions_left_to_cpu, [file.getvalue()] * 2, cuts, None, uses_engines=False)
    assert ask() == []
    assert ask(backends=("GPU_ONLY", "HYBRID_CPU_GPU")) == [0, 1]


@pytest.mark.parametrize(("region", "whole", "expected"), [([1, 0, 0], [1, 1, 0], [1]), ([0, 0, 0], [0, 0, 0], [0, 1, 2])])
def test_an_image_that_no_gpu_decodes_speaks_for_nothing(
    region: list[int], whole: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded answers of the backends of a GPU: progressive JPEGs, say, may be left to the CPU in any case."""

    class Stream:
        def __init__(self, data: bytes) -> None:
            self.answers = whole

        def get_sub_code_stream(self, number: int, region_of_it: object) -> Any:
            part = Stream(b"")
            part.answers = region
            return part

    class Decoder:
        def __init__(self, *, device_id: int, backends: list[str], options: str) -> None:
            assert (device_id, backends, options) == (2, ["HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU"], ":fancy_upsampling=1")

        def decode(self, streams: list[Any], params: object) -> list[Any]:
            return [object() if answer else None for answer in streams[0].answers]

    names = types.SimpleNamespace(HW_GPU_ONLY="HW_GPU_ONLY", GPU_ONLY="GPU_ONLY", HYBRID_CPU_GPU="HYBRID_CPU_GPU")
    library = types.SimpleNamespace(
        Decoder=Decoder,
        CodeStream=Stream,
        Backend=str,
        BackendKind=names,
        Region=lambda *box: box,
        DecodeParams=lambda **how: how,
    )
    monkeypatch.setattr(region_decoding, "import_nvimgcodec", lambda: library)
    cuts = region_decoding._cuts(np.array([(160, 200)] * 3, np.int64))
    assert region_decoding.regions_left_to_cpu([b""] * 3, cuts, 2, uses_engines=True) == expected


@pytest.mark.nightly
def test_the_nvjpeg_that_is_loaded_says_its_version() -> None:
    (path,) = Path(nvidia.__file__).parents[1].glob("*/lib/libnvjpeg.so.*")
    room_of_it = loaded_nvjpeg.__module__
    code = f"import ctypes; from {room_of_it} import loaded_nvjpeg; ctypes.CDLL({str(path)!r}); print(loaded_nvjpeg())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"nvJPEG {'.'.join(str(installation().nvjpeg).split('.')[:3])} ({path})"


def test_the_answer_is_kept_per_driver_and_versions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def try_it(device_id: int | None, *, uses_engines: bool) -> RegionTrial:
        tried.append(uses_engines)
        return RegionTrial(False, "no")

    monkeypatch.setattr(room, "_try_in_child", try_it)
    assert [region_trial(None, hw_decoder_load=load).works for load in (0.0, 0.0, 0.3, 0.9)] == [False] * 4
    assert tried == [False, True], "with the JPEG engines and without"
    monkeypatch.setattr(room, "driver_version", lambda: "580.159")
    region_trial(None, hw_decoder_load=0.0)
    monkeypatch.setattr(room, "version_of", lambda name: "0.8.0")
    region_trial(None, hw_decoder_load=0.0)
    assert tried == [False, True, False, False]
    found = [json.loads(path.read_text())["circumstances"] for path in cache.rglob("*.json")]
    assert sorted(one["driver"] for one in found) == ["", "", "580.159", "580.159"]


def test_an_nvjpeg_that_is_too_old_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_try_in_child", None)
    monkeypatch.setattr(room, "installation", lambda: type("Old", (), {"decodes_regions": False, "nvjpeg": "12.4.0"}))
    assert region_problem(0, hw_decoder_load=0.0) == "nvJPEG 12.4.0 is older than 13.2"


def test_an_nvjpeg_of_unknown_version_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the machine's own."""
    monkeypatch.setattr(room, "region_trial", lambda device_id, hw_decoder_load: RegionTrial(True, ""))
    monkeypatch.setattr(room, "installation", lambda: type("Unknown", (), {"decodes_regions": False, "nvjpeg": None}))
    assert region_problem(0, hw_decoder_load=0.0) is None
