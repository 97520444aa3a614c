"""The figures of a GPU, for docs/benchmarks.md and README.md: of those results that are there."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gpu.earlier import BY_HAND, ON_CPU, OURS, SMOOTH
from benchmarks.gpu.summary import title
from benchmarks.shown.machines import gpu, maker

_ROWS = (BY_HAND, SMOOTH, OURS, ON_CPU, "gpu-torchvision", "gpu-torch")
_MODEL = "resnet50"
_THREADS = {"workers": "threads"}
_RESIDENT, _TORCH = "gpu-synthetic", "gpu-torch"
_FEEDS = (_RESIDENT, OURS, ON_CPU, _TORCH)


def as_markdown(found: dict[str, Any]) -> str:
    """Tables and sentences."""
    parts = [_rates(found), _training(found), _exactness(found), _rows_of_tables(found), _clips(found)]
    return "\n\n".join(["### On a GPU", *filter(None, parts)]) if any(parts) else ""


def in_short(found: dict[str, Any], result: dict[str, Any]) -> str:
    """The rates, for README.md. `result`: of the stage `sweep`, among those of all."""
    rates, machine = _images_per_s(result), _machine(result)
    trained = {name: entry["images_per_s"] for name, entry in _trained(found).items()}
    network = (
        f"ResNet-50 trained at {trained[ON_CPU]:,.0f} images/s, where one batch that stays on the GPU gives "
        f"{trained[_RESIDENT]:,.0f}, and torch's DataLoader {trained[_TORCH]:,.0f}. There "
        if {ON_CPU, _RESIDENT, _TORCH} <= trained.keys()
        else ""
    )
    return (
        f"- **{_models(found)}.** All values were right. On {machine} {network}photographs came at "
        f"{rates[OURS]:,.0f} images/s by DALI and at {rates[ON_CPU]:,.0f} decoded on the CPU, where torch's DataLoader gave "
        f"{rates['gpu-torch']:,.0f}, and a pipeline written for DALI by hand {rates[SMOOTH]:,.0f} with the same pixels, "
        f"{rates[BY_HAND]:,.0f} with coarser ones. [More](docs/benchmarks.md#on-a-gpu); `make gpu-check` measures yours. "
        "Stores are tested against stand-ins."
    )


def _models(found: dict[str, Any]) -> str:
    """Say on which GPUs results were measured."""
    models = sorted({gpu(result) for name, result in found.items() if name.startswith("gpu-")})
    return f"Measured on {len(models)} model{'s' * (len(models) > 1)} of GPU: {', '.join(models)}"


def _entries(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The measurements of all rounds, or else the one, of each contender as it comes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in _ROWS:
        mine = [entry for entry in result["measurements"] if entry.get("contender") == name]
        first = [entry for entry in mine if entry["phase"] == "first" and not entry["options"]]
        entries = [entry for entry in mine if entry["phase"] == "rounds"] or first
        if entries:
            found[name] = entries
    return found


def _images_per_s(result: dict[str, Any]) -> dict[str, float]:
    return {name: _median(entries, "images_per_s") for name, entries in _entries(result).items()}


def _median(entries: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(entry[key] for entry in entries))


def _machine(result: dict[str, Any]) -> str:
    return f"an {gpu(result)} with {result['environment']['num_cores']} cores of an {maker(result)} CPU"


def _rates(found: dict[str, Any]) -> str:
    if "gpu-sweep" not in found:
        return ""
    result = found["gpu-sweep"]
    entries, rates = _entries(result), _images_per_s(result)
    lines = ["| photographs onto the GPU | images/s | kernels busy | JPEG engines busy | cores busy, without workers |"]
    lines.append("|---|--:|--:|--:|--:|")
    for name, mine in entries.items():
        busy, engines = _median(mine, "kernels_percent"), _median(mine, "jpeg_engine_percent")
        cores = _median(mine, "own_cpu_s_per_1000") * rates[name] / 1000
        lines.append(f"| {title(name)} | {rates[name]:,.0f} | {busy:.0f}% | {engines:.0f}% | {cores:.1f} |")
    found = {entry["contender"]: entry["images_per_s"] for entry in result["measurements"] if entry.get("options") == _THREADS}
    share = 10 * _median(entries[OURS], "kernels_percent") / rates[OURS]  # ms of the GPU an image
    told = (
        f"On {_machine(result)}, {result['environment']['date'][:10]}; float32, 224 x 224, batches of 256; DALI's pipelines with "
        "the settings that were fastest for each. With the chroma that ours has, and Pillow, the one by hand is "
        f"{rates[SMOOTH] / rates[OURS]:.2f} times as fast as ours; with DALI's default, which copies the nearest value, "
        f"{rates[BY_HAND] / rates[OURS]:.2f} times. Without worker processes the CPU path gives {found[ON_CPU]:,.0f}: its "
        f"threads fight over Python's lock. DALI keeps the GPU busy for {1000 * share:.0f} us an image, which a network that "
        "trains there has to do without; hence `auto` takes the CPU path unless DALI is twice as fast."
    )
    return "\n".join([*lines, "", told])


def _training(found: dict[str, Any]) -> str:
    entries = _trained(found)
    if not entries:
        return ""
    lines = ["| ResNet-50 in bf16, fed by | images/s | step, ms | idle for data |", "|---|--:|--:|--:|"]
    for name in _FEEDS:
        if name in entries:
            rate, step_ms, idle = (entries[name][key] for key in ("images_per_s", "step_ms", "idle_share"))
            lines.append(f"| {title(name)} | {rate:,.0f} | {step_ms:.1f} | {idle:.1%} |")
    if not {_RESIDENT, ON_CPU, OURS} <= entries.keys():
        return "\n".join(lines)
    kept = entries[ON_CPU]["images_per_s"] / entries[_RESIDENT]["images_per_s"]
    told = (
        f"Decoded on the CPU, photographs train the network at {kept:.1%} of the rate at which one batch that stays on the GPU "
        f"does. DALI never lets it wait, but a step takes {entries[OURS]['compute_against_resident']:.2f} times as long, as "
        "decoding and the network share the GPU."
    )
    return "\n".join([*lines, "", told])


def _trained(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The measurements of a network fed by each, as it comes."""
    measurements = found.get("gpu-train", {"measurements": []})["measurements"]
    chosen = [one for one in measurements if one.get("model") == _MODEL and "workers" not in one["options"]]
    return {one["contender"]: one for one in chosen}


