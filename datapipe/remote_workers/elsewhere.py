"""`Elsewhere`: what a kind of data needs to have its pieces made by workers on other machines."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from datapipe.core.printable import counted
from datapipe.kernel.options import LoaderOptions
from datapipe.remote_workers.settings import Workers

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet

LOOKED_AT = 8  # samples, whose files are compared when a worker is greeted


class Elsewhere:
    """The workers of one loader: which are asked for, and their fleet, which is greeted when it is first needed.

    `paths`: returns files that workers must find as they are here. `code`: returns a user's code that they are to run. For the
    consumer's thread.
    """

    def __init__(self, paths: Callable[[], Sequence[str]] = tuple, code: Callable[[], bytes] | None = None) -> None:
        self._paths, self._code = paths, code
        self._workers: Workers | None = None
        self.why = ""  # these workers, or none, were chosen
        self._fleet: Fleet | None = None

    @property
    def is_asked_for(self) -> bool:
        return self._workers is not None

    def use(self, workers: Workers | None) -> None:
        """Use these workers from the next pass on; None: none."""
        if workers != self._workers:
            self._workers, self._fleet = workers, None

    @property
    def fleet(self) -> Fleet | None:
        """The workers, greeted; None: there are none. Raises what `Fleet` raises."""
        if self._fleet is None and self._workers is not None:
            # Arrow Flight takes some 40 ms to import, and few loaders have workers.
            fleets = importlib.import_module("datapipe.remote_workers.fleet")
            self._fleet = fleets.Fleet(self._workers, self._paths(), None if self._code is None else self._code())
        return self._fleet

    @property
    def num_seats(self) -> int:
        """The threads that wait for them."""
        return 0 if self.fleet is None else self.fleet.num_seats

    def making(self, options: LoaderOptions) -> LoaderOptions:
        """Return the user's options with a thread for each seat."""
        return dataclasses.replace(options, num_remote=self.num_seats)

    def explain(self, piece: str) -> list[str]:
        """Return the line of `explain` about them. `piece`: what a seat makes at once, such as "block"."""
        why = f" ({self.why})" if self.why else ""
        if self.fleet is None:
            return [f"elsewhere none{why}"] if why else []
        so_far = f"; {counted(self.fleet.num_pieces, piece)} so far" if self.fleet.num_pieces else ""
        return [f"elsewhere {self.fleet.describe()}: {counted(self.num_seats, piece)} at once{so_far}{why}"]
