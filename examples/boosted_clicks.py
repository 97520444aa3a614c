"""Gradient boosting over the clicks of `click_through.py`, read batch by batch: XGBoost's `DataIter`.

    python examples/click_through.py --rows 200000       # makes clicks/
    python examples/boosted_clicks.py                    # pip install xgboost

XGBoost bins the values as batches arrive (`QuantileDMatrix`), so the table never lies in memory as a whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost

import datapipe as dp


class Batches(xgboost.DataIter):
    """A table for XGBoost. It goes over the batches several times, and wants the same ones each time: in stored order."""

    def __init__(self, loader: dp.DataLoader) -> None:
        super().__init__()
        self._loader = loader
        self._pass: Iterator[Any] = iter(())

    def reset(self) -> None:
        self._loader.set_epoch(0)
        self._pass = iter(self._loader)

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Give XGBoost one batch; False after the last."""
        batch = next(self._pass, None)
        if batch is None:
            return False
        x, y = batch
        input_data(data=x.numpy(), label=y.numpy())
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, default=Path("clicks/clicks.parquet"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=65536)
    arguments = parser.parse_args()

    ids = dp.Columns.Categorify(min_count=5, max_size=1000)
    recipe = dp.Columns({"I*": dp.Columns.Cast("float32"), "C*": ids}).fit(arguments.table)
    data = dp.Table(
        arguments.table, label="label", columns=["I*", "C*"], transform=recipe,
        dtypes={"x": torch.float32, "label": torch.float32},
    )  # fmt: skip
    matrix = xgboost.QuantileDMatrix(Batches(dp.DataLoader(data, arguments.batch_size, device="cpu")))
    settings = {"objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 4, "seed": 0}
    told: dict[str, dict[str, list[float]]] = {}
    xgboost.train(settings, matrix, arguments.rounds, evals=[(matrix, "train")], evals_result=told, verbose_eval=False)
    losses = np.array(told["train"]["logloss"])
    print(
        f"{matrix.num_row()} rows, {matrix.num_col()} features, {len(losses)} rounds: loss {losses[0]:.4f}, then {losses[-1]:.4f}"
    )


if __name__ == "__main__":
    main()
