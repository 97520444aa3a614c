"""Make the batches of a torch loader with other machines: whoever is free makes the next one, here in a process, or there.

A batch depends on its request alone, as its samples are seeded, so it is the same wherever it is made. What a worker does not
make (it died, or is late) is made here.
"""

from __future__ import annotations

import functools
import pickle
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data._utils.pin_memory import pin_memory

from datapipe.adapt.loaders import TorchDataLoader
from datapipe.errors import BackendError
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.processes import WorkerEndedError, WorkerProcess, launcher
from datapipe.remote_workers.elsewhere import Elsewhere
from datapipe.remote_workers.own_code import IMPORTS, Code, CodeWork, Fetch, asked, batch_of, code_of
from datapipe.remote_workers.settings import Workers

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet

_START_S = 60.0  # for the launcher of processes
_AHEAD = 2  # batches for each that makes them

Maker = Callable[[int, Any], Any]  # makes the batch of a key, for the worker of a number
Fetched = tuple[int, Any, BaseException | None]  # the batch's number, the batch, its error


class CodeElsewhere:
    """The user's code of one loader on this machine and on others: sent when it is first needed, and kept over passes.

    For the consumer's thread.
    """

    def __init__(self, loader: TorchDataLoader, workers: Workers) -> None:
        self._loader = loader
        sent = self._sent = functools.cache(functools.partial(_code_of_loader, loader))
        self._elsewhere = Elsewhere(code=lambda: sent().data)
        self._elsewhere.use(workers)

    @functools.cached_property
    def _here(self) -> Processes:
        return Processes(self._sent())

    def explain(self) -> list[str]:
        """Return the line of `explain` about the workers."""
        return self._elsewhere.explain("batch")

    def fetch_all(self, keys: Iterator[Any]) -> FetchIterator:
        """Return the batches of a pass. Raises what `Fleet` raises, and OptionError for code that cannot be sent."""
        fleet, here = self._elsewhere.fleet, self._here
        assert fleet is not None
        makers: list[Maker] = [here.make for _ in range(self._loader.num_workers)]
        makers += [functools.partial(_made_elsewhere, fleet, here, self._sent()) for _ in range(self._elsewhere.num_seats)]
        return FetchIterator(keys, makers, self._loader)


def _code_of_loader(loader: TorchDataLoader) -> Code:
    return code_of(Fetch(loader.dataset, loader.collate_fn, loader.worker_init_fn, loader.num_workers))


class Processes:
    """Processes of this machine that run the code. Thread-safe."""

    def __init__(self, code: Code) -> None:
        self._launcher, self._work = launcher(IMPORTS), CodeWork(code.data)
        self._free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()

    def make(self, worker: int, key: Any) -> Any:
        """Make a batch in a process that is free, or in a new one. Raises what the user's code raises, and BackendError."""
        try:
            process = self._taken()
            nbytes, memory = process.ask((worker, pickle.dumps(key, pickle.HIGHEST_PROTOCOL)))
            copied = np.frombuffer(memory, np.uint8, nbytes).copy()
        except WorkerEndedError as exc:
            raise BackendError(
                f"a process that ran the Dataset ended ({exc.__cause__ or exc}): it was killed, perhaps for want of memory"
            ) from exc
        self._free.put(process)
        return batch_of(copied)

    def _taken(self) -> WorkerProcess:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._launcher is None or not self._launcher.wait(_START_S):
                raise BackendError("no processes can be begun for the Dataset; `datapipe doctor`") from None
            return WorkerProcess(self._launcher, self._work)


def _made_elsewhere(fleet: Fleet, here: Processes, code: Code, worker: int, key: Any) -> Any:
    """Have a batch made by a worker on another machine, or here if none makes it. Raises what the user's code raises."""
    made = fleet.row(asked(code, worker, key))
    if made is not None:
        return batch_of(made)
    with fleet.here():
        return here.make(worker, key)


class FetchIterator(Iterator[Any]):
    """The batches of a pass in the order of their keys, which are asked for in the consumer's thread.

    Its threads end when it is closed, exhausted or collected.
    """

    def __init__(self, keys: Iterator[Any], makers: list[Maker], loader: TorchDataLoader) -> None:
        self._keys: Iterator[Any] | None = keys
        self._timeout_s = loader.timeout or None
        self._pins = loader.pin_memory and accelerator() is not None
        self._num_ahead = (loader.prefetch_factor or _AHEAD) * len(makers)
        self._asked: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._early: dict[int, Fetched] = {}  # that came before their turn
        self._num_asked = 0
        self._rcvd_idx = 0  # batches that were handed out, failed ones included, as torch's iterators say it
        self._end = weakref.finalize(self, _end, self._asked, len(makers))
        for number, maker in enumerate(makers):
            work = (number, maker, self._asked, self._made)
            threading.Thread(target=_work, args=work, name="datapipe-batches", daemon=True).start()

    def __next__(self) -> Any:
        self._ask()
        if self._rcvd_idx == self._num_asked:
            self.close()
            raise StopIteration
        while self._rcvd_idx not in self._early:
            try:
                found = self._made.get(timeout=self._timeout_s)
            except queue.Empty:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds") from None
            self._early[found[0]] = found
        _, batch, error = self._early.pop(self._rcvd_idx)
        self._rcvd_idx += 1
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback refers to this frame
        return pin_memory(batch) if self._pins else batch  # type: ignore[no-untyped-call]

    def _ask(self) -> None:
        """Ask for batches until enough are in the making."""
        while self._keys is not None and self._num_asked - self._rcvd_idx < self._num_ahead:
            try:
                key = next(self._keys)
            except StopIteration:
                self._keys = None
                return
            self._asked.put((self._num_asked, key))
            self._num_asked += 1

    def close(self) -> None:
        """End the threads. May be called again."""
        self._keys = None
        self._end()


def _work(number: int, make: Maker, asked: queue.SimpleQueue[Any], made: queue.SimpleQueue[Fetched]) -> None:
    """Make what is asked for, until told to end."""
    while (found := asked.get()) is not None:
        place, key = found
        try:
            made.put((place, make(number, key), None))
        except BaseException as exc:
            made.put((place, None, exc))
        found = key = None


def _end(asked: queue.SimpleQueue[Any], num: int) -> None:
    """Tell threads to end, after what they make now."""
    while True:
        try:
            asked.get_nowait()
        except queue.Empty:
            break
    for _ in range(num):
        asked.put(None)
