"""Measurements around `next()` of every kind of loader: once for each batch, without changing the loader's behaviour."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import pickle
import queue
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attach_datasets as data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from attach_watch import Calls, attached
from fixtures import make_folder
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

import datapipe as dp
from datapipe import transforms as T
from datapipe.core.observe import Stage
from datapipe.errors import LifecycleError
from datapipe.instruments.attach import loaders
from datapipe.instruments.attach import ours as complaints
from datapipe.instruments.attach.passes import num_ready
from datapipe.instruments.measure.bracket import ThreadBracket
from datapipe.instruments.measure.clock import HostClock

NUM_BATCHES = 6


def loader_of(**options: Any) -> DataLoader[Any]:
    return DataLoader(data.Numbers(), **({"batch_size": 8} | options))


def num_brackets(calls: Calls) -> tuple[int, int]:
    return calls.num("begin"), calls.num("end")


def test_the_loader_inside_what_from_torch_returns_has_its_batch_size() -> None:
    """Its batch sampler is ours; a comparison would know no rate of samples without."""
    batches = torch.utils.data.BatchSampler(range(16), batch_size=4, drop_last=False)
    for made, expected in ((loader_of(), 8), (DataLoader(data.Numbers(), batch_sampler=batches), 4)):
        with attached() as calls:
            assert len(list(dp.from_torch(made, device="cpu"))) > 0
        assert [facts.batch_size for facts in calls.facts] == [expected]


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_next_is_bracketed_once(num_workers: int) -> None:
    with attached() as calls:
        assert len(list(loader_of(num_workers=num_workers))) == NUM_BATCHES
        gc.collect()
    pairs = [("begin", 0), ("end", 0)] * NUM_BATCHES
    assert calls.log[: 2 * NUM_BATCHES + 2] == [*pairs, ("begin", 0), ("stop", 0)]
    assert {what for what, _ in calls.log[2 * NUM_BATCHES + 2 :]} <= {"stop"}


def test_a_pass_that_is_left_is_stopped() -> None:
    with attached() as calls:
        for _ in loader_of():
            break
        gc.collect()
        assert calls.log == [("begin", 0), ("end", 0), ("stop", 0)]


def test_iterators_stay_what_they_are() -> None:
    with attached():
        loader = loader_of(num_workers=2, persistent_workers=True)
        iterator = iter(loader)
        assert type(iterator) is _MultiProcessingDataLoaderIter
        assert loader._iterator is iterator
        next(iterator)
        assert len(iterator) == len(loader) == NUM_BATCHES
        assert iterator._num_workers == 2
        assert iter(iterator) is iterator
        assert iter(loader) is iterator
        iterator._shutdown_workers()


def test_loaders_show_nothing() -> None:
    options = {"batch_size": 8, "collate_fn": data.slow_collate, "worker_init_fn": print}
    alone = vars(DataLoader(data.Numbers(num=1), **options))
    with attached():
        loader = DataLoader(data.Numbers(num=1), **options)
        list(loader)
        seen = vars(loader)
        assert list(seen) == list(alone)
        assert loader.collate_fn is data.slow_collate
        assert loader.worker_init_fn is print
        assert list(inspect.signature(DataLoader.__init__).parameters)[:4] == ["self", "dataset", "batch_size", "shuffle"]
        copied = pickle.loads(pickle.dumps(loader))
        assert list(vars(copied)) == list(alone)


def test_nothing_happens_without_a_session() -> None:
    with attached():
        loader = loader_of()
    assert type(iter(loader)._collate_fn) is types.FunctionType  # type: ignore[attr-defined]
    assert len(list(loader)) == NUM_BATCHES


class Generating(DataLoader[Any]):
    """A loader over its own base class, as many libraries make them: one batch ahead."""

    def __iter__(self) -> Any:
        ahead = None
        for batch in super().__iter__():
            if ahead is not None:
                yield ahead
            ahead = batch
        yield ahead


class InBackground(DataLoader[Any]):
    """A loader with a thread of its own that runs ahead."""

    def __iter__(self) -> Any:
        batches: queue.Queue[Any] = queue.Queue(2)
        inner = super().__iter__()

        def run() -> None:
            for batch in inner:
                batches.put(batch)
            batches.put(None)

        thread = threading.Thread(target=run)
        thread.start()
        return Draining(batches, thread)


class Draining:
    def __init__(self, batches: queue.Queue[Any], thread: threading.Thread) -> None:
        self.batches, self.thread = batches, thread

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self.batches.get()
        if batch is None:
            self.thread.join()
            raise StopIteration
        return batch


@pytest.mark.parametrize("kind", [Generating, InBackground])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_of_loaders_within_loaders_the_outermost_is_measured(kind: Any, num_workers: int) -> None:
    with attached() as calls:
        loader = kind(data.Numbers(), batch_size=8, num_workers=num_workers)
        iterator = iter(loader)
        assert isinstance(iterator, types.GeneratorType if kind is Generating else Draining)
        assert len(list(iterator)) == NUM_BATCHES
    assert num_brackets(calls) == (NUM_BATCHES + 1, NUM_BATCHES)
    assert len(calls.passes) == 1
    assert [profile.step for profile in calls.profiles] == list(range(NUM_BATCHES))
    assert [facts.kind.rpartition(".")[2] for facts in calls.facts] == [kind.__name__]


def test_a_stand_in_passes_everything_on() -> None:
    class Yielding(DataLoader[Any]):
        def __iter__(self) -> Any:
            got = yield torch.zeros(1)
            yield got

    with attached():
        iterator = iter(Yielding(data.Numbers()))
        next(iterator)
        assert iterator.send("sent") == "sent"
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)
        background = iter(InBackground(data.Numbers(num=1)))
        background.mark = 1
        assert background.mark == 1
        assert repr(background).startswith("<test_attach_loaders.Draining")
        assert len(list(background)) == 1


def test_validation_is_told_from_training_and_loaders_by_where_they_were_made() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached() as calls:
        training, validation = loader_of(), loader_of()
        for _ in range(2):
            for batch in training:
                model(batch).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for batch in validation:
                    model(batch)
    assert [(p.loader, p.is_evaluation) for p in calls.passes] == [(0, False), (1, True)] * 2
    assert calls.num_updates == 2 * NUM_BATCHES
    made = inspect.getsourcelines(loader_of)[1] + 1
    assert {facts.site for facts in calls.facts} == {f"{__file__}:{made}"}
    assert [facts.key for facts in calls.facts] == [0, 1]
    facts = calls.facts[0]
    assert (facts.batch_size, facts.num_workers, facts.is_iterable, facts.in_order) == (8, 0, False, True)
    assert facts.dataset == "attach_datasets.Numbers"


def test_ready_batches_are_counted() -> None:
    with attached() as calls:
        iterator = iter(loader_of(num_workers=2, prefetch_factor=2))
        deadline = time.monotonic() + 30
        while num_ready(iterator) != 4 and time.monotonic() < deadline:  # all requested batches
            time.sleep(0.01)
        list(iterator)
        list(loader_of())
    assert calls.passes[0].num_ready[0] == 4
    assert calls.passes[0].num_ready[-1] == 0
    assert calls.passes[1].num_ready[0] is None


class Raising:
    """A meter with nothing right in it."""

    def open_pass(self, **_: Any) -> Any:
        return self

    is_evaluation = False

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"planted in {name}")


class RaisingAtOnce:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"planted in {name}")


@pytest.mark.parametrize("broken", [Raising, RaisingAtOnce])
@pytest.mark.parametrize("kind", [DataLoader, Generating])
def test_a_broken_meter_costs_its_figures_only(broken: Any, kind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    complaints._told.clear()
    with attached(broken()):
        for _ in range(2):
            assert len(list(kind(data.Numbers(), batch_size=8))) == NUM_BATCHES
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2, err  # once, not for every batch
    assert all("planted" in line and line.endswith("the script continues") for line in lines)


@pytest.mark.nightly
def test_the_bracket_is_a_meter() -> None:
    bracket = ThreadBracket(HostClock())
    with attached(bracket):
        for _ in range(2):
            list(loader_of(num_workers=2))
            with torch.no_grad():
                list(loader_of())
        gc.collect()
        bracket.finish()
    steps = bracket.timeline.steps()
    assert bracket.timeline.training.num_steps == (~steps["is_evaluation"]).sum() == 2 * NUM_BATCHES
    assert steps["is_evaluation"].sum() == 2 * NUM_BATCHES
    assert (steps["is_first"] & ~steps["is_evaluation"]).sum() == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_loader_tells_of_its_stages(tmp_path: Path, num_workers: int) -> None:
    make_folder(tmp_path / "set", num=7, size=(20, 24))
    seen: list[Stage] = []
    with attached() as calls:
        loader = dp.DataLoader(tmp_path / "set", batch_size=2, num_workers=num_workers, transform=[T.RandomResizedCrop(16)])
        loader.observe(lambda event: seen.append(event.stage))
        alone = [images.clone() for images, _ in loader]
        wrapped = dp.prefetch(loader, "cpu")
        loader.set_epoch(0)
        assert all(torch.equal(a, b) for a, (b, _) in zip(alone, wrapped, strict=True))
    num = len(alone)
    assert num_brackets(calls) == (2 * num + 2, 2 * num)
    assert [stage for stage in seen if stage is Stage.WAIT] == [Stage.WAIT] * 2 * num  # whom it told before, it tells still
    assert {event.stage for key, event in calls.stages if key == 0} >= {Stage.READ, Stage.DECODE, Stage.WAIT}
    assert [facts.site is not None for facts in calls.facts] == [True, True]


def test_a_script_is_attached_by_each_loader_that_is_measured() -> None:
    """The module that runs first in a script's process cannot import the list; it names modules and a file that exist."""
    tree = ast.parse((Path(loaders.__file__).parent / "boot" / "sitecustomize.py").read_text())
    (named,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LOADERS"]
    assert set(ast.literal_eval(named)) == set(loaders._LOADERS)
    for name in loaders._LOADERS:
        module = importlib.import_module(name)
        assert all(hasattr(module, own) for group in loaders._LOADERS[name] for own in group)
    (joined,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "patching.py" in ast.unparse(node)]
    parts = [part.value for part in joined.args if isinstance(part, ast.Constant)]
    assert Path(dp.__path__[0]).parent.joinpath(*parts).is_file()


def test_our_table_loader_tells_of_its_stages(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(8.0, dtype=np.float32)}), tmp_path / "t.parquet")
    with attached() as calls:
        num = len(list(dp.TableLoader(tmp_path / "t.parquet", batch_size=4)))
    assert num == 2
    assert {event.stage for _, event in calls.stages} >= {Stage.READ, Stage.DECODE, Stage.WAIT}


def test_torch_iterators_are_known_by_their_base() -> None:
    with attached():
        assert isinstance(iter(loader_of()), _BaseDataLoaderIter)


def test_one_attachment_at_a_time() -> None:
    with attached() as calls, pytest.raises(LifecycleError, match="already"), attached():
        pass
    assert calls.num_finished == 0  # its watch was never opened
    with attached() as calls:
        list(loader_of())
    assert calls.num_finished == 1


def test_a_step_costs_little() -> None:
    """CPU time of the training thread beside that of a bare loop; the least of several, as other processes run too."""

    def step_ns() -> float:
        iterator = iter(DataLoader(data.Numbers(num=2000), batch_size=8))
        next(iterator)
        start_ns = time.thread_time_ns()
        num = sum(1 for _ in iterator)
        return (time.thread_time_ns() - start_ns) / num

    def attached_step_ns() -> float:
        with attached(ThreadBracket(HostClock())):
            return step_ns()

    rounds = [(step_ns(), attached_step_ns()) for _ in range(7)]
    alone_ns, ours_ns = (min(times) for times in zip(*rounds, strict=True))
    assert ours_ns - alone_ns < 3 * alone_ns
