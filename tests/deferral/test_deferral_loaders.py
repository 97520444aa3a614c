"""Deferral and seeded samples in torch's loaders: workers, samplers, places that are resumed, what `explain` says."""

from __future__ import annotations

import functools
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deferral_datasets as data
import numpy as np
import pytest
import torch
from deferral_datasets import NUM, TRAIN, F, Images, T, deferral, loaded
from PIL import Image
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, default_collate, get_worker_info

import datapipe as dp
from datapipe.codecs import decode
from datapipe.deferral import execution, preparing


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data.make_files(tmp_path_factory.mktemp("photos"), num=16)


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def batches(loader: Any) -> list[list[torch.Tensor]]:
    return [list(batch) for batch in loader]


def same(ours: Any, theirs: Any) -> bool:
    assert len(ours) == len(theirs) > 0
    pairs = [(one, other) for these, those in zip(ours, theirs, strict=True) for one, other in zip(these, those, strict=True)]
    return all(torch.equal(one, other) for one, other in pairs)


class Drawing(torch.utils.data.Dataset[Any]):
    """Draws from all three random states, and says who its worker's dataset is."""

    def __init__(self, num: int = 16) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Any:
        drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
        return torch.tensor([number, *drawn], dtype=torch.float64), torch.tensor(number)


class Whose(Drawing):
    def __getitem__(self, number: int) -> Any:
        info: Any = get_worker_info()
        assert type(info.dataset) is Whose
        return torch.tensor(info.dataset.num), torch.tensor(getattr(info.dataset, "marked", 0))


def mark(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.marked = 5


# -- workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_the_same_batches_by_any_number_of_workers(paths: list[str], persistent: bool) -> None:
    dataset = Images(paths, TRAIN)
    expected = batches(loaded(dataset, shuffle=True))
    found = loaded(dataset, shuffle=True, num_workers=2, persistent_workers=persistent)
    assert same(batches(found), expected)
    found.set_epoch(0)
    assert same(batches(found), expected)
    assert not same(batches(found), expected)  # the next epoch


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.nightly)])
def test_the_same_batches_however_workers_begin(paths: list[str], context: str) -> None:
    dataset = Images(paths[:4], TRAIN)
    found = loaded(dataset, shuffle=True, num_workers=1, multiprocessing_context=context)
    assert same(batches(found), batches(loaded(dataset, shuffle=True)))


class Told(Images):
    """Says with each sample what `worker_init_fn` told its worker, and which worker of how many that is."""

    def __getitem__(self, number: int) -> Any:
        info = get_worker_info()
        return *super().__getitem__(number), _told.get("worker", -1), info.id, info.num_workers


_told: dict[str, int] = {}


def tell(worker: int) -> None:
    _told["worker"] = worker + 10


@pytest.mark.parametrize("persists", [False, True])
def test_workers_are_set_up_as_before(paths: list[str], persists: bool) -> None:
    """Pinned memory is asked for too; torch does without it where there is no GPU."""
    asked = {"num_workers": 2, "worker_init_fn": tell, "persistent_workers": persists, "pin_memory": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = loaded(Told(paths, TRAIN), **asked)
        epochs = [batches(loader), batches(loader)]
        alone = loaded(Images(paths, TRAIN))
        others = [batches(alone), batches(alone)]
    for ours, theirs in zip(epochs, others, strict=True):
        assert same([batch[:2] for batch in ours], theirs)
        for number, (_, _, init, worker, workers) in enumerate(ours):
            assert (set(init.tolist()), set(worker.tolist()), set(workers.tolist())) == ({10 + number % 2}, {number % 2}, {2})
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])


def test_timms_loader_with_its_prefetcher(paths: list[str]) -> None:
    """The one line that a script of timm's needs: the loader inside of its `PrefetchLoader` is taken over."""
    timm = pytest.importorskip("timm.data", reason="timm is not installed")
    root = Path(paths[0]).parent / "classes"
    for number, path in enumerate(paths):
        target = root / str(number % 2) / Path(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(path).read_bytes())

    def make() -> Any:
        options = {"input_size": 32, "batch_size": 4, "is_training": True, "num_workers": 0, "no_aug": False}
        options |= {"use_prefetcher": True, "pin_memory": False, "device": torch.device("cpu"), "persistent_workers": False}
        return timm.create_loader(timm.ImageDataset(str(root)), **options)

    ours, theirs = make(), make()
    ours.loader = dp.from_torch(ours.loader, device="cpu", seed=3)
    with deferral(False):
        theirs.loader = dp.from_torch(theirs.loader, device="cpu", seed=3)
    for (images, labels), (expected, expected_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, expected_labels)
        assert images.dtype == torch.float32
        assert float((images - expected).abs().mean()) < 0.02


