"""Manifests: how columns are read, what is refused with its line, and files that are missing or not allowed."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from source_trees import image, mask, npy, put

from converters import ConvertOptions, OnError, convert
from datapipe.cli.main import main
from datapipe.containers.form import ClassFrom, FieldChoice
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError
from datapipe.index.manifest import read_manifest
from datapipe.sources.lists.rows import MAX_LINE_NBYTES


def photos(root: Path, num: int = 4) -> Path:
    for number in range(num):
        put(root / f"{number}.jpg", image(number))
        put(root / f"{number}.png", mask(number))
    return root


def lines(root: Path, *rows: str, name: str = "list.csv") -> Path:
    return put(photos(root) / name, "\n".join(rows) + "\n")


def choices(**kinds: str) -> tuple[FieldChoice, ...]:
    return tuple(FieldChoice(name, kind) for name, kind in kinds.items())


# -- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "row", "kinds"),
    [
        ("path,label", "0.jpg,3", {"image": "image", "label": "label"}),
        ("anything", "0.jpg", {"image": "image"}),
        ("file_name,class,age", "0.jpg,x,3", {"image": "image", "label": "label", "age": "json"}),
        ("label,class,img", "1,x,0.jpg", {"image": "image", "class": "text", "label": "label"}),
        ("image,mask_path", "0.jpg,0.png", {"image": "image", "mask": "mask"}),
        ("image,Segmentation File", "0.jpg,0.png", {"image": "image", "segmentation": "mask"}),
        ("img,other", "0.jpg,1.jpg", {"image": "image", "other": "image"}),
        ("image,id,size,Größe", "0.jpg,1,b,2.5", {"image": "image", "gr_e": "json", "id_": "json", "size_": "text"}),
        ("image,zip", "0.jpg,01234", {"image": "image", "zip": "text"}),
    ],
)
def test_what_columns_are_taken_for(tmp_path: Path, header: str, row: str, kinds: dict[str, str]) -> None:
    out = converted(lines(tmp_path / "in", header, row), tmp_path / "out")
    assert kinds_of(out) == kinds
    assert field_of(out, "image") == [image(0)]


def test_choices_come_first(tmp_path: Path) -> None:
    put(tmp_path / "in" / "0.txt", "from a file")
    put(tmp_path / "in" / "0.json", "[1]")
    source = lines(tmp_path / "in", "image,label,a,b,c,d,e", '0.jpg,x,0.txt,0.json,1.jpg,7,"{""k"": [1]}"')
    fields = choices(label="text", a="text-file", b="json-file", c="none", d="label", e="json")
    out = converted(source, tmp_path / "out", fields=fields)
    assert kinds_of(out) == {"image": "image", "a": "text", "b": "json", "e": "json", "label_": "text", "label": "label"}
    found = [field_of(out, name)[0] for name in ("label_", "a", "b", "e")]
    assert found == [b"x", b"from a file", b"[1]", b'{"k": [1]}']
    assert labels_of(out) == [7]


def test_arrays_and_bytes_are_files(tmp_path: Path) -> None:
    put(tmp_path / "in" / "0.npy", npy([1, 2]))
    put(tmp_path / "in" / "0.xyz", b"\0\1")
    out = converted(
        lines(tmp_path / "in", "image,vector,raw", "0.jpg,0.npy,0.xyz"), tmp_path / "out", fields=choices(raw="bytes")
    )
    assert kinds_of(out) == {"image": "image", "vector": "array", "raw": "bytes"}
    assert (field_of(out, "vector"), field_of(out, "raw")) == ([npy([1, 2])], [b"\0\1"])


def test_values_alone(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "review,stars", '"good, ""really""",5', "bad,1")
    with pytest.raises(OptionError, match=r"none of its columns names files \(review, stars\)"):
        converted(source, tmp_path / "out")
    out = converted(source, tmp_path / "out", fields=choices(stars="label"))
    assert (field_of(out, "review"), labels_of(out)) == ([b'good, "really"', b"bad"], [5, 1])
    assert read_manifest(out).image_size is None


