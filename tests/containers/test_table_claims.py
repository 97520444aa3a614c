"""What files of tables claim and do not have: rows, sizes. Refused when the table is opened, before memory is made for them."""

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from parquet_footers import TRUE, Struct, claim_rows, footer_of, tampered, with_footer

import datapipe as dp
from datapipe.cli.main import main
from datapipe.containers.hdf5.row_major import open_rows
from datapipe.containers.parquet.scanner import index_shard
from datapipe.containers.tables.files import null_counts, open_table
from datapipe.containers.tables.rows import GroupReader
from datapipe.errors import DecodeError, FormatError, IntegrityError

ROWS = 2000


def parquet_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def random_table(seed: int = 0) -> pa.Table:
    values = np.random.default_rng(seed).standard_normal((3, ROWS))
    return pa.table({"a": values[0], "b": values[1], "label": (values[2] > 0).astype(np.int64)})


def constant_table(num: int = ROWS) -> pa.Table:
    return pa.table({"a": np.zeros(num), "label": np.zeros(num, np.int64)})


def test_a_footer_that_is_taken_apart_and_put_together_says_the_same(tmp_path: Path) -> None:
    data = parquet_of(random_table())
    (tmp_path / "t.parquet").write_bytes(with_footer(data, footer_of(data)))
    assert pq.read_table(tmp_path / "t.parquet").equals(random_table())


@pytest.mark.parametrize("num", [-5, 3_000_000, 10**9, 1 << 40, 1 << 62])
@pytest.mark.parametrize("way", ["open", "load", "inspect", "convert"])
def test_rows_that_nobody_stored_are_refused(num: int, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(claim_rows(parquet_of(random_table()), num))
    if way == "open":
        with pytest.raises(FormatError, match=r"t\.parquet: .* damaged \(.*-?\d+ rows.*get the file again"):
            open_table(path)
    elif way == "load":
        with pytest.raises(FormatError, match="damaged"):
            dp.TableLoader(str(path), columns=["a", "b"], batch_size=8, device="cpu")
    else:
        table = ["--from", "table", "--to", "parquet"]
        command = ["inspect", str(path)] if way == "inspect" else ["convert", str(path), str(tmp_path / "out"), *table]
        assert main(command) == 1
        said = "".join(capsys.readouterr())
        assert "t.parquet: " in said
        assert "damaged" in said
        assert "; get the file again" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("num", [10**9, 1 << 62])
def test_images_that_nobody_stored_are_refused(num: int, tmp_path: Path) -> None:
    data = parquet_of(pa.table({"image": [b"\xff\xd8\xff" + bytes(40)] * 20, "label": [1] * 20}))
    (tmp_path / "t.parquet").write_bytes(claim_rows(data, num))
    with pytest.raises(FormatError, match=f"tells of {num} rows"):
        index_shard(tmp_path / "t.parquet")


def test_claims_cost_no_memory(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(claim_rows(parquet_of(random_table()), 10**9))
    script = (
        "import resource, sys\nfrom datapipe.containers.tables.files import open_table\n"
        "from datapipe.errors import FormatError\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    open_table(sys.argv[1])\nexcept FormatError:\n"
        "    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t.parquet")],
        capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)),
    )  # fmt: skip
    assert int(done.stdout) < 100  # MB


def test_a_row_group_with_fewer_rows_than_a_small_claim_is_named_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(claim_rows(parquet_of(random_table(), row_group_size=1000), 1500, group=1))
    index = open_table(tmp_path / "t.parquet")
    assert index.starts.tolist() == [0, 1000, 2500]
    with pytest.raises(IntegrityError, match=r"row group 1: 1000 rows are in it, and its file claims 1500"):
        GroupReader(["a"]).read(index.group(1))


def test_row_groups_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    def change(footer: Struct) -> None:
        footer[3] = ROWS + 1

    (tmp_path / "t.parquet").write_bytes(tampered(parquet_of(random_table()), change))
    with pytest.raises(FormatError, match="it tells of 2001 rows, its row groups of 2000"):
        open_table(tmp_path / "t.parquet")


def test_statistics_of_another_kind_are_damage(tmp_path: Path) -> None:
    def change(footer: Struct) -> None:
        footer[4][0][1][0][3].fields[12] = (TRUE, True)

    (tmp_path / "t.parquet").write_bytes(data := parquet_of(random_table()))
    file = open_table(tmp_path / "t.parquet").files[0]
    assert null_counts(file) == {"a": 0, "b": 0, "label": 0}
    (tmp_path / "t.parquet").write_bytes(tampered(data, change))
    with pytest.raises(FormatError, match=r"t\.parquet: damaged: a boolean at byte \d+, expected a struct"):
        null_counts(file)


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0", "compression": "zstd"}, {"row_group_size": 400_000}])
def test_runs_of_equal_values_take_hardly_a_byte_and_are_read(options: dict[str, object], tmp_path: Path) -> None:
    num = 1_000_000
    data = parquet_of(constant_table(num), **options)
    assert len(data) < num // 50
    (tmp_path / "t.parquet").write_bytes(data)
    index = open_table(tmp_path / "t.parquet")
    assert len(index) == num
    read = [GroupReader(["label"]).read(index.group(number))["label"] for number in range(index.num_groups)]
    assert sum(len(array) for array in read) == num


