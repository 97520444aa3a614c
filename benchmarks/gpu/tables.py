"""Stage `tables`: batches of a table by cuDF against Arrow's, rows per second, and a network that is fed by each."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import datapipe as dp
from benchmarks.gpu.job import ask_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline, num_cores
from benchmarks.gpu.table_feeds import ARROW, BY_HAND, CUDF, RESIDENT
from datapipe.kinds.tables.trial_data import make

_FILES, _ROWS = 16, 1 << 19  # 8.4 million rows, 64 row groups
_BATCH_SIZES = (65536, 4096)
_NUM_ROUNDS = 3
_TOLERANCE = 1e-6  # of floats after operations: a GPU divides and takes logarithms otherwise in the last place


def run(check: Check, report: Report, deadline: Deadline) -> None:
    folder = table(check)
    common = {"folder": str(folder)}
    for name, recipe in (("as stored", ""), ("by a recipe", _recipe(check, folder))):
        arguments = {"question": "parity", "recipe": recipe, "batch_size": check.pick(65536, 256)}
        found = ask_job(check, report, deadline, f"parity, {name}", "tables_job", common | arguments, seconds=30)
        if found:
            is_same = found["num_different"] == 0 and found["worst_relative_difference"] <= _TOLERANCE
            report.expect(f"parity, {name}", is_same, f"batches by cuDF are not Arrow's: {found}")
    feeds = [CUDF, ARROW, BY_HAND]
    for number in range(check.pick(_NUM_ROUNDS, 1)):
        for batch_size in check.pick(_BATCH_SIZES, (64,)):
            for feed in feeds[number % 3 :] + feeds[: number % 3]:
                timed = _timed(check, "rate", feed, batch_size)
                ask_job(check, report, deadline, f"rate, {feed}, {batch_size}", "tables_job", common | timed, round=number)
        for feed in (RESIDENT, *feeds[number % 3 :], *feeds[: number % 3]):
            timed = _timed(check, "train", feed, check.pick(16384, 64))
            found = ask_job(check, report, deadline, f"train, {feed}", "tables_job", common | timed, round=number)
            if found:
                report.expect(f"train, {feed}", found["is_loss_finite"], "the loss is not finite: are batches right?")


def table(check: Check) -> Path:
    """The folder of the generated table, made on all cores if it is not there."""
    folder, num_rows = check.data / "table", check.pick(_ROWS, 1500)
    paths = [folder / f"part-{number:02d}.parquet" for number in range(check.pick(_FILES, 2))]
    missing = [path for path in paths if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(num_cores(), mp_context=get_context("fork" if check.is_dry else "spawn")) as pool:
        list(pool.map(_write, missing, [num_rows] * len(missing)))
    return folder


def _write(path: Path, num_rows: int) -> None:
    part = path.with_suffix(".part")
    make(part, num_rows, seed=int(path.stem.rpartition("-")[2]))
    part.rename(path)


def _recipe(check: Check, folder: Path) -> str:
    """A fitted recipe, as one has it for such a table."""
    path, columns = check.data / "recipe.json", dp.Columns
    if not path.exists():
        chains: dict[str, Any] = {
            "I*": [columns.FillMissing("median"), columns.Log1p(), columns.Normalize()],
            "C1": columns.HashBucket(1000),
            "C*": columns.Categorify(min_count=2, max_size=100_000),
        }
        columns(chains).fit(folder / "part-00.parquet").save(path)
    return str(path)


def _timed(check: Check, question: str, feed: str, batch_size: int) -> dict[str, Any]:
    seconds, warmup_s = check.pick((4.0, 2.0), (0.02, 0.0))
    return {"question": question, "feed": feed, "batch_size": batch_size, "seconds": seconds, "warmup_s": warmup_s}