@pytest.mark.parametrize(
    ("header", "fields", "said"),
    [
        ("a,b", {}, "the columns a and b name images"),
        ("image,b", {"x": "int"}, "has no 'x' \\(has: b, image\\)"),
        ("image,b", {"b": "label", "image": "label"}, "both labels"),
        ("image,mask,mask_path", {"mask": "mask"}, "would both be the field 'mask'"),
    ],
)
def test_columns_that_cannot_be_told(tmp_path: Path, header: str, fields: dict[str, str], said: str) -> None:
    row = ",".join(f"{number}.jpg" for number in range(header.count(",") + 1))
    with pytest.raises(OptionError, match=said):
        converted(lines(tmp_path / "in", header, row), tmp_path / "out", fields=choices(**fields))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.tsv", "image\tage\n0.jpg\t1,5\n"), ("x.csv", "image;age\n0.jpg;1,5\n"), ("x.csv", "image\tage\n0.jpg\t1,5")],
)
def test_delimiters(tmp_path: Path, name: str, text: str) -> None:
    out = converted(put(photos(tmp_path / "in") / name, text), tmp_path / "out")
    assert field_of(out, "age") == [b"1,5"]


def test_values_of_json_keep_their_types(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"image": "0.jpg", "n": 1, "s": "é\n", "mixed": "x", "deep": {"a": [None, 1.5]}, "big": 2**70},
        {"image": "1.jpg", "n": 2.5, "s": "", "mixed": 3, "deep": [], "rare": True, "big": 1},
    ]
    out = converted(lines(tmp_path / "in", *map(json.dumps, rows), name="list.jsonl"), tmp_path / "out")
    assert kinds_of(out) == {
        "image": "image",
        "n": "json",
        "s": "text",
        "mixed": "json",
        "deep": "json",
        "rare": "json",
        "big": "json",
    }
    for name in ("n", "mixed", "deep", "rare", "big"):
        assert [json.loads(data) for data in field_of(out, name)] == [row.get(name) for row in rows]
    assert field_of(out, "s") == ["é\n".encode(), b""]


# -- labels ---------------------------------------------------------------------------------------


def test_names_are_sorted_and_numbers_are_labels(tmp_path: Path) -> None:
    named = converted(lines(tmp_path / "a", "image,label", "0.jpg,b", "1.jpg,10", "2.jpg,a", "3.jpg,b"), tmp_path / "named")
    assert read_manifest(named).classes == ("10", "a", "b")
    assert labels_of(named) == [2, 0, 1, 2]
    numbered = converted(lines(tmp_path / "b", "image,label", "0.jpg,7", "1.jpg,10", "2.jpg,0", "3.jpg,7"), tmp_path / "numbered")
    assert read_manifest(numbered).classes is None
    assert labels_of(numbered) == [7, 10, 0, 7]


def test_what_json_can_say_and_a_shard_cannot(tmp_path: Path) -> None:
    rows = [r'{"image": "0.jpg", "label": "\ud800", "n": 1, "s": ""}', r'{"image": "1.jpg", "label": "a", "n": 1e999, "s": ""}']
    rows += [r'{"image": "2.jpg", "label": "a", "n": 2, "s": "\ud800"}', r'{"image": "3.jpg", "label": "é", "n": 3, "s": "ok"}']
    bad = skipping(lines(tmp_path / "in", *rows, name="list.jsonl"), tmp_path / "out")
    assert sources_of(tmp_path / "out") == ["3.jpg"]
    assert "half of a surrogate pair" in bad["0.jpg"]
    assert "half of a surrogate pair" in bad["2.jpg"]
    assert bad["1.jpg"] == "line 2: 'n' holds a number that is too large for JSON"


