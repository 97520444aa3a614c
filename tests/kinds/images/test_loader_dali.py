"""DALI in the loader: which part makes which row, and what happens to failures."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from dali_loaders import images_of, make
from encoded_images import BY_HAND, FOR_DALI, png_with_wrong_crc
from fixtures import NUM_SAMPLES, encode, jpeg, listing, make_folder, picture
from recipes import CROP, EVAL, SIZE, TRAIN

import datapipe as dp
from datapipe import transforms as T
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali_stage import MAX_GIVEN_UP, MAX_REFUSED, Fetched
from datapipe.testing.loaders.kind import own_threads

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

# How far rows of DALI may be from those of images_cpu, of 255: small noisy pictures have much at their borders.
LARGEST, MEAN = 8.0, 0.3


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows DALI made, rows made by hand) of every batch that was decoded."""
    from datapipe.kinds.images.dali_stage import DaliStage

    seen: list[tuple[int, int]] = []
    real = DaliStage.run

    def run(stage: DaliStage, batch: Fetched, *args: Any, **named: Any) -> Any:
        result = real(stage, batch, *args, **named)
        seen.append((len(batch.rows_given()), len(batch.by_hand)))
        return result

    monkeypatch.setattr(DaliStage, "run", run)
    return seen


# -- the same pixels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [
    CROP, TRAIN, EVAL, [T.Resize(30), T.CenterCrop(SIZE)],
    [T.RandomCrop(SIZE, padding=8, fill=(1, 90, 250)), T.RandomVerticalFlip()],
    [*CROP, T.ColorJitter(0.4, 0.4, 0.4), T.ToDtype(torch.float16, scale=True)],
], ids=str)  # fmt: skip
def test_pixels_are_those_of_images_cpu_to_within_their_tolerance(uneven: Path, transform: list[object]) -> None:
    ours, theirs = (images_of(make(uneven, transform=transform, backend=backend)) for backend in ("dali", "images_cpu"))
    assert sorted(ours) == sorted(theirs) == list(range(NUM_SAMPLES))
    is_scaled = next(iter(ours.values())).is_floating_point()
    unit = 1.0 if not is_scaled else 255 * 0.229 if transform is TRAIN else 255.0
    differences = torch.stack([(ours[sample].float() - theirs[sample].float()).abs() * unit for sample in ours])
    assert float(differences.max()) <= LARGEST
    assert float(differences.mean()) <= MEAN


@pytest.mark.parametrize("transform", [
    [T.CenterCrop(36), T.Resize((SIZE, SIZE))],  # pads some, which makes two cuts of it
    [T.Pad(2, fill=9), T.CenterCrop(40)],  # shows no fill, one, or two, which makes two cuts of it
], ids=str)  # fmt: skip
def test_a_sample_does_not_depend_on_its_neighbours(uneven: Path, transform: list[object], shares: list[tuple[int, int]]) -> None:
    """Samples whose geometry DALI cannot do are made by the decode threads, alone, whatever else is in their block."""
    expected = images_of(make(uneven, transform=transform, batch_size=1, num_workers=0))
    assert 0 < sum(given for given, _ in shares) < NUM_SAMPLES, "both kinds are there"
    for changes in (
        {"batch_size": 37, "num_workers": 1},
        {"num_workers": 0},
        {"batch_size": 7, "num_workers": 3, "shuffle": True},
    ):
        shares.clear()
        found = images_of(make(uneven, transform=transform, **changes))
        assert sum(given + by_hand for given, by_hand in shares) == NUM_SAMPLES
        assert all(torch.equal(found[sample], image) for sample, image in expected.items())


def test_files_of_every_kind(tmp_path: Path, shares: list[tuple[int, int]]) -> None:
    """In one batch, and under names that lie."""
    (tmp_path / "class").mkdir()
    for number, data in enumerate([*FOR_DALI.values(), *BY_HAND.values()]):
        (tmp_path / "class" / f"{number:03d}.jpg").write_bytes(data)
    size = len(FOR_DALI) + len(BY_HAND)
    for transform in (CROP, EVAL):
        ours, theirs = (
            images_of(make(tmp_path, batch_size=size, transform=transform, backend=name)) for name in ("dali", "images_cpu")
        )
        differences = torch.stack([(ours[sample].float() - theirs[sample].float()).abs() for sample in range(size)])
        assert float(differences[: len(FOR_DALI)].mean((1, 2, 3)).max()) <= 1.0, "one is dithered"
        assert float(differences[len(FOR_DALI) :].max()) == 0.0, "made by images_cpu"
    assert shares == [(len(FOR_DALI), len(BY_HAND))] * 2