def test_torch_compile_over_batches(paths: list[str]) -> None:
    def step(images: torch.Tensor) -> torch.Tensor:
        return (images * 2).mean((1, 2, 3))

    compiled = torch.compile(step, backend="eager")
    for images, _ in loaded(Images(paths, TRAIN), num_workers=1):
        assert torch.equal(compiled(images), step(images))


def test_samplers_and_batch_samplers_decide_as_before(paths: list[str]) -> None:
    dataset = Images(paths, TRAIN)
    weighted = WeightedRandomSampler([1.0] * 16, 12, generator=torch.Generator().manual_seed(1))
    assert len(batches(loaded(dataset, sampler=weighted))) == 3
    lists = [[3, 1], [1, 2, 15], [0]]
    ours = batches(loaded(dataset, batch_size=1, batch_sampler=lists))
    assert [labels.tolist() for _, labels in ours] == lists
    assert not torch.equal(ours[0][0][1], ours[1][0][0])  # the same sample again in an epoch is cropped elsewhere
    subset = batches(loaded(Subset(dataset, [4, 5, 6])))
    assert subset[0][1].tolist() == [4, 5, 6]


def test_the_workers_dataset_is_the_users() -> None:
    for worker_init_fn, marked in ((None, 0), (mark, 5)):
        found = batches(loaded(Whose(), num_workers=1, worker_init_fn=worker_init_fn))
        assert found[0][0].tolist() == [16] * 4
        assert found[0][1].tolist() == [marked] * 4
    assert type(loaded(Whose()).dataset) is Whose


def test_the_training_process_keeps_its_random_state() -> None:
    def after(loader: Any) -> Any:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        list(loader)
        return torch.rand(()), random.random(), np.random.rand()

    assert after(loaded(Drawing())) == after(DataLoader(range(16), 4))  # type: ignore[arg-type]


def test_threads_of_the_users_work_as_before(paths: list[str]) -> None:
    class Threaded(Images):
        def __getitem__(self, number: int) -> Any:
            image = data.by_path(self.paths[number])
            small = image.crop((0, 0, 32, 32))
            tensor = F.to_tensor(small)
            with ThreadPoolExecutor(2) as pool:
                opened = pool.submit(lambda: F.to_tensor(data.by_path(self.paths[number]).resize((32, 32), 2)))
                doubled = pool.submit(lambda: tensor * 2)
                pixels = pool.submit(lambda: torch.from_numpy(np.array(small)))
                return opened.result(), doubled.result(), pixels.result()

    ours, theirs = data.both_ways(Threaded(paths, TRAIN), 4)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(found, expected) for found, expected in zip(one, other, strict=True))


def test_a_collate_fn_of_the_users_sees_true_tensors(paths: list[str]) -> None:
    def collate(samples: list[Any]) -> Any:
        assert all(type(image) is torch.Tensor and image.data_ptr() for image, _ in samples)
        return default_collate([(image.numpy().copy(), label) for image, label in samples])

    dataset = Images(paths, TRAIN)
    assert same(batches(loaded(dataset, collate_fn=collate)), batches(loaded(dataset)))
    cropped = loaded(Images(paths, lambda image: image.crop((0, 0, 9, 9))), collate_fn=as_they_are)
    assert {(type(image), image.size) for batch in cropped for image, _ in batch} == {(Image.Image, (9, 9))}


def test_a_dataset_that_reads_batches(paths: list[str]) -> None:
    class Whole(Images):
        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [self[key] for key in keys]

    first, second = (batches(loaded(Whole(paths, TRAIN), defer=defer)) for defer in (True, False))
    assert all(torch.equal(ours[1], theirs[1]) for ours, theirs in zip(first, second, strict=True))
    assert all(float((ours[0] - theirs[0]).abs().max()) < 0.02 for ours, theirs in zip(first, second, strict=True))


# -- places -----------------------------------------------------------------------------------------


