"""Arrow files of images: which column is the label, and what is said of images that are not in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.errors import FormatError
from datapipe.peers.arrow import index_shard

IMAGE = b"\xff\xd8\xff not looked at"


def written(path: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["label", "Label", "Y"])
def test_labels_by_name(tmp_path: Path, name: str) -> None:
    rows, fields = index_shard(written(tmp_path / "x.arrow", {"Image": [IMAGE] * 3, name: [2, 0, 1]}))
    assert rows.labels == [2, 0, 1]
    assert [field.name for field in fields] == ["image", "label"]


def test_images_that_are_paths_alone_are_said(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": None, "path": f"{row}.jpg"} for row in range(3)], kind)
    path = written(tmp_path / "x.arrow", {"image": images, "label": [0, 1, 2]})
    with pytest.raises(FormatError, match=r"x\.arrow: column 'image' holds no bytes, at most the paths of files: write it with"):
        index_shard(path)