def test_batches_in_which_dali_has_no_part(tmp_path: Path, shares: list[tuple[int, int]]) -> None:
    """Raw pixels, as `datapipe convert --encode raw` keeps them."""
    (tmp_path / "class").mkdir()
    for number in range(7):
        (tmp_path / "class" / f"{number}.png").write_bytes(BY_HAND["npy"])
    for transform in (CROP, TRAIN):
        ours, theirs = (images_of(make(tmp_path, transform=transform, backend=name)) for name in ("dali", "images_cpu"))
        assert all(torch.equal(image, theirs[sample]) for sample, image in ours.items())
    assert sorted(shares) == [(0, 2), (0, 2), (0, 5), (0, 5)]


def test_few_threads_fetch_where_dali_decodes_all(folder: Path, tmp_path: Path) -> None:
    """And all where they have more to do: decode what DALI does not, or read further fields."""

    def fed_by(path: Path, **options: Any) -> str:
        return str(dp.explain(make(path, **{"num_workers": 3, **options}))).split("fed by ")[1].split(";")[0]

    assert fed_by(folder) == "2 threads"
    assert fed_by(folder, num_workers=1) == "1 thread"
    for number, data in enumerate([*FOR_DALI.values(), *BY_HAND.values()]):
        (tmp_path / f"{number:03d}.jpg").write_bytes(data)
        (tmp_path / f"{number:03d}.txt").write_text("a caption")
    assert fed_by(tmp_path) == "3 threads"
    captioned = tmp_path / "captioned"
    captioned.mkdir()
    (captioned / "0.jpg").write_bytes(jpeg(1, 40, 48))
    (captioned / "0.txt").write_text("a caption")
    assert fed_by(captioned, form="pairs") == "3 threads"


@pytest.mark.daily(3)
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3000, 2000)], ids=str)
def test_extreme_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    make_folder(tmp_path, num=3, size=(40, 48))
    listing(tmp_path)[1].write_bytes(jpeg(1, *size))
    for transform in (CROP, EVAL, [T.CenterCrop(SIZE)]):
        ours, theirs = (images_of(make(tmp_path, transform=transform, backend=name)) for name in ("dali", "images_cpu"))
        for sample, image in ours.items():
            assert float((image.float() - theirs[sample].float()).abs().mean()) <= 2.0


# -- failures ----------------------------------------------------------------------------------------


PADDED = [T.Resize(30), T.RandomCrop(SIZE, padding=9, fill=(9, 80, 200))]


