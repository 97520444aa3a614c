"""Which backend is chosen, and what is refused; calibration and what it remembers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_device import pretend_gpus

import datapipe as dp
from datapipe import transforms as T
from datapipe.kernel.calibration import measure, rates_of
from datapipe.kernel.ranks import resolve_device
from datapipe.kinds.images.choice import BackendRequest, Choice
from datapipe.kinds.images.dali import installation as dali_installation
from datapipe.kinds.images.dali.installation import Installation
from datapipe.kinds.images.dali.pipeline import DaliPipeline
from datapipe.kinds.images.evidence import CANDIDATES, Measured
from datapipe.transforms import Recipe

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
CUT = Recipe.of([T.RandomResizedCrop(24)])
SLOW, FAST = dp.Dali(num_pipelines=1), dp.Dali(num_pipelines=3)


@dataclasses.dataclass
class Evidence:
    """Rates by backend; counts how often it is asked."""

    images_cpu: float = 100.0
    share: float = 1.0
    asked: int = 0

    def share_for_dali(self) -> float:
        return self.share

    def rates(self) -> list[Measured]:
        self.asked += 1
        return [Measured(None, self.images_cpu), Measured(SLOW, 120.0), Measured(FAST, 220.0)]


def request(backend: Any = "auto", recipe: Recipe = CUT, *, has_collate_fn: bool = False) -> BackendRequest:
    return BackendRequest(backend, recipe, None, has_collate_fn=has_collate_fn)


@pytest.fixture
def without_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Installation:
        raise dp.errors.DependencyError("DALI is not installed; pip install 'gpu-datapipe[dali-cu13]'")

    monkeypatch.setattr("datapipe.kinds.images.choice.installation", missing)


# -- the choice --------------------------------------------------------------------------------------


def test_a_cpu_is_served_by_images_cpu_without_measuring() -> None:
    evidence = Evidence()
    assert request().choose(CPU, evidence).backend == "images_cpu"
    assert evidence.asked == 0


def test_a_gpu_is_served_by_whatever_is_faster() -> None:
    choice = request().choose(CUDA, Evidence())
    assert choice.dali == FAST
    assert choice.reason == (
        "measured here, images/s: dali (3 pipelines) 220, images_cpu 100, dali (1 pipeline) 120; "
        "DALI must be 2 times as fast, as it takes the GPU's time from the network"
    )
    assert request().choose(CUDA, Evidence(images_cpu=111)).dali is None, "1.98 times as fast"
    assert request().choose(CUDA, Evidence(images_cpu=109)).dali == FAST


def test_what_is_asked_for_by_name_is_done() -> None:
    evidence = Evidence()
    assert request("images_cpu").choose(CUDA, evidence).dali is None
    assert request(SLOW).choose(CUDA, evidence).dali == SLOW
    assert request("dali").choose(CPU, evidence) == Choice(CPU, dp.Dali(), "asked for")
    assert evidence.asked == 0
    assert request("dali").choose(CUDA, Evidence(images_cpu=1000)).dali == FAST, "only DALI's settings are chosen by measuring"


def test_auto_takes_the_cpu_where_dali_is_out_of_the_question() -> None:
    evidence = Evidence()
    few = request().choose(CUDA, dataclasses.replace(evidence, share=0.25))
    assert (few.dali, few.reason) == (None, "DALI decodes 25% of these samples as Pillow does")
    uneven = request(recipe=Recipe.of([T.Resize(24)])).choose(CUDA, evidence)
    assert uneven.dali is None and "differ in size" in uneven.reason  # noqa: PT018
    collated = request(has_collate_fn=True).choose(CUDA, evidence)
    assert collated.dali is None and "collate_fn takes samples in host memory" in collated.reason  # noqa: PT018
    assert evidence.asked == 0


def test_auto_without_dali_warns_once_and_goes_on(without_dali: None) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"decoded on the CPU: DALI is not installed; pip install 'gpu-datapipe\[dali-cu13\]'"
    ):
        assert request().choose(CUDA, Evidence()).dali is None
    assert request().choose(CPU, Evidence()).dali is None, "no warning where it would not be used"


def test_dali_asked_for_and_not_there_is_an_error(without_dali: None) -> None:
    with pytest.raises(dp.errors.DependencyError, match="pip install"):
        request("dali")


@pytest.mark.parametrize(
    ("backend", "recipe", "said"),
    [
        ("tpu", CUT, r"backend is 'tpu'; choose one of auto, images_cpu, dali, or pass datapipe\.Dali"),
        ("dali", Recipe.of([T.Resize(24)]), "images would differ in size.*; end the geometry with"),
        ("dali", Recipe.of([T.Resize((64, 64)), T.RandomResizedCrop(24)]), "resamples more than once.*images_cpu"),
        (SLOW, Recipe.of(None), "images would differ in size"),
    ],
)
def test_what_cannot_be_done_is_refused(backend: Any, recipe: Recipe, said: str) -> None:
    with pytest.raises(dp.errors.OptionError, match=said):
        request(backend, recipe)


@pytest.mark.parametrize(
    "settings", [{"num_threads": 0}, {"num_pipelines": 0}, {"hw_decoder_load": 1.5}, {"hybrid_huffman_threshold": -1}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(dp.errors.OptionError, match=f"Dali\\({next(iter(settings))}="):
        dp.Dali(**settings)


# -- the device --------------------------------------------------------------------------------------


def test_auto_is_this_ranks_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu")() == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto")() == CPU
    pretend_gpus(monkeypatch, 4)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert resolve_device("auto")() == torch.device("cuda", 2), "under torchrun, where the script has set none"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("auto")() == CUDA, "each rank sees its own GPU alone"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert resolve_device("auto")() == torch.device("cuda", 3), "what the script has set"


def test_cuda_is_the_current_device_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 4)
    asked = resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert asked() == torch.device("cuda", 3)
    assert resolve_device(torch.device("cuda", 1))() == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="'cuda', which names no GPU"):
        Choice(torch.device("cuda"), dp.Dali(), "asked for")


# -- the installation --------------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, torch_cuda: str | None, **versions: str) -> Installation:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(dali_installation, "version_of", named.get)
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    dali_installation.installation.cache_clear()
    return dali_installation.installation()


@pytest.fixture
def forgetful() -> Iterator[None]:
    yield
    dali_installation.installation.cache_clear()


def test_regions_are_decoded_from_nvjpeg_13_2_on(monkeypatch: pytest.MonkeyPatch, forgetful: None) -> None:
    old = installed(monkeypatch, "12.6", nvidia_dali_cuda120="2.4.0", nvidia_nvjpeg_cu12="12.4.0.76")
    assert (old.cuda_major, old.decodes_regions) == (12, False)
    assert installed(monkeypatch, "13.0", nvidia_dali_cuda130="2.4.0", nvidia_nvjpeg="13.2.3").decodes_regions
    assert not installed(monkeypatch, "13.0", nvidia_dali_cuda130="2.4.0", nvidia_nvjpeg="13.0.9").decodes_regions
    assert not installed(monkeypatch, "13.0", nvidia_dali_cuda130="2.4.0").decodes_regions, "nobody knows"


def test_a_dali_for_another_cuda_than_torchs_is_said(monkeypatch: pytest.MonkeyPatch, forgetful: None) -> None:
    installed(monkeypatch, "13.0", nvidia_dali_cuda120="2.4.0")
    said = dali_installation.mismatch()
    assert said is not None
    assert "built for CUDA 12, this torch for CUDA 13; pip uninstall nvidia-dali-cuda120" in said
    installed(monkeypatch, None, nvidia_dali_cuda120="2.4.0")
    assert dali_installation.mismatch() is None


def test_the_right_extra_is_named(monkeypatch: pytest.MonkeyPatch, forgetful: None) -> None:
    with pytest.raises(dp.errors.DependencyError, match=r"pip install .*\[dali-cu12\]"):
        installed(monkeypatch, "12.8")
    with pytest.raises(dp.errors.DependencyError, match=r"installed twice.*pip uninstall nvidia-dali-cuda120"):
        installed(monkeypatch, "13.0", nvidia_dali_cuda120="2.4.0", nvidia_dali_cuda130="2.4.0")


# -- calibration -------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("datapipe.kernel.calibration._MEASURED_S", 0.0)
    return tmp_path


def rates(open_batches: Callable[[Any], Iterable[Any]], candidates: Sequence[Any], **circumstances: str) -> list[float]:
    return rates_of(candidates, open_batches, device=CPU, packages=["torch"], circumstances=circumstances)


def steady(candidate: object) -> Iterator[Any]:
    return itertools.repeat((torch.zeros(8),))


def test_measured_once_then_remembered(cache: Path) -> None:
    opened: list[Any] = []

    def open_batches(candidate: dp.Dali | None) -> Iterator[Any]:
        opened.append(candidate)
        return steady(candidate)

    first = rates(open_batches, [None, FAST], about="one")
    assert opened == [None, FAST, FAST, None], "whoever comes first reads what no cache of the kernel holds yet"
    assert len(first) == 2
    assert min(first) > 0
    assert rates(open_batches, [None, FAST], about="one") == first
    assert len(opened) == 4
    rates(open_batches, [None, FAST], about="two")
    assert len(opened) == 8, "other data is another matter"


def test_cold_storage_is_nobodys_fault(cache: Path) -> None:
    """The first candidate reads each batch slowly, as nothing is in the kernel's cache; both are as fast as each other."""
    cached: set[int] = set()

    def open_batches(candidate: dp.Dali | None) -> Iterator[Any]:
        for number in range(100):
            if number not in cached:
                time.sleep(0.03)
            cached.add(number)
            time.sleep(0.002)
            yield (torch.zeros(8),)

    cold, warm = rates(open_batches, [None, FAST])
    assert cold > warm / 2


