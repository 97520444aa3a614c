"""`datapipe inspect --grid`: masks and boxes are drawn where they are, and what cannot be drawn is marked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from converters import ConvertOptions, convert
from datapipe.cli.main import main
from datapipe.containers.form import FieldChoice
from datapipe.kinds.images.contact_sheet import _BACKGROUND, _CELL, _COLOURS, _GAP

SIDE = 80  # half of a cell


def sheet_of(tmp_path: Path, boxes: NDArray[np.float32], mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the first cell of the sheet of a dataset of one black image with those boxes and that mask."""
    source = tmp_path / "source"
    source.mkdir()
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(source / "a.png")
    Image.fromarray(mask).save(source / "a_mask.png")
    rows = [{"image": "a.png", "mask": "a_mask.png", "boxes": boxes.tolist(), "label": "bird"}]
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = (FieldChoice("boxes", "boxes"),)
    convert(ConvertOptions(source / "list.jsonl", tmp_path / "set", fields=fields))
    assert main(["inspect", str(tmp_path / "set"), "--grid", str(tmp_path / "sheet.png")]) == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        return np.asarray(sheet.convert("RGB"))[_GAP : _GAP + _CELL, _GAP : _GAP + _CELL]


def test_masks_and_boxes_lie_where_they_belong(tmp_path: Path) -> None:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[40:, :] = 2
    cell = sheet_of(tmp_path, np.array([[10, 5, 30, 25, 1]], np.float32), mask)
    assert (cell[:70, 100:] == _BACKGROUND).all()
    assert np.abs(cell[90:, :].astype(int) - 0.55 * _COLOURS[2]).max() <= 1
    rows, columns = np.nonzero((cell == _COLOURS[1]).all(2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 48, 20, 58)  # twice as large, ends excluded
    assert (cell[14:44, 24:54] == 0).all()  # an outline, nothing within


def test_boxes_that_are_none_mark_the_sample_and_not_the_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.kinds.images.contact_sheet.read_npy_array", lambda data: np.zeros((2, 3)))
    cell = sheet_of(tmp_path, np.zeros((0, 5), np.float32), np.zeros((SIDE, SIDE), np.uint8))
    assert (cell[0, :] == (190, 40, 30)).all()
