"""Deferred images that DALI makes in the training process, of what workers send encoded: the batches that workers make."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deferral_datasets as data
import pytest
import torch
from deferral_datasets import MEAN, STD, TRAIN, F, Images, T, deferral, v2
from fake_device import FakeDevice
from test_deferral_blocks import Bare
from torch.utils.data import DataLoader

import datapipe as dp
from datapipe.adapt import device_decoding
from datapipe.adapt.device_decoding import DecodingByDali
from datapipe.deferral import lending
from datapipe.kernel.prefetching import PrefetchedLoader
from datapipe.kernel.pytree import tensors_of
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

# How far DALI's pixels may be from the CPU's, of 255: as for the loader over files.
LARGEST, MEAN_DIFFERENCE = 8.0, 0.3
NUM = 12
DALI = dp.Dali(num_pipelines=1, num_threads=2)
NORMALISED = [T.ToTensor(), T.Normalize(MEAN, STD)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"), num=NUM - 4) + data.make_files(
        tmp_path_factory.mktemp("more"), num=4, progressive=True, subsampling=0
    )


def load(dataset: Any, *, backend: Any = DALI, defer: bool = True, **options: Any) -> Any:
    taken = {name: options.pop(name) for name in ("on_error", "device") if name in options}
    torchs = DataLoader(dataset, **{"batch_size": 4, **options})
    with deferral(defer):
        return dp.from_torch(torchs, seed=3, backend=backend, **{"device": "cpu", **taken})


def batches(loader: Any) -> list[list[torch.Tensor]]:
    return [tensors_of(batch) for batch in loader]


def equal(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> bool:
    pairs = [pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one, other, strict=True)]
    return bool(pairs) and all(torch.equal(found, expected) for found, expected in pairs)


def assert_close(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]], unit: float) -> None:
    """Images within the tolerance, all else equal. `unit`: 255 over the range of the images' values."""
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        for found, expected in zip(one, other, strict=True):
            assert type(found) is torch.Tensor
            assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
            if found.dim() < 4:
                assert torch.equal(found, expected)
                continue
            difference = (found.float() - expected.float()).abs() * unit
            assert float(difference.max()) <= LARGEST
            assert float(difference.mean()) <= MEAN_DIFFERENCE


def told(loader: Any, capsys: pytest.CaptureFixture[str]) -> str:
    print(dp.explain(loader))
    return capsys.readouterr().out


# -- the same batches --------------------------------------------------------------------------------


class Folder(Images):
    """As torchvision's ImageFolder does it, in dicts."""

    def __getitem__(self, number: int) -> Any:
        return {"image": self.make(data.by_pil_loader(self.paths[number])), "label": number % 3, "path": self.paths[number]}


def two_crops(image: Any) -> Any:
    return TRAIN(image), data.TEST(image)


def sometimes_shifted(image: Any) -> Any:
    """A window of the resized image, or all of it."""
    return F.to_tensor(F.crop(F.resize(image, [40, 44]), random.randint(0, 8), 3, 32, 32))


V2 = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
CASES: dict[str, tuple[Any, float]] = {
    "compose": (functools.partial(Images, make=TRAIN), 255 * 0.229),
    "functional": (functools.partial(Images, make=data.functional), 255 * 0.229),
    "dicts of a folder": (functools.partial(Folder, make=TRAIN), 255 * 0.229),
    "two crops": (functools.partial(Images, make=two_crops), 255 * 0.229),
    "evaluation": (functools.partial(Images, make=data.TEST), 255 * 0.229),
    "windows": (functools.partial(Images, make=sometimes_shifted), 255.0),
    "v2": (functools.partial(Images, make=v2.Compose([*V2, v2.Normalize(MEAN, STD)])), 255 * 0.229),
    "uint8": (functools.partial(Images, make=v2.Compose(V2[:3])), 1.0),
    "bare": (functools.partial(Bare, make=TRAIN), 255 * 0.229),
}


