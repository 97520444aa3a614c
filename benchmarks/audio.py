"""Sound: the CPU time of a crop, against DataLoaders with torchcodec and soundfile; resuming; how fast files are indexed.

    python -m benchmarks.audio --peers PATH/TO/bin/python    # with torchcodec, installed there
    python -m benchmarks.audio --dry-run                     # little of everything, without the peer: does it run?

Files are like those of LibriSpeech: 10 to 20 s at 16 kHz, FLAC, about 1.7 to 1 as speech is. Contenders run once per round in
fresh processes, in rotated order. Resuming is measured on an index of 10 million utterances, in the middle of an epoch: from the
state to the next batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.audio_contenders import CONTENDERS, PEERS
from benchmarks.ratios import ratio_of, rotated
from datapipe.kinds.audio.trial_data import make

BARS = {"torchcodec": 3.0, "soundfile": 1.3}  # the least that their CPU time over ours may be
MAX_RESUME_S = 1.0
NUM_UTTERANCES = 10_000_000
KINDS: dict[str, tuple[dict[str, Any], int]] = {  # settings of the samples, and the batch size
    "crops": ({"seconds": 1}, 64),
    "whole, by 64": ({}, 64),
    "whole, max_seconds=600": ({"max_seconds": 600}, 1),
}


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        directory = Path(name) / "speech"
        num_files = 70 if arguments.dry_run else 600
        make(directory, num_files)
        names = [one for one in CONTENDERS if arguments.peers or one not in PEERS]
        rounds: dict[str, list[dict[str, float]]] = {one: [] for one in names}
        for number in range(arguments.rounds):
            for one in rotated(names, number):
                found = _run(one, directory, arguments)
                rounds[one].append(found)
                print(f"round {number + 1}/{arguments.rounds}  {one:<12} {found['cpu_ms']:6.2f} CPU-ms a crop", flush=True)
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "index")
        index = _index(directory)
        resume = _resume(directory, 100_000 if arguments.dry_run else NUM_UTTERANCES)
    result = {
        "settings": {"num_files": num_files, "num_rounds": arguments.rounds},
        "cpu_ms": {one: round(statistics.median(found["cpu_ms"] for found in values), 3) for one, values in rounds.items()},
        "wall_ms": {one: round(statistics.median(found["wall_ms"] for found in values), 3) for one, values in rounds.items()},
        "rounds": rounds,
        "speed": {
            one: {
                **dataclasses.asdict(ratio_of([f["cpu_ms"] for f in rounds[one]], [f["cpu_ms"] for f in rounds["datapipe"]])),
                "bar": BARS[one],
            }
            for one in names
            if one != "datapipe"
        },
        "index": index,
        "resume": resume,
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("audio", "benchmarks.audio", result, results=arguments.results)


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, ratio in result["speed"].items():
        verdict = "holds" if ratio["ratio"] >= ratio["bar"] else "MISSED"
        lines.append(
            f"{name} / datapipe: {ratio['ratio']:.2f}x the CPU time [{ratio['low']:.2f}, {ratio['high']:.2f}],"
            f" bar {ratio['bar']:g}x {verdict}"
        )
    lines.append(f"index: {result['index']['files_per_s']:,} files/s")
    for name, resumed in result["resume"].items():
        if isinstance(resumed, dict):
            verdict = "holds" if resumed["resume_s"] <= MAX_RESUME_S else "MISSED"
            lines.append(
                f"resume, {name}, {result['resume']['utterances']:,} utterances: {resumed['resume_s']:.3f} s, bar"
                f" {MAX_RESUME_S:g} s {verdict}; opened in {resumed['open_s']:.1f} s"
            )
    return lines


def _run(name: str, directory: Path, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = harness.run_contender(
        name,
        ["benchmarks.audio_contenders", name, str(directory)],
        python=arguments.peers if name in PEERS else sys.executable,
        limit_s=900,
        environment={"XDG_CACHE_HOME": str(directory.parent / "cache")},
    )
    return found


def _index(directory: Path) -> dict[str, Any]:
    """How fast an index of files is made, and opened again."""
    from datapipe.opening.recordings.opening import open_utterances

    started = time.perf_counter()
    num = len(open_utterances(directory))
    made = time.perf_counter()
    open_utterances(directory)
    opened = time.perf_counter()
    return {"files": num, "files_per_s": round(num / (made - started)), "reopened_per_s": round(num / (opened - made))}


def _resume(directory: Path, num: int) -> dict[str, Any]:
    """How long it takes from a state in mid-epoch to the next batch, over many utterances of the files."""
    import datapipe as dp
    from datapipe.index.utterances import Utterances
    from datapipe.kinds.audio.samples import AudioSamples
    from datapipe.kinds.audio.settings import AudioSettings
    from datapipe.opening.recordings.opening import open_utterances

    found = open_utterances(directory)
    rng = np.random.default_rng(0)
    recording = rng.integers(0, len(found.recordings), num)
    start = rng.uniform(0, 2, num)
    many = Utterances.of(found.recordings, recording, where=str(directory), start=start, end=start + rng.uniform(1, 7, num))
    measured: dict[str, Any] = {"utterances": num}
    for name, (settings, batch_size) in KINDS.items():
        started = time.perf_counter()
        data = dp.Audio.__new__(dp.Audio)
        data.samples = AudioSamples.of(many, AudioSettings(**settings), skip_bad=False)
        first = dp.DataLoader(data, batch_size, shuffle=True, seed=0)
        steps = len(first)
        opened = time.perf_counter()
        state = {**first.state_dict(), "seed": 0, "samples_done": steps // 2 * batch_size}
        again = dp.DataLoader(data, batch_size, shuffle=True, seed=0)
        begun = time.perf_counter()
        again.load_state_dict(state)
        next(iter(again))
        measured[name] = {"open_s": round(opened - started, 3), "resume_s": round(time.perf_counter() - begun, 3), "steps": steps}
    measured["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return measured


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio", description="Crops of sound, their index, resuming.")
    parser.add_argument("--peers", help="a Python with torchcodec; see README.md")
    return harness.run_arguments(parser, rounds=5, scratch="the data (200 MB)")


if __name__ == "__main__":
    main()
