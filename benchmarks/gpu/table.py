"""The figures of a GPU, for docs/benchmarks.md and README.md: of those results that are there."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS
from benchmarks.gpu.summary import title

_ROWS = (BY_HAND, OURS, ON_CPU, "gpu-torchvision", "gpu-torch")
_MODEL = "resnet50"
_FEEDS = ("gpu-synthetic", OURS, ON_CPU, "gpu-torch")


def as_markdown(found: dict[str, Any]) -> str:
    """Tables and sentences."""
    parts = [_rates(found), _training(found), _exactness(found), _rows_of_tables(found)]
    return "\n\n".join(["### On a GPU", *filter(None, parts)]) if any(parts) else ""


def in_short(result: dict[str, Any]) -> str:
    """The rates, for README.md. `result`: of the stage `sweep`."""
    rates, machine = _images_per_s(result), _machine(result)
    return (
        f"- **It has run on one GPU, once.** All values were right, but it is not fast enough: on {machine} photographs came at "
        f"{rates[OURS]:,.0f} images/s by DALI and at {rates[ON_CPU]:,.0f} decoded on the CPU, where torch's DataLoader gave "
        f"{rates['gpu-torch']:,.0f} and a pipeline written for DALI by hand {rates[BY_HAND]:,.0f}. "
        "[Why](docs/benchmarks.md#on-a-gpu), and `make gpu-check` measures yours. Stores are tested against stand-ins."
    )


def _images_per_s(result: dict[str, Any]) -> dict[str, float]:
    """The median of all rounds, or of the one measurement, of each contender as it comes."""
    rates: dict[str, list[float]] = {}
    for phase in ("rounds", "first"):
        for entry in result["measurements"]:
            if entry.get("phase") == phase and (phase == "rounds" or not entry["options"]):
                rates.setdefault(f"{phase} {entry['contender']}", []).append(entry["images_per_s"])
    return {
        name: statistics.median(rates.get(f"rounds {name}") or rates[f"first {name}"])
        for name in _ROWS
        if {f"rounds {name}", f"first {name}"} & rates.keys()
    }


def _machine(result: dict[str, Any]) -> str:
    return f"an H100 with {result['environment']['num_cores']} cores of an {result['environment']['cpu'].split('(')[0]} CPU"


def _rates(found: dict[str, Any]) -> str:
    if "gpu-sweep" not in found:
        return ""
    result = found["gpu-sweep"]
    rates = _images_per_s(result)
    engines = {entry["contender"]: entry.get("jpeg_engine_percent", 0) for entry in result["measurements"] if "options" in entry}
    cores = {
        entry["contender"]: entry["own_cpu_s_per_1000"] * entry["images_per_s"] / 1000
        for entry in result["measurements"]
        if entry.get("phase") == "first" and not entry["options"]
    }
    lines = ["| photographs onto the GPU | images/s | JPEG engines busy | cores busy, of its own process |", "|---|--:|--:|--:|"]
    lines += [f"| {title(name)} | {rates[name]:,.0f} | {engines[name]:.0f}% | {cores[name]:.1f} |" for name in rates]
    told = (
        f"On {_machine(result)}, {result['environment']['date'][:10]}; float32, 224 x 224, batches of 256. The one by hand is "
        f"{rates[BY_HAND] / rates[OURS]:.1f} times as fast as ours: it decodes most images on the GPU's JPEG engines, which ours "
        "left alone, and its threads never wait for Python's lock. Since then `auto` also measures the engines, and decode "
        "threads have processes; how much that brings on such a machine has not been measured yet."
    )
    return "\n".join([*lines, "", told])


def _training(found: dict[str, Any]) -> str:
    if "gpu-train" not in found:
        return ""
    entries = {entry["contender"]: entry for entry in found["gpu-train"]["measurements"] if _is_as_it_comes(entry)}
    lines = ["| ResNet-50 in bf16, fed by | images/s | step, ms | idle for data |", "|---|--:|--:|--:|"]
    for name in _FEEDS:
        if name in entries:
            rate, step_ms, idle = (entries[name][key] for key in ("images_per_s", "step_ms", "idle_share"))
            lines.append(f"| {title(name)} | {rate:,.0f} | {step_ms:.1f} | {idle:.1%} |")
    told = (
        "The GPU hardly waits for a batch, and yet steps take longer than over resident data: the thread that launches kernels "
        "shares Python's lock and the cores with the decode threads."
    )
    return "\n".join([*lines, "", told])


def _is_as_it_comes(entry: dict[str, Any]) -> bool:
    return entry.get("model") == _MODEL and "workers" not in entry["options"]


def _exactness(found: dict[str, Any]) -> str:
    told = []
    if "gpu-correct" in found:
        compared = [entry for entry in found["gpu-correct"]["measurements"] if "p99.9" in entry]
        damaged = [entry for entry in found["gpu-correct"]["measurements"] if "num_missed" in entry]
        told.append(
            f"{sum(entry['is_within'] for entry in compared)} of {len(compared)} comparisons of pixels with the CPU's are within "
            f"their bounds, on an idle device and a busy one ({max(entry['mean'] for entry in compared):.2f} of 255 on average "
            f"at most); of {len(damaged)} kinds of damage, with the JPEG engines and without, "
            f"{sum(entry['same_verdict'] for entry in damaged)} had the CPU's verdict."
        )
    if "gpu-tokens" in found:
        entries = {entry["what"]: entry for entry in found["gpu-tokens"]["measurements"]}
        parity, apart = entries["parity"], entries["apart"]
        told.append(
            f"Of {parity['num_compared']} values of batches of tokens {parity['num_different']} differ from the host's; by "
            f"`cu_seqlens` and torch's `varlen_attn` the losses of packed tokens are {apart['packed']:.4f} from those of their "
            f"documents alone in bf16, where attention to all before makes {apart['leaky']:.3f}."
        )
    return " ".join(told)


def _rows_of_tables(found: dict[str, Any]) -> str:
    if "gpu-tables" not in found:
        return ""
    entries = found["gpu-tables"]["measurements"]
    parity = next(entry for entry in entries if entry["question"] == "parity")
    rates = {entry["feed"]: entry["rows_per_s"] for entry in entries if entry["question"] == "rate"}
    return (
        f"Batches of 65,536 rows of a table came at {rates['ours, cuDF'] / 1e6:.1f} million rows/s by cuDF and at "
        f"{rates['ours, Arrow'] / 1e6:.1f} million by Arrow; of {parity['num_rows']:,} rows {parity['num_different']} values "
        "differed. The loop by hand was not reached in the time that there was."
    )
