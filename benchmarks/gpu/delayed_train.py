"""A training script whose batches come late by a known time: what `datapipe diagnose` is to find.

    datapipe diagnose -m benchmarks.gpu.delayed_train --delay-ms 5 --steps 200

Prints one line, `DELAYED {...}`: milliseconds per step, and how long batches were really held up.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, Dataset

MARK = "DELAYED "
_NUM_WARM = 20  # steps, which also let a diagnosis settle


class Delayed(Dataset[torch.Tensor]):
    """Batches that are there already, each after a pause in the reading of it."""

    def __init__(self, batch: torch.Tensor, num: int, delay_s: float) -> None:
        self.batch, self.num, self.delay_s = batch, num, delay_s
        self.pauses_s: list[float] = []

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> torch.Tensor:
        began = time.perf_counter()
        if self.delay_s:
            time.sleep(self.delay_s)
        self.pauses_s.append(time.perf_counter() - began)
        return self.batch


def main() -> None:
    arguments = _parse()
    device, width = arguments.device, arguments.width
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(arguments.layers)]
    model = torch.nn.Sequential(*layers).to(device=device, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    held = torch.randn((width, width), device=device, dtype=dtype)
    batch = torch.zeros(16).pin_memory() if device == "cuda" else torch.zeros(16)
    delayed = Delayed(batch, _NUM_WARM + arguments.steps, arguments.delay_ms / 1e3)
    began = 0.0
    for step, taken in enumerate(DataLoader(delayed, batch_size=None)):
        if step == _NUM_WARM:
            _synchronise(device)
            began = time.perf_counter()
        taken.to(device, non_blocking=True)
        loss = model(held).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if arguments.sync:
            loss.item()
    _synchronise(device)
    step_ms = (time.perf_counter() - began) / arguments.steps * 1e3
    pause_ms = sum(delayed.pauses_s[_NUM_WARM:]) / arguments.steps * 1e3
    print(MARK + json.dumps({"step_ms": step_ms, "pause_ms": pause_ms}), flush=True)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.delayed_train")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=4096, help="of the layers")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sync", action="store_true", help="wait for the loss after each step, as `.item()` does")
    return parser.parse_args()


if __name__ == "__main__":
    main()