def _exactness(found: dict[str, Any]) -> str:
    told = []
    if "gpu-correct" in found:
        compared = [entry for entry in found["gpu-correct"]["measurements"] if "p99.9" in entry]
        told.append(
            f"{sum(entry['is_within'] for entry in compared)} of {len(compared)} comparisons of pixels with the CPU's are within "
            f"their bounds, on an idle device and a busy one ({max(entry['mean'] for entry in compared):.2f} of 255 on average "
            "at most)."
        )
    if "gpu-damaged" in found:
        judged = found["gpu-damaged"]["measurements"]
        ways = dict.fromkeys(entry["way"] for entry in judged)
        told.append(
            f"Folders with damaged files got the CPU's verdict on each file in {sum(one['same_verdict'] for one in judged)} of "
            f"{len(judged)} cases, by DALI with {' and with '.join(ways)}."
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
        "differed." + (" The loop by hand was not reached in the time that there was." if "cuDF by hand" not in rates else "")
    )


def _clips(found: dict[str, Any]) -> str:
    if "gpu-clips" not in found:
        return ""
    entries = found["gpu-clips"]["measurements"]
    parity = [entry for entry in entries if entry["question"] == "parity"]
    rates: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for entry in entries:
        if entry["question"] == "rate" and "num_workers" in entry:  # since worker processes decode
            rates.setdefault((entry["set"], entry["num_workers"]), {}).setdefault(entry["feed"], []).append(entry)
    lines = []
    for (name, num_workers), by_feed in rates.items():
        if by_feed.keys() >= {"clips_cpu", "clips_nvdec"}:
            per_s = {feed: _median(mine, "clips_per_s") for feed, mine in by_feed.items()}
            cores = " and ".join(f"{_median(by_feed[feed], 'cores'):.1f}" for feed in ("clips_cpu", "clips_nvdec"))
            lines.append(f"| {name}, {num_workers} workers | {per_s['clips_cpu']:,.0f} | {per_s['clips_nvdec']:,.0f} | {cores} |")
    if lines:
        head = [
            "| clips of 8 frames, cut at random | CPU, clips/s | with engines, clips/s | cores busy |",
            "|---|--:|--:|--:|",
        ]
        lines = [*head, *lines, ""]
    num_clips, num_different = (sum(one[key] for one in parity) for key in ("num_clips", "num_different"))
    told = (
        f"Clips decoded by the GPU's engines, on {_machine(found['gpu-clips'])}: of {num_clips:,} clips {num_different} differed "
        "from the CPU's, bit for bit."
    )
    return "\n".join([*lines, told])
