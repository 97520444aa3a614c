"""The parts of pylibcudf and RMM that reading tables needs. They are imported at the first call, never with datapipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.core.environment import version_of
from datapipe.core.errors import DependencyError

VERSIONS = ("pylibcudf-cu12", "pylibcudf-cu13")


@dataclass(frozen=True, slots=True)
class Library:
    """Functions and classes of pylibcudf and RMM."""

    read_parquet: Any  # pylibcudf.io.parquet.read_parquet
    reader_options: Any  # pylibcudf.io.parquet.ParquetReaderOptions
    source_info: Any  # pylibcudf.io.types.SourceInfo
    is_valid: Any  # pylibcudf.unary.is_valid
    encode: Any  # pylibcudf.transform.encode
    table: Any  # pylibcudf.table.Table
    stream: Any  # rmm.pylibrmm.stream.Stream
    async_memory: Any  # rmm.mr.CudaAsyncMemoryResource


@functools.cache
def library() -> Library:
    """Return the installed cuDF. Raises DependencyError, with the remedy, if there is none or it does not load."""
    found = [name for name in VERSIONS if version_of(name)]
    wanted = 13 if torch.version.cuda is None else int(torch.version.cuda.split(".")[0])
    remedy = f"pip install 'gpu-datapipe[cudf-cu{wanted}]'"
    if len(found) > 1:
        raise DependencyError(f"cuDF is installed twice, for CUDA 12 and 13, in one place; pip uninstall both, then {remedy}")
    try:
        from pylibcudf.io.parquet import ParquetReaderOptions, read_parquet
        from pylibcudf.io.types import SourceInfo
        from pylibcudf.table import Table
        from pylibcudf.transform import encode
        from pylibcudf.unary import is_valid
        from rmm.mr import CudaAsyncMemoryResource
        from rmm.pylibrmm.stream import Stream
    except ModuleNotFoundError as exc:
        if not found:
            raise DependencyError(f"cuDF is not installed; {remedy}") from exc
        raise DependencyError(f"{found[0]} lacks {exc.name}; {remedy}") from exc
    except Exception as exc:  # loaders of shared libraries raise errors of their own
        raise DependencyError(f"cuDF does not load ({str(exc).splitlines()[0]:.160}); {remedy}") from exc
    if torch.version.cuda is not None and found and not found[0].endswith(f"cu{wanted}"):
        raise DependencyError(
            f"{found[0]} is built for another CUDA than this torch ({torch.version.cuda}); pip uninstall it, then {remedy}"
        )
    return Library(read_parquet, ParquetReaderOptions, SourceInfo, is_valid, encode, Table, Stream, CudaAsyncMemoryResource)
