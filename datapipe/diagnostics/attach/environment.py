"""What a process finds in its environment that was started under an attachment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from datapipe.diagnostics.attach.ours import ROOT
from datapipe.diagnostics.attach.settings import Settings

ROOT_DIRECTORY = "DATAPIPE_ATTACH_ROOT"  # the directory that holds our package; `boot/sitecustomize.py` knows the name
WATCH = "DATAPIPE_ATTACH_WATCH"  # module:function, an OpenWatch
RESULTS = "DATAPIPE_ATTACH_RESULTS"  # the directory where each process writes what it found

_BOOT = Path(__file__).resolve().parent / "boot"


def child_environment(
    environment: Mapping[str, str], results: Path, *, open_watch: str, settings: Settings | None = None
) -> dict[str, str]:
    """`environment`, and what has Python processes that get it attached.

    That is a `sitecustomize` in a directory put first on PYTHONPATH: the one place where Python looks in every
    process, without anything installed. A `.pth` file would have to be written into the user's site-packages.
    """
    python_path = [str(_BOOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(python_path),
        ROOT_DIRECTORY: str(ROOT),
        WATCH: open_watch,
        RESULTS: str(results.resolve()),
        **(settings or Settings()).to_environment(),
    }
