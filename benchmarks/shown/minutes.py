"""How long a newcomer's first commands take."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.machines import cpu


def in_short(result: dict[str, Any]) -> str:
    """One sentence for the README."""
    demo, day = (result[name]["seconds"] for name in ("demo", "test"))
    machine = f"{result['environment']['num_cores']} cores of an {cpu(result)}"
    return f"After the installation the demo takes {demo:.0f} s and the tests {day / 60:.1f} minutes, on {machine}."
