"""Every operation within the published distance of torchvision's, on generated photographs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision_reference import torchvision_v2

torchvision_v2(measured=True)

from benchmarks.cpu_kinds import cpu_kinds  # noqa: E402
from benchmarks.parity import table  # noqa: E402
from benchmarks.parity_case import EXACT, Bound, Case  # noqa: E402
from benchmarks.parity_cases import cases  # noqa: E402
from benchmarks.parity_differences import measure  # noqa: E402
from benchmarks.parity_kinds import OWN, kinds_table, own_table  # noqa: E402
from datapipe.testing.synthetic_images import make_image_folder  # noqa: E402


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[NDArray[np.uint8]]:
    root = make_image_folder(tmp_path_factory.mktemp("parity") / "photos", num_images=5, num_classes=5, seed=1)
    return [np.asarray(Image.open(path)).copy() for path in sorted(Path(root).rglob("*.jpg"))]


@pytest.mark.nightly
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.name} / {case.against}")
def test_within_the_published_bound(case: Case, photos: list[NDArray[np.uint8]]) -> None:
    result = measure(case, photos)
    assert result["within_bound"], result


def test_what_is_published_is_what_is_tested() -> None:
    """The documentation's table is the last report's, and that report's bounds are these tests' bounds."""
    root = Path(__file__).parents[2]
    report = json.loads((root / "benchmarks" / "results" / "parity.json").read_text())
    assert table(report["operations"]) in (root / "docs" / "transforms.md").read_text()
    reported = [(r["operation"], r["against"], tuple(r["bound"].values())) for r in report["operations"]]
    assert reported == bounds(report["torchvision_resizes"])
    assert all(r["within_bound"] for r in report["operations"])


def test_what_is_published_of_other_cpus_is_what_is_tested() -> None:
    """The same of the kinds of CPU, whose settings are those that `make cpu-kinds` tests."""
    root = Path(__file__).parents[2]
    kinds = json.loads((root / "benchmarks" / "results" / "parity.json").read_text())["kinds_of_cpu"]
    page = (root / "docs" / "transforms.md").read_text()
    assert kinds_table(kinds) in page
    assert own_table(kinds) in page
    assert [kind["kind"] for kind in kinds] == [kind.name for kind in cpu_kinds()[1:]]
    own_bound = {"max": OWN.largest, "p99.9": OWN.p999, "mean": OWN.mean}
    for kind in kinds:
        if "skipped" not in kind:
            assert kind["within_bound"]
            reported = {(r["operation"], r["against"], tuple(r["bound"].values())) for r in kind["operations"]}
            assert reported <= set(bounds(kind["torchvision_resizes"]))
            assert all(r["bound"] == own_bound for r in kind["own"])


def bounds(resizes: str) -> list[tuple[str, str, tuple[float, float, float]]]:
    return [(c.name, c.against, (c.bound.largest, c.bound.p999, c.bound.mean)) for c in cases(resizes)]


def test_an_exceeded_bound_is_seen(photos: list[NDArray[np.uint8]]) -> None:
    """The measure notices a difference of one step in one value of a thousand."""
    (exact,) = [case for case in cases() if case.name == "RandomHorizontalFlip" and case.against == "tensor"]

    def off_by_one(photo: NDArray[np.uint8], number: int) -> tuple[object, object]:
        ours, theirs = exact.compare(photo, number)
        ours = ours.contiguous()
        ours.view(-1)[::900] += 1
        return ours, theirs

    for bound, within in ((EXACT, False), (Bound(1, 0, 1), False), (Bound(1, 1, 0.001), False), (Bound(1, 1, 0.01), True)):
        result = measure(Case("off by one", "tensor", bound, off_by_one), photos[:1])  # type: ignore[arg-type]
        assert result["within_bound"] is within, bound
        assert ("exceeded" in table([result])) is not within
