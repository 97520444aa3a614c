"""Choose which backend reads a table, and say why.

A backend that a user names is used or refused. With "auto" Arrow serves a CPU; for a GPU Arrow and cuDF are measured on the table
at hand, unless cuDF is ruled out.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from datapipe.backends.pytree import tensors_of
from datapipe.backends.tables_cudf.library import VERSIONS, library
from datapipe.backends.tables_cudf.support import problem_for_cudf
from datapipe.columns.layout import MatrixLayout
from datapipe.core.environment import version_of
from datapipe.core.errors import DependencyError, OptionError
from datapipe.core.printable import get_logger
from datapipe.core.user_cache import RATES, remembered
from datapipe.index.tables import TableIndex
from datapipe.loader.calibration import measure

TableBackend = Literal["auto", "tables_arrow", "tables_cudf"]
TABLE_BACKENDS: tuple[TableBackend, ...] = ("auto", "tables_arrow", "tables_cudf")
_MEASURED: tuple[TableBackend, ...] = ("tables_arrow", "tables_cudf")
_CUDF_LEAD = 1.3  # how much faster cuDF must be: it takes part of the GPU from the network that trains there
_VERSIONS = ("gpu-datapipe", "torch", "pyarrow", *VERSIONS)

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The chosen backend. `uses_cudf`: tables_cudf, else tables_arrow."""

    uses_cudf: bool
    reason: str

    @property
    def backend(self) -> str:
        return "tables_cudf" if self.uses_cudf else "tables_arrow"


def choose_table_backend(
    backend: TableBackend,
    device: torch.device,
    *,
    index: TableIndex,
    layout: MatrixLayout,
    has_cache: bool,
    rates: Callable[[], Mapping[str, float]],
) -> TableChoice:
    """Decide. `rates`: measures rows/s of each backend; called only if the choice needs it.

    Warns if a GPU would be served by cuDF and cuDF is not installed. Raises OptionError or DependencyError if cuDF is requested
    and cannot serve the loader.
    """
    if backend == "tables_arrow":
        return TableChoice(False, "asked for")
    problem = "a cache keeps rows in host memory" if has_cache else problem_for_cudf(index, layout)
    if backend == "tables_cudf":
        if device.type != "cuda":
            raise OptionError(
                f"backend='tables_cudf' needs a GPU, and device is {device}; pass device='cuda', or leave out backend"
            )
        if problem is not None:
            raise OptionError(f"backend='tables_cudf': {problem}; pass backend='tables_arrow', which reads it")
        library()
        return TableChoice(True, "asked for")
    if device.type != "cuda":
        return TableChoice(False, "cuDF needs a GPU")
    if problem is not None:
        return TableChoice(False, f"cuDF cannot: {problem}")
    try:
        library()
    except DependencyError as exc:
        warnings.warn(f"tables are read on the CPU: {exc}", RuntimeWarning, stacklevel=5)
        return TableChoice(False, f"the GPU would need cuDF: {exc}")
    found = rates()
    figures = ", ".join(f"{name} {rate:.3g}" for name, rate in sorted(found.items(), key=lambda item: -item[1]))
    reason = f"measured here, rows/s: {figures}; cuDF must be {_CUDF_LEAD:g} times as fast, as it takes the network's GPU"
    return TableChoice(found["tables_cudf"] > _CUDF_LEAD * found["tables_arrow"], reason)


def measured_rates(
    open_loader: Callable[[TableBackend], Iterable[Any]], *, device: torch.device, circumstances: Mapping[str, Any]
) -> dict[str, float]:
    """Return rows/s of each backend, from the cache if they were measured before under the same circumstances.

    All are measured in order and then in reverse, and the better figure of each counts: only the first reads what the kernel has
    not cached yet.
    """

    def make() -> dict[str, float]:
        logger.info("measuring backends once on this machine; pass backend=... to choose one yourself")
        found = [(backend, measure(_counted(open_loader(backend)))) for backend in (*_MEASURED, *reversed(_MEASURED))]
        return {backend: max(rate for name, rate in found if name == backend) for backend in _MEASURED}

    about = {
        **circumstances,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {name: version_of(name) for name in _VERSIONS},
    }
    return remembered(RATES, about, make=make, parse=lambda found: {name: float(found[name]) for name in _MEASURED})


def _counted(loader: Iterable[Any]) -> Iterator[tuple[Any]]:
    """Yield one tensor of each batch, for ever: its length is the number of rows."""
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        yield (next(iter(tensors_of(batch))),)
