"""LMDB databases: as LSUN's, of classes, damaged ones; without the library."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import numpy as np
import pytest
from reading import converted, field_of, labels_of, sources_of
from source_trees import NUM, Made, image
from trees import encoded_image

from converters import ConvertOptions, preview
from datapipe.errors import DatapipeError, DependencyError, FormatError
from datapipe.index.manifest import read_manifest


def database(path: Path, entries: dict[bytes, bytes], *, subdir: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=1 << 26, subdir=subdir) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def lsun(root: Path) -> Made:
    """Values of a few hundred bytes lie in leaves, larger ones in pages of their own."""
    values = [encoded_image(row, size=(8 + row * 40, 90)) for row in range(NUM)]
    assert min(map(len, values)) < 1500
    assert max(map(len, values)) > 5000
    source = database(root / "x_lmdb", {b"%040x" % (row * 7919): values[row] for row in range(NUM)})
    return Made(source, [{"image": value} for value in values])


@pytest.mark.promise("form: lmdb")
def test_every_value_is_a_sample(tmp_path: Path) -> None:
    made = lsun(tmp_path)
    out = converted(made.source, tmp_path / "out")
    assert field_of(out, "image") == [sample["image"] for sample in made.samples]
    assert sources_of(out)[1] == f"{7919:040x}"
    assert "no label" in preview(ConvertOptions(made.source, tmp_path / "no")).warnings[0]
    single = database(tmp_path / "one.lmdb", {b"a": image(0), b"\0\1": image(1), b"c/d": image(2)}, subdir=False)
    assert sources_of(converted(single, tmp_path / "single")) == ["0001", "a", "c/d"]


def test_a_folder_of_databases_is_one_of_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("bridge_train_lmdb", "tower_train_lmdb")):
        database(tmp_path / "in" / name, {b"%d" % row: image(row + 3 * number) for row in range(3)})
    out = converted(tmp_path / "in", tmp_path / "out")
    assert (labels_of(out), read_manifest(out).classes) == ([0, 0, 0, 1, 1, 1], ("bridge_train_lmdb", "tower_train_lmdb"))
    assert field_of(out, "image") == [image(row) for row in range(6)]


def test_values_that_are_no_images(tmp_path: Path) -> None:
    source = database(tmp_path / "x", {b"a": b"\x80\x04pickle" * 20})
    with pytest.raises(FormatError, match=r"the value of 'a' is no encoded image \(it begins with b'.*pickles"):
        converted(source, tmp_path / "out")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_database_that_was_cut(tmp_path: Path, share: float) -> None:
    path = lsun(tmp_path).source / "data.mdb"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(FormatError, match=r"data\.mdb: .*cut off|not an LMDB") as raised:
        converted(path.parent, tmp_path / "out")
    assert "\n" not in str(raised.value)


def test_damaged_pages_give_an_error_not_a_crash(tmp_path: Path) -> None:
    """Whatever bytes the pages hold, this process goes on: it raises in one line, or finds bad samples."""
    path = lsun(tmp_path).source / "data.mdb"
    whole = path.read_bytes()
    for seed in range(4):
        data = bytearray(whole)
        rng = np.random.default_rng(seed)
        data[8192 + 16 : 8192 * 3] = rng.bytes(8192 * 2 - 16)
        path.write_bytes(data)
        with pytest.raises(DatapipeError) as raised:
            converted(path.parent, tmp_path / f"out{seed}")
        assert "\n" not in str(raised.value)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lsun(tmp_path).source
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "lmdb.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(tmp_path / "hidden"))
    with pytest.raises(DependencyError, match=r"pip install .*\[lmdb\]"):
        converted(source, tmp_path / "out")


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.lmdb").write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(FormatError, match="not an LMDB database"):
        converted(tmp_path / "x.lmdb", tmp_path / "out")
