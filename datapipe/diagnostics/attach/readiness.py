"""How many batches have arrived and wait to be handed out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def num_ready(iterator: Any) -> int | None:
    """Of an iterator of torch's with workers, or of ours; None where it cannot be told.

    Where the batch that is waited for has not arrived, those behind it are counted only while they are in the
    queue, in which nobody can see which they are.
    """
    with suppress(Exception):
        tasks = getattr(iterator, "_task_info", None)
        if tasks is not None:
            num, next_index = 0, iterator._rcvd_idx
            while len(tasks.get(next_index + num, ())) == 2:
                num += 1
            return num + int(iterator._data_queue.qsize())
        ours = getattr(iterator, "_tasks", None)
        if ours is not None and getattr(iterator, "_board", None) is not None:
            num = 0
            for task in ours:
                if not task.done.is_set():
                    break
                num += 1
            return num
    return None
