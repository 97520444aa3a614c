"""Names and arguments that were public and go in 0.3: they go on working until then, with a warning."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_TRANSFORMS = """
    IMAGENET_MEAN IMAGENET_STD CenterCrop ColorJitter CutMix GaussianBlur MixUp Normalize Pad RandAugment RandomAdjustSharpness
    RandomApply RandomAutocontrast RandomChoice RandomCrop RandomEqualize RandomErasing RandomGrayscale RandomHorizontalFlip
    RandomInvert RandomOrder RandomPosterize RandomResizedCrop RandomSolarize RandomVerticalFlip Resize ToDtype
    TrivialAugmentWide
"""
_ERRORS = """
    BackendError DatapipeError DecodeError DependencyError FormatError IntegrityError LifecycleError MissingDataError OptionError
    StateError StorageError UnfinishedError
"""
# Names of `datapipe` -> the module, and the name there.
FORMER_NAMES = {
    **{name: ("datapipe.transforms", name) for name in _TRANSFORMS.split()},
    **{name: ("datapipe.errors", name) for name in _ERRORS.split()},
    "Dataset": ("datapipe.kinds.images.data", "Images"),
}


def warn_deprecated(former: str, now: str, *, stacklevel: int) -> None:
    """Warn that `former` goes, and say what to write.

    `stacklevel`: that of the user's line, as `warnings.warn` counts here. It lies further out where loaders are measured, as
    patches of ours call them.
    """
    frame: FrameType | None = sys._getframe(stacklevel)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "datapipe":
        frame, stacklevel = frame.f_back, stacklevel + 1
    warnings.warn(f"From datapipe 0.3 on there is no {former}; write {now}", DeprecationWarning, stacklevel=stacklevel + 1)


def former_arguments(names: Iterable[str], *translations: Callable[[dict[str, Any]], list[tuple[str, str]]]) -> Callable[[F], F]:
    """Return a decorator of a function that is called with the arguments `names` of an earlier release, too.

    Each translation gets the arguments by name. It replaces former ones by those of now, and returns what they were, and what to
    write.
    """
    former = frozenset(names)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        others = next((name for name, one in signature.parameters.items() if one.kind is one.VAR_KEYWORD), "")

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if former.isdisjoint(kwargs):
                return function(*args, **kwargs)
            named = signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in former}).arguments
            named |= named.pop(others, {}) | {name: value for name, value in kwargs.items() if name in former}
            for was, now in [told for translation in translations for told in translation(named)]:
                warn_deprecated(was, now, stacklevel=2)
            return function(**named)

        return wrapper  # type: ignore[return-value]

    return decorate
