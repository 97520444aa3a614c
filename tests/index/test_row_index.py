"""Fields that are addressed by rows, in sidecars and in the index over them: looked up, and grouped for an order."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.codecs.stored import prefixed
from datapipe.errors import FormatError
from datapipe.index import open_sidecars as index_module
from datapipe.index.concat import select
from datapipe.index.entries import RowGroup
from datapipe.index.manifest import Manifest, ShardInfo
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sample_index import SampleIndex
from datapipe.index.sidecar import SIDECAR_SUFFIX, FieldColumn, SidecarRows, write_sidecar

COLUMN = "pictures.byt\udcff"  # a name that is not UTF-8


def rows_of(starts: list[int], *, by_rows: bool = True, nbytes: int = 70) -> SidecarRows:
    """A shard of those row groups, the image by rows, the caption by bytes."""
    num = starts[-1]
    rows = SidecarRows((), row_groups=tuple(starts) if by_rows else ())
    image = FieldColumn(np.arange(num), np.full(num, nbytes), column=COLUMN) if by_rows else FieldColumn(
        np.arange(num) * 100, np.full(num, 90), prefix=b"head"
    )  # fmt: skip
    rows.add_column("image", image)
    rows.add_column("caption", FieldColumn(np.arange(num) * 9, np.full(num, 5)))
    for row in range(num):
        rows.append(id=row, key=b"%d" % row, source=b"", label=row % 3, size=(0, 0), extents={})
    return rows


def make_index(directory: Path, shards: list[SidecarRows], *, container: str = "parquet", sha256: str = "") -> SampleIndex:
    directory.mkdir(exist_ok=True)
    infos, first = [], 0
    for number, rows in enumerate(shards):
        write_sidecar(directory / f"{number}{SIDECAR_SUFFIX}", rows, str(number))
        infos.append(ShardInfo(str(number), len(rows), 1000, first, len(rows), sha256=sha256))
        first += len(rows)
    fields = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("caption", FieldKind.TEXT))
    manifest = Manifest(container, fields, tuple(infos), has_row_groups=any(rows.row_groups for rows in shards))
    return SampleIndex(manifest, data_directory=directory, sidecar_directory=directory)


def test_a_sidecar_gives_back_its_row_groups(tmp_path: Path) -> None:
    path = tmp_path / f"x{SIDECAR_SUFFIX}"
    write_sidecar(path, rows_of([0, 4, 4, 9]), "x")
    sidecar = Sidecar(path)
    assert sidecar.row_groups.tolist() == [0, 4, 4, 9]
    assert sidecar.row_columns == {"image": COLUMN}
    assert sidecar.offsets("image").tolist() == list(range(9))
    assert sidecar.nbytes("image").tolist() == [70] * 9
    assert sidecar.offsets("caption").tolist() == list(range(0, 81, 9))
    assert sidecar.field_names == ("image", "caption")
    assert not sidecar.has_crc("image").any()
    write_sidecar(path, rows_of([0, 4, 9], by_rows=False), "x")
    sidecar = Sidecar(path)
    assert (sidecar.row_columns, len(sidecar.row_groups), sidecar.prefixes) == ({}, 0, {"image": b"head"})


@pytest.mark.parametrize(
    "text", ["", "3", "[]", "[0]", "[0, 8]", "[1, 9]", "[0, 5, 3, 9]", '["a"]', "[[0], [9]]", "[0, 1e400, 9]"]
)
def test_damaged_row_groups_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"x{SIDECAR_SUFFIX}"
    rows = rows_of([0, 4, 9])
    write_sidecar(path, rows, "x")
    with pa.ipc.open_file(path) as reader:
        table = reader.read_all()
    metadata: Any = dict(table.schema.metadata) | {b"datapipe.index.row_groups": text.encode()}
    with pa.ipc.new_file(path, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    with pytest.raises(FormatError, match=r"x\.index\.arrow: row groups"):
        Sidecar(path)


def test_rows_are_looked_up_with_their_row_groups(tmp_path: Path) -> None:
    index = make_index(tmp_path, [rows_of([0, 4, 4, 9]), rows_of([0, 3], by_rows=False), rows_of([0, 2, 5])])
    asked = np.array([16, 0, 10, 5, 4, 4, 14])
    extents = index.look_up(asked, "image").extents
    first, last = str(tmp_path / "0"), str(tmp_path / "2")
    groups = {
        16: RowGroup("parquet", last, COLUMN, 1, 2, 5), 14: RowGroup("parquet", last, COLUMN, 1, 2, 5),
        0: RowGroup("parquet", first, COLUMN, 0, 0, 4), 4: RowGroup("parquet", first, COLUMN, 2, 4, 9),
        5: RowGroup("parquet", first, COLUMN, 2, 4, 9), 10: prefixed(b"head"),
    }  # fmt: skip
    assert extents.codecs == [groups[sample] for sample in asked.tolist()]
    assert extents.offset.tolist() == [4, 0, 100, 5, 4, 4, 2]
    assert index.look_up(asked, "caption").extents.codecs is None
    assert index.look_up(asked[2:3], "image").extents.codecs == [prefixed(b"head")]
    assert len(index.look_up(asked[:0], "image")) == 0


@pytest.mark.nightly
@quick
@given(
    shards=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), min_size=1, max_size=4),
    data=st.data(),
)
def test_grouping_keeps_together_what_is_read_together(
    shards: list[list[int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the whole dataset, and of any selection of it."""
    starts = [[0, *itertools.accumulate(sizes)] for sizes in shards]
    directory = tmp_path_factory.mktemp("grouping")
    whole = make_index(directory, [rows_of(one) for one in starts])
    chosen = data.draw(st.none() | st.lists(st.integers(0, len(whole) - 1), max_size=30))
    index = whole if chosen is None else select(whole, np.array(chosen, np.int64))
    grouping = index.row_grouping(["image", "caption"])
    assert grouping is not None
    begins = grouping.starts.tolist()
    assert begins[0] == 0
    assert begins[-1] == len(index)
    groups = index.look_up(index.ids(np.arange(len(index))), "image").extents.codecs or []
    for first, end in itertools.pairwise(begins):
        assert len({*groups[first:end]}) == (1 if len(index) else 0)
    for position in range(1, len(index)):
        assert (position in begins) == (groups[position] != groups[position - 1])
    again = pickle.loads(pickle.dumps(index)).row_grouping(["image"])
    assert again.starts.tolist() == begins
    assert index.row_grouping(["caption"]) is None