@pytest.mark.daily(6)
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_workers_and_of_torch(paths: list[str], case: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, unit = CASES[case]
    dataset = make(paths)
    ours = load(dataset, shuffle=True)
    found = batches(ours)
    assert_close(found, batches(load(dataset, shuffle=True, backend="auto")), unit)
    assert_close(found, batches(load(dataset, shuffle=True, backend="auto", defer=False)), unit)
    lines = told(ours, capsys)
    assert "backend   dali: asked for" in lines
    assert "not by DALI" not in lines
    assert ", by DALI" in lines


def test_what_is_only_cut_is_exact(paths: list[str]) -> None:
    dataset = Images(paths, T.Compose([T.RandomCrop(32), T.RandomVerticalFlip(), T.PILToTensor()]))
    assert equal(batches(load(dataset)), batches(load(dataset, defer=False, backend="auto")))


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_same_batches_by_any_number_of_workers(paths: list[str], num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bytes in memory that is lent, and goes back to the worker. A forked worker sees what is patched."""
    monkeypatch.setattr(lending, "MIN_NBYTES", 1)
    dataset = Images(paths * 8, TRAIN)
    expected = load(dataset, batch_size=8, shuffle=True)
    found = load(
        dataset, batch_size=8, shuffle=True, num_workers=num_workers, persistent_workers=True, multiprocessing_context="fork"
    )
    first = batches(found)
    assert equal(first, batches(expected))
    assert not equal(batches(found), first)
    found.set_epoch(0)
    assert equal(batches(found), first)
    lent = [len(worker.blocks) for worker in lending._borrowed.workers.values()]
    assert 0 < max(lent) <= 8


def test_a_place_in_mid_epoch_is_resumed(paths: list[str]) -> None:
    """While further batches are on their way."""
    loader = load(Images(paths * 2, TRAIN), shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["samples_done"] == 4
    rest = [tensors_of(batch) for batch in iterator]
    again = load(Images(paths * 2, TRAIN), shuffle=True)
    again.load_state_dict(state)
    assert equal(batches(again), rest)
    assert len(rest) == 5


def test_a_pass_that_is_left_early(paths: list[str]) -> None:
    loader = load(Images(paths, TRAIN), shuffle=True, num_workers=1, persistent_workers=True)
    for _ in loader:
        break
    loader.set_epoch(0)
    assert equal(batches(loader), batches(load(Images(paths, TRAIN), shuffle=True)))


def test_sizes_that_change_from_batch_to_batch(paths: list[str]) -> None:
    """More of them than there are graphs kept."""

    def sized(image: Any) -> Any:
        side = 20 + 4 * ((image.size[0] - 1) % 7)
        return F.to_tensor(F.resize(image, [side, side]))

    dataset = Images(paths, sized)
    loader = load(dataset, batch_size=1)
    assert_close(batches(loader), batches(load(dataset, batch_size=1, backend="auto")), 255.0)
    assert len(loader._mover._decoder._stages) == device_decoding._MOST_GRAPHS


# -- what DALI does not make --------------------------------------------------------------------------


class Mixed(Images):
    """Every fifth image is turned, which is more than one cut."""

    def __getitem__(self, number: int) -> Any:
        image, label = data.by_path(self.paths[number]), number
        return F.to_tensor((F.rotate(image, 20) if number % 5 == 4 else image).resize((32, 32), 2)), label


def test_a_batch_in_which_one_image_is_more_than_a_cut(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Mixed(paths, TRAIN)
    loader = load(dataset, num_workers=1)
    found, expected = batches(loader), batches(load(dataset, backend="auto"))
    assert equal(found[1:], expected[1:]), "4 and 9 are turned"
    assert not equal(found[:1], expected[:1])
    assert_close(found, expected, 255.0)


@pytest.mark.parametrize("name", ["jitter", "erasing", "through numpy", "lanczos", "two resizes"])
def test_chains_that_workers_go_on_executing(paths: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Images(paths, data.TRANSFORMS[name][0])
    loader = load(dataset)
    assert equal(batches(loader), batches(load(dataset, backend="auto")))
    lines = told(loader, capsys)
    assert ", by DALI" not in lines
    others = ("not by DALI: the operations are more than one crop, resize and flip", "by Pillow", "a tensor, made at once")
    assert any(other in lines for other in others)


def test_tensors_that_collation_looks_at(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a batch is made again, with values."""
    collations = importlib.import_module("torch.utils.data._utils.collate").default_collate_fn_map

    class Listed(Images):
        def __getitem__(self, number: int) -> Any:
            return [super().__getitem__(number)[0]]

    monkeypatch.setitem(collations, list, lambda batch, *, collate_fn_map: torch.stack([sample[0] * 2 for sample in batch]))
    assert equal(batches(load(Listed(paths, TRAIN))), batches(load(Listed(paths, TRAIN), backend="auto")))


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Twelve images: the seventh is cut off, the tenth has a Huffman table that no decoder takes."""
    found = data.make_files(tmp_path_factory.mktemp("flawed"), num=NUM)
    whole = Path(found[6]).read_bytes()
    Path(found[6]).write_bytes(whole[: len(whole) // 2])
    broken = bytearray(Path(found[9]).read_bytes())
    broken[broken.index(b"\xff\xc4") + 5] = 255  # codes of one bit
    Path(found[9]).write_bytes(broken)
    return found


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bytes_that_do_not_decode_raise_as_before(flawed: list[str], num_workers: int) -> None:
    iterator = iter(load(Images(flawed, TRAIN), num_workers=num_workers))
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="truncated"):
        next(iterator)
    with pytest.raises(OSError, match="broken data stream"):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bytes_that_do_not_decode_by_policy(flawed: list[str], policy: str) -> None:
    ours = load(Images(flawed, TRAIN), num_workers=1, on_error=policy)
    theirs = load(Images(flawed, TRAIN), backend="auto", on_error=policy)
    found, expected = batches(ours), batches(theirs)
    assert_close(found, expected, 255 * 0.229)
    assert equal(found[1:], expected[1:]), "made by the CPU"
    assert [(bad.epoch, bad.step, bad.where) for bad in ours.bad_samples] == [(0, 1, "sample 6"), (0, 2, "sample 9")]
    assert [bad.reason for bad in ours.bad_samples] == [bad.reason for bad in theirs.bad_samples]


def cut_and_jittered(image: Any) -> Any:
    return TRAIN(image), data.TRANSFORMS["jitter"][0](image)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bytes_of_which_a_worker_makes_one_tensor_and_dali_another(flawed: list[str], num_workers: int) -> None:
    """The worker finds that they do not decode, and makes the whole batch."""
    dataset = Images(flawed, cut_and_jittered)
    found = batches(load(dataset, num_workers=num_workers, on_error="skip"))
    expected = batches(load(dataset, backend="auto", on_error="skip"))
    assert_close(found, expected, 255 * 0.229)
    assert equal(found[1:], expected[1:])
    assert not equal(found[:1], expected[:1])


def test_an_image_that_dali_alone_refuses(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU makes it from the same bytes; its neighbours are what they would be without it."""
    real = DaliPipeline.run
    refused: list[int] = []

    def run(pipeline: DaliPipeline, encoded: Any, cuts: Any, stream: Any) -> Any:
        if len(refused) < 1:
            refused.append(2)
            raise RunError("Failed to decode sample #2")
        return real(pipeline, encoded, cuts, stream)

    dataset = Images(paths, TRAIN)
    clean, by_cpu = batches(load(dataset)), batches(load(dataset, backend="auto"))
    monkeypatch.setattr(DaliPipeline, "run", run)
    found = batches(load(dataset, num_workers=1))
    assert equal(found[1:], clean[1:])
    assert equal([[found[0][0][[0, 1, 3]]]], [[clean[0][0][[0, 1, 3]]]])
    torch.testing.assert_close(found[0][0][2], by_cpu[0][0][2], atol=2e-6, rtol=0)


def test_a_dali_that_only_fails_is_an_error_in_the_end(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> Any:
        raise RunError("the driver is gone")

    dataset = Images(paths, TRAIN)
    expected = batches(load(dataset, backend="auto"))
    monkeypatch.setattr(DaliPipeline, "run", run)
    iterator = iter(load(dataset))
    for batch in expected[:2]:
        torch.testing.assert_close(next(iterator)[0], batch[0], atol=2e-6, rtol=0)
    with pytest.raises(dp.errors.BackendError, match=r"DALI failed on 3 batches in a row.*the driver is gone"):
        next(iterator)


class Fragile(Images):
    def __getitem__(self, number: int) -> Any:
        if number == 5:
            raise KeyError("no label for 5")
        return super().__getitem__(number)


def test_what_the_users_code_raises_comes_in_its_place(paths: list[str]) -> None:
    iterator = iter(load(Fragile(paths, TRAIN), num_workers=2))
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no label for 5"):
        next(iterator)
    assert next(iterator)[1].tolist() == [8, 9, 10, 11]


def test_ctrl_c_while_a_batch_is_decoded_loses_nothing(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real, interrupted = device_decoding.concurrent.futures.wait, []

    def wait(futures: Any) -> Any:
        if len(interrupted) < 2:
            interrupted.append(1)
            raise KeyboardInterrupt
        return real(futures)

    expected = batches(load(Images(paths, TRAIN)))
    monkeypatch.setattr(device_decoding.concurrent.futures, "wait", wait)
    loader = load(Images(paths, TRAIN))
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert loader.state_dict()["samples_done"] == 0
    assert equal([tensors_of(batch) for batch in iterator], expected)


# -- the choice ---------------------------------------------------------------------------------------


class Whole(Images):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


def test_what_dali_cannot_serve_is_refused(paths: list[str]) -> None:
    for asked, why in (
        (functools.partial(load, Images(paths, TRAIN), collate_fn=list), "a collate_fn takes samples whose tensors are made"),
        (functools.partial(load, Whole(paths, TRAIN)), "Whole makes whole batches"),
        (functools.partial(load, Images(paths, TRAIN), defer=False), "their images are not deferred"),
        (functools.partial(load, Images(paths, TRAIN), backend="cuda"), "choose one of auto, images_cpu, dali"),
    ):
        with pytest.raises(dp.errors.OptionError, match=why):
            asked()


def test_workers_make_images_where_that_is_asked_for(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked, usual = load(Images(paths, TRAIN), backend="images_cpu"), load(Images(paths, TRAIN), backend="auto")
    assert equal(batches(asked), batches(usual))
    assert "backend   images_cpu: asked for" in told(asked, capsys)
    assert "backend   images_cpu: on a CPU it is the faster one" in told(usual, capsys)


def test_a_collate_fn_that_is_set_later(paths: list[str]) -> None:
    loader = load(Images(paths, TRAIN))
    loader.collate_fn = as_they_are
    images = [image for batch in loader for image, _ in batch]
    assert all(type(image) is torch.Tensor and image.data_ptr() for image in images)
    assert len(images) == NUM


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def test_pickled_loaders_are_the_same(paths: list[str]) -> None:
    import pickle

    loader = load(Images(paths, TRAIN), shuffle=True)
    copy = pickle.loads(pickle.dumps(loader))
    assert equal(batches(copy), batches(loader))


# -- on a device --------------------------------------------------------------------------------------


@pytest.fixture(params=range(3))
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A device in place of a GPU; DALI's graph is the CPU's, its result put on the device."""
    device = FakeDevice(seed=request.param)
    run_on_cpu = DaliPipeline.run
    on_cpus: dict[int, DaliPipeline] = {}

    def run(self: DaliPipeline, encoded: Any, cuts: Any, stream: Any) -> Any:
        assert self.options.device_id == 3, "a graph for the CPU"
        on_cpu = on_cpus.setdefault(id(self), DaliPipeline(dataclasses.replace(self.options, device_id=None)))
        pixels, keep = run_on_cpu(on_cpu, encoded, cuts, None)
        with device.under(stream):
            return device.put(pixels), keep

    monkeypatch.setattr(DaliPipeline, "run", run)
    monkeypatch.setattr(device_decoding, "region_problem", lambda device_id, hw_decoder_load: None)
    yield device
    device.drain()
    assert [what for what in device.forbidden if "pageable" not in what] == []


def test_batches_on_a_device_are_the_cpus(paths: list[str], fake: FakeDevice) -> None:
    dataset = Images(paths, two_crops)
    taken = load(dataset, shuffle=True, backend="auto")
    kept = load(dataset, shuffle=True)._inner
    opened = DecodingByDali(dp.Dali(), torch.device("cuda", 3))
    loader = PrefetchedLoader(kept, fake.device, depth=2, open_runtime=lambda device: fake, open_mover=opened)
    reads = []
    for batch in loader:
        reads.append([fake.read(tensor) for tensor in tensors_of(batch)])
        del batch
    fake.drain()
    assert_close([[read() for read in batch] for batch in reads], batches(taken), 255 * 0.229)
    assert {name.rpartition("_")[0] for name in fake.entered} == {"datapipe-dali"}
