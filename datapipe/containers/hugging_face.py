"""Read the metadata that Hugging Face's `datasets` writes into the schemas of its Parquet and Arrow files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datapipe.core.printable import get_logger

FEATURES = b"huggingface"  # the key; the value is JSON, {"info": {"features": {NAME: FEATURE}}}

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Features:
    """The columns of images and the names of classes, from the metadata of a file."""

    images: frozenset[str] = frozenset()
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by column of labels, their names


def read_features(metadata: Mapping[bytes, bytes] | None, where: str) -> Features:
    """Return the features; none if there is no such document, or with a warning if it does not parse."""
    text = (metadata or {}).get(FEATURES)
    if text is None:
        return Features()
    try:
        described: dict[str, Any] = json.loads(text)["info"]["features"]
        kinds = {name: value.get("_type") for name, value in described.items() if isinstance(value, dict)}
        classes = {name: tuple(map(str, described[name]["names"])) for name, kind in kinds.items() if kind == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        logger.warning("%s: the 'huggingface' metadata do not parse (%r); classes have no names", where, exc)
        return Features()
    return Features(frozenset(name for name, kind in kinds.items() if kind == "Image"), classes)
