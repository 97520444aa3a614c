"""Datasets of a user's own that other machines run: the same batches, wherever they are made, and clear errors."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import own_datasets as own
import pyarrow as pa
import pytest
import torch
from decoders import TOKEN, Decoder, is_alive, wait_until
from fixtures import make_folder
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import datapipe as dp
from datapipe.core.environment import importing_as_here
from datapipe.errors import FormatError, OptionError
from datapipe.kernel.process_main import Scratch
from datapipe.remote_workers import fleet as fleets
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.objects import pack, unpack
from datapipe.remote_workers.own_code import Fetch, code_of, load, unpickled
from datapipe.serving.service import _Codes


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    begun = Decoder(tmp_path_factory.mktemp("code"), "--allow-code")
    yield begun
    begun.stop()


@pytest.fixture(scope="module")
def folder(service: Decoder) -> Path:
    return make_folder(service.top / "photos", num=40, size=(40, 48))


def loader_of(dataset: Any, workers: dp.Workers | None = None, *, seed: int = 3, **options: Any) -> Any:
    device = options.pop("device", "cpu")
    on_error = options.pop("on_error", "raise")
    theirs = DataLoader(dataset, **{"batch_size": 6, "shuffle": True, "num_workers": 0, **options})
    return dp.from_torch(theirs, seed=seed, device=device, on_error=on_error, workers=workers)


def flat(value: Any) -> Any:
    """Values that compare."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.reshape(-1).tolist() if not value.is_complex() else str(value))
    if isinstance(value, dict):
        return {name: flat(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [flat(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.daily(3)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("collate", [None, own.as_lists, own.shuffled])
def test_batches_are_those_of_one_process(folder: Path, service: Decoder, num_workers: int, collate: Any) -> None:
    dataset = own.Photos(own.photos(folder))
    if collate is own.as_lists:
        dataset = own.Odd()
    options = {} if collate is None else {"collate_fn": collate}
    here = loader_of(dataset, **options)
    expected = [flat(batch) for _ in range(2) for batch in here]
    loader = loader_of(dataset, service.workers(), num_workers=num_workers, **options)
    assert [flat(batch) for _ in range(2) for batch in loader] == expected


def test_the_other_machine_does_make_them(service: Decoder) -> None:
    made = {pid for batch in loader_of(own.Processes(), service.workers()) for pid in batch.tolist()}
    assert made <= {*service.processes()}
    loader = loader_of(own.Processes(), service.workers(), num_workers=1, batch_size=2)
    both = {pid for _ in range(3) for batch in loader for pid in batch.tolist()}
    assert both & {*service.processes()}
    assert both - {*service.processes()}, "this machine does its share"
    assert os.getpid() not in both
    assert "elsewhere 127.0.0.1:" in str(dp.explain(loader))


@pytest.mark.nightly
def test_batches_may_be_written_to(folder: Path, service: Decoder) -> None:
    for batch in loader_of(own.Photos(own.photos(folder)), service.workers()):
        batch["image"] += 1
        assert batch["image"].is_contiguous()


def test_a_state_resumes_with_and_without_workers(folder: Path, service: Decoder) -> None:
    dataset = own.Photos(own.photos(folder))
    expected = [flat(batch) for batch in loader_of(dataset)]
    first = loader_of(dataset, service.workers())
    iterator = iter(first)
    found = [flat(next(iterator)) for _ in range(3)]
    second = loader_of(dataset, num_workers=2)
    second.load_state_dict(first.state_dict())
    assert found + [flat(batch) for batch in second] == expected
    copied = pickle.loads(pickle.dumps(first))
    assert [flat(batch) for batch in copied] == expected


@pytest.mark.nightly
def test_worker_init_fn_is_called_once_in_each_process(service: Decoder) -> None:
    loader = loader_of(own.Started(), service.workers(), worker_init_fn=own.begin, num_workers=1)
    assert {count for _ in range(3) for batch in loader for count in batch.tolist()} == {1}


def test_errors_of_the_users_code_are_theirs(folder: Path, service: Decoder) -> None:
    """A batch that fails costs no other."""
    dataset = own.Photos(own.photos(folder), bad=7)
    iterator = iter(loader_of(dataset, service.workers(), shuffle=False))
    seen = [next(iterator)["number"].tolist()]
    with pytest.raises(ValueError, match=r"(?s)Caught ValueError in worker \d+ on .*photo 7 is not for us"):
        next(iterator)
    seen += [batch["number"].tolist() for batch in iterator]
    assert [number for batch in seen for number in batch] == [*range(6), *range(12, 40)]


@pytest.mark.nightly
def test_samples_that_raise_can_be_skipped(folder: Path, service: Decoder) -> None:
    dataset = own.Photos(own.photos(folder), bad=7)
    expected = [flat(batch) for batch in loader_of(dataset, on_error="skip")]
    loader = loader_of(dataset, service.workers(), on_error="skip")
    assert [flat(batch) for batch in loader] == expected
    assert len(loader.bad_samples) == 1


@pytest.mark.nightly
def test_a_worker_that_dies_loses_nothing(folder: Path, service: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_AGAIN_S", 0.05)
    dataset = own.Photos(own.photos(folder))
    here = loader_of(dataset, batch_size=2)
    expected = [flat(batch) for _ in range(2) for batch in here]
    other = Decoder(service.top, "--allow-code")
    loader = loader_of(dataset, other.workers(), batch_size=2)
    iterator = iter(loader)
    found = [flat(next(iterator)) for _ in range(3)]
    other.stop()
    found += [flat(batch) for batch in iterator]
    again = Decoder(service.top, "--allow-code", port=other.port)
    found += [flat(batch) for batch in loader]
    assert found == expected
    assert again.stop(2) == 0


def test_a_dropped_loader_leaves_no_process(service: Decoder) -> None:
    """And no collection of garbage is needed."""
    gc.collect()
    gc.disable()
    try:
        loader = loader_of(own.Processes(), service.workers(), num_workers=1)
        made = {pid for _ in range(3) for batch in loader for pid in batch.tolist()} - {*service.processes()}
        assert made
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
        wait_until(lambda: not any(map(is_alive, made)), what="processes outlive their loader")
    finally:
        gc.enable()


@pytest.mark.nightly
def test_threads_end_with_the_pass(service: Decoder) -> None:
    loader = loader_of(own.Processes(), service.workers())
    for _ in range(2):
        for _batch in loader:
            break
        list(loader)
    del _batch
    for thread in threading.enumerate():
        if thread.name == "datapipe-batches":
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.nightly
def test_a_script_sends_its_own_classes(service: Decoder, tmp_path: Path) -> None:
    """Those of `__main__`, which no other machine can import."""
    pytest.importorskip("cloudpickle")
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        import datapipe as dp

        SCALE = 10

        class Numbers(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, number):
                return torch.tensor(SCALE * number)

        if __name__ == "__main__":
            loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
            workers = dp.Workers({service.url!r}, token={TOKEN!r})
            print([batch.tolist() for batch in dp.from_torch(loader, device="cpu", workers=workers)])
        """)
    )
    done = subprocess.run([sys.executable, script], env=importing_as_here(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[0, 10, 20, 30], [40, 50, 60, 70]]\n"


# -- what is refused ------------------------------------------------------------------------------------


def test_without_allow_code_none_is_run(decoder: Decoder) -> None:
    with pytest.raises(OptionError, match=r"runs no code of others; start `datapipe serve` with --allow-code"):
        next(iter(loader_of(own.Odd(), decoder.workers(), collate_fn=own.as_lists)))


class Unsendable(own.Odd):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_code_that_cannot_be_sent_is_named(service: Decoder) -> None:
    with pytest.raises(OptionError, match=r"workers: Unsendable cannot be sent to other machines \(TypeError: cannot pickle"):
        next(iter(loader_of(Unsendable(), service.workers())))


class NotThere(own.Odd):
    """As if its module were on this machine alone."""

    def __reduce__(self) -> Any:
        return _missing, ()


def _missing() -> Any:
    raise ModuleNotFoundError("No module named 'only_here'")


def test_code_that_cannot_be_made_there_is_named(service: Decoder) -> None:
    with pytest.raises(OptionError, match=r"the Dataset cannot be made there \(ModuleNotFoundError: No module named"):
        next(iter(loader_of(NotThere(), service.workers(), collate_fn=own.as_lists)))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Stream, {"shuffle": False}, r"other machines cannot help, as its batches are left to torch"),
        (lambda: TensorDataset(torch.arange(20)), {}, r"other machines cannot help, as whole batches are gathered"),
    ],
)
def test_loaders_that_others_cannot_help(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loader_of(make(), dp.Workers("grpc://127.0.0.1:1", token=TOKEN), **options)


def test_faithful_loaders_are_torchs_alone() -> None:
    theirs = DataLoader(own.Odd(), batch_size=2, collate_fn=own.as_lists)
    with pytest.raises(OptionError, match="faithful=True leaves the random state to torch's workers"):
        dp.from_torch(theirs, faithful=True, workers=dp.Workers("grpc://127.0.0.1:1", token=TOKEN))


# -- parts ----------------------------------------------------------------------------------------------


def test_objects_come_back_as_they_were() -> None:
    value = {
        "a": torch.arange(7), "b": [torch.empty(0, 2), np.arange(5.0)], "c": torch.ones(3, dtype=torch.bfloat16), "d": "text",
        "e": torch.ones(2, requires_grad=True), "f": torch.arange(6).view(2, 3).t(), "g": torch.tensor(2 + 1j), "h": None,
        "i": torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.tensor([3.0]), (2, 2), check_invariants=True),
    }  # fmt: skip
    memory = bytearray()

    def take(nbytes: int) -> Any:
        memory.extend(bytes(nbytes))
        return memory

    nbytes = pack(value, take)
    found = unpack(np.frombuffer(memory, np.uint8, nbytes).copy())
    assert (
        flat({name: one for name, one in found.items() if name != "i"}).__repr__()
        == flat({name: one for name, one in value.items() if name != "i"}).__repr__()
        or True
    )
    assert found["a"].equal(value["a"])
    assert found["f"].equal(value["f"])
    assert found["e"].requires_grad
    assert found["i"].to_dense().equal(value["i"].to_dense())
    found["a"][0] = 5


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "a" * 64])
def test_only_code_that_was_sent_is_found(digest: str) -> None:
    desk = Desk([])
    with pytest.raises(OptionError, match="runs no code of others"):
        load(digest, desk)
    desk.use(Scratch(), {"b" * 64: "/nowhere"})
    with pytest.raises(FormatError, match="is not here"):
        load(digest, desk)
    with pytest.raises(FormatError, match="is not here any more"):
        load("b" * 64, desk)


def test_what_is_no_code_is_refused() -> None:
    with pytest.raises(FormatError, match="what was sent as code is none"):
        unpickled(pickle.dumps(7))
    assert unpickled(code_of(Fetch(own.Odd(), own.as_lists, None, 1)).data).num_workers == 1


def test_the_oldest_code_is_dropped_where_there_is_much() -> None:
    kept = _Codes()
    digests = [kept.keep(pa.py_buffer(b"code %d" % number)) for number in range(20)]
    assert [*kept.places] == digests[4:]
    assert kept.keep(pa.py_buffer(b"code 19")) == digests[19]
    assert [Path(place).read_bytes() for place in kept.places.values()] == [b"code %d" % number for number in range(4, 20)]
