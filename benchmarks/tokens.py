"""Text: how fast it becomes token ids, how full rows are and how fast they are planned, and how fast batches come.

    python -m benchmarks.tokens
    python -m benchmarks.tokens --dry-run                    # little of everything: does it run?
    python -m benchmarks.tokens --peers PATH/TO/bin/python   # with axolotl, olmo-core, TRL and Grain, installed there

Texts are the source files of Python's standard library, cut into documents of log-normal lengths; a byte-level BPE of 32,000
tokens, with Qwen 2's pattern of words, is trained on them. Lengths in tokens are log-normal (median 415, 2.2% above 4,096), as
those of web pages. Contenders of a part run once per round in fresh processes, in rotated order, over the same documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.ratios import ratio_of, rotated
from benchmarks.token_contenders import BATCHES, PACKINGS, PEERS, web_lengths, write_corpus, write_documents

LENGTH = 4096
WINDOW = 65_536  # documents
# (part, contender, against, the least that speed over speed may be)
BARS = (
    ("convert", "datapipe", "tokenizers", 10.0),
    ("pack", "datapipe", "axolotl", 5.0),
    ("pack", "datapipe", "olmo-core", 20.0),
    ("batches", "datapipe", "torch, 2 workers", 5.0),
    ("batches", "datapipe", "grain, packing", 10.0),
)
MIN_FILL = 0.9998
MIN_EFFICIENCY = 0.93
MAX_OPEN_MS, MAX_PLAN_S, MAX_STATE_NBYTES = 50.0, 5.0, 1000


def main() -> None:
    arguments = _parse()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        scratch = Path(name)
        corpus, texts = scratch / "corpus.jsonl", (1 if arguments.dry_run else arguments.megabytes) * 1_000_000
        tokenizer, num_texts = write_corpus(corpus, texts)
        documents = write_documents(scratch / "documents", 2_000 if arguments.dry_run else 40_000)
        rounds: dict[str, dict[str, list[float]]] = {}
        for part, names, where in (
            ("convert", ["datapipe", "tokenizers"], corpus),
            ("pack", PACKINGS, documents),
            ("batches", BATCHES, documents),
        ):
            names = [one for one in names if arguments.peers or one not in PEERS]
            rounds[part] = {one: [] for one in names}
            for number in range(arguments.rounds):
                for one in rotated(list(names), number):
                    found = _run(part, one, where, tokenizer, arguments)
                    rounds[part][one].append(found)
                    print(f"round {number + 1}/{arguments.rounds}  {part:<8} {one:<20} {found:14,.0f} a second", flush=True)
        same = _same_ids(corpus, tokenizer, scratch)
        large = _large(scratch, 100_000 if arguments.dry_run else 10_000_000)
    result = {
        "settings": {
            "texts_nbytes": texts,
            "num_texts": num_texts,
            "length": LENGTH,
            "window": WINDOW,
            "num_rounds": arguments.rounds,
        },
        "per_second": {
            part: {one: round(statistics.median(values)) for one, values in found.items()} for part, found in rounds.items()
        },
        "rounds": rounds,
        "speed": _speeds(rounds),
        "ids_identical": same,
        "fill": _fill(),
        "large": large,
        "efficiency": _efficiency(),
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("tokens", "benchmarks.tokens", result, results=arguments.results)


def _speeds(rounds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """How many times as fast as the others, with what the bars ask."""
    return {
        f"{part}: {ours} / {other}": {**dataclasses.asdict(ratio_of(rounds[part][ours], rounds[part][other])), "bar": least}
        for part, ours, other, least in BARS
        if other in rounds[part]
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = []
    for name, ratio in result["speed"].items():
        verdict = "holds" if ratio["ratio"] >= ratio["bar"] else "MISSED"
        lines.append(f"{name}: {ratio['ratio']:.1f}x [{ratio['low']:.1f}, {ratio['high']:.1f}], bar {ratio['bar']:g}x {verdict}")
    lines.append(f"ids identical: {result['ids_identical']}")
    lines += [f"rows of {length}: {fill:.3%} full, bar {MIN_FILL:.2%} at {LENGTH}" for length, fill in result["fill"].items()]
    large = result["large"]
    lines.append(f"{large['documents']:,} documents: plan made in {large['plan_s']:.1f} s, bar {MAX_PLAN_S:g}")
    lines.append(
        f"... opened in {large['open_ms']:.0f} ms, bar {MAX_OPEN_MS:g}; {large['plan_nbytes_per_document']:.1f} bytes a document"
    )
    lines.append(f"... state of {large['state_nbytes']} bytes, bar {MAX_STATE_NBYTES}")
    for one in result["efficiency"]:
        lines.append(
            f"{one['length']:,} tokens, 64 ranks, 4 micro-batches: efficiency {one['plain']:.3f} -> {one['balanced']:.3f}"
        )
    return lines


# -- parts ---------------------------------------------------------------------------------------------


def _run(part: str, name: str, where: Path, tokenizer: Path, arguments: argparse.Namespace) -> float:
    """Return what a contender does per second: bytes of text, documents, or tokens."""
    environment = {
        "XDG_CACHE_HOME": str(where.parent / "cache"),
        "PYTHONDONTWRITEBYTECODE": "",  # modules are compiled once, as those of an installed package are
        "PYTHONPYCACHEPREFIX": str(where.parent / "bytecode"),
    }
    module = ["benchmarks.token_contenders", part, name, str(where), str(tokenizer)]
    python = arguments.peers if name in PEERS else sys.executable
    return float(harness.run_contender(f"{part} {name}", module, python=python, limit_s=900, environment=environment))


def _same_ids(corpus: Path, tokenizer: Path, scratch: Path) -> bool:
    """Return whether a conversion has the ids that `tokenizers` gives, compared for every eighth document."""
    from tokenizers import Tokenizer

    from converters import ConvertOptions, convert
    from converters.tokenizer import Tokenizing
    from datapipe.opening.tokens.opening import open_tokens

    tokens = Tokenizing.of(tokenizer, eos="<|endoftext|>")
    convert(ConvertOptions(corpus, scratch / "compared", to="tokens", tokens=tokens, seed=None))
    reference = Tokenizer.from_file(str(tokenizer))
    reference.encode_special_tokens = True
    index = open_tokens(scratch / "compared")
    with corpus.open() as lines:
        for number, line in enumerate(lines):
            if number % 8:
                continue
            (shard_number,), (document,) = index.locate(np.array([number]))
            shard = index.shard(int(shard_number))
            place = int(shard.offset[document] - shard.offset[0]) // shard.dtype.itemsize
            found = shard.mapped[0][place : place + int(shard.num_tokens[document])].tolist()
            if found != [*reference.encode(json.loads(line)["text"], add_special_tokens=False).ids, 0]:
                return False
    return number + 1 == len(index)


def _fill() -> dict[str, float]:
    """How full rows are, by their length, over a million documents in windows."""
    from datapipe.packing.fit import best_fit

    lengths = web_lengths(1_000_000)
    found = {}
    for length in (LENGTH, 8 * LENGTH):
        left = np.where(lengths <= length, lengths, lengths % length)
        num_rows = int((lengths // length).sum())
        for first in range(0, len(left), WINDOW):
            some = left[first : first + WINDOW]
            num_rows += len(best_fit(some[some > 0], length)[1])
        found[str(length)] = float(lengths.sum() / (num_rows * length))
    return found


def _large(scratch: Path, num_documents: int) -> dict[str, Any]:
    """Plan and open a corpus of many documents, whose tokens are never read."""
    import datapipe as dp

    getattr(dp, "Tokens")  # noqa: B009  # imported by this, and not in what is timed
    lengths = web_lengths(num_documents)
    shards = np.array_split(lengths, 64)
    path = scratch / "large"
    path.mkdir()
    for number, some in enumerate(shards):
        ends = np.cumsum(some)
        ends.astype("<u8").tofile(path / f"{number:02d}.ds.index")
        with (path / f"{number:02d}.ds").open("wb") as file:
            file.truncate(2 * int(ends[-1]))
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache-large")
    started = time.perf_counter()
    dp.Tokens(path, LENGTH)
    planned = time.perf_counter()
    data = dp.Tokens(path, LENGTH)
    opened = time.perf_counter()
    loader = dp.DataLoader(data, 8, shuffle=True, seed=0, num_workers=0)
    next(iter(loader))
    (plan,) = (scratch / "cache-large").rglob("packs-*.arrow")
    return {
        "documents": num_documents,
        "plan_s": round(planned - started - (opened - planned), 2),
        "open_ms": round((opened - planned) * 1e3, 1),
        "state_nbytes": len(json.dumps(loader.state_dict())),
        "plan_nbytes_per_document": round(plan.stat().st_size / num_documents, 2),
    }


def _efficiency() -> list[dict[str, float]]:
    """Mean cost by that of the slowest rank, which the others wait for at each micro-batch: 64 ranks with a row each.

    The cost of a row, in operations of a model of 7B parameters (32 layers, width 4,096): 6 per parameter and token, and 12 times
    width times layers for each pair of a token and one that it attends to.
    """
    from datapipe.order.by_length import BalancedSteps
    from datapipe.order.sample_order import ShuffledOrder
    from datapipe.packing.fit import best_fit

    lengths, found = web_lengths(2_000_000), []
    for length in (LENGTH, 8 * LENGTH):
        left = np.where(lengths <= length, lengths, lengths % length)
        left = left[left > 0]
        documents, ends = best_fit(left, length)
        row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        squares = np.bincount(row, left[documents].astype(np.float64) ** 2)
        squares = np.concatenate([squares, np.full(int((lengths // length).sum()), float(length) ** 2)])
        cost = 6 * 7e9 * length + 12 * 4096 * 32 * squares / 2
        order = ShuffledOrder(len(cost), 0)
        balanced = BalancedSteps(order, 64, 4, lambda epoch, rows, squares=squares: squares[rows])  # type: ignore[misc]
        num = len(cost) // 256 * 256
        by_order = []
        for one in (order, balanced):
            steps = cost[one(0, np.arange(num))].reshape(-1, 64)
            by_order.append(float(steps.mean(axis=1).sum() / steps.max(axis=1).sum()))
        found.append({"length": length, "plain": round(by_order[0], 4), "balanced": round(by_order[1], 4)})
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokens", description="Texts, token ids, rows and batches.")
    parser.add_argument("--megabytes", type=int, default=160, help="of text to convert (160)")
    parser.add_argument("--peers", help="a Python with axolotl, ai2-olmo-core, trl and grain; see README.md")
    return harness.run_arguments(parser, rounds=5, scratch="the data (2 GB)")


if __name__ == "__main__":
    main()