@pytest.mark.daily(4)
@pytest.mark.parametrize("transform", [CROP, TRAIN, PADDED], ids=["uint8", "float32", "padded"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_dali_alone_refuses_is_made_by_hand(
    folder: Path,
    tmp_path: Path,
    transform: list[object],
    num_workers: int,
    caplog: pytest.LogCaptureFixture,
    shares: list[tuple[int, int]],
) -> None:
    """And only that one: the other samples of its batch are as without it."""
    root = make_folder(tmp_path, size=(40, 48))
    refused = (5, 7, 21)
    for sample in refused:
        listing(root)[sample].write_bytes(png_with_wrong_crc())
    with caplog.at_level(logging.WARNING):
        found = images_of(make(root, transform=transform, num_workers=num_workers))
    (record,) = caplog.records
    assert "DALI does not decode a sample that images_cpu decodes (Failed to decode sample #" in record.getMessage()
    assert sorted(shares) == sorted([(3, 2), (4, 1), *[(5, 0)] * 5, (2, 0)])
    clean = images_of(make(folder, transform=transform))
    by_hand = images_of(make(root, transform=transform, backend="images_cpu"))
    for sample, image in found.items():
        assert torch.equal(image, by_hand[sample] if sample in refused else clean[sample]), sample


def test_many_refusals_in_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture, shares: list[tuple[int, int]]) -> None:
    """Each costs a run, so that there is a limit; now and then it may be passed."""
    root = make_folder(tmp_path, num=24, size=(40, 48))
    for sample in range(MAX_REFUSED + 1):
        listing(root)[sample].write_bytes(png_with_wrong_crc())
    loader = make(root, batch_size=12, transform=PADDED, num_workers=0)
    by_hand = images_of(make(root, transform=PADDED, backend="images_cpu"))
    with caplog.at_level(logging.WARNING):
        passes = [images_of(loader) for _ in range(MAX_GIVEN_UP)]
    assert all(torch.equal(passes[0][sample], by_hand[sample]) for sample in range(12))
    assert shares == [(0, 12), (12, 0)] * MAX_GIVEN_UP
    assert len([record for record in caplog.records if "images_cpu made a batch" in record.getMessage()]) == MAX_GIVEN_UP


def break_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(pipeline: DaliPipeline, *_: Any) -> Any:
        raise RunError("the driver is gone")

    monkeypatch.setattr(DaliPipeline, "run", run)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dali_that_only_fails_is_given_up(
    folder: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_dali(monkeypatch)
    expected = images_of(make(folder, backend="images_cpu"))
    iterator = iter(make(folder, num_workers=num_workers, backend=dp.Dali(num_pipelines=1)))

    def check_all() -> None:
        for batch in iterator:
            for sample, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                assert torch.equal(image, expected[sample])

    said = r"failed on [3-9] batches in a row, .* the driver is gone; pass backend='images_cpu'"
    with caplog.at_level(logging.WARNING), pytest.raises(dp.errors.BackendError, match=said):
        check_all()
    assert [record.getMessage() for record in caplog.records] == [
        "images_cpu made a batch because DALI failed on it: the driver is gone"
    ] * (MAX_GIVEN_UP - 1)
    with pytest.raises(dp.errors.BackendError, match=said):  # of two threads, one may have made the next batch before
        check_all()
    iterator.close()
    assert own_threads() == []


def undecodable(number: int) -> bytes:
    """Good by its header and its end."""
    data = bytearray(encode(picture(number, 60, 60), "JPEG"))
    table = data.find(b"\xff\xc4") + 5
    data[table : table + 10] = b"\xff" * 10
    return bytes(data)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_failures_for_a_reason_are_no_sign_of_a_broken_dali(
    num_workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad sample in nearly every batch, and one that DALI alone refuses."""
    root = make_folder(tmp_path, size=(40, 48))
    bad = list(range(1, NUM_SAMPLES, 5))
    for sample in bad:
        listing(root)[sample].write_bytes(undecodable(sample))
    listing(root)[33].write_bytes(png_with_wrong_crc())
    listing(root)[31].write_bytes(jpeg(31))
    bad.remove(31)
    loader = make(root, on_error="skip", num_workers=num_workers, backend=dp.Dali(num_pipelines=1))
    with caplog.at_level(logging.WARNING):
        assert sorted(images_of(loader)) == [sample for sample in range(NUM_SAMPLES) if sample not in bad]
    assert sorted(report.id for report in loader.bad_samples) == bad
    assert [record.levelname for record in caplog.records if "bad sample" not in record.getMessage()] == ["WARNING"]


def test_many_bad_samples_cost_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI names but the first of them."""
    root = make_folder(tmp_path, num=24, size=(40, 48))
    for sample in range(4, 20):
        listing(root)[sample].write_bytes(undecodable(sample))
    sizes: list[int] = []
    real = DaliPipeline.run
    monkeypatch.setattr(DaliPipeline, "run", lambda pipeline, *inputs: sizes.append(len(inputs[0])) or real(pipeline, *inputs))
    found = images_of(make(root, batch_size=24, num_workers=0, on_error="skip"))
    assert sorted(found) == [0, 1, 2, 3, 20, 21, 22, 23]
    assert sizes == [24] * 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_replacements_are_those_of_images_cpu(num_workers: int, tmp_path: Path) -> None:
    """Also where the first to step in is bad itself, and that comes out late."""
    root = make_folder(tmp_path / "damaged", size=(40, 48))
    bad = list(range(0, NUM_SAMPLES, 2))
    for sample in bad:
        listing(root)[sample].write_bytes(undecodable(sample) if sample % 4 else b"text")
    loaders = [make(root, on_error="replace", backend=name, num_workers=num_workers) for name in ("dali", "images_cpu")]
    ours, theirs = (list(loader) for loader in loaders)
    clean = images_of(make(make_folder(tmp_path / "clean", size=(40, 48))))
    for our, their in zip(ours, theirs, strict=True):
        assert all(torch.equal(image, clean[int(sample)]) for sample, image in zip(our["id"], our["image"], strict=True))
        assert our["id"].tolist() == their["id"].tolist()
        assert our["label"].tolist() == their["label"].tolist()
        assert float((our["image"].float() - their["image"].float()).abs().max()) <= LARGEST
    reports = [sorted((report.id, report.step, report.where) for report in loader.bad_samples) for loader in loaders]
    assert reports[0] == reports[1]
    assert [sample for sample, *_ in reports[0]] == bad
