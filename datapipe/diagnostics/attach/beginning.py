"""Attaches a process that was started under an attachment. Called by `boot/sitecustomize.py`."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

from datapipe.diagnostics.attach import loaders, ours
from datapipe.diagnostics.attach.applying import apply
from datapipe.diagnostics.attach.complaints import complain
from datapipe.diagnostics.attach.environment import WATCH
from datapipe.diagnostics.attach.session import Session
from datapipe.diagnostics.attach.settings import settings_from
from datapipe.diagnostics.attach.watching import Hooks, OpenWatch, Watch


def begin(module: ModuleType) -> None:
    """Have the loaders of `module`, which has just been imported, measured as the environment says.

    torch itself may still be half imported: nothing of it is used here.
    """
    if loaders.current_session() is None:
        loaders.set_session(Session(_named(os.environ[WATCH])))
        if ours.is_name_taken():
            complain("a package of yours is called 'datapipe' too, so there is no look inside loaders")
            ours.step_aside()
        elif PathFinder.find_spec("datapipe", sys.path) is None:
            sys.path.append(str(ours.ROOT))  # workers that are not forked import us by name
    applied = settings_from(os.environ).applied
    if applied is not None and module.__name__ == "torch.utils.data.dataloader":
        apply(module, applied)
    loaders.patch(module)


def _named(name: str) -> OpenWatch:
    """module:function, imported when it is needed."""
    module, _, function = name.partition(":")

    def open_watch(hooks: Hooks) -> Watch:
        opened: Watch = getattr(importlib.import_module(module), function)(hooks)
        return opened

    return open_watch
