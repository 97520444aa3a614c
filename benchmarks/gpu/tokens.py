"""Stage `tokens`: packed rows of tokens on the GPU, tokens per second, and a small GPT that is fed by each way."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from benchmarks.gpu.job import ask_job
from benchmarks.gpu.report import Report
from benchmarks.gpu.settings import Check, Deadline
from benchmarks.gpu.token_feeds import NANO, OURS, RESIDENT

_END = 50_256  # of GPT-2's ids, the last
_NUM_TOKENS = 30_000_000
_MEDIAN_TOKENS, _SPREAD = 500, 1.2  # of documents of the web, about; of their logarithm
_NUM_ROUNDS = 2
_MAX_IDLE = 0.01
_MOST_OF_LEAK = 0.1  # of the change that seeing other documents makes; bf16 is as far as this


def run(check: Check, report: Report, deadline: Deadline) -> None:
    file = corpus(check)
    length = check.pick(4096, 64)
    common = {"file": str(file), "length": length, "rows": check.pick(8, 2)}
    found = ask_job(check, report, deadline, "parity", "tokens_job", {**common, "question": "parity"}, seconds=20)
    if found:
        report.expect("parity", found["num_different"] == 0, f"batches on the device are not the host's: {found}")
    found = ask_job(check, report, deadline, "apart", "tokens_job", {**common, "question": "apart", "rows": 4}, seconds=20)
    if found:
        is_apart = found["packed"] <= _MOST_OF_LEAK * found["leaky"]
        report.expect("apart", is_apart, f"documents that are packed see each other: {found}")
    seconds, warmup_s = check.pick((5.0, 3.0), (0.05, 0.0))
    for number in range(check.pick(_NUM_ROUNDS, 1)):
        feeds = (RESIDENT, OURS, NANO) if number % 2 == 0 else (NANO, OURS, RESIDENT)
        for feed in feeds:
            arguments = {**common, "question": "train", "feed": feed, "seconds": seconds, "warmup_s": warmup_s}
            what = f"train, {feed}"
            found = ask_job(check, report, deadline, what, "tokens_job", arguments, seconds=seconds + warmup_s, round=number)
            if found:
                report.expect(what, found["is_loss_finite"], "the loss is not finite: are batches right?")
                if feed == OURS and not check.is_dry:
                    idle = found["idle_share"]
                    report.expect(what, idle <= _MAX_IDLE, f"the GPU stood still for {idle:.2%} of the time")
    for feed in (OURS, NANO):
        arguments = {**common, "question": "rate", "feed": feed, "seconds": check.pick(2.0, 0.05), "warmup_s": warmup_s / 3}
        ask_job(check, report, deadline, f"rate, {feed}", "tokens_job", arguments, seconds=5)


def corpus(check: Check) -> Path:
    """Generated documents, as one file of ids and the ends of documents beside it (datatrove's form), if it is not there."""
    file = check.data / "tokens.ds"
    if not file.exists():
        rng = np.random.default_rng(0)
        num = check.pick(_NUM_TOKENS, 20_000)
        lengths = np.exp(rng.normal(math.log(check.pick(_MEDIAN_TOKENS, 12)), _SPREAD, num // 100)).astype(np.int64) + 2
        ends = lengths.cumsum()
        ends = ends[: int(np.searchsorted(ends, num)) + 1]
        # Words as frequent as those of a language, so that a loss falls.
        ids = np.minimum(rng.zipf(1.2, int(ends[-1])), _END - 1).astype("<u2")
        ids[ends - 1] = _END
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".ds.index").write_bytes(ends.astype("<u8").tobytes())
        part = file.with_suffix(".part")
        part.write_bytes(ids.tobytes())
        part.rename(file)
    return file
