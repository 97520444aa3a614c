"""Click-through prediction as DLRM does it: dense features and embeddings of ids, from a table of generated clicks.

    python examples/click_through.py                     # generates clicks/, fits, trains, prints the loss
    python examples/click_through.py --rows 2000000 --epochs 2

The columns are those of Criteo's logs: label, I1 to I13 with gaps, C1 to C26 as hexadecimal strings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import datapipe as dp

C = dp.Columns
DENSE, IDS = [f"I{number}" for number in range(1, 14)], [f"C{number}" for number in range(1, 27)]


def generate(path: Path, num_rows: int, *, rows_per_group: int = 16_384) -> None:
    """Clicks that depend on a few of the columns."""
    rng = np.random.default_rng(0)
    counts = np.floor(rng.lognormal(1.0, 1.5, (num_rows, len(DENSE)))).astype(np.int32)
    kinds = rng.zipf(1.4, (num_rows, len(IDS))) % 1000
    odds = 0.8 * np.log1p(counts[:, 0]) - 1.2 * (kinds[:, 0] % 2) + 0.7 * (kinds[:, 1] % 3) - 1.5
    columns = {"label": (rng.random(num_rows) < 1 / (1 + np.exp(-odds))).astype(np.int8)}
    for number, name in enumerate(DENSE):
        columns[name] = pa.array(counts[:, number], mask=rng.random(num_rows) < 0.1 * (number > 0))
    words = pa.array([f"{value * 2654435761 % 2**32:08x}" for value in range(1000)])
    for number, name in enumerate(IDS):
        columns[name] = words.take(pa.array(kinds[:, number]))
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)


class ClickModel(nn.Module):
    """A small DLRM: dense features through a network, dot products of all pairs of embeddings, and a network on top."""

    def __init__(self, num_ids: list[int], *, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(num, width, padding_idx=0) for num in num_ids])
        self.bottom = nn.Sequential(nn.Linear(len(DENSE), 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.pairs = torch.triu_indices(len(num_ids) + 1, len(num_ids) + 1, offset=1)
        self.top = nn.Sequential(nn.Linear(width + self.pairs.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(ids[:, n]) for n, table in enumerate(self.embeddings))], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([bottom, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("clicks"))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=2048)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    table = arguments.directory / "clicks.parquet"
    generate(table, arguments.rows)

    recipe = C({"I*": [C.FillMissing("median"), C.Log1p(), C.Normalize()], "C*": C.Categorify(min_count=5)}).fit(table)
    data = dp.Table(
        table, label="label", columns={"dense": DENSE, "ids": IDS}, transform=recipe,
        dtypes={"dense": torch.float32, "label": torch.float32},
    )  # fmt: skip
    loader = dp.DataLoader(data, arguments.batch_size, shuffle=True, seed=0)
    torch.manual_seed(0)
    model = ClickModel([recipe.num_ids(name) for name in IDS]).to(loader.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(arguments.epochs):
        losses = []
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x["dense"], x["ids"]), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        tenth = max(1, len(losses) // 10)
        first, last = (torch.stack(part).mean().item() for part in (losses[:tenth], losses[-tenth:]))
        print(f"epoch {epoch}: {len(losses)} steps, loss {first:.4f} at first, {last:.4f} at last")


if __name__ == "__main__":
    main()
