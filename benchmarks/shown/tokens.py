"""Texts to token ids, rows packed of them, batches of those."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import interval, line

_TOKENS = {
    "datapipe": "datapipe, in the caller's thread",
    "datapipe, 2 threads": "datapipe, 2 threads",
    "torch, no workers": "torch's DataLoader over the same rows, no workers",
    "torch, 2 workers": "the same, 2 workers",
    "grain, packing": "Grain, packing as it goes",
}


def tokens(result: dict[str, Any]) -> str:
    """Batches of packed rows by everything that makes them, and what goes before."""
    rates, large = result["per_second"], result["large"]
    lines = ["| packed rows of 4,096 tokens | M tokens/s |", "|---|--:|"]
    lines += [
        line(title, [f"{rates['batches'][name] / 1e6:,.1f}"]) for name, title in _TOKENS.items() if name in rates["batches"]
    ]
    speed = {name: interval(one) for name, one in result["speed"].items()}
    packed = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates["pack"].items())
    encoded = f"{rates['convert']['datapipe'] / 1e6:.1f} MB/s, {speed['convert: datapipe / tokenizers']} the speed"
    opened = f"takes {large['plan_s']:.1f} s and {large['plan_nbytes_per_document']:.1f} bytes a document"
    fills = f"Rows of 4,096 are {result['fill']['4096']:.2%} full, those of 32,768 {result['fill']['32768']:.2%}."
    told = (
        f"{result['settings']['texts_nbytes'] / 1e6:,.0f} MB of Python's source code become token ids at {encoded} of "
        "`tokenizers` in as many processes, start included, with the same ids, by a tokenizer with the words of Qwen 2. That is "
        "less than the encoder alone would reach: documents are listed, read and written one by one, each with its checksum and "
        f"its place. {fills} Documents planned per second: {packed}. A plan for {large['documents']:,} documents "
        f"{opened}, and opens in {large['open_ms']:.0f} ms; a state takes {large['state_nbytes']} bytes."
    )
    balanced = "; ".join(
        f"rows of {one['length']:,}: {one['plain']:.3f}, dealt evenly {one['balanced']:.3f}" for one in result["efficiency"]
    )
    costs = f"Mean cost by that of the slowest of 64 ranks, over 4 micro-batches of a 7B model, by arithmetic: {balanced}."
    return "\n".join([*lines, "", told, "", costs])
