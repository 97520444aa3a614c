"""What the pages say of decoding on other machines."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import interval

TITLES = {
    "images": "photographs, a crop of 224 x 224, bytes",
    "floats": "the same, normalised to float32",
    "contrastive": "the same, with SimCLR's colours and blur, bytes",
    "clips": "clips of 8 frames, 640 x 480 to 224 x 224, each by itself",
}


def elsewhere(result: dict[str, Any]) -> str:
    """CPU time that is left for the trainer, rates of a core here and there, and what kills cost."""
    lines = [
        "A trainer on one core, `datapipe serve` on another, the loopback between them; batches are the same bit for bit:",
        "",
        "| | trainer's CPU a sample, µs: here | elsewhere | here / elsewhere | samples/s: a core here | a worker's "
        "| worker's / here | both |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case, found in result["cases"].items():
        cpu, rate = found["cpu_us"], found["rate"]
        cells = [f"{cpu['here']:,.0f}", f"{cpu['elsewhere']:,.0f}", interval(found["cpu_ratio"])]
        cells += [f"{rate['here']:,.0f}", f"{rate['elsewhere']:,.0f}", interval(found["rate_ratio"]), f"{rate['both']:,.0f}"]
        lines.append(f"| {TITLES[case]} | {' | '.join(cells)} |")
    kills, idle = result["kills"], result["idle"]
    lines += [
        "",
        f"A worker that was killed {kills['kills']} times in a minute, and begun again, was there for {kills['share_there']:.0%} "
        f"of it; of what both cores would have made while they were there, {kills['lost']:.1%} was lost. No batch differed. "
        f"{idle['connections']} open connections take {idle['cpu_us_per_s']:,.0f} µs of CPU a second.",
    ]
    return "\n".join(lines)
