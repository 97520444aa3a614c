"""Checks a document against `diagnosis.schema.json`: as much of JSON Schema as that uses."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float),
}  # fmt: skip
_KNOWN = {
    "$schema", "$defs", "$ref", "title", "description", "type", "properties", "required", "additionalProperties", "enum", "const",
    "anyOf", "items", "maxItems",
}  # fmt: skip

SCHEMA: dict[str, Any] = json.loads(files("datapipe.diagnostics").joinpath("diagnosis.schema.json").read_text())


def faults(value: Any, schema: dict[str, Any] = SCHEMA, where: str = "$") -> list[str]:
    """What does not fit, with its place."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema:
        return faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)
    found = []
    if "anyOf" in schema:
        tried = [faults(value, one, where) for one in schema["anyOf"]]
        return [] if [] in tried else max(tried, key=lambda one: one[0].partition(":")[0].count("."))
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names):
            return [f"{where}: {value!r} is no {' or '.join(names)}"]
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        found.append(f"{where}: {value!r} is not allowed")
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        found += [f"{where}: lacks {name}" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            if name in properties:
                found += faults(one, properties[name], f"{where}.{name}")
            elif more is False:
                found.append(f"{where}: {name} is unknown")
            elif isinstance(more, dict):
                found += faults(one, more, f"{where}.{name}")
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            found.append(f"{where}: {len(value)} are too many")
        for number, one in enumerate(value):
            found += faults(one, schema.get("items", {}), f"{where}[{number}]")
    return found
