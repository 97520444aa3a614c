"""Photographs from a store."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import interval, line

_PEERS = {"litdata, cold": "LitData", "mds, cold": "MosaicML Streaming"}
_STORE_ROWS = {
    "local": "datapipe, shards on the disk",
    "warm cache": "datapipe, `s3://`, all shards in the shard cache",
    "windows, cold": 'datapipe, `s3://`, `shuffle="windows"`, nothing cached',
    "ranges": "datapipe, `s3://`, full shuffle by ranges, nothing cached",
    **{name: f"{title}, nothing cached" for name, title in _PEERS.items()},
}


def stores(result: dict[str, Any]) -> str:
    """A table of the ways to read photographs from a store."""
    settings, server, first = result["settings"], result["server"], result["first_batch_of_many_shards_s"]
    lines = ["| photographs from a store | images/s | to the disk | apart from the server | lock held, us an image |"]
    lines.append("|---|--:|--:|--:|--:|")
    for name, title in _STORE_ROWS.items():
        if name in result["variants"]:
            found, held = result["variants"][name], result["held_us_per_image"].get(name)
            ratios = ["", ""] if name == "local" else [interval(found[key]) for key in ("to_local", "to_local_apart")]
            lines.append(line(title, [f"{found['images_per_s']:,.0f}", *ratios, "" if held is None else f"{held:.0f}"]))
    told = (
        f"The store is a server of ours on the loopback interface that answers after {settings['latency_ms']} ms. It takes "
        f"{server['cpu_us_per_answer']} us of CPU per answer, on the same {settings['num_threads']} cores; apart from the "
        f"server means with that time, spread over the cores, taken off the clock. The disk against itself: "
        f"{interval(result['variants']['local-again']['to_local'])}. A set of {settings['many_shards']:,} shards of which "
        f"nothing is cached gives its first shuffled batch after {first['median']:.1f} s ({first['highest']:.1f} at most)."
    )
    for name, title in _PEERS.items():
        if failed := result["variants"].get(name, {}).get("num_failed"):
            told += f" {title} failed in {failed} of {settings['num_rounds']} rounds, which are left out."
    return "\n".join([*lines, "", told])


def in_short(result: dict[str, Any]) -> str:
    """The sentence of README."""
    ratios = {name: found["to_local_apart"]["ratio"] for name, found in result["variants"].items()}
    peers = [f"{title} {ratios[name]:.0%}" for name, title in _PEERS.items() if name in ratios]
    told = (
        f"From a store that takes {result['settings']['latency_ms']} ms to answer, fully shuffled photographs load at "
        f"{ratios['ranges']:.0%} of the speed of a local disk with nothing cached, and at {ratios['warm cache']:.0%} with "
        "the shard cache."
    )
    return f"{told} {', '.join(peers).replace(' ', ' reaches ', 1)}." if peers else told
