"""Import PyNvVideoCodec, the extra `nvdec`."""

from __future__ import annotations

import functools
from typing import Any

from datapipe.core.environment import install_command
from datapipe.errors import DependencyError

PACKAGE = "PyNvVideoCodec"


@functools.cache
def import_nvdec() -> Any:
    """Return PyNvVideoCodec. Raises DependencyError, with the remedy, if it is not installed or does not load."""
    try:
        import PyNvVideoCodec
    except ModuleNotFoundError as exc:
        if exc.name != PACKAGE:
            raise DependencyError(f"{PACKAGE} lacks {exc.name}; {install_command('nvdec')}") from exc
        raise DependencyError(f"{PACKAGE} is not installed; {install_command('nvdec')}") from exc
    except Exception as exc:  # loaders of shared libraries raise errors of their own
        why = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise DependencyError(f"{PACKAGE} does not load ({why:.160}); it needs NVIDIA's driver with its video libraries") from exc
    return PyNvVideoCodec
