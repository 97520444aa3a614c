"""Run a script on untrusted data in a process of its own, with limits of time and memory, so that it may hang or die there."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

from datapipe.core.environment import importing_as_here
from datapipe.core.printable import printable

_WALL_PER_CPU = 8  # a machine may be busy with other things


class UnfitError(Exception):
    """A script that was ended, or failed; the text says how."""


def run_limited(script: str, data: bytes, *, cpu_s: int, nbytes: int) -> bytes:
    """Return what a script prints of the bytes that it reads from standard input. Raises UnfitError if it does not end well.

    `script`: a path. `cpu_s`: seconds of processor time. `nbytes`: of memory. The limits hold once the script has data to read.
    """
    # As a script: it is found without importing the package that it lies in. -P: what lies next to it shadows nothing.
    process = subprocess.Popen(
        [sys.executable, "-P", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**importing_as_here(), "RUST_BACKTRACE": "0"},
    )
    with process:
        try:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (nbytes, nbytes))
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
            found, said = process.communicate(data, timeout=cpu_s * _WALL_PER_CPU)
        except subprocess.TimeoutExpired as exc:
            raise UnfitError(f"it does not end within {cpu_s * _WALL_PER_CPU} s") from exc
        finally:
            process.kill()
    if process.returncode == -signal.SIGXCPU:
        raise UnfitError(f"it does not end within {cpu_s} s of processor time")
    if process.returncode:
        status = process.returncode
        how = f"ends its process by {signal.Signals(-status).name}" if status < 0 else "fails"
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip() and not line.startswith("note:")]
        raise UnfitError(f"it {how}: {printable(lines[-1])[:200]}" if lines else f"it {how}")
    return found