def test_class_map_numbers_the_names(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "image,label", "0.jpg,b", "1.jpg,a")
    out = converted(source, tmp_path / "out", class_map=put(tmp_path / "map", "b 0\nc 1\na 2\n"))
    assert (labels_of(out), read_manifest(out).classes) == ([0, 2], ("b", "c", "a"))
    with pytest.raises(OptionError, match="no index for class 'a'"):
        converted(source, tmp_path / "no", class_map=put(tmp_path / "map2", "b 0\n"))
    with pytest.raises(OptionError, match="has no label"):
        converted(lines(tmp_path / "un", "image", "0.jpg"), tmp_path / "no", class_map=tmp_path / "map")


def test_minus_one_is_a_label_among_numbers_and_none_among_names(tmp_path: Path) -> None:
    out = converted(lines(tmp_path / "in", "image,label", "0.jpg,-1", "1.jpg,1", "2.jpg,0"), tmp_path / "out")
    assert (labels_of(out), read_manifest(out).classes) == ([-1, 1, 0], None)
    with pytest.raises(OptionError, match="labels are names, such as 'cat', and -1, which is none"):
        converted(lines(tmp_path / "mixed", "image,label", "0.jpg,-1", "1.jpg,cat"), tmp_path / "no")


def test_a_list_made_on_windows(tmp_path: Path) -> None:
    """With a byte order mark and CRLF it is read; names with backslashes are told as such."""
    source = lines(tmp_path / "in", "image,label")
    source.write_bytes(b"\xef\xbb\xbfimage,label\r\n0.jpg,cat\r\n1.jpg,ant\r\n")
    out = converted(source, tmp_path / "out")
    assert (labels_of(out), read_manifest(out).classes) == ([1, 0], ("ant", "cat"))
    named = lines(tmp_path / "named", "image", r"sub\0.jpg", r"C:\set\1.jpg")
    with pytest.raises(MissingDataError, match=r"names with a backslash are those of Windows: write them with / in the list"):
        converted(named, tmp_path / "no")
    mixed = lines(tmp_path / "mixed", "image", "0.jpg", r"sub\0.jpg")
    assert "names with a backslash are those of Windows" in skipping(mixed, tmp_path / "some")["sub\\0.jpg"]


def test_a_name_whose_accents_are_encoded_otherwise(tmp_path: Path) -> None:
    composed, apart = "caf\u00e9.jpg", "cafe\u0301.jpg"
    source = lines(tmp_path / "in", "image", "0.jpg", composed)
    put(source.parent / apart, image(1))
    reasons = skipping(source, tmp_path / "out")
    assert reasons == {
        composed: f"line 3: 'image' is {composed!r}: no such file; there is one of the same letters, whose accents"
        " are encoded otherwise (NFD): write its name so in the list"
    }


@pytest.mark.parametrize("label", ["-2", "3.0", "0.5", "9223372036854775808"])
def test_numbers_that_are_no_classes(tmp_path: Path, label: str) -> None:
    """Taken for names they would be sorted as texts, 10.0 before 2.0."""
    source = lines(tmp_path / "in", "image,label", f"0.jpg,{label}", "1.jpg,2")
    with pytest.raises(OptionError, match=r"(is not a class number|are not classes).*--field (NAME|label)=float"):
        converted(source, tmp_path / "out")
    out = converted(source, tmp_path / "out", fields=choices(label="float"))
    assert field_of(out, "label_") == [label.encode(), b"2"]
    table = put(tmp_path / "map", f"{label} 1\n2 0")
    assert labels_of(converted(source, tmp_path / "mapped", fields=choices(label="label"), class_map=table)) == [1, 0]


def test_labels_that_are_none(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "image,label", "0.jpg,x", "1.jpg,", "2.jpg,y")
    assert skipping(source, tmp_path / "out") == {"1.jpg": "line 3: 'label' is empty: no label"}
    typed = lines(tmp_path / "t", '{"image": "0.jpg", "label": 1.5}', name="list.jsonl")
    with pytest.raises(FormatError, match=r"line 1: 'label' is 1\.5: not a class; keep it as a value with --field label=json"):
        converted(typed, tmp_path / "no", fields=choices(label="label"))


