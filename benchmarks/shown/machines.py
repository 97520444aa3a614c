"""The CPU and the day of each result; some are measured on a second kind of CPU too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.shown.cells import line

_FIRST_GPU = "H100"  # of results that do not name theirs
SECOND_CPU = "-intel"  # what the names of results on the second kind of CPU end in


def on_each_cpu(found: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The results of that name: on the first kind of CPU, then on the second, as far as they are there."""
    yield from (found[each] for each in (name, name + SECOND_CPU) if each in found)


def on_second_cpu(found: dict[str, Any]) -> dict[str, Any]:
    """The results on the second kind of CPU, each by the name that it has on the first."""
    return {name.removesuffix(SECOND_CPU): result for name, result in found.items() if name.endswith(SECOND_CPU)}


def maker(result: dict[str, Any]) -> str:
    """Who made the CPU: AMD, Intel."""
    return cpu(result).split()[0]


def cpu(result: dict[str, Any]) -> str:
    """The CPU's name without marks of registration."""
    return str(result["environment"]["cpu"]).replace("(R)", "").removesuffix(" Processor")


def gpu(result: dict[str, Any]) -> str:
    """The model of the GPU of a result that has one: H100, H200."""
    name = str(result["environment"].get("gpu", _FIRST_GPU)).split()
    return name[1] if name[0] == "NVIDIA" else " ".join(name)


def day(result: dict[str, Any]) -> str:
    """The day on which it was measured, in UTC."""
    return str(result["environment"]["date"])[:10]


def as_markdown(found: dict[str, Any]) -> str:
    """A table of the machine and the day of each result. One line has all results of a machine and a day."""
    together: dict[tuple[str, str], list[str]] = {}
    for name, result in found.items():
        if environment := result.get("environment"):
            device = f" with an NVIDIA {gpu(result)}" if name.startswith("gpu-") else ""
            together.setdefault((f"{environment['num_cores']} cores of an {cpu(result)}{device}", day(result)), []).append(name)
    if not together:
        return ""
    lines = ["### Where each was measured", "", line("measured on", ["day", "results"]), "|---|---|---|"]
    lines += [line(machine, [on, ", ".join(f"`{name}`" for name in names)]) for (machine, on), names in sorted(together.items())]
    return "\n".join(lines)
