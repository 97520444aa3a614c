"""Data that copies in other processes open again, at the versions of its places at which it was opened here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

from datapipe.core.pinning import opened_at
from datapipe.kernel.kind import Data
from datapipe.kernel.mixing import Mixture

_Making = tuple[Callable[..., Any], tuple[Any, ...]]


class ReopenedData(Data):
    """Data whose copies are made by a function of picklable arguments, at the versions of its places."""

    mixture: Mixture | None = None

    @abstractmethod
    def _making(self) -> _Making:
        """Return the function that makes a copy, and its arguments."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_at, (dict(self._versions), *self._making())

    def at(self, versions: Mapping[str, str], /) -> Self | None:
        """Return the same data at other versions of its places; None for a mixture, whose shares are of its parts as they are."""
        return None if self.mixture is not None else _made_at(versions, *self._making())


def _made_at(versions: Mapping[str, str], make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    with opened_at(versions):
        return make(*args)
