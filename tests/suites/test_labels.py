"""Labels read in place and labels of the same data converted are the same, in every form and however they are written.

    python -m tests.suites.test_labels     # prints what each form makes of each spelling, in place and converted

A form joins by a function in FORMS_OF_LABELS that writes labels in it; a way to write labels by a line in SPELLINGS.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import h5py
import numpy as np
import pyarrow as pa
import pytest
from fixtures import convert, jpeg, mds_shard
from places import csv, lines, put, tar_of, write_arrow, write_parquet

import datapipe as dp
from converters import OnError
from converters.writers import TARGETS
from datapipe.containers.tfrecord.layout import encode_example, frame_head, frame_tail
from datapipe.errors import DatapipeError

Labels = Sequence[Any]
Write = Callable[[Path, str, Labels], Path]  # gets a folder, the name of the label, and a label for each sample

SPELLINGS: dict[str, Labels] = {
    "integers": (3, 1, 2, 0),
    "texts of integers": ("3", "1", "2", "0"),
    "zero-padded": ("007", "010", "000", "007"),
    "with a sign": ("+7", "+10", "+0", "+7"),
    "with blanks": (" 7", "10 ", "0", "7"),
    "names": ("cat", "ant", "bee", "cat"),
    "names of digits and letters": ("cat", "7", "bee", "10"),
    "one null": (1, None, 2, 0),
    "one empty": ("1", "", "2", "0"),
    "names, one null": ("cat", None, "bee", "ant"),
    "names, one empty": ("cat", "", "bee", "ant"),
    "all null": (None, None, None, None),
    "minus one": (-1, 0, 1, 2),
    "all minus one": (-1, -1, -1, -1),
    "minus one among names": ("-1", "cat", "bee", "ant"),
    "minus two": (-2, 0, 1, 2),
    "booleans": (True, False, True, True),
    "whole floats": (1.0, 2.0, 0.0, 3.0),
    "fractions": (0.5, 2.0, 0.0, 3.0),
    "the largest": ((1 << 63) - 1, 0, 1, 2),
    "too large": (1 << 63, 0, 1, 2),
}
NAMES = ("label", "Label", "LABEL", "labels", "Y", "y", "target", "Target", "targets", "class", "Class", "category", "fine_label")


def image(number: int) -> bytes:
    return jpeg(number, 16, 16)


def text(label: Any) -> str:
    return "" if label is None else str(label)


def write_folders(top: Path, name: str, labels: Labels) -> Path:
    for number, label in enumerate(labels):
        put(top / (text(label) or ".") / f"{number}.jpg", image(number))
    return top


def write_csv(top: Path, name: str, labels: Labels) -> Path:
    for number in range(len(labels)):
        put(top / "files" / f"{number}.jpg", image(number))
    return put(top / "list.csv", csv(f"image,{name}", (f"files/{row}.jpg,{text(label)}" for row, label in enumerate(labels))))


def write_lines(top: Path, name: str, labels: Labels) -> Path:
    for number in range(len(labels)):
        put(top / "files" / f"{number}.jpg", image(number))
    return put(top / "list.jsonl", lines({"image": f"files/{row}.jpg", name: label} for row, label in enumerate(labels)))


def tar_writer(suffix: str) -> Write:
    def write(top: Path, name: str, labels: Labels) -> Path:
        members: list[tuple[str, bytes]] = []
        for number, label in enumerate(labels):
            said = json.dumps({name: label}) if suffix == "json" else text(label)
            members += [(f"{number}.jpg", image(number)), (f"{number}.{suffix}", said.encode())]
        return put(top / "x.tar", tar_of(members))

    return write


def table_of(name: str, labels: Labels) -> pa.Table:
    kind = pa.uint64() if labels[0] == 1 << 63 else None
    files = [{"bytes": image(number), "path": None} for number in range(len(labels))]
    column = pa.array(list(labels), kind or (pa.int64() if not any(label is not None for label in labels) else None))
    return pa.table({"image": pa.array(files, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), name: column})


def write_hdf5(top: Path, name: str, labels: Labels) -> Path:
    kept = [label for label in labels if label is not None]
    if len(kept) < len(labels):
        raise pytest.skip.Exception("HDF5 has no null")
    with h5py.File(top / "x.h5", "w") as file:
        images = file.create_dataset("image", (len(labels),), h5py.vlen_dtype("uint8"))
        for number in range(len(labels)):
            images[number] = np.frombuffer(image(number), np.uint8)
        is_text = isinstance(labels[0], str)
        file.create_dataset(
            name,
            data=list(kept) if is_text else np.array(kept, np.uint64 if kept[0] == 1 << 63 else None),
            dtype=h5py.string_dtype() if is_text else None,
        )
    return top / "x.h5"


def write_tfrecord(top: Path, name: str, labels: Labels) -> Path:
    parts: list[bytes] = []
    for number, label in enumerate(labels):
        features: dict[str, bytes | int] = {"image/encoded": image(number)}
        if isinstance(label, float) or (isinstance(label, int) and label >= 1 << 63):
            raise pytest.skip.Exception("not written here")
        if label is not None:
            features[name] = label.encode() if isinstance(label, str) else int(label)
        example = encode_example(features)
        parts += [frame_head(example.nbytes), *example.parts, frame_tail(example.parts)]
    return put(top / "x.tfrecord", b"".join(parts))


def write_mds(top: Path, name: str, labels: Labels) -> Path:
    if any(label is None or isinstance(label, float) for label in labels):
        raise pytest.skip.Exception("not written here")
    encoding = "str" if any(isinstance(label, str) for label in labels) else "int"
    if encoding == "int" and any(int(label) >= 1 << 63 for label in labels):  # type: ignore[arg-type]
        raise pytest.skip.Exception("not written here")
    values = [str(label).encode() if encoding == "str" else int(label).to_bytes(8, "little", signed=True) for label in labels]  # type: ignore[arg-type]
    return put(
        top / "x.mds", mds_shard({"image": "jpeg", name: encoding}, [*zip(map(image, range(len(values))), values, strict=True)])
    )


FORMS_OF_LABELS: dict[str, Write] = {
    "class folders": write_folders,
    "CSV": write_csv,
    "JSON lines": write_lines,
    "tar, cls": tar_writer("cls"),
    "tar, label": tar_writer("label"),
    "tar, json": tar_writer("json"),
    "Parquet": lambda top, name, labels: write_parquet(top / "x.parquet", table_of(name, labels)),
    "Arrow": lambda top, name, labels: write_arrow(top / "x.arrow", table_of(name, labels)),
    "HDF5": write_hdf5,
    "TFRecord": write_tfrecord,
    "MDS": write_mds,
}
_HAVE_NAMES = ("CSV", "JSON lines", "Parquet", "Arrow", "HDF5", "TFRecord", "MDS")  # of labels, which the user chooses


@dataclass(frozen=True)
class Labelled:
    """What a loader makes of data: the good samples' labels in order, None without labels; or that it refuses the data."""

    labels: tuple[int | None, ...] = ()
    classes: tuple[str, ...] | None = None
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal or not self.labels:
            return "refused"  # with every sample bad, too: a conversion of nothing is none
        classes = "" if self.classes is None else f" of {' '.join(self.classes)}"
        return ("no labels" if None in self.labels else str(list(self.labels))) + classes


