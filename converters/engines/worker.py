"""A worker process of `converters.engines.local`: jobs on standard input, answers on standard output.

Standard output is kept for answers; what a library prints there goes to standard error instead. When standard input ends,
the parent has died, and the process ends at once, even within a shard.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any


def _watch_input(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)


def _jobs() -> Iterator[str]:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_watch_input, args=(lines,), daemon=True).start()
    while True:
        yield lines.get()


def main() -> None:
    """Serve until the parent ends this process."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value).encode() + b"\n")

    from converters.engines.local import worker_main
    from converters.shards import error_to_json

    try:
        worker_main(_jobs(), answer)
    except BrokenPipeError:
        os._exit(1)
    except BaseException as exc:
        answer(error_to_json(exc))


if __name__ == "__main__":
    main()
