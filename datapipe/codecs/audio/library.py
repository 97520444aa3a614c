"""Import soundfile and soxr, the extra `audio`."""

from __future__ import annotations

import functools
from typing import Any

from datapipe.core.environment import install_command
from datapipe.errors import DependencyError


@functools.cache
def import_soundfile() -> Any:
    """Return soundfile, which decodes. Raises DependencyError, with the remedy, if it is not installed or does not load."""
    try:
        import soundfile
    except (ImportError, OSError) as exc:  # OSError: its library libsndfile is missing
        raise DependencyError(f"sound needs soundfile, which does not load ({exc}); {install_command('audio')}") from exc
    return soundfile


@functools.cache
def import_soxr() -> Any:
    """Return soxr, which resamples. Raises DependencyError, with the remedy, if it is not installed or does not load."""
    try:
        import soxr
    except ImportError as exc:
        raise DependencyError(f"resampling needs soxr, which does not load ({exc}); {install_command('audio')}") from exc
    return soxr