# -- what does not parse --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.csv", b"image,label,image\n0.jpg,1,2\n", "line 1: two columns are called 'image'"),
        ("x.csv", b"image,,label\n0.jpg,1,2\n", "line 1: column 2 has no name"),
        ("x.csv", b"image,label\n0.jpg,1\n\n1.jpg\n", "line 4 has 1 cells, the header 2 columns"),
        ("x.csv", b"image,label\n0.jpg,1,5\n", "line 2 has 3 cells"),
        ("x.csv", b'image,label\n"a\nb",1\n0.jpg,"x\n1.jpg,2\n', "line 5: not CSV \\(unexpected end of data"),
        ("x.csv", b'image,label\n0.jpg,"x"y\n', "line 2: not CSV"),
        ("x.csv", b"image,label\n0.jpg,caf\xe9\n", "line 2: byte 0xe9 is not UTF-8"),
        ("x.csv", "image,label\n0.jpg,1\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        ("x.csv", b"", "is empty; its first line must name the columns"),
        ("x.jsonl", b'{"image": "0.jpg"}\n\n{"image": }\n', "line 3: not JSON"),
        ("x.jsonl", b'["0.jpg"]\n', "line 1: holds list, not an object"),
        ("x.jsonl", b'{"image": "0.jpg", "image": "1.jpg"}\n', "line 1: .*'image' occurs twice"),
        ("x.jsonl", b'{"image": "0.jpg", "n": NaN}\n', "line 1: .*NaN is not JSON"),
        ("x.jsonl", b"[" * 100_000, "line 1: not JSON"),
    ],
)  # fmt: skip
def test_what_does_not_parse_names_its_line(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    source = put(photos(tmp_path / "in") / name, data)
    with pytest.raises((FormatError, MissingDataError, OptionError), match=said):
        converted(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "form"), [("x.csv", "manifest"), ("x.jsonl", "manifest"), ("x.json", "coco")])
def test_pipes_and_folders_are_not_waited_for(tmp_path: Path, name: str, form: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match="not a regular file"):
        converted(tmp_path / name, tmp_path / "out", form=form)
    (tmp_path / f"folder.{name}").mkdir()
    with pytest.raises(OptionError, match="a folder; pass the"):
        converted(tmp_path / f"folder.{name}", tmp_path / "out", form=form)


def test_a_table_of_many_columns(tmp_path: Path) -> None:
    """As many as an integer has bits; beyond, they are not dropped but refused."""
    columns = [f"c{number}" for number in range(63)]
    source = lines(tmp_path / "in", ",".join(["image", *columns]), ",".join(["0.jpg", *map(str, range(63))]))
    with pytest.raises(OptionError, match="more than 62 fields, such as 'c61'"):
        converted(source, tmp_path / "out")
    out = converted(source, tmp_path / "out", fields=choices(c0="none", c1="none"))
    assert field_of(out, "c62") == [b"62"]


