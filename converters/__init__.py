"""Repacks small files into shards: atomically, resumably, checked.

`convert(ConvertOptions(source, destination), on_progress)` does what `datapipe convert` does;
`preview` what its `--dry-run` does; `verify.verify(directory)` checks a converted set. Imports no torch.

Names are imported when they are first used (PEP 562). Modules of the package import each other, never the package: a
process that has lost it, as a cancelled task of a cluster may, can import any of them again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converters.conversion import convert, preview
    from converters.options import Check, ConvertOptions, Encode, Limit, OnError, Part, Split, parse_nbytes
    from converters.options import ResizeRule as Resize
    from converters.report import Advance, Phase, Preview, Report
    from converters.sources import recognise
    from converters.tokenizer import Tokenizing
    from datapipe.containers.form import ClassFrom, FieldChoice
    from datapipe.opening.recognise import Recognition
    from datapipe.stores.places import parse_place

__all__ = [
    "Advance", "Check", "ClassFrom", "ConvertOptions", "Encode", "FieldChoice", "Limit", "OnError", "Part", "Phase", "Preview",
    "Recognition", "Report", "Resize", "Split", "Tokenizing", "convert", "parse_nbytes", "parse_place", "preview", "recognise",
]  # fmt: skip

_HOMES = {
    "converters.conversion": ("convert", "preview"),
    "converters.report": ("Advance", "Phase", "Preview", "Report"),
    "converters.sources": ("recognise",),
    "converters.tokenizer": ("Tokenizing",),
    "datapipe.containers.form": ("ClassFrom", "FieldChoice"),
    "datapipe.opening.recognise": ("Recognition",),
    "datapipe.stores.places": ("parse_place",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES.get(name, "converters.options"))
    value = globals()[name] = getattr(module, "ResizeRule" if name == "Resize" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