@pytest.mark.daily(4)
@pytest.mark.parametrize("asked", [{"shuffle": True}, {}, {"batch_size": 1, "batch_sampler": [[1, 2, 3], [4, 0, 1], [5, 6, 7]]}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_dataset_resumes_exactly_in_mid_epoch(asked: dict[str, Any], num_workers: int) -> None:
    def make(workers: int) -> Any:
        return loaded(Drawing(), seed=None, num_workers=workers, **asked)

    loader = make(num_workers)
    batches(loader)  # an epoch
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [list(batch) for batch in iterator]
    torch.manual_seed(99)
    again = make(2 - num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(state)
    assert same(batches(again), rest)


def test_torchs_seeds_on_request() -> None:
    torch.manual_seed(3)
    theirs = batches(DataLoader(Drawing(), 4, num_workers=2))
    torch.manual_seed(3)
    ours = loaded(Drawing(), num_workers=2, faithful=True, seed=None)
    iterator = iter(ours)
    first = list(next(iterator))
    state = ours.state_dict()
    assert same([first, *map(list, iterator)], theirs)
    with pytest.warns(UserWarning, match=r"the random state is not: what Drawing draws .*faithful=True"):
        ours.load_state_dict(state)


# -- switches and messages --------------------------------------------------------------------------


def told(loader: Any, capsys: pytest.CaptureFixture[str]) -> str:
    print(dp.explain(loader))
    return capsys.readouterr().out


@pytest.mark.parametrize("num_workers", [0, 1])
def test_explain_names_what_was_recorded_and_where(
    paths: list[str], num_workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = loaded(Images(paths, TRAIN), num_workers=num_workers)
    assert "nothing seen yet" in told(loader, capsys)
    batches(loader)
    lines = told(loader, capsys)
    assert "% of samples: JPEG (RGB) -> convert('RGB') at " in lines
    assert "deferral_datasets.py:" in lines
    assert "-> crop" in lines
    assert "-> resize (bilinear) -> " in lines
    assert "-> to_tensor -> normalize" in lines
    touched = loaded(Images(paths, data.through_numpy), num_workers=num_workers)
    batches(touched)
    assert "by Pillow: an image at " in told(touched, capsys)


NAMED = {
    "numpy.array needs its pixels at once": data.through_numpy,
    "paste needs its pixels at once": data.drawn_on,
    "thumbnail needs its pixels at once": data.thumbnail,
    "RandomEqualize needs its pixels at once": T.Compose([T.RandomCrop(8), T.RandomEqualize(1.0), T.ToTensor()]),
    "since RandomErasing needs its values": T.Compose([T.RandomCrop(8), T.ToTensor(), T.RandomErasing(1.0)]),
    "since ColorJitter needs its values": T.Compose([T.PILToTensor(), T.ColorJitter(0.3), T.CenterCrop(8)]),
    "since Normalize needs its values": T.Compose([T.ToTensor(), T.Normalize([0.5], [0.2], inplace=True)]),
    "since Resize needs its values": T.Compose([T.PILToTensor(), T.Resize((8, 8))]),
    "since pad needs its values": lambda image: torch.nn.functional.pad(
        F.to_tensor(image.crop((0, 0, 9, 9))), (1, 1), mode="reflect"
    ),
    "since mul_ needs its values": lambda image: F.to_tensor(image.crop((0, 0, 9, 9))).mul_(2),
}


@pytest.mark.parametrize("line", NAMED)
def test_explain_names_what_was_not_recorded(paths: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    loader = loaded(Images(paths, NAMED[line]), batch_size=1)
    batches(loader)
    assert line in told(loader, capsys)
    assert "the code needs" not in told(loader, capsys)  # nor in later batches, whose steps note no call sites


def test_explain_counts_images_of_which_a_sample_has_several(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    crop = T.Compose([T.RandomCrop(8), T.ToTensor()])
    loader = loaded(Images(paths, lambda image: [crop(image) for _ in range(10)]))
    batches(loader)
    lines = told(loader, capsys)
    assert " samples that were recorded in epoch 0:" in lines
    assert "100% of samples, 10 in each: JPEG (RGB) -> convert('RGB') at " in lines
    batches(loader)
    assert " samples that were recorded in epoch 1:" in told(loader, capsys)


def of_many_kinds(image: Any) -> list[Any]:
    """Ten chains that differ, three times each."""
    turns = [Image.Transpose(number % 7) for number in range(10)]
    made = []
    for number, turn in enumerate(turns):
        turned = image.crop((0, 0, 9, 9)).transpose(turn)
        made += [F.to_tensor(turned.convert("L") if number > 6 else turned) for _ in range(3)]
    return made


def test_explain_counts_samples_in_its_last_line_too(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    loader = loaded(Images(paths, of_many_kinds))
    batches(loader)
    assert "and 2 more, each of them in 100% of samples or less" in told(loader, capsys)


def brightened(image: Any) -> Any:
    return F.adjust_brightness(image, 9.0)


GAINS = {
    "nothing more in Images: all of its images are deferred": TRAIN,
    "in Images: RandomErasing at ": T.Compose([T.RandomCrop(8), T.ToTensor(), T.RandomErasing(1.0)]),
    "needs values while __getitem__ runs, 100% of samples. Return what it is given and do it in collate_fn": data.through_numpy,
    "in Images: Pillow computes JPEG (RGB) -> ": T.Compose([T.Resize((8, 8)), brightened, T.ToTensor()]),
    "nothing by deferral: Images opens no JPEGs with Pillow": lambda image: 1,
}


@pytest.mark.parametrize("line", GAINS)
def test_explain_advises_what_can_be_done_in_this_dataset(
    paths: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = loaded(Images(paths, GAINS[line], open_=(lambda path: None) if "opens no" in line else None))
    assert "ask again once batches have come" in told(loader, capsys)
    batches(loader)
    assert line in told(loader, capsys)
    assert "let datapipe see the files" not in told(loader, capsys)


class Batches(torch.utils.data.Sampler[list[int]]):
    def __iter__(self) -> Any:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return 2


def begun(worker: int) -> None:
    """A worker_init_fn."""


def put_together(samples: list[Any]) -> Any:
    return samples


@pytest.mark.parametrize(
    ("num_workers", "where", "begins"),
    [
        (0, "the training process", "never, as there are no workers"),
        (1, "torch's workers", "at the start of each of torch's workers"),
    ],
)
def test_explain_names_functions_of_the_users_and_where_they_run(
    paths: list[str], num_workers: int, where: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = DataLoader(
        Images(paths, TRAIN), batch_sampler=Batches(), num_workers=num_workers, collate_fn=put_together, worker_init_fn=begun
    )
    lines = told(dp.from_torch(own, device="cpu"), capsys)
    assert f"by collate_fn put_together, in {where}" in lines
    assert f"worker_init_fn: begun, called {begins}" in lines
    assert "batch_sampler: Batches, called in the training process" in lines


def test_one_mean_for_all_channels_is_recorded(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As the examples of diffusers write it."""
    dataset = Images(paths, T.Compose([T.RandomCrop(8), T.ToTensor(), T.Normalize([0.5], [0.25])]))
    loader = loaded(dataset)
    assert same(batches(loader), batches(loaded(dataset, defer=False)))
    assert "-> to_tensor -> normalize" in told(loader, capsys)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Any:
        return (TRAIN(data.by_path(path)) for path in self.paths)


def test_a_stream_is_not_deferred_and_explain_says_so(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    loader = loaded(Stream(paths))
    torch.manual_seed(2)
    ours = list(loader)
    torch.manual_seed(2)
    assert same([[batch] for batch in ours], [[batch] for batch in DataLoader(Stream(paths), 4)])
    assert "that of Stream's code: images of an IterableDataset are not deferred" in told(loader, capsys)


def test_deferral_is_switched_off(paths: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Images(paths, TRAIN)
    plain = loaded(dataset, defer=False)
    assert "does not see its files" in told(plain, capsys)
    expected = batches(plain)
    monkeypatch.setenv("DATAPIPE_DEFER", "0")
    switched: Any = dp.from_torch(DataLoader(dataset, batch_size=4), seed=3, device="cpu")
    assert "does not see its files" in told(switched, capsys)
    assert same(batches(switched), expected)


def test_nothing_is_recorded_outside_of_getitem_and_by_other_threads(paths: list[str]) -> None:
    seen: list[Any] = []

    class Watching(Images):
        def __getitem__(self, number: int) -> Any:
            thread = threading.Thread(target=lambda: seen.append(data.by_path(self.paths[number])))
            thread.start()
            thread.join()
            return super().__getitem__(number)

    batches(loaded(Watching(paths, TRAIN)))
    seen.append(data.by_path(paths[0]))
    assert {type(image._im).__name__ for image in seen} == {"ImagingCore"}


def test_functions_that_record_are_still_known_by_their_names(paths: list[str]) -> None:
    """The loader of files tells torchvision's functions by these."""
    batches(loaded(Images(paths, TRAIN), num_workers=0))  # puts the seams in place
    chain = [functools.partial(F.to_tensor), functools.partial(F.normalize, mean=[0.5] * 3, std=[0.5] * 3)]
    assert hasattr(F.to_tensor, "__wrapped__")
    assert dp.transforms.Recipe.of(chain, input_kind="pil").rest == ()


def test_what_others_have_put_in_the_place_of_methods_is_called(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Images(paths, TRAIN)
    batches(loaded(dataset, num_workers=0))  # puts the seams in place
    resized: list[Any] = []
    original = Image.Image.resize

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        resized.append(self.size)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "resize", theirs)
    batches(loaded(dataset, num_workers=0))
    assert len(resized) == len(paths)
    monkeypatch.undo()
    batches(loaded(dataset, num_workers=0))
    assert len(resized) == len(paths)


@pytest.fixture
def tried_again() -> Any:
    """Forget what was tried on synthetic images, before a test that breaks what is tried and after it."""
    preparing.forget()
    yield
    preparing.forget()


def test_what_does_not_agree_is_computed_by_pillow(
    paths: list[str], monkeypatch: pytest.MonkeyPatch, tried_again: None, capfd: pytest.CaptureFixture[str]
) -> None:
    def wrong(values: Any, steps: Any, out: Any = None) -> Any:
        return finish(values, steps).add(1e-3)

    finish = execution.finish
    monkeypatch.setattr(execution, "finish", wrong)
    dataset = Images(paths, TRAIN)
    loader = loaded(dataset, num_workers=1, multiprocessing_context="fork")  # its worker has the wrong one
    text = (
        r"datapipe computes 2 chains of operations with Pillow, .* such as JPEG .*: the conversion to a tensor differs.*explain"
    )
    with pytest.warns(UserWarning, match=text) as warned:
        ours = batches(loader)
    assert len([one for one in warned if "datapipe computes" in str(one.message)]) == 1, "for both chains, in all batches"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "datapipe")
        batches(loader)
    assert same(ours, batches(loaded(dataset, defer=False)))
    assert capfd.readouterr().err.count("datapipe computes") == 0, "workers say nothing"


def test_an_engine_that_decodes_other_pixels_is_found_out(
    paths: list[str], monkeypatch: pytest.MonkeyPatch, tried_again: None, capsys: pytest.CaptureFixture[str]
) -> None:
    class Off:
        def __call__(self, source: Any, header: Any, region: Any) -> Any:
            return np.minimum(real(source, header, region), 250) + 3

    real = decode.open_decoder()
    monkeypatch.setattr(decode, "open_decoder", Off)
    loader = loaded(Images(paths, TRAIN))
    with pytest.warns(UserWarning, match="values of a synthetic image differ by up to"):
        ours = batches(loader)
    assert same(ours, batches(loaded(Images(paths, TRAIN), defer=False)))
    lines = told(loader, capsys)
    assert "by Pillow: JPEG (RGB)" in lines
    assert "differ by up to" in lines


@pytest.mark.parametrize("make", [data.through_numpy, data.drawn_on, data.fit, data.one_pixel])
def test_images_whose_pixels_are_always_asked_for_are_pillows(paths: list[str], make: Any) -> None:
    loader = loaded(Images(paths, make), batch_size=2)
    assert same(batches(loader), batches(loaded(Images(paths, make), batch_size=2, defer=False)))


def test_samples_whose_dataset_is_changed_meanwhile(paths: list[str]) -> None:
    dataset = Images(paths[:NUM], TRAIN)
    loader = loaded(dataset)
    assert len(batches(loader)) == 2
    dataset.paths = paths
    assert len(batches(loader)) == 4


def test_pickled_loaders_are_the_same(paths: list[str], tmp_path: Path) -> None:
    import pickle

    loader = loaded(Drawing(), shuffle=True)
    copy = pickle.loads(pickle.dumps(loader))
    assert same(batches(copy), batches(loader))