def labelled(place: Path) -> Labelled:
    """Return what a loader of a path makes of it."""
    try:
        data = dp.Images(place)
        loader = dp.DataLoader(data, 1, num_workers=0, on_error="skip")
        at = data.fields.names.index("label") if "label" in data.fields.names else None
        labels = [None if at is None else int(one) for batch in loader for one in batch[0 if at is None else at][: len(batch[0])]]
    except DatapipeError as exc:
        return Labelled(refusal=str(exc))
    return Labelled(tuple(labels), None if at is None else data.index.manifest.classes)


def converted(place: Path, destination: Path, target: str) -> Labelled:
    """Return what a loader makes of the data, converted without the bad samples."""
    try:
        convert(place, destination, to=target, on_error=OnError.SKIP, seed=None)
    except DatapipeError as exc:
        return Labelled(refusal=str(exc))
    return labelled(destination)


def cases() -> Iterable[tuple[str, str, str]]:
    """Yield forms, spellings and names of labels."""
    for form in FORMS_OF_LABELS:
        yield from ((form, spelling, "label") for spelling in SPELLINGS)
        if form in _HAVE_NAMES:
            yield from ((form, spelling, name) for name in NAMES for spelling in ("integers", "names"))


def outcomes(form: str, spelling: str, name: str, top: Path, targets: Iterable[str]) -> dict[str, Labelled]:
    """Return what is loaded in place, and after conversions to these formats."""
    (top / "in").mkdir()
    place = FORMS_OF_LABELS[form](top / "in", name, SPELLINGS[spelling])
    return {"in place": labelled(place)} | {target: converted(place, top / target, target) for target in targets}