def test_a_header_alone(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no rows below its header"):
        converted(lines(tmp_path / "in", "image,label"), tmp_path / "out")


def test_lines_end_as_they_like(tmp_path: Path) -> None:
    source = put(photos(tmp_path / "in") / "list.csv", b'\xef\xbb\xbfimage,text\r\n0.jpg,"a\r\nb"\r\n\r\n1.jpg,c')
    assert field_of(converted(source, tmp_path / "out"), "text") == [b"a\r\nb", b"c"]


# -- files ----------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    root = photos(tmp_path / "in")
    os.mkfifo(root / "pipe.jpg")
    (root / "folder.jpg").mkdir()
    (root / "out.jpg").symlink_to("/etc/passwd")
    (root / "linked").symlink_to("/etc")
    (root / "inner.jpg").symlink_to("1.jpg")
    names = [
        "0.jpg",
        "pipe.jpg",
        "folder.jpg",
        "out.jpg",
        "../secret.jpg",
        "/etc/passwd",
        "linked/passwd",
        "gone.jpg",
        "",
        "0\0.jpg",
    ]
    source = put(root / "list.csv", "\n".join(["image,n", *(f"{name},1" for name in [*names, "inner.jpg"])]))
    bad = skipping(source, tmp_path / "out")
    assert sources_of(tmp_path / "out") == ["0.jpg", "inner.jpg"]
    reasons = {
        "pipe.jpg": "line 3: 'image' is 'pipe.jpg': not a regular file but a pipe, socket or device",
        "folder.jpg": "line 4: 'image' is 'folder.jpg': not a regular file but a folder",
        "gone.jpg": "line 9: 'image' is 'gone.jpg': no such file",
        "line 10": "line 10: 'image' is empty, not the name of a file",
    }
    assert {name: bad[name] for name in reasons} == reasons
    assert all("leads out of" in bad[name] for name in ("out.jpg", "linked/passwd", "line 6", "line 7"))
    assert "not a name that a file can have" in bad["line 11"]
    assert len(bad) == 9


def test_fail_names_the_first_of_many_before_anything_is_written(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "image", "0.jpg", *(f"no{number}.jpg" for number in range(7)))
    with pytest.raises(
        DecodeError, match=r"7 of 8 samples cannot be read: no0\.jpg: bad sample: line 3: .*no2\.jpg.*; and 4 more"
    ):
        converted(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("num", [3, 50])
def test_a_wrong_root_is_told_from_missing_files(tmp_path: Path, num: int) -> None:
    source = lines(tmp_path / "in", "image", *(f"x/{number}.jpg" for number in range(num)))
    with pytest.raises(
        MissingDataError, match=rf"none of the first {min(num, 20)} files is there; the first is 'x/0\.jpg'.*--root"
    ):
        converted(source, tmp_path / "out", on_error=OnError.SKIP)
    with pytest.raises(MissingDataError, match="no such folder or archive; check --root"):
        converted(source, tmp_path / "out", root=tmp_path / "nothing")


def root_in(message: str) -> Path:
    """The root that a message says to pass."""
    return Path(message.partition("pass --root ")[2])


@pytest.mark.parametrize("form", ["up", "absolute", "inside", "around"])
def test_the_root_that_an_error_names_works(tmp_path: Path, form: str) -> None:
    for folder in ("a", "b"):
        photos(tmp_path / "photos" / folder, num=21)
    names = [f"{folder}/{number}.jpg" for folder in ("a", "b") for number in range(21)]
    prefix, place = {
        "up": ("../photos/", "lists/x.csv"),
        "absolute": (f"{tmp_path}/photos/", "lists/x.csv"),
        "inside": ("", "x.csv"),
        "around": ("photos/", "lists/deep/x.csv"),
    }[form]
    source = put(tmp_path / place, "image\n" + "".join(f"{prefix}{name}\n" for name in names))
    with pytest.raises(MissingDataError, match=f"the first is '{prefix}a/0.jpg'") as caught:
        converted(source, tmp_path / "out")
    out = converted(source, tmp_path / "out", root=root_in(str(caught.value)))
    assert len(sources_of(out)) == 42


def test_a_preview_of_bad_samples_alone_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lines(tmp_path / "in", "image,label", "0.jpg,", "1.jpg,")
    command = ["convert", str(source), str(tmp_path / "out"), "--to", "webdataset", "--dry-run"]
    assert main(command) == 1
    assert "nothing to convert: all 2 samples cannot be read" in capsys.readouterr().err
    lines(tmp_path / "in", "image,label", "0.jpg,", "1.jpg,7")
    assert main(command) == 0


def test_absolute_names_within_the_root(tmp_path: Path) -> None:
    root = photos(tmp_path / "in")
    (tmp_path / "way").symlink_to(root)
    source = put(tmp_path / "list.csv", f"image\n{root}/0.jpg\n{tmp_path}/way/1.jpg\n./x/../2.jpg\n")
    out = converted(source, tmp_path / "out", root=root)
    assert sources_of(out) == ["0.jpg", "1.jpg", "2.jpg"]


def test_numbers_are_checked(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "image,age", "0.jpg,7", "1.jpg,x", "2.jpg,1.5", "3.jpg,")
    bad = skipping(source, tmp_path / "out", fields=choices(age="int"))
    assert bad == {"1.jpg": "line 3: 'age' is 'x', not a whole number", "2.jpg": "line 4: 'age' is '1.5', not a whole number"}
    assert field_of(tmp_path / "out", "age") == [b"7", b"null"]


def test_content_decides(tmp_path: Path) -> None:
    """Files are looked at as their kinds ask, values too."""
    root = photos(tmp_path / "in")
    put(root / "3.jpg", b"hello")
    put(root / "1.png", mask(1, size=(5, 5)))
    put(root / "2.png", b"hello")
    rows = [f'{number}.jpg,{number}.png,"{value}"' for number, value in enumerate(("[1]", "[2]", "[3]", "[4]"))]
    source = put(root / "list.csv", "\n".join(["image,mask,meta", *rows, '0.jpg,0.png,"{"']))
    bad = skipping(source, tmp_path / "out", fields=choices(meta="json"))
    assert sources_of(tmp_path / "out") == ["0.jpg"]
    assert bad["3.jpg"].startswith("not an image: 5 bytes")
    assert bad["1.jpg"] == "field 'mask': the mask is 5x5 (height x width), the image 21x30 (height x width)"
    assert bad["2.jpg"].startswith("field 'mask': not an image")
    assert bad["0.jpg"].startswith("field 'meta': not JSON")


def test_quarantine_keeps_every_file_of_a_sample(tmp_path: Path) -> None:
    root = photos(tmp_path / "in")
    put(root / "1.png", b"hello")
    source = lines(tmp_path / "in", "image,mask", "0.jpg,0.png", "1.jpg,1.png")
    put(root / "1.png", b"hello")
    out = converted(source, tmp_path / "out", on_error=OnError.QUARANTINE)
    assert {path.name: path.read_bytes() for path in (out / "quarantine").iterdir()} == {"1.jpg": image(1), "1.png": b"hello"}


def test_options_that_mean_nothing(tmp_path: Path) -> None:
    source = lines(tmp_path / "in", "image", "0.jpg")
    with pytest.raises(OptionError, match="--class-from path: has no effect with --from manifest"):
        converted(source, tmp_path / "out", class_from=ClassFrom.PATH)
    with pytest.raises(OptionError, match=r"no such kind|NAME=KIND"):
        FieldChoice.parse("a=picture")
    with pytest.raises(OptionError, match="'a' is given a kind more than once"):
        convert(ConvertOptions(source, tmp_path / "out", fields=(FieldChoice("a", "int"), FieldChoice("a", "none"))))


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    photos(tmp_path)
    with (tmp_path / name).open("wb") as file:
        file.write(b"path,label\n" if name == "list.csv" else b'{"path": "0.jpg"}\n')
        file.truncate(300_000_000)  # no blocks on disk
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f"line 2 has more than {MAX_LINE_NBYTES} bytes"):
            converted(tmp_path / name, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_LINE_NBYTES
    finally:
        tracemalloc.stop()


HUGE = "1" + 400 * "0"


@pytest.mark.parametrize("kind", ["int", "float", "boxes"])
@pytest.mark.parametrize("cell", [HUGE, 100_000 * "[", f'[["{HUGE}",1,1,1,1]]', f"[[{HUGE},1,1,1,1]]"], ids=lambda cell: cell[:4])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_numbers_and_boxes_that_cannot_be_are_bad_samples(tmp_path: Path, kind: str, cell: str, suffix: str) -> None:
    photos(tmp_path)
    quoted = '"' + cell.replace('"', '""') + '"'
    if suffix == "csv":
        source = lines(tmp_path, "path,value", f"0.jpg,{quoted}")
    else:
        source = lines(tmp_path, f'{{"path": "0.jpg", "value": {cell}}}', name="list.jsonl")
    with pytest.raises(FormatError if suffix == "jsonl" and "[[[" in cell else DecodeError):
        converted(source, tmp_path / "out", fields=choices(value=kind))
