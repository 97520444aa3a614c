"""Define the exception tree.

Every error a user can cause derives from `DatapipeError` and from the builtin that callers already
catch for it. Messages say what, where, what was found, and what to do; the command line prints them
without a traceback.
"""

from __future__ import annotations

import copy
import os

from datapipe.core.printable import printable

__all__ = [
    "BackendError",
    "DatapipeError",
    "DecodeError",
    "DependencyError",
    "FormatError",
    "IntegrityError",
    "LifecycleError",
    "MissingDataError",
    "OptionError",
    "StateError",
    "StorageError",
    "UnfinishedError",
]


class DatapipeError(Exception):
    """The root of all errors that datapipe raises on purpose. Its text is one printable line, whatever names it holds."""

    def __str__(self) -> str:
        return printable(super().__str__())


class OptionError(DatapipeError, ValueError):
    """An argument, or a combination of arguments, that cannot be honoured."""


class FormatError(DatapipeError, ValueError):
    """A file is not what its name or its index says it is."""


class DecodeError(DatapipeError, ValueError, OSError):
    """A sample's bytes do not decode: the sample is *bad*. An OSError too, as Pillow's error for such an image."""


class IntegrityError(DatapipeError, ValueError):
    """Bytes differ from the record made when they were written."""


class MissingDataError(DatapipeError, FileNotFoundError):
    """A path, shard or file that should exist does not."""


class MissingSampleError(IntegrityError, MissingDataError):
    """The file of a sample is gone, or no regular file any more: the sample is *bad*."""


class UnfinishedError(DatapipeError, ValueError):
    """A directory in which a conversion is in progress, or was interrupted."""


class StorageError(DatapipeError, OSError):
    """The operating system refused a read or a write (full disk, permissions)."""

    def __str__(self) -> str:
        if self.strerror is None:
            return super().__str__()
        name = self.filename
        where = "" if name is None else f"{os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else name}: "
        return printable(f"{where}{self.strerror}")  # without the error number, which tells people nothing more


class StateError(DatapipeError, ValueError):
    """A saved loader state does not fit the loader that is asked to resume it."""


class LifecycleError(DatapipeError, RuntimeError):
    """An object was used after it was closed, or in a process that does not own it."""


class DependencyError(DatapipeError, ImportError):
    """A package that the chosen path needs is not installed."""


class BackendError(DatapipeError, RuntimeError):
    """A decoding library failed on a batch, because of its own state or of a bad sample."""


def copied(error: BaseException) -> BaseException:
    """Return a copy of an error that is kept, to be raised in its place, perhaps several times.

    What is raised gets a traceback, whose frames hold the iterator of whoever asked. Where the error is kept for as long as that
    iterator's threads live, they would never end.
    """
    try:
        return copy.copy(error).with_traceback(None)
    except Exception:  # a class whose objects are not made from their `args`
        return RuntimeError(f"{type(error).__name__}: {error}")
