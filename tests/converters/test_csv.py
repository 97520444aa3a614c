"""CSV as others write it: where rows end, and what a header says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures import quick
from fuzz_tables import read_by_arrow
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.options import OnError
from converters.tables import SourceFile
from converters.tables.conversion import convert_table
from converters.tables.options import TableConversion
from converters.tables.quoting import last_row_end, open_quote
from converters.tables.text_rows import CsvSource, blocks_of
from datapipe.errors import DecodeError, FormatError


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def converted(source: Path, **options: Any) -> dict[str, list[Any]]:
    """Return the values of the columns, in the order of the source."""
    out = source.parent / "out"
    convert_table(TableConversion(source, out, seed=None, num_workers=1, **options))
    return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("*.parquet"))]).to_pydict()


def errors(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "out" / "errors.jsonl").read_text().splitlines()]


def lines_of_rows(data: bytes, delimiter: str) -> tuple[list[int], bool]:
    """Return the lines at which rows begin, and whether a quote is open at the end: letter by letter, as Arrow's parser goes."""
    lines, line, state, place = list[int](), 1, "row", 0
    while place < len(data):
        letter = data[place : place + 1]
        is_end = letter in (b"\n", b"\r")
        if state == "row" and not is_end:
            lines.append(line)
        if is_end:
            line += 1
            place += data[place : place + 2] == b"\r\n"
            state = state if state == "quoted" else "row"
        elif state == "quoted":
            if letter == b'"':
                state, place = ("quoted", place + 1) if data[place + 1 : place + 2] == b'"' else ("value", place)
        else:
            state = "start" if letter == delimiter.encode() else "quoted" if letter == b'"' and state != "value" else "value"
        place += 1
    return lines, state == "quoted"


@settings(quick, max_examples=60)
@given(
    data=st.text(st.sampled_from('""""",,;\n\n\r5 é'), min_size=1, max_size=40).map(str.encode),
    delimiter=st.sampled_from(",;"),
    block_nbytes=st.integers(1, 24),
    tail_nbytes=st.integers(1, 24),
)
def test_rows_are_those_that_arrow_finds_in_the_whole(
    data: bytes, delimiter: str, block_nbytes: int, tail_nbytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever quotes there are, wherever blocks end."""
    path = write(tmp_path_factory.getbasetemp() / f"rows-{os.getpid()}.csv", data)
    lines, is_open = lines_of_rows(data, delimiter)
    assert (open_quote(data, delimiter) is not None) == is_open
    found: dict[str, list[str | None]] = {"a": [], "b": []}
    bad, found_lines = list[str](), list[int]()
    source = CsvSource([SourceFile(str(path), len(data), 0)], delimiter=delimiter, names=["a", "b"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("converters.tables.quoting._TAIL_NBYTES", tail_nbytes)
        for block in blocks_of(str(path), 0, start=0, line=0, delimiter=delimiter, block_nbytes=block_nbytes):
            parsed = source.parse(block, {}, {})
            for name, column in parsed.columns.items():
                found[name] += column.to_pylist()
            bad += [one.text for one in parsed.bad]
            found_lines += source.lines_of(block).tolist()
            assert len(source.lines_of(block)) == parsed.num_seen
    assert found_lines == lines
    if is_open:
        assert bad.pop()
        data = data[: last_row_end(data, delimiter)]
    assert (found, bad) == read_by_arrow(data, delimiter, ["a", "b"])


@pytest.mark.parametrize("block_nbytes", [20, 1000])
def test_a_quote_in_an_unquoted_value_is_a_letter(tmp_path: Path, block_nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in duckdb#9036: values in quotes have line breaks elsewhere in the file."""
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": block_nbytes})
    text = 'size "in",note\n5" pipe,x\n' + 'ok,"first line\n1,second ""line"""\n' * 3 + '3" and 4","y"\n'
    found = converted(write(tmp_path / "t.csv", text))
    assert found == {
        'size "in"': ['5" pipe', "ok", "ok", "ok", '3" and 4"'],
        "note": ["x", *['first line\n1,second "line"'] * 3, "y"],
    }


def test_rows_that_a_lone_return_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows._MAX_BLOCK_NBYTES", 64)
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 8})
    text = "a,b\r" + "".join(f'{row},"x{row}\n"\r' for row in range(30)) + "7\r"
    found = converted(write(tmp_path / "t.csv", text), on_error=OnError.SKIP)
    assert found == {"a": list(range(30)), "b": [f"x{row}\n" for row in range(30)]}
    assert [(one["row"], one["line"]) for one in errors(tmp_path)] == [(31, 62)]


