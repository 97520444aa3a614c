"""The parts of pylibcudf and RMM that reading tables needs. They are imported at the first call, never with datapipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.core.environment import install_command, version_of
from datapipe.errors import DependencyError

# Bytes that RMM's pool keeps when they are free: about what a few reads take. RMM's default is never to return any, and memory
# of its pool is lost to torch's allocator.
_KEPT_NBYTES = 1 << 30

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
    plain_memory: Any  # rmm.mr.CudaMemoryResource
    memory_of: Any  # rmm.mr.get_per_device_resource
    set_memory: Any  # rmm.mr.set_per_device_resource


@functools.cache
def library() -> Library:
    """Return the installed cuDF. Raises DependencyError, with the remedy, if there is none or it does not load."""
    found = [name for name in VERSIONS if version_of(name)]
    wanted = 13 if torch.version.cuda is None else int(torch.version.cuda.split(".")[0])
    remedy = install_command(f"cudf-cu{wanted}")
    if len(found) > 1:
        raise DependencyError(f"cuDF is installed twice, for CUDA 12 and 13, in one place; pip uninstall both, then {remedy}")
    try:
        from pylibcudf.io.parquet import ParquetReaderOptions, read_parquet
        from pylibcudf.io.types import SourceInfo
        from pylibcudf.table import Table
        from pylibcudf.transform import encode
        from pylibcudf.unary import is_valid
        from rmm.mr import CudaAsyncMemoryResource, CudaMemoryResource, get_per_device_resource, set_per_device_resource
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
    return Library(
        read_parquet=read_parquet,
        reader_options=ParquetReaderOptions,
        source_info=SourceInfo,
        is_valid=is_valid,
        encode=encode,
        table=Table,
        stream=Stream,
        async_memory=CudaAsyncMemoryResource,
        plain_memory=CudaMemoryResource,
        memory_of=get_per_device_resource,
        set_memory=set_per_device_resource,
    )


def stream_ordered_memory(library: Library, device: torch.device) -> Any:
    """Return RMM's resource of the current device, after replacing RMM's initial one by one that allocates in a stream's order.

    libcudf allocates temporary memory from it, whichever resource a call names for its result (NVIDIA/cudf#20780). The initial
    one is cudaMalloc, whose cudaFree waits for all work on the device, the training's too. The new one returns free memory beyond
    1 GiB to the device at the next synchronisation. What the script has set stays.
    """
    memory = library.memory_of(device.index)
    if type(memory) is library.plain_memory:
        memory = library.async_memory(release_threshold=_KEPT_NBYTES)
        library.set_memory(device.index, memory)
    return memory
