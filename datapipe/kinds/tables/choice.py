"""Choose which backend reads a table, and say why.

A backend that a user names is used or refused. With "auto" Arrow serves a CPU; for a GPU Arrow and cuDF are measured on the table
at hand, unless cuDF is ruled out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from datapipe.columns.layout import MatrixLayout
from datapipe.core.deprecation import warn_deprecated
from datapipe.errors import DependencyError, OptionError
from datapipe.index.tables import TableIndex
from datapipe.kernel.calibration import ranked
from datapipe.kinds.tables.cudf.library import VERSIONS, library
from datapipe.kinds.tables.cudf.support import problem_for_cudf

TableBackend = Literal["auto", "tables_arrow", "tables_cudf"]
TABLE_BACKENDS: tuple[TableBackend, ...] = ("auto", "tables_arrow", "tables_cudf")
MEASURED: tuple[TableBackend, ...] = ("tables_arrow", "tables_cudf")
_CUDF_LEAD = 1.3  # how much faster cuDF must be: it takes part of the GPU from the network that trains there
PACKAGES = ("gpu-datapipe", "torch", "pyarrow", *VERSIONS)  # whose versions decide the rates


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The chosen backend. `uses_cudf`: tables_cudf, else tables_arrow."""

    uses_cudf: bool
    reason: str

    @property
    def backend(self) -> str:
        return "tables_cudf" if self.uses_cudf else "tables_arrow"

    def __call__(self) -> TableChoice:
        """Return itself: in 0.1 a loader's `choice` was a method."""
        warn_deprecated("loader.choice()", "loader.choice", stacklevel=2)
        return self


def choose_table_backend(
    backend: TableBackend,
    device: torch.device,
    *,
    index: TableIndex,
    layout: MatrixLayout,
    has_cache: bool,
    rates: Callable[[], list[float]],
) -> TableChoice:
    """Decide. `rates`: measures rows/s of each of MEASURED; called only if the choice needs it.

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
        return TableChoice(False, "cuDF needs an NVIDIA GPU")
    if problem is not None:
        return TableChoice(False, f"cuDF cannot: {problem}")
    try:
        library()
    except DependencyError as exc:
        warnings.warn(f"tables are read on the CPU: {exc}", RuntimeWarning, stacklevel=5)
        return TableChoice(False, f"the GPU would need cuDF: {exc}")
    found = dict(zip(MEASURED, rates(), strict=True))
    reason = f"measured here, rows/s: {ranked(found)}; cuDF must be {_CUDF_LEAD:g} times as fast, as it takes the network's GPU"
    return TableChoice(found["tables_cudf"] > _CUDF_LEAD * found["tables_arrow"], reason)
