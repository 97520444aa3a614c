"""Attaches the process that asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from datapipe.diagnostics.attach import loaders
from datapipe.diagnostics.attach.session import Session
from datapipe.diagnostics.attach.watching import OpenWatch
from datapipe.errors import LifecycleError


@contextlib.contextmanager
def attach_here(open_watch: OpenWatch) -> Iterator[Session]:
    """Measure the loaders that this process iterates within the block; the watch is finished at its end.

    Passes that have begun before are not measured. Raises LifecycleError where the process is attached already.
    """
    if loaders.current_session() is not None:
        raise LifecycleError("this process is being measured already; leave the other block first, or the `diagnose` around it")
    session = Session(open_watch)
    loaders.set_session(session)
    try:
        loaders.patch_all()
        yield session
    finally:
        session.finish()
        loaders.set_session(None)
