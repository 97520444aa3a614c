"""Repacks small files into shards: atomically, resumably, checked.

`convert(ConvertOptions(source, destination), on_progress)` does what `datapipe convert` does;
`preview` what its `--dry-run` does; `verify(directory)` checks a converted set. Imports no torch.
"""

from __future__ import annotations

from converters.conversion import convert, preview
from converters.options import (
    Check,
    ClassFrom,
    ConvertOptions,
    Encode,
    FieldChoice,
    Limit,
    OnError,
    Part,
    Split,
    parse_nbytes,
    parse_place,
)
from converters.options import ResizeRule as Resize
from converters.report import Advance, Phase, Preview, Report
from converters.sources.recognise import Recognition, recognise

__all__ = [
    "Advance", "Check", "ClassFrom", "ConvertOptions", "Encode", "FieldChoice", "Limit", "OnError", "Part", "Phase", "Preview",
    "Recognition", "Report", "Resize", "Split", "convert", "parse_nbytes", "parse_place", "preview", "recognise",
]  # fmt: skip
