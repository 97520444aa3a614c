"""Import PyAV, the extra `video`."""

from __future__ import annotations

import functools
from typing import Any

from datapipe.core.environment import install_command
from datapipe.errors import DependencyError

_OLDEST = 15  # major version


@functools.cache
def import_av() -> Any:
    """Return PyAV. Raises DependencyError, with the remedy, if it is not installed, too old, or does not load."""
    try:
        import av
    except ImportError as exc:
        raise DependencyError(f"videos need PyAV, which is not installed ({exc}); {install_command('video')}") from exc
    if _major(av) < _OLDEST:
        raise DependencyError(f"PyAV {av.__version__} is too old for videos (from {_OLDEST} on); {install_command('video')}")
    return av


def major_version() -> int:
    """Return the major version of PyAV. Raises as `import_av`."""
    return _major(import_av())


def _major(av: Any) -> int:
    return int(av.__version__.split(".")[0])
