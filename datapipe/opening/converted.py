"""Recognise what `convert` made: a set says by its manifest what kind of data it holds."""

from __future__ import annotations

from pathlib import Path

from datapipe.codecs.field_values import FieldKind
from datapipe.containers.field_names import is_audio, is_video
from datapipe.containers.form import Form
from datapipe.containers.forms import IMAGES
from datapipe.containers.look import Evidence, Look, Nature, Strength
from datapipe.errors import DatapipeError, StorageError
from datapipe.index.manifest import MANIFEST_NAME, Manifest, parse_document, read_manifest
from datapipe.index.remote_set import read_manifest_text
from datapipe.index.tokens import TOKENS_CONTAINER


def recognise(look: Look, form: Form) -> Evidence | None:
    """Return why a place is a converted set, and of which kind; None if it is none. One of sound is rather read as that."""
    kind = kind_of_set(look)
    strength = Strength.CERTAIN if kind == "audio" else Strength.DECISIVE
    return Evidence(f"it holds {MANIFEST_NAME}", strength, kind=kind) if kind else None


def kind_of_set(look: Look) -> str:
    """Return the kind of data that a converted set holds; "" for a place that is none. One that is damaged is images'.

    Raises StorageError.
    """
    return look.once("converted", lambda: _kind_of_set(look))


def _kind_of_set(look: Look) -> str:
    if look.nature is not Nature.FOLDER:
        return ""
    try:
        manifest = _read(look)
    except StorageError:
        raise
    except DatapipeError:
        return IMAGES  # what reads it says what is wrong
    if manifest is None:
        return ""
    if any(one.kind is FieldKind.IMAGES for one in manifest.fields):
        return "conversations"
    if manifest.container == TOKENS_CONTAINER or any(one.kind is FieldKind.TOKENS for one in manifest.fields):
        return "tokens"
    if any(map(is_video, manifest.fields)):
        return "clips"
    return "audio" if any(map(is_audio, manifest.fields)) else IMAGES


def _read(look: Look) -> Manifest | None:
    """Return the manifest of a place; None if it has none. Raises what reading it raises."""
    if MANIFEST_NAME.encode() not in look.files:
        return None
    if isinstance(look.place, Path):
        return read_manifest(look.place)
    text = read_manifest_text(look.place)
    return None if text is None else parse_document(text, str(look.place / MANIFEST_NAME))
