"""Twenty small faults, one in each of the larger rooms: do the tests see them?

    python -m tests.mutations                 # each fault in a copy of this checkout, under the day's tests
    python -m tests.mutations --night         # those that the day's tests do not see, under all others
    python -m tests.mutations tail crop       # these alone

The tests of the room come first, as they mostly decide; what they do not see goes through all. A fault is seen if a test fails.
`benchmarks/results/mutations.json` has what came of it: hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import command_of, describe_environment

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "mutations.json"
_LIMIT_S = 1800
_LEFT_OUT = ("--ignore", "tests/test_mutations.py")  # which sees every fault


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault: a piece of a file, which is there once, replaced by another one."""

    name: str
    file: str
    good: str
    bad: str
    near: str  # the tests that stand nearest, as pytest takes them

    def apply(self, root: Path) -> None:
        """Write the fault. Raises SystemExit if the piece is not there exactly once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.good) != 1:
            raise SystemExit(f"{self.name}: {self.file} has {text.count(self.good)} of {self.good!r}; it must have 1")
        path.write_text(text.replace(self.good, self.bad))


MUTATIONS = (
    Mutation(
        "tail",
        "datapipe/order/plan.py",
        "share = -(-left // self.rank.world_size)",
        "share = left // self.rank.world_size",
        "tests/order",
    ),
    Mutation(
        "replacement",
        "datapipe/kernel/bad_samples.py",
        "key64(seed, epoch, id, attempt)",
        "key64(seed, id, attempt)",
        "tests/kernel tests/suites tests/kinds/images",
    ),
    Mutation(
        "checksum",
        "datapipe/fetch/local.py",
        "if has_crc and (found := crc32c.crc32c(data)) != crc:",
        "if has_crc < 0 and (found := crc32c.crc32c(data)) != crc:",
        "tests/fetch tests/suites",
    ),
    Mutation("boundaries", "datapipe/columns/operations.py", "any(a >= b for a, b", "any(a > b for a, b", "tests/columns"),
    Mutation("center", "datapipe/transforms/geometry.py", "np.rint(excess / 2)", "excess // 2", "tests/transforms"),
    Mutation(
        "capitals",
        "datapipe/containers/tar/scanner.py",
        'suffix.decode(errors="replace").lower()',
        'suffix.decode(errors="replace")',
        "tests/containers",
    ),
    Mutation(
        "loss",
        "datapipe/packing/losses.py",
        "segments.first + segments.num < segments.total",
        "segments.first + segments.num <= segments.total",
        "tests/packing tests/kinds/tokens",
    ),
    Mutation(
        "empty class",
        "datapipe/sources/file_tree.py",
        "if folder not in self._populated)",
        "if folder in self._populated)",
        "tests/converters tests/opening",
    ),
    Mutation(
        "open group",
        "datapipe/opening/videos/presentation.py",
        "packets.pts[order] < packets.pts[first]",
        "packets.pts[order] <= packets.pts[first]",
        "tests/opening/videos",
    ),
    Mutation(
        "header",
        "datapipe/codecs/probe.py",
        "height * header.width > limit:",
        "height * header.width > limit * 4:",
        "tests/codecs",
    ),
    Mutation(
        "unreached",
        "datapipe/stores/reachability.py",
        "first_s + UNREACHED_S - since_s",
        "first_s - UNREACHED_S - since_s",
        "tests/stores",
    ),
    Mutation(
        "accumulate",
        "datapipe/training/learner.py",
        "(batch + 1) % accumulate == 0 or batch + 1 == num_batches",
        "(batch + 1) % accumulate == 0",
        "tests/training",
    ),
    Mutation(
        "place", "datapipe/adapt/array_rows.py", "keys = self._places[keys]", "keys = self._places[np.sort(keys)]", "tests/adapt"
    ),
    Mutation(
        "idle",
        "datapipe/analysis/predict/replay.py",
        "np.maximum(received - np.maximum(asked, free), 0.0)",
        "np.maximum(received - np.minimum(asked, free), 0.0)",
        "tests/analysis",
    ),
    Mutation(
        "slower",
        "datapipe/diagnostics/live.py",
        "if window.waiting > before.waiting else None",
        "if window.waiting < before.waiting else None",
        "tests/diagnostics",
    ),
    Mutation(
        "nested",
        "datapipe/instruments/measure/bracket.py",
        "self._num_nested += 1",
        "self._num_elsewhere += 1",
        "tests/instruments",
    ),
    Mutation(
        "crop",
        "datapipe/kinds/audio/samples.py",
        "max(1, round(self.settings.seconds * self.rate))",
        "max(1, round(self.settings.seconds * self.rate) - 1)",
        "tests/kinds/audio",
    ),
    Mutation(
        "row groups",
        "datapipe/kinds/tables/windows.py",
        "bad[piece.place : piece.place + piece.stop - piece.start] = True",
        "bad[piece.place : piece.place + piece.stop - piece.start - 1] = True",
        "tests/kinds/tables tests/suites",
    ),
    Mutation(
        "split",
        "converters/planning/building.py",
        'np.searchsorted(np.array(edges), uniform, side="right")',
        'len(edges) - np.searchsorted(np.array(edges), uniform, side="right")',
        "tests/converters",
    ),
    Mutation(
        "resize",
        "converters/samples/images.py",
        '(min, max) if resize.mode == "shorter" else (max, min)',
        '(max, min) if resize.mode == "shorter" else (min, max)',
        "tests/converters",
    ),
)


def _files() -> list[str]:
    """Return the files of the checkout, those that are not committed yet too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def _caught_by(mutation: Mutation, marks: str, jobs: int) -> dict[str, Any]:
    """Return whether tests of these marks fail with the fault, which did first, and how long that took."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made, "datapipe")
        for name in _files():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        mutation.apply(copy)
        began = time.monotonic()
        for places in (mutation.near.split(), ["tests"]):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-n",
                str(jobs),
                "--dist",
                "worksteal",
                "-m",
                marks,
                *_LEFT_OUT,
                *places,
            ]
            environment = {**os.environ, "PYTHONPATH": str(copy), "HOME": made}
            run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
            failed = [line.split(" - ")[0] for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if run.returncode not in (0, 1, 2, 5) or (run.returncode and not failed):
                raise SystemExit(f"{mutation.name}: pytest ended with {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
            if failed:
                return {"by": failed[0].split(" ", 1)[1], "seconds": round(time.monotonic() - began)}
    return {"by": None, "seconds": round(time.monotonic() - began)}


def main() -> None:
    """Try them, and add what came of it to the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(one.name for one in MUTATIONS))
    parser.add_argument("--night", action="store_true")
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 2) + 1)
    args = parser.parse_args()
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {"mutations": {}}
    found: dict[str, Any] = known["mutations"]
    for mutation in MUTATIONS:
        if args.names and mutation.name not in args.names:
            continue
        if args.night and found.get(mutation.name, {}).get("by day", {}).get("by") is not None:
            continue
        when, marks = ("by night", "nightly") if args.night else ("by day", "not nightly")
        outcome = _caught_by(mutation, marks, args.jobs)
        about = {"file": mutation.file, "fault": f"{mutation.good} -> {mutation.bad}"}
        found.setdefault(mutation.name, about)[when] = outcome
        print(f"{mutation.name:12} {when}: {outcome['by'] or 'not seen'}, {outcome['seconds']} s", flush=True)
    result = {"command": command_of("tests.mutations"), "environment": describe_environment(), "mutations": found}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")  # at the end: a test compares the results with what pages say of them
    day = sum(one.get("by day", {}).get("by") is not None for one in found.values())
    night = sum(one.get("by night", {}).get("by") is not None for one in found.values())
    print(f"{day} of {len(found)} by day, {night} more by night")


if __name__ == "__main__":
    main()
