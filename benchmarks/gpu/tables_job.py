"""Tables on the GPU: are the batches Arrow's, how many rows a second come, and how long does a network wait for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import datapipe as dp
from benchmarks.gpu.device import MB, Device, open_device
from benchmarks.gpu.pace import bf16_step, first_and_steady, run_paced
from benchmarks.gpu.settings import Check
from benchmarks.gpu.table_feeds import ARROW, CUDF, FEEDS, Batch, open_ours
from datapipe.kinds.tables.trial_data import DENSE, IDS

_IDS, _WIDTH = 100_000, 16  # of an embedding


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: question ("parity", "rate" or "train") and folder; feed, batch_size, warmup_s, seconds; recipe."""
    device = open_device(check.device)
    with contextlib.ExitStack() as stack:
        if check.is_dry:
            from benchmarks.gpu.host_runtime import dry_cudf

            stack.enter_context(dry_cudf())
        folder = Path(arguments["folder"])
        if arguments["question"] == "parity":
            yield parity(folder, device, recipe=arguments["recipe"], batch_size=arguments["batch_size"])
            return
        batches = FEEDS[arguments["feed"]](folder, arguments["batch_size"], device.name)
        answer = {"rate": rate, "train": train}[arguments["question"]]
        yield {"feed": arguments["feed"], "batch_size": arguments["batch_size"], **answer(batches, device, arguments, check)}


def parity(folder: Path, device: Device, *, recipe: str, batch_size: int) -> dict[str, Any]:
    """Compare an epoch of batches by cuDF with Arrow's. `recipe`: a saved `dp.Columns`; empty: none."""
    options: dict[str, Any] = {"transform": dp.Columns.load(recipe)} if recipe else {}
    pairs = zip(
        open_ours(CUDF, folder, batch_size, device.name, **options),
        open_ours(ARROW, folder, batch_size, "cpu", **options),
        strict=True,
    )
    num_rows, num_different, worst = 0, 0, 0.0
    for (x, y), (expected, label) in pairs:
        num_rows += len(y)
        num_different += int((x["ids"].cpu() != expected["ids"]).sum()) + int((y.cpu() != label).sum())
        dense, theirs = x["dense"].cpu(), expected["dense"]
        worst = max(worst, float(((dense - theirs).abs() / theirs.abs().clamp(min=1)).nan_to_num().max()))
        num_different += int((dense.isnan() != theirs.isnan()).sum())
    return {"num_rows": num_rows, "num_different": num_different, "worst_relative_difference": worst}


def rate(batches: Iterator[Batch], device: Device, arguments: dict[str, Any], check: Check) -> dict[str, Any]:
    """Rows per second from batch to batch, once it runs."""
    before_mb = device.used_mb()
    first_batch_s, taken = first_and_steady(batches, device, arguments, lambda batch: len(batch[2]))
    return {
        "rows_per_s": taken.num / taken.wall_s,
        "first_batch_s": round(first_batch_s, 2),
        "device_mb": round(device.used_mb() - before_mb),
    }


def train(batches: Iterator[Batch], device: Device, arguments: dict[str, Any], check: Check) -> dict[str, Any]:
    """The pace of a network like DLRM, and how long the device stood still for data."""
    torch.set_num_threads(1)  # the host only queues work
    step, losses = training_step(device.name, num_ids=check.pick(_IDS, 100))
    step(next(batches))
    device.synchronise()
    pace = run_paced(batches, step, device, warmup_s=arguments["warmup_s"], seconds=arguments["seconds"])
    found = {name: round(value, 4) for name, value in pace.summed_up(arguments["batch_size"]).items()}
    found["rows_per_s"] = found.pop("images_per_s")
    peak = torch.cuda.max_memory_allocated() if device.name == "cuda" else 0
    return {**found, "torch_peak_mb": round(peak / MB), "is_loss_finite": bool(torch.isfinite(torch.stack(losses)).all())}


class ClickModel(torch.nn.Module):
    """Embeddings and dense features, multiplied pairwise, as in "Deep Learning Recommendation Model" (arXiv 1906.00091)."""

    def __init__(self, num_ids: int) -> None:
        super().__init__()
        self.num_ids = num_ids
        self.pairs: torch.Tensor
        self.starts: torch.Tensor
        self.embeddings = torch.nn.Embedding(num_ids * len(IDS), _WIDTH)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(len(DENSE), 64), torch.nn.ReLU(), torch.nn.Linear(64, _WIDTH))
        pairs = torch.triu_indices(len(IDS) + 1, len(IDS) + 1, 1)
        self.register_buffer("pairs", pairs)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(pairs.shape[1] + _WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )  # fmt: skip
        self.register_buffer("starts", torch.arange(len(IDS)) * num_ids)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(b, 13) and (b, 26) -> (b,) logits."""
        embedded = self.embeddings(ids % self.num_ids + self.starts)
        first = self.bottom(dense)
        together = torch.cat([first[:, None], embedded.to(first.dtype)], 1)
        products = together @ together.transpose(1, 2)
        answer: torch.Tensor = self.top(torch.cat([first, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]
        return answer


def training_step(device: str, *, num_ids: int) -> tuple[Callable[[Batch], None], list[torch.Tensor]]:
    """See `bf16_step`."""
    torch.manual_seed(0)
    model = ClickModel(num_ids).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(batch: Batch) -> torch.Tensor:
        dense, ids, label = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(model(torch.log1p(dense), ids).float(), label)

    return bf16_step(loss_of, optimizer, device)
