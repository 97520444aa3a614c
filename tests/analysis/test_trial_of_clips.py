"""Datasets that decode videos: LeRobot's is tried as clips, of others the remedy is named in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diagnosis_processes import process
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

av = pytest.importorskip("av")

from lerobot_files import write_lerobot  # noqa: E402
from lerobot_stand_in import LeRobotDataset  # noqa: E402

from datapipe.analysis.judge.analysis import analyze  # noqa: E402
from datapipe.analysis.predict.candidates import candidates_for  # noqa: E402
from datapipe.analysis.predict.measured_workload import workload_from  # noqa: E402
from datapipe.analysis.predict.needs import LoaderSituation, advice_for  # noqa: E402
from datapipe.analysis.predict.replay import Delivery  # noqa: E402
from datapipe.analysis.predict.workload import Workload, production_parts  # noqa: E402
from datapipe.instruments.attach.sites import facts_of  # noqa: E402
from datapipe.instruments.trials.dataset import held_for_trial, try_clips  # noqa: E402
from datapipe.instruments.trials.results import Trials  # noqa: E402

NAME = "datapipe's clips of the same videos"


class ByPyAV(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        return opened(f"{number}.mp4")


def opened(path: str) -> Any:
    return av.open(path)


class ByTorchcodec(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]

        return VideoDecoder(f"{number}.mp4")[0]


class ByOpenCV(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        import cv2  # type: ignore[import-not-found]

        return cv2.VideoCapture(f"{number}.mp4").read()


class ImagesByOpenCV(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        import cv2

        return cv2.imread(f"{number}.jpg")


@pytest.mark.parametrize(
    ("dataset", "library"),
    [(ByPyAV(), "av"), (ByTorchcodec(), "torchcodec"), (ByOpenCV(), "cv2"), (ImagesByOpenCV(), None), (TensorDataset(), None)],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else str(value),
)
def test_the_library_that_decodes_videos_is_known_by_the_datasets_code(dataset: Any, library: str | None) -> None:
    class Loader:
        pass

    loader: Any = Loader()
    loader.dataset = Subset(dataset, [0])
    assert facts_of(loader, 0).video_library == library


def test_the_remedy_for_decoding_videos_is_named_with_its_documentation() -> None:
    advice = advice_for("decode", LoaderSituation(video_library="torchcodec"))
    assert advice is not None
    assert "datapipe.Clips in place of torchcodec" in advice
    assert "docs/video.md" in advice
    assert "not measured" in advice
    assert "datapipe.Clips" not in (advice_for("decode", LoaderSituation()) or "")


@pytest.mark.nightly
def test_lerobots_dataset_is_measured_against_clips_in_a_fork(tmp_path: Path) -> None:
    dataset = LeRobotDataset(write_lerobot(tmp_path / "data", lengths=(40, 40, 40)))
    found = try_clips(held_for_trial(DataLoader(dataset, 8)), seconds=4.0)["clips"]
    assert found["ratio"] > 0
    assert found["spread"] >= 0.05
    dataset.image_transforms = lambda frames: frames
    assert "its image_transforms" in try_clips(held_for_trial(DataLoader(dataset, 8)), seconds=0.5)["clips"]["reason"]
    assert try_clips(held_for_trial(DataLoader(TensorDataset())), seconds=0.5) == {}


def test_a_diagnosis_predicts_what_was_measured() -> None:
    found = analyze(process(make_s=0.03, work_s=0.005))
    workload = workload_from(found)
    assert isinstance(workload, Workload)
    tried = {"clips": {"ratio": 0.25, "spread": 0.05, "num_samples": 99}}
    candidates = candidates_for(found, workload, Trials(reasons={"": "datapipe sees no files"}, deferral=tried))
    (remedy,) = [one for one in candidates.remedies if one.name == NAME]
    stall, cpu = production_parts(workload)
    assert remedy.change.production_factor == pytest.approx((stall.mean() + cpu.mean() / 4) / (stall + cpu).mean())
    assert remedy.change.setup is not None
    assert remedy.change.setup.delivery is Delivery.SHARED
    assert any("datapipe.from_torch(loader" in snippet.text for snippet in remedy.how.code)
    assert candidates.applied[NAME].from_torch
    left = candidates_for(found, workload, Trials(reasons={"": "no"}, deferral={"clips": {"reason": "it has depth"}})).left_out
    assert left[NAME] == "it has depth"