def test_damaged_memories_are_measured_anew(cache: Path) -> None:
    rates(steady, [None])
    (path,) = cache.rglob("*.json")
    path.write_text("{}")
    assert len(rates(steady, [None])) == 1
    assert json.loads(path.read_text())["found"][0] > 0


def test_a_cache_that_cannot_be_written_is_said_and_done_without(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cache / "datapipe").write_text("a file where the directory should be")
    assert len(rates(steady, [None])) == 1
    assert "cannot be kept" in caplog.text


def test_the_rate_is_that_of_what_comes_after_the_warm_up() -> None:
    sizes = iter([1, 1, 1, *itertools.repeat(50, 10**6)])
    assert measure((torch.zeros(size),) for size in sizes) > 1000


class _OnTheFourthGpu:
    device = torch.device("cuda", 3)

    def __len__(self) -> int:
        return 8


def test_a_measurement_waits_for_the_gpu_on_which_the_images_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one may be another, on which waiting would also create a context."""
    monkeypatch.setattr("datapipe.kernel.calibration._MEASURED_S", 0.0)
    monkeypatch.setattr("datapipe.kernel.calibration.tensors_of", lambda batch: [batch])
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    measure(itertools.repeat(_OnTheFourthGpu()))
    assert waited == [torch.device("cuda", 3)] * 2


def test_evidence_about_real_data(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates load the loader's own data, by its transform; here on the CPU."""
    monkeypatch.setattr("datapipe.kinds.images.evidence.CANDIDATES", (None, dp.Dali(num_pipelines=1)))
    loader = dp.DataLoader(folder, batch_size=8, transform=[T.RandomResizedCrop(24)], num_workers=1)
    evidence = loader._passes.kind.evidence()
    assert evidence.share_for_dali() == 1.0
    rates = evidence.rates()
    assert [measured.dali for measured in rates] == [None, dp.Dali(num_pipelines=1)]
    assert all(measured.images_per_s > 10 for measured in rates)