def test_sizes_of_row_groups_are_means(tmp_path: Path) -> None:
    index = make_index(tmp_path, [rows_of([0, 4, 9]), rows_of([0, 3], by_rows=False), rows_of([0, 2], nbytes=500)])
    grouping = index.row_grouping(["image"])
    assert grouping is not None
    assert grouping.starts.tolist() == [0, 4, 9, 12, 14]
    assert grouping.nbytes == (9 * 70 + 2 * 500) // 3, "a shard that is addressed by bytes costs no memory"


def test_no_sidecar_is_opened_where_nothing_can_be_addressed_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(index_module, "Sidecar", lambda path, **about: opened.append(path) or Sidecar(path, **about))
    index = make_index(tmp_path / "tars", [rows_of([0, 4, 9], by_rows=False)])
    assert index.row_grouping(["image"]) is None
    assert opened == []
    index = make_index(tmp_path / "parquet", [rows_of([0, 4, 9])] * 3)
    assert index.row_grouping(["image"]) is index.row_grouping({"image"})
    assert len(opened) == 3, "once, however often it is asked for"
    some = select(index, np.array([1, 2, 20]))
    assert some.row_grouping(["image"]) is some.row_grouping({"image"})
    assert len(opened) == 6, "of a selection too: every pass asks for it"
