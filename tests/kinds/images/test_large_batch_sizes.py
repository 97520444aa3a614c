"""A batch takes the memory of the rows or samples that there are, whatever its size may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import datapipe as dp
from datapipe import transforms as T
from tests.fixtures import make_folder

SIZES = (1 << 31, 1 << 40)


@pytest.mark.parametrize("batch_size", SIZES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_tables(tmp_path: Path, batch_size: int, shuffle: bool) -> None:
    pq.write_table(pa.table({"a": np.arange(1000)}), tmp_path / "t.parquet", row_group_size=100)
    (batch,) = list(dp.TableLoader(tmp_path / "t.parquet", batch_size, shuffle=shuffle, device="cpu"))
    assert sorted(batch[:, 0].tolist()) == list(range(1000))


@pytest.mark.parametrize("batch_size", SIZES)
def test_images(tmp_path: Path, batch_size: int) -> None:
    folder = make_folder(tmp_path / "photos", num=6)
    arguments: dict[str, Any] = {"transform": [T.Resize(24), T.CenterCrop(16)], "device": "cpu", "backend": "images_cpu"}
    ((images, labels),) = list(dp.DataLoader(folder, batch_size=batch_size, **arguments))
    ((wanted, wanted_labels),) = list(dp.DataLoader(folder, batch_size=6, **arguments))
    assert torch.equal(images, wanted)
    assert torch.equal(labels, wanted_labels)