def test_a_candidate_that_fails_is_left_out_and_measured_again_by_the_next_run(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def open_batches(candidate: dp.Dali | None) -> Iterator[Any]:
        if candidate == FAST:
            raise dp.errors.BackendError("CUDA allocation failed")
        return steady(candidate)

    works, fails = rates(open_batches, [None, FAST])
    assert works > fails == 0
    assert "num_pipelines=3" in caplog.text and "as it failed when measured: CUDA allocation failed" in caplog.text  # noqa: PT018
    assert not list(cache.rglob("*.json"))
    assert min(rates(steady, [None, FAST])) > 0


def test_rates_belong_to_a_gpu_and_its_driver(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    for driver in ("580.1", "590.2", "580.1"):
        monkeypatch.setattr("datapipe.kernel.calibration.driver_version", lambda driver=driver: driver)
        rates_of([None], steady, device=CUDA, packages=[], circumstances={})
    kept = [json.loads(path.read_text())["circumstances"] for path in cache.rglob("*.json")]
    assert sorted((one["device"], one["driver"]) for one in kept) == [("H100", "580.1"), ("H100", "590.2")]


def test_pools_are_released_once_no_candidate_holds_any_memory(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[DaliPipeline]] = []
    held_then: list[int] = []

    def make(graph: Any) -> DaliPipeline:
        pipeline = DaliPipeline(graph)
        made.append(weakref.ref(pipeline))
        return pipeline

    def release() -> None:
        held_then.append(sum(reference() is not None for reference in made))

    monkeypatch.setattr("datapipe.kinds.images.evidence.CANDIDATES", (None, SLOW))
    monkeypatch.setattr("datapipe.kinds.images.dali_stage.DaliPipeline", make)
    monkeypatch.setattr("nvidia.dali.backend.ReleaseUnusedMemory", release)
    evidence = dp.DataLoader(folder, batch_size=8, transform=[T.RandomResizedCrop(24)], num_workers=1)._passes.kind.evidence()
    evidence.rates()
    assert len(made) >= 2
    assert held_then == [0]
    evidence.rates()
    assert held_then == [0], "nothing was measured"


def test_pipelines_huffman_codes_and_engines_are_measured() -> None:
    candidates = [dali for dali in CANDIDATES if dali is not None]
    assert len(candidates) == len(CANDIDATES) - 1
    assert {dali.num_pipelines for dali in candidates} == {2, 3}
    assert {dali.hw_decoder_load for dali in candidates} == {0.0, 0.65}
    assert dp.Dali(hybrid_huffman_threshold=0) in candidates


def test_the_settings_that_won_are_named() -> None:
    measured = [Measured(dp.Dali(hw_decoder_load=0.35), 300.0), Measured(dp.Dali(hybrid_huffman_threshold=0), 200.0)]
    evidence: Any = SimpleNamespace(share_for_dali=lambda: 1.0, rates=lambda: measured)
    choice = request().choose(CUDA, evidence)
    assert choice.dali == dp.Dali(hw_decoder_load=0.35)
    assert choice.reason == (
        "measured here, images/s: dali (2 pipelines, 35% on JPEG engines) 300, "
        "dali (2 pipelines, Huffman on the GPU above 0 pixels) 200"
    )


# -- messages ----------------------------------------------------------------------------------------


def test_explain_prints_what_runs_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transform = [T.RandomResizedCrop(24), T.ToDtype(torch.float32, scale=True)]
    print(dp.explain(dp.DataLoader(folder, batch_size=8, shuffle=True, transform=transform, num_workers=2, device="cpu")))
    said = capsys.readouterr().out
    for line in (
        "37 samples in folder, shuffled in full",
        "device    cpu",
        "backend   images_cpu: on a CPU it is the faster",
    ):
        assert line in said
    print(dp.explain(dp.DataLoader(folder, batch_size=8, sampler=[1, 2], transform=transform, backend="dali", device="cpu")))
    said = capsys.readouterr().out
    for line in (
        "in your sampler's order",
        "backend   dali: asked for",
        "on the CPU in 2 pipelines of",
        "with the decode: RandomResizedCrop(24)",
    ):
        assert line in said
