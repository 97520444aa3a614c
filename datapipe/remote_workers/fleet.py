"""`Fleet`: the workers of a loader, whose seats decode threads borrow, while those that are gone are looked for again.

A worker works on several requests at once; each is a *seat*, with a connection of its own. A thread borrows a seat for a piece. A
worker that does not answer, or not in time, loses its seats: the piece goes to another, or is made by the thread itself, and a
thread of the fleet asks the worker, ever less often, until it answers again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.printable import counted, get_logger
from datapipe.core.versions import DECODING, differing, versions
from datapipe.errors import BackendError, DatapipeError, DependencyError, FormatError, OptionError
from datapipe.kernel.options import default_num_workers
from datapipe.remote_workers.connection import Address, Connection, LateError, LostError, UnableError
from datapipe.remote_workers.ray_workers import begun
from datapipe.remote_workers.settings import Workers, addresses
from datapipe.remote_workers.wire import SEATS, ZEROS, Hello, Zeros, num_bad, packed_request

_HELLO_S = 10.0  # to answer when a loader begins
_BEGIN_S = 30.0  # for Ray to begin a worker meanwhile, which takes some 5 s where a node has free cores
_FIRST_S = 60.0  # for the first piece, which may open files, and import what decodes them
_LEAST_S, _PATIENCE = 2.0, 8.0  # for others: so many times what the slowest of late took, and at least so long
_MOST_PATIENCE = 64.0  # of a worker that was late again and again
_MOST_SEATS = 1024  # of a worker
_FORGETTING = 0.9  # how much of the slowest one is remembered with each piece
_AGAIN_S, _SELDOM_S = 0.5, 30.0  # between attempts to find a worker again: at least, and at most
_SHARE = 0.1  # of the time for which it has been gone, between attempts
_SAME_DATA = "it must see the same data at the same path, below one of the roots that `datapipe serve` was started with"
_MOST_TRIES = 3  # workers that are asked for one piece, and times that one is asked what it finds
_ZEROS = (8, 1 << 20)  # rows, and bytes of each, of a request by which the network is measured

T = TypeVar("T")

logger = get_logger(__name__)


class Place(Protocol):
    """A worker that may be at another address whenever it is looked for."""

    @property
    def name(self) -> str:
        """The worker in words."""

    @property
    def cores(self) -> int | None:
        """Its cores, None: it is the first to say."""

    def find(self, timeout_s: float) -> Address:
        """Return where it listens now. Raises LostError if it is nowhere yet, DependencyError if it cannot be begun."""


@dataclass(frozen=True, slots=True)
class FixedPlace:
    """A worker that a user started."""

    address: Address
    cores: None = None

    @property
    def name(self) -> str:
        return self.address.place

    def find(self, timeout_s: float) -> Address:
        return self.address


class Worker:
    """A worker as the fleet knows it. Guarded by the fleet's lock."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.hello: Hello | None = None  # what it said of itself last
        self.free: list[Connection] = []  # seats
        self.is_here = False
        self.generation = 0  # counts its comings, so that seats of an earlier one are dropped
        self.num_taken = 0  # seats
        self.slowest_s = 0.0  # lately; 0: it has made nothing yet
        self.patience = _PATIENCE
        # Made for this loader:
        self.num_pieces = self.num_rows = self.num_nbytes = 0

    @property
    def timeout_s(self) -> float:
        """How long a piece may take."""
        return max(_LEAST_S, self.patience * self.slowest_s) if self.slowest_s else _FIRST_S

    @property
    def num_seats(self) -> int | None:
        """The requests that it works on at once; None if that is not known yet."""
        if self.hello is not None:
            return _seats(self.hello)
        return None if self.place.cores is None else SEATS * self.place.cores


