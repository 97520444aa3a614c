"""The schema of a Parquet shard: Arrow's types, and the metadata that Hugging Face's `datasets` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from converters.writers import LABEL_FIELD
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.hugging_face import FEATURES
from datapipe.containers.parquet import layout as form

IMAGES = (FieldKind.IMAGE, FieldKind.MASK)  # kinds that are stored as an image with its file name
TEXTS = (FieldKind.TEXT, FieldKind.JSON)

_IMAGE_TYPE = pa.struct([pa.field(form.BYTES, pa.binary()), pa.field(form.PATH, pa.string())])


def shard_schema(fields: Sequence[FieldSpec], classes: Sequence[str] | None, *, raw: set[str]) -> pa.Schema:
    """Return columns for `fields` in their order, and the key.

    `classes`: names by label, none if labels have none. `raw`: fields of images that are `.npy` files, which Hugging Face's
    Image does not decode; for `datasets` they are bytes.
    """
    types = {spec.name: _arrow_type(spec) for spec in fields}
    features = {spec.name: _feature(spec, classes, is_raw=spec.name in raw) for spec in fields}
    features[form.KEY] = _value("string")
    metadata = {FEATURES: json.dumps({"info": {"features": features}})}
    return pa.schema([*types.items(), (form.KEY, pa.string())], metadata=metadata)


def _arrow_type(spec: FieldSpec) -> pa.DataType:
    if spec.name == LABEL_FIELD.name:
        return pa.int64()
    if spec.kind in IMAGES:
        return _IMAGE_TYPE
    return pa.string() if spec.kind in TEXTS else pa.binary()


def _feature(spec: FieldSpec, classes: Sequence[str] | None, *, is_raw: bool) -> dict[str, Any]:
    if spec.name == LABEL_FIELD.name:
        return {"names": list(classes), "_type": "ClassLabel"} if classes else _value("int64")
    if spec.kind in IMAGES:
        return {form.BYTES: _value("binary"), form.PATH: _value("string")} if is_raw else {"_type": "Image"}
    return _value("string" if spec.kind in TEXTS else "binary")


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