@pytest.mark.daily(70)
@pytest.mark.parametrize("target", [target for target in TARGETS if target != "tokens"])
@pytest.mark.parametrize(("form", "spelling", "name"), sorted(set(cases())))
def test_labels_in_place_are_those_converted(form: str, spelling: str, name: str, target: str, tmp_path: Path) -> None:
    found = outcomes(form, spelling, name, tmp_path, [target])
    assert str(found["in place"]) == str(found[target]), found


@pytest.mark.parametrize(
    ("form", "spelling", "expected"),
    [
        ("class folders", "zero-padded", "[0, 1, 1, 2] of 000 007 010"),
        ("CSV", "zero-padded", "[1, 2, 0, 1] of 000 007 010"),
        ("CSV", "names", "[2, 0, 1, 2] of ant bee cat"),
        ("CSV", "names of digits and letters", "[3, 1, 2, 0] of 10 7 bee cat"),
        ("CSV", "one null", "[1, 2, 0]"),
        ("CSV", "minus one among names", "refused"),
        ("tar, cls", "zero-padded", "[7, 10, 0, 7]"),
        ("tar, cls", "with a sign", "[7, 10, 0, 7]"),
        ("tar, cls", "names", "[2, 0, 1, 2] of ant bee cat"),
        ("tar, label", "names", "[2, 0, 1, 2] of ant bee cat"),
        ("tar, label", "names, one empty", "[2, 1, 0] of ant bee cat"),
        ("tar, cls", "one empty", "[1, 2, 0]"),
        ("tar, cls", "minus one", "[-1, 0, 1, 2]"),
        ("tar, label", "minus two", "refused"),
        ("tar, label", "fractions", "refused"),
        ("tar, json", "integers", "no labels"),
        ("Parquet", "one null", "[1, 2, 0]"),
        ("Parquet", "minus two", "refused"),
        ("Arrow", "too large", "refused"),
        ("HDF5", "too large", "refused"),
        ("TFRecord", "one null", "refused"),
    ],
)
def test_what_labels_are(form: str, spelling: str, expected: str, tmp_path: Path) -> None:
    assert str(outcomes(form, spelling, "label", tmp_path, [])["in place"]) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("3", "1"), ("2", "1"), "[3, 1, 2, 1]"),
        (("007", "7"), ("7", "+8"), "[7, 7, 7, 8]"),
        (("3", "1"), ("cat", "1"), "[1, 0, 2, 0] of 1 3 cat"),
        (("cat", "1"), ("3", "1"), "[2, 0, 1, 0] of 1 3 cat"),
        (("007", "7"), ("cat", "7"), "[0, 1, 2, 1] of 007 7 cat"),
        (("bee", "ant"), ("ant", "cat"), "[1, 0, 0, 2] of ant bee cat"),
        (("bee", ""), ("", "ant"), "[1, 0] of ant bee"),
        (("-1", "0"), ("cat", "ant"), "refused"),
    ],
)
@pytest.mark.parametrize("suffix", ["cls", "label"])
def test_all_shards_decide_what_texts_are(suffix: str, first: Labels, second: Labels, expected: str, tmp_path: Path) -> None:
    for shard, labels in enumerate((first, second)):
        write = tar_writer(suffix)(tmp_path / "made", "", labels)
        put(tmp_path / "in" / f"{shard}.tar", write.read_bytes())
    in_place = labelled(tmp_path / "in")
    assert str(in_place) == expected
    assert str(converted(tmp_path / "in", tmp_path / "out", "webdataset")) == expected


def main() -> None:
    """Print the matrix."""
    targets = sys.argv[1:] or [target for target in TARGETS if target != "tokens"]
    for form, spelling, name in dict.fromkeys(cases()):
        with tempfile.TemporaryDirectory() as top:
            try:
                found = outcomes(form, spelling, name, Path(top), targets)
            except pytest.skip.Exception:
                continue
        groups: dict[str, list[str]] = {}
        for way, outcome in found.items():
            groups.setdefault(str(outcome), []).append(way)
        mark = "   " if len(groups) == 1 else "!! "
        shown = " | ".join(f"{', '.join(ways)}: {outcome}" for outcome, ways in groups.items())
        print(f"{mark}{form:13} {name:10} {spelling:28} {shown if len(groups) > 1 else next(iter(groups))}")
        for way in found:
            if found[way].refusal:
                print(f"        {way}: {found[way].refusal[-200:]}")


if __name__ == "__main__":
    main()
