"""The messages between a conversion and the processes that build its shards: values that JSON holds."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from converters.examine import Treatment
from converters.fence import Fence
from converters.options import Check, Encode, OnError, Resize
from converters.plan import PlannedShard
from converters.shards import ShardJob
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core import errors
from datapipe.core.errors import DatapipeError

OnSamples = Callable[[int, int], None]  # (samples, errors) since the last call
OnShard = Callable[[PlannedShard], None]


def job_to_json(job: ShardJob) -> dict[str, Any]:
    """Return a job as JSON for a worker."""
    treatment = job.treatment
    return {
        "building": os.fspath(job.building),
        "root": job.root,
        "target": job.target,
        "check": treatment.check.value,
        "resize": None if treatment.resize is None else str(treatment.resize),
        "encode": str(treatment.encode),
        "strips_exif": treatment.strips_exif,
        "on_error": job.on_error.value,
        "fields": [[field.name, field.kind.value] for field in job.fields],
        "classes": job.classes,
        "fence": [os.fspath(job.fence.path), job.fence.token],
    }


def job_from_json(value: dict[str, Any]) -> ShardJob:
    """Return the job that `job_to_json` was given."""
    resize = None if value["resize"] is None else Resize.parse(value["resize"])
    treatment = Treatment(Check(value["check"]), resize, Encode.parse(value["encode"]), value["strips_exif"])
    return ShardJob(
        building=Path(value["building"]),
        root=value["root"],
        target=value["target"],
        treatment=treatment,
        on_error=OnError(value["on_error"]),
        fields=tuple(FieldSpec(name, FieldKind(kind)) for name, kind in value["fields"]),
        classes=None if value["classes"] is None else tuple(value["classes"]),
        fence=Fence(Path(value["fence"][0]), value["fence"][1]),
    )


def error_to_json(exc: BaseException) -> dict[str, Any]:
    """Return an exception in the form that a worker reports."""
    if isinstance(exc, DatapipeError):
        return {"error": type(exc).__name__, "message": str(exc)}
    return {"error": "", "message": "".join(traceback.format_exception(exc))}


def error_from_json(answer: dict[str, Any]) -> Exception:
    """Return the exception that a worker reported; one that is not ours is a bug and keeps its traceback as text."""
    if answer["error"]:
        kind: type[Exception] = getattr(errors, answer["error"])
        return kind(answer["message"])
    return RuntimeError(f"a worker failed:\n{answer['message']}")
