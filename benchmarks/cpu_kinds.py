"""Kinds of CPU that one machine can stand for: the settings by which libraries leave out instructions it has.

torch, numpy, libjpeg-turbo and the C library each choose among several versions of their arithmetic when they are loaded, so a
setting takes effect only in a new process. OpenCV is not among them: nvImageCodec brings it along, but decodes JPEGs, the only
images that datapipe gives it, by libjpeg-turbo.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class CpuKind:
    """A kind of CPU, as far as the arithmetic of the libraries goes."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)  # environment variables
    needs: str = ""  # what the CPU must have, as /proc/cpuinfo calls it

    def why_not(self) -> str:
        """Return the reason that this machine cannot stand for it, or an empty string."""
        if not self.settings:
            return ""
        if platform.machine() != "x86_64":
            return f"the settings are those of x86-64, and this machine is {platform.machine()}"
        return f"this CPU has no {self.needs}" if self.needs and self.needs not in _cpu_flags() else ""

    def environment(self) -> dict[str, str]:
        """Return the variables of a process of this kind: this process's, without the settings of other kinds."""
        others = {name for kind in cpu_kinds() for name in kind.settings}
        return {name: value for name, value in os.environ.items() if name not in others} | self.settings


def cpu_kinds() -> list[CpuKind]:
    """Return all kinds, first the CPU as it is."""
    plain_torch = {"ATEN_CPU_CAPABILITY": "default"}
    plain_jpeg = {"JSIMD_FORCENONE": "1"}
    # numpy's names differ from version to version; it refuses to leave out what the CPU lacks.
    plain_numpy = {"NPY_DISABLE_CPU_FEATURES": " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))}
    plain_c = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4"}
    plain_matmul = {"MKL_CBWR": "COMPATIBLE"}
    return [
        CpuKind("as it is"),
        CpuKind("torch AVX-512", {"ATEN_CPU_CAPABILITY": "avx512"}, needs="avx512f"),
        CpuKind("torch AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}, needs="avx2"),
        CpuKind("torch plain", plain_torch),
        CpuKind("JPEG plain", plain_jpeg),
        CpuKind("numpy plain", plain_numpy),
        CpuKind("all plain", {**plain_torch, **plain_jpeg, **plain_numpy, **plain_c, **plain_matmul}),
    ]


def as_markdown(found: dict[str, Any]) -> str:
    """The table of kinds in docs/stability.md, if there is a result."""
    if "cpu-kinds" not in found:
        return ""
    result = found["cpu-kinds"]
    lines = ["| kind of CPU | settings | passed | failed | skipped |", "|---|---|---|---|---|"]
    for run in result["runs"]:
        settings = "<br>".join(f"`{name}={_shortened(value)}`" for name, value in run["settings"].items()) or "none"
        counts = [run["not_run"], "", ""] if "not_run" in run else [run[key] for key in ("passed", "failed", "skipped")]
        lines.append("| " + " | ".join(map(str, [run["name"], settings, *counts])) + " |")
    environment = result["environment"]
    return "\n".join(lines) + f"\n\nRun on {environment['cpu']}, {environment['date'][:10]}."


def _shortened(value: str) -> str:
    """The first and the last word of a long list."""
    first, *others = value.split()
    return f"{first} ... {others[-1]}" if len(others) > 2 else value


def _cpu_flags() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.partition(":")[2].split()
    return []
