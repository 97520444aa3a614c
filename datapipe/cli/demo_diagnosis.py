"""The last part of the demo: `datapipe diagnose` on a training script, before and after its loader is replaced."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from datapipe.core.atomic import atomic_writer
from datapipe.core.errors import DatapipeError
from datapipe.diagnostics.command import diagnose_command, write_reports
from datapipe.diagnostics.document import Document


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One run of the script."""

    document: Document
    page: Path


class FailedScriptError(DatapipeError, RuntimeError):
    """The demo's own script failed."""


def diagnose_script(photos: Path, shards: Path | None, out: Path, *, num_workers: int) -> Diagnosed:
    """Write `train.py` next to `out`, run it on the photographs, or on the shards if given, and write the reports to `out`.

    Raises FailedScriptError if it fails.
    """
    script = out.parent / "train.py"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with atomic_writer(script) as file:
        file.write(Path(__file__).with_name("demo_script.py").read_bytes())
    command = [str(script), str(photos), "--workers", str(num_workers)]
    if shards is not None:
        command += ["--shards", str(shards)]
    diagnosis, outcome = diagnose_command(command, out, trials_s=10.0, quiet=True)
    if outcome.exit_code:
        raise FailedScriptError(f"{script}: ended with status {outcome.exit_code}; its output is above")
    page = write_reports(diagnosis.document, out, html=True, trace=False)
    assert page is not None
    return Diagnosed(diagnosis.document, page)
