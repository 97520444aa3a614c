"""Put the parts of a loader of tables together: from the chosen backend to what its passes share."""

from __future__ import annotations

import torch

from datapipe.backends.device import Uploader
from datapipe.backends.device_runtime import cuda_runtime
from datapipe.backends.slabs import SlabPool
from datapipe.backends.tables_cudf.library import library, stream_ordered_memory
from datapipe.backends.tables_cudf.packing import DevicePacker, PinnedUploads
from datapipe.backends.tables_cudf.reader import CudfReader
from datapipe.columns.layout import MatrixLayout
from datapipe.containers.tables.rows import GroupReader, check_unchanged
from datapipe.core.observe import Observer
from datapipe.index.tables import ColumnKind, TableIndex
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.policy import BadSampleLog
from datapipe.loader.tables.device_parts import DeviceTableParts
from datapipe.loader.tables.host_parts import HostTableParts, MatrixMemory
from datapipe.loader.tables.kept_rows import KeptRows
from datapipe.loader.tables.options import TableOptions

_ROWS_AT_ONCE = 1 << 20  # of row groups that cuDF reads together: fewer do not keep a large GPU busy


def host_parts(
    device: torch.device,
    *,
    index: TableIndex,
    layout: MatrixLayout,
    options: TableOptions,
    bad_samples: BadSampleLog,
    observer: Observer,
    kept: KeptRows | None,
) -> HostTableParts:
    """Return the parts of `tables_arrow`. Call it in the consumer's thread: for a GPU it creates a stream there."""
    runtime = cuda_runtime(device) if device.type == "cuda" else None

    def open_batch_pool(nbytes: int) -> SlabPool:
        if runtime is not None:
            return runtime.pinned_slabs(nbytes, max_free=options.depth + 2)
        return SlabPool(nbytes, max_free=options.depth + 2, pinned=options.pin_memory and torch.cuda.is_available())

    def open_window_pool(nbytes: int) -> SlabPool:
        return SlabPool(nbytes, max_free=2 * max(1, options.window_nbytes // max(1, nbytes)))

    names = [column.name for column in layout.columns]
    texts = [column.name for column in layout.columns if column.kind is ColumnKind.TEXT]
    return HostTableParts(
        index=index,
        layout=layout,
        options=options,
        bad_samples=bad_samples,
        observer=observer,
        batches=[MatrixMemory(matrix, open_pool=open_batch_pool) for matrix in layout.matrices],
        windows=[MatrixMemory(matrix, open_pool=open_window_pool) for matrix in layout.matrices],
        workers=ObjectPool(lambda: GroupReader(names, dictionaries=texts)),
        uploader=None if runtime is None else Uploader(runtime, observer=observer),
        enter_thread=None if runtime is None else runtime.enter_thread,
        kept=kept,
    )


def device_parts(
    device: torch.device,
    *,
    index: TableIndex,
    layout: MatrixLayout,
    options: TableOptions,
    bad_samples: BadSampleLog,
    observer: Observer,
) -> DeviceTableParts:
    """Return the parts of `tables_cudf`. Call it in the consumer's thread: it creates streams there."""
    found, runtime = library(), cuda_runtime(device)
    uploads = PinnedUploads(runtime, max_free=options.depth + 2)
    stream = runtime.new_stream()
    with runtime.under(stream):
        memory = stream_ordered_memory(found, runtime.device)
    return DeviceTableParts(
        index=index,
        layout=layout,
        options=options,
        bad_samples=bad_samples,
        observer=observer,
        workers=ObjectPool(
            lambda: CudfReader(layout.columns, library=found, runtime=runtime, memory=memory, check=check_unchanged)
        ),
        runtime=runtime,
        stream=stream,
        packer=DevicePacker(layout, runtime=runtime, uploads=uploads),
        uploads=uploads,
        pieces_at_once=max(1, _ROWS_AT_ONCE * index.num_groups // max(1, len(index))),
    )