def test_a_quote_that_the_file_does_not_close(tmp_path: Path) -> None:
    """Arrow takes all that follows for one value."""
    source = write(tmp_path / "t.csv", 'a,b\n1,"x\ny"\n2,"z\n3,w\n4,v\n')
    with pytest.raises(DecodeError, match=r"row 2 \(line 4\): bad row: a quote is not closed by the end of the file, 3 lines on"):
        converted(source)
    assert converted(source, on_error=OnError.SKIP) == {"a": [1], "b": ["x\ny"]}
    assert [(one["row"], one["line"], one["text"]) for one in errors(tmp_path)] == [(2, 4, '2,"z\n3,w\n4,v\n')]


def test_a_quote_that_is_open_for_long_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.tables.text_rows._MAX_BLOCK_NBYTES", 512)
    monkeypatch.setattr("converters.tables.text_rows.blocks_of.__kwdefaults__", {"block_nbytes": 64})
    source = write(tmp_path / "t.csv", 'a,b\n1,5" pipe\n' * 20 + '2,"x\n' + "3,y\n" * 500)
    with pytest.raises(FormatError, match=r"the quote at line 41, byte \d+, is not closed within 0 MB"):
        converted(source)
    with pytest.raises(FormatError, match=r"the row that begins at line 3, byte 11, does not end within 0 MB"):
        converted(write(tmp_path / "u.csv", "a\n" + '5" pipe\r\n' + "".join('6"' for _ in range(2000))))


def test_a_name_in_two_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "t.csv", '\ufeff"Weight\n(kg)",b\n1,2\n3\n')
    assert converted(source, on_error=OnError.SKIP) == {"Weight\n(kg)": [1], "b": [2]}
    assert [(one["row"], one["line"]) for one in errors(tmp_path)] == [(2, 4)]


def test_a_quote_of_the_header_that_is_not_closed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"t\.csv: its header .* has a quote that is not closed"):
        converted(write(tmp_path / "t.csv", '"a,b\n1,2\n'))


def test_a_header_that_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"t\.csv: its header b'caf\\xe9,b' is not UTF-8; save the file as UTF-8"):
        converted(write(tmp_path / "t.csv", "café,b\n1,2\n".encode("latin-1")))


def test_rows_that_are_bad_and_not_utf8(tmp_path: Path) -> None:
    """Of which Arrow tells no text."""
    source = write(tmp_path / "t.csv", "a,b\ncaf\xe9,1,2\n\xe9,x\nü,y\n".encode("latin-1").replace(b"\xfc", "ü".encode()))
    assert converted(source, on_error=OnError.SKIP) == {"a": ["ü"], "b": ["y"]}
    assert [(one["line"], one["reason"], one["text"]) for one in errors(tmp_path)] == [
        (2, "3 values where the header names 2", "caf\ufffd,1,2"),
        (3, r"a: not UTF-8: b'\xe9'", ""),
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("mark", [",", "\t", ";", "|"])
def test_the_delimiter_is_the_one_of_the_first_line(tmp_path: Path, name: str, mark: str) -> None:
    text = f'\ufeff"a, b\t;"{mark}b\n1{mark}x;y,z\n'.replace("x;y,z", '"x;y,z"')
    assert converted(write(tmp_path / name, text)) == {"a, b\t;": [1], "b": ["x;y,z"]}


def test_the_delimiter_of_files_without_a_header(tmp_path: Path) -> None:
    assert converted(write(tmp_path / "t.csv", "1;x\n2;y\n"), names=("a", "b")) == {"a": [1, 2], "b": ["x", "y"]}


def test_one_column_that_has_marks_of_others(tmp_path: Path) -> None:
    assert converted(write(tmp_path / "t.csv", "text\none; two\n")) == {"text": ["one; two"]}
    (tmp_path / "n").mkdir()
    assert converted(write(tmp_path / "n" / "t.csv", "one; two\n"), names=("text",)) == {"text": ["one; two"]}
    (tmp_path / "d").mkdir()
    assert converted(write(tmp_path / "d" / "t.csv", "a;b\n1\n"), delimiter=",") == {"a;b": [1]}


def test_rows_that_are_not_separated_name_the_option(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"1 values where the header names 2; values are separated by ',' here, .* --delimiter"):
        converted(write(tmp_path / "t.csv", "a,b;c\n1;2\n"))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_utf16_is_named(tmp_path: Path, name: str, encoding: str) -> None:
    text = "a,b\n1,2\n" if name == "t.csv" else '{"a": 1}\n'
    with pytest.raises(FormatError, match=rf"{name}: is UTF-16 text; save it as UTF-8"):
        converted(write(tmp_path / name, text.encode(encoding)))
