"""One measured process: its loaders, and the watch that is notified."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from contextlib import suppress
from typing import Any

from datapipe.core.environment import is_of_datapipe
from datapipe.core.observe import StageEvent
from datapipe.instruments.attach import cuda_hooks
from datapipe.instruments.attach.ours import LISTENERS, complain
from datapipe.instruments.attach.sites import facts_of
from datapipe.instruments.measure.watching import LoaderFacts, Meter, OpenWatch, Watch


class Session:
    """Opens the watch when a loader is first iterated, in a process that is not a loader's worker; finishes it at exit.

    A process forked from a measured one is separate, with its own watch if it iterates a loader.
    """

    def __init__(self, open_watch: OpenWatch) -> None:
        self._open_watch = open_watch
        self._pid: int | None = None  # of the process that opened the watch
        self._begin()

    def _begin(self) -> None:
        self._watch: Watch | None = None
        self._has_failed = False
        self._facts: weakref.WeakKeyDictionary[Any, LoaderFacts] = weakref.WeakKeyDictionary()
        self._num_loaders = self._num_passes = 0

    def watch(self) -> Watch | None:
        """Return this process's watch; None if nothing is to be measured."""
        if self._pid != os.getpid():
            if _is_worker():
                return None
            self._pid = os.getpid()
            self._begin()
        if self._watch is None and not self._has_failed:
            try:
                hooks = cuda_hooks.install(self.meter)
                self._watch = self._open_watch(hooks)
                self._at_exit()
                LISTENERS.append(self._watch.sink.note_trouble)
            except Exception as exc:
                self.fail("nothing is measured", exc)
        return self._watch

    def meter(self) -> Meter | None:
        """Return the meter of the watch, if one is open."""
        watch = self._watch
        return None if watch is None or self._pid != os.getpid() else watch.meter

    def fail(self, what: str, exc: BaseException) -> None:
        """Stop measuring in this process."""
        complain(what, exc)
        self._has_failed = True
        self._watch = None

    def key(self, loader: Any) -> int:
        """Return a loader's number. The sink is notified once."""
        try:
            facts = self._facts.get(loader)
        except TypeError as exc:
            complain("each pass over a loader that cannot be hashed counts as a separate loader", exc)
            facts = None
        if facts is None:
            facts = facts_of(loader, self._num_loaders)
            self._num_loaders += 1
            with suppress(TypeError):
                self._facts[loader] = facts
            if self._watch is not None:
                self._watch.sink.note_loader(facts, loader)
            self._observe(loader, facts.key)
        return facts.key

    def next_pass_id(self) -> int:
        self._num_passes += 1
        return self._num_passes - 1

    def finish(self) -> None:
        """Write the results, if there are any. May be called again."""
        if self._watch is not None and self._pid == os.getpid():
            watch, self._watch, self._has_failed = self._watch, None, True
            LISTENERS.remove(watch.sink.note_trouble)
            try:
                watch.sink.finish()
            except Exception as exc:
                complain("the results are lost", exc)

    def _at_exit(self) -> None:
        atexit.register(self.finish)
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.finish, exitpriority=0)  # such a process exits without `atexit`

    def _observe(self, loader: Any, key: int) -> None:
        """Make a datapipe loader report its stages, in addition to its present observer."""
        before = getattr(loader, "observer", None) if is_of_datapipe(loader) else None
        if before is None:
            return
        watch = self._watch

        def observer(event: StageEvent) -> None:
            before(event)
            try:
                if watch is not None:
                    watch.sink.note_stage(key, event)
            except Exception as exc:
                complain("a stage could not be recorded", exc)

        # A PrefetchedLoader's own `observe` would pass it on to a loader that already has an observer.
        observe = loader.observe_copies if hasattr(type(loader), "observe_copies") else loader.observe
        observe(observer)


def _is_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