class Fleet:
    """The workers of a loader. Thread-safe. In a forked child there are none.

    `paths`: files that workers must find as they are here. `code`: a user's code that they are to run. Greets all workers.
    Raises BackendError if none answers, DependencyError for other versions, OptionError where the token or the code is refused,
    or a file is not the same.
    """

    def __init__(self, workers: Workers, paths: Sequence[str], code: bytes | None = None) -> None:
        self._paths, self._code = sorted({*paths}), code
        self._hello_s = _BEGIN_S if workers.are_rays else _HELLO_S
        self.workers = [Worker(place) for place in _places(workers)]
        self._changed = threading.Condition(threading.Lock())
        self._owner = os.getpid()
        self._here = threading.Semaphore(default_num_workers())
        self._told: set[Place] = set()  # of which it was said that they cannot do something
        with ThreadPoolExecutor(len(self.workers)) as pool:
            problems = list(pool.map(self._problem, self.workers))
        for problem in problems:
            if isinstance(problem, DatapipeError):
                raise problem
        lost = [(worker, problem) for worker, problem in zip(self.workers, problems, strict=True) if problem is not None]
        if workers.are_rays:
            if lost:
                there = f"{len(self.workers) - len(lost)} of {counted(len(self.workers), 'worker')} of Ray"
                logger.warning("%s can be used (%s); the others are used when Ray has begun them", there, lost[0][1])
        elif len(lost) == len(self.workers):
            raise BackendError(f"workers: {lost[0][1]}; start `datapipe serve` there, or leave out workers=")
        else:
            for _, problem in lost:
                logger.warning("%s; it is used when it answers", problem)
        for worker, _ in lost:
            self._look_for(worker)

    @property
    def num_seats(self) -> int:
        """The requests that all workers, when they are there, work on at once. Those not known yet count as the largest."""
        known = [worker.num_seats for worker in self.workers if worker.num_seats is not None]
        return sum(known) + max(known) * (len(self.workers) - len(known))

    @property
    def num_pieces(self) -> int:
        """The pieces that they have made for this loader."""
        return sum(worker.num_pieces for worker in self.workers)

    @property
    def nbytes_of_row(self) -> float:
        """The mean bytes of a row that came from them; 0: none has come."""
        return sum(worker.num_nbytes for worker in self.workers) / max(1, sum(worker.num_rows for worker in self.workers))

    def network_rate(self, seconds: float) -> float:
        """Return the bytes per second that come from all workers that are there, if they make nothing but zeros.

        Uses as many threads as there are seats. Disturbs loaders that use the workers.
        """
        request = packed_request(ZEROS, Zeros(*_ZEROS))

        def receive(_: int) -> int:
            received, out = 0, torch.empty(_ZEROS, dtype=torch.uint8)
            while time.monotonic() < until:
                received += out.nbytes if self.fill(out, request, num_bad) == 0 else 0
            return received

        until = time.monotonic() + seconds
        with ThreadPoolExecutor(self.num_seats) as threads:
            return sum(threads.map(receive, range(self.num_seats))) / seconds

    def describe(self) -> str:
        """Return the workers in words, for `explain`."""
        facts = ("not there" if worker.hello is None else counted(worker.hello.cores, "core") for worker in self.workers)
        return ", ".join(f"{worker.place.name} ({fact})" for worker, fact in zip(self.workers, facts, strict=True))

    def fill(self, out: torch.Tensor, request: bytes, read: Callable[[bytes], T]) -> T | None:
        """Fill a tensor with rows that a worker makes, and return what `read` makes of its answer.

        None: the caller is to make the rows. Waits for a seat as long as a worker is there. `read` raises FormatError for an
        answer that is none.
        """

        def ask(seat: Connection, timeout_s: float) -> tuple[T, int, int]:
            return read(seat.fill(out, request, timeout_s)), len(out), out.nbytes

        return self._asked(ask)

    def row(self, request: bytes) -> NDArray[np.uint8] | None:
        """Return the bytes of the one row that a worker makes; None: the caller is to make it. Waits as `fill` does."""

        def ask(seat: Connection, timeout_s: float) -> tuple[NDArray[np.uint8], int, int]:
            made = seat.row(request, timeout_s)
            return made, 1, made.nbytes

        return self._asked(ask)

    def _asked(self, ask: Callable[[Connection, float], tuple[T, int, int]]) -> T | None:
        """Ask a worker; return what it made. `ask` also returns how many rows and bytes that is."""
        if os.getpid() != self._owner:
            return None
        for _ in range(_MOST_TRIES):
            taken = self._take()
            if taken is None:
                return None
            worker, seat, generation = taken
            began = time.monotonic()
            try:
                made, num_rows, nbytes = ask(seat, worker.timeout_s)
            except LostError as exc:
                self._lose(worker, generation, exc)
                continue
            except (UnableError, OptionError, FormatError) as exc:
                self._give_back(worker, seat, generation)
                self._tell_once(worker.place, f"{exc}; what it cannot do is made here")
                return None
            except BaseException:
                self._lose(worker, generation, LostError(f"{worker.place.name} was asked, which was interrupted"))
                raise
            self._give_back(worker, seat, generation, took_s=time.monotonic() - began, made=(num_rows, nbytes))
            return made
        return None

    def here(self) -> threading.Semaphore:
        """Return the semaphore that a thread holds while it makes rows itself: as many do so at once as there are cores."""
        return self._here

    # -- seats ----------------------------------------------------------------------------------

    def _take(self) -> tuple[Worker, Connection, int] | None:
        """Return a seat of the worker with the largest share of free ones. Waits for one; None: no worker is there."""
        with self._changed:
            while True:
                there = [worker for worker in self.workers if worker.is_here]
                if not there:
                    return None
                free = [worker for worker in there if worker.free]
                if free:
                    worker = max(free, key=lambda one: len(one.free) / (len(one.free) + one.num_taken))
                    worker.num_taken += 1
                    return worker, worker.free.pop(), worker.generation
                self._changed.wait()

    def _give_back(
        self, worker: Worker, seat: Connection, generation: int, *, took_s: float = 0.0, made: tuple[int, int] | None = None
    ) -> None:
        with self._changed:
            if generation != worker.generation or not worker.is_here:
                return
            worker.num_taken -= 1
            worker.free.append(seat)
            if made is not None:
                worker.num_pieces += 1
                worker.num_rows += made[0]
                worker.num_nbytes += made[1]
                worker.slowest_s = max(took_s, _FORGETTING * worker.slowest_s)
            self._changed.notify()

    def _lose(self, worker: Worker, generation: int, why: LostError) -> None:
        """Note that a worker is gone, and look for it."""
        with self._changed:
            if generation != worker.generation or not worker.is_here:
                return  # another thread has noted it
            worker.is_here = False
            worker.free.clear()
            if isinstance(why, LateError):
                worker.patience = min(_MOST_PATIENCE, 2 * worker.patience)
            num_left = sum(one.is_here for one in self.workers)
            self._changed.notify_all()
        if num_left:
            logger.warning("%s; others make its batches until it answers again", why)
        else:
            logger.warning("%s; no worker is left: threads make the batches until one answers again", why)
        self._look_for(worker)

    def _tell_once(self, place: Place, text: str) -> None:
        with self._changed:
            if place in self._told:
                return
            self._told.add(place)
        logger.warning("%s", text)

    # -- greetings ------------------------------------------------------------------------------

    def _problem(self, worker: Worker) -> Exception | None:
        """Greet a worker; return why it cannot be used."""
        try:
            self._greet(worker, self._hello_s)
        except (LostError, UnableError, DatapipeError) as exc:
            return exc
        return None

    def _greet(self, worker: Worker, timeout_s: float) -> None:
        """Greet a worker, and open its seats. Raises LostError, UnableError, DependencyError, OptionError."""
        address = worker.place.find(timeout_s)
        first = Connection(address)
        hello = first.hello(timeout_s)
        skew = differing(f"the worker at {address.place}", hello.versions, _versions_here())
        if skew is not None:
            raise DependencyError(f"{skew}; install the same versions on both, as pixels may depend on them")
        self._look(address.place, first)
        if self._code is not None:
            try:
                first.offer(self._code, _FIRST_S)
            except UnableError as exc:
                raise OptionError(str(exc)) from exc
        seats = [first, *(Connection(address) for _ in range(_seats(hello) - 1))]
        with self._changed:
            worker.hello, worker.free, worker.num_taken, worker.is_here = hello, seats, 0, True
            worker.generation += 1
            self._changed.notify_all()

    def _look(self, place: str, connection: Connection) -> None:
        """Compare files with what a worker finds there. Raises OptionError, with both machines' words, for one that differs."""
        for path, found in zip(self._paths, self._found(connection), strict=False):
            here = os.stat(path).st_size if os.path.exists(path) else None
            if isinstance(found, str):
                there = f"the worker at {place} cannot read it ({found})"
            elif here not in (None, found):
                there = f"has {here:,} bytes here, and {found:,} at the worker at {place}"
            else:
                continue
            raise OptionError(f"{path}: {there}; {_SAME_DATA}")

    def _found(self, connection: Connection) -> Sequence[int | str]:
        """Return what a worker finds of files, asked again where its process ended. Raises LostError, UnableError."""
        for _ in range(_MOST_TRIES - 1):
            with contextlib.suppress(UnableError):
                return connection.look(self._paths, _HELLO_S).found
        return connection.look(self._paths, _HELLO_S).found

    def _look_for(self, worker: Worker) -> None:
        looking = threading.Thread(target=_look_for, args=(weakref.ref(self), worker), name="datapipe-workers", daemon=True)
        looking.start()


def _seats(hello: Hello) -> int:
    """Return how many seats are used of those that a worker says it has."""
    return min(max(1, hello.seats), _MOST_SEATS)


def _places(workers: Workers) -> Sequence[Place]:
    """Return where workers are, of which Ray's are begun now. Raises what `ray_workers.begun` raises."""
    if workers.are_rays:
        return begun(workers)
    trusted = workers.trusted()
    return [FixedPlace(Address(url, workers.secret, trusted)) for url in addresses(workers.places)]


@functools.cache
def _versions_here() -> dict[str, str]:
    return versions(DECODING)


def _look_for(fleet: weakref.ref[Fleet], worker: Worker) -> None:
    """Greet a worker that is gone until it answers, or its loader is gone."""
    gone = time.monotonic()
    while True:
        time.sleep(min(_SELDOM_S, max(_AGAIN_S, _SHARE * (time.monotonic() - gone))))
        found = fleet()
        if found is None:
            return
        try:
            found._greet(worker, _LEAST_S)
        except (LostError, UnableError):
            del found  # not kept alive meanwhile
            continue
        except DatapipeError as exc:
            logger.warning("%s; it is left out", exc)
            return
        logger.info("%s is used again", worker.place.name)
        return