def test_lists_are_no_rows(tmp_path: Path) -> None:
    num = 200_000
    (tmp_path / "t.parquet").write_bytes(parquet_of(pa.table({"l": pa.array([[0, 0]] * num)})))
    assert len(open_table(tmp_path / "t.parquet")) == num
    (tmp_path / "t.parquet").write_bytes(claim_rows(parquet_of(pa.table({"l": pa.array([[0, 0]] * num)})), 3 * num))
    with pytest.raises(
        FormatError, match=r"claims 600000 rows, and the pages of its column 'l\.list\.element' hold 400000 values"
    ):
        open_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_buffers_of_arrow_files_do_not_claim_the_machine(compression: str, form: str, tmp_path: Path) -> None:
    table = pa.table({"a": np.random.default_rng(0).standard_normal(ROWS)})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = bytearray(sink.getvalue())
    place = data.index(struct.pack("<q", ROWS * 8), data.index(b"\xff\xff\xff\xff", 16))
    sizes = [place for place in range(len(data) - 8) if data[place : place + 8] == struct.pack("<q", ROWS * 8)]
    path = tmp_path / "t.arrow"
    path.write_bytes(data)
    assert len(open_table(path)) == ROWS
    for place in sizes:
        data[place : place + 8] = struct.pack("<q", 1 << 35)
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"t\.arrow: .*claims {1 << 35} bytes uncompressed"):
        open_table(path)


def test_a_bomb_of_zeros_is_refused_as_arrow(tmp_path: Path) -> None:
    table = pa.table({"a": np.zeros(100_000_000, np.int8)})
    feather.write_feather(table, str(tmp_path / "t.feather"), compression="zstd", chunksize=len(table))
    with pytest.raises(FormatError, match="claims 100000000 bytes uncompressed"):
        open_table(tmp_path / "t.feather")
    feather.write_feather(table, str(tmp_path / "t.feather"), compression="zstd", chunksize=1 << 22)
    assert len(open_table(tmp_path / "t.feather")) == len(table)


def test_an_arrow_batch_must_have_the_buffers_for_its_rows(tmp_path: Path) -> None:
    table, path = pa.table({"n": pa.nulls(1000), "a": np.arange(1000)}), tmp_path / "t.arrow"
    feather.write_feather(table, str(path), compression="uncompressed")
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<q", 1000), struct.pack("<q", 1 << 50)))
    with pytest.raises(FormatError, match=r"t\.arrow: not an Arrow file, or truncated"):
        open_table(path)


@pytest.mark.parametrize("number", [-1, 500, 1 << 30])
@pytest.mark.parametrize("kind", ["text", "list", "dictionary"])
def test_wrong_offsets_within_a_batch_are_damage(kind: str, number: int, tmp_path: Path) -> None:
    """Not a crash of whoever follows them."""
    texts = pa.array(["x", "yy", "zzz"] * 30)
    values = {"text": texts, "list": pa.array([[1.0], [2.0, 3.0], []] * 30), "dictionary": texts.dictionary_encode()}[kind]
    path = tmp_path / "t.arrow"
    feather.write_feather(pa.table({"a": np.arange(90.0), "v": values}), str(path), compression="uncompressed")
    data = bytearray(path.read_bytes())
    numbers = values.indices.to_numpy() if kind == "dictionary" else np.frombuffer(values.buffers()[1], np.int32, 91)
    place = data.index(numbers.tobytes())
    data[place + 40 : place + 44] = struct.pack("<i", number)
    path.write_bytes(data)
    index = open_table(path)
    with pytest.raises(DecodeError, match=r"t\.arrow: row group 0: does not decode"):
        GroupReader(["v"]).read(index.group(0))


def test_an_arrow_file_of_nulls_has_no_rows_to_count(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"n": pa.nulls(1000)}), str(tmp_path / "t.arrow"), compression="uncompressed")
    with pytest.raises(FormatError, match=r"no column whose values take bytes \(has: n\)"):
        open_table(tmp_path / "t.arrow")


def test_row_major_files_claim_no_rows_that_are_not_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file.attrs.update({"datapipe_table": 1, "num_rows": 1 << 60, "fingerprint": "x", "matrices": "[]"})
    with pytest.raises(FormatError, match="rows without columns"):
        open_rows(tmp_path / "rows.h5")


@pytest.mark.parametrize("shape", ["(1267650600228229401496703205376,)", "(10, -3)", "(4611686018427387904, 8)", "(100,)"])
def test_matrices_claim_no_rows_that_are_not_there(shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(80))
    assert main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "out"), "--from", "table", "--to", "parquet"]) == 1
    said = "".join(capsys.readouterr())
    assert "a.npy: not a .npy file, or truncated" in said
    assert "Traceback" not in said
