"""What datapipe promises, and the tests that hold it to that, by day and by night: the table in tests/README.md.

    python -m tests.promises     # writes the table

A test names what it is about by the mark `promise`. The promises are those of docs/loader.md, the sections of docs/convert.md
about a conversion, the forms of data and the kinds. Of an error the tests are those that expect it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from benchmarks.marked import replace_marked
from datapipe import errors
from datapipe.containers.forms import FORMS
from datapipe.kinds.registry import KINDS

ROOT = Path(__file__).parents[1]
README = ROOT / "tests" / "README.md"
_OF_CONVERSIONS = ("Bad samples", "Duplicates", "Stopping and resuming", "Several machines", "Verifying")
_SHOWN = 2  # tests in a cell of the table


@dataclass(frozen=True, slots=True)
class Test:
    """A test, and what of it is known from its source."""

    name: str
    is_nightly: bool
    promises: tuple[str, ...]
    expects: frozenset[str]  # names of errors


def promises() -> list[str]:
    """Return what is promised, in the order of the table."""
    section = (ROOT / "docs" / "loader.md").read_text().partition("## What it promises")[2].partition("\n## ")[0]
    of_loaders = re.findall(r"^- \*\*(.+?)\.?\*\*", section, re.MULTILINE)
    titles = re.findall(r"^## (.+)$", (ROOT / "docs" / "convert.md").read_text(), re.MULTILINE)
    assert set(_OF_CONVERSIONS) <= set(titles), "docs/convert.md has sections of other names"
    return [
        *(f"loader: {name}" for name in of_loaders),
        *(f"convert: {name}" for name in _OF_CONVERSIONS),
        *(f"form: {name}" for name in FORMS),
        *(f"kind: {name}" for name in KINDS),
        *(f"error: {name}" for name in error_names()),
    ]


def error_names() -> list[str]:
    """Return the names of the errors that datapipe raises."""
    return [name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__]


def read_tests() -> list[Test]:
    """Return all tests of the project, in the order of their files."""
    files = [*sorted((ROOT / "datapipe" / "testing" / "loaders").glob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
    return [test for file in files for test in _tests_of(file)]


def _tests_of(file: Path) -> Iterator[Test]:
    text = file.read_text()
    if ".raises(" not in text and ".promise(" not in text:
        return
    tree = ast.parse(text)
    above: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            above = node.value.elts if isinstance(node.value, ast.List) else [node.value]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield _test(file, node, [*above, *node.decorator_list])  # its tests may be inherited
            above_own = [mark for mark in [*above, *node.decorator_list] if not _promised(mark)]
            yield from (_test(file, own, [*above_own, *own.decorator_list]) for own in node.body if _is_test(own))
        elif _is_test(node):
            yield _test(file, node, [*above, *node.decorator_list])


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def _test(file: Path, node: ast.FunctionDef | ast.ClassDef, marks: list[ast.expr]) -> Test:
    return Test(
        name=f"{file.relative_to(ROOT)}::{node.name}",
        is_nightly=any(ast.unparse(mark) == "pytest.mark.nightly" for mark in marks),
        promises=tuple(name for mark in marks for name in _promised(mark)),
        expects=frozenset(_expected(node) if _is_test(node) else ()),
    )


def _promised(mark: ast.expr) -> list[str]:
    """Return the arguments of a mark `promise`; none for others."""
    if not isinstance(mark, ast.Call) or ast.unparse(mark.func) != "pytest.mark.promise":
        return []
    return [ast.literal_eval(argument) for argument in mark.args]


def _expected(test: ast.FunctionDef) -> Iterator[str]:
    """Yield the names of the errors that a test expects, by `pytest.raises`."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises" and node.args:
            yield from (ast.unparse(name).rpartition(".")[2] for name in ast.walk(node.args[0]) if isinstance(name, ast.expr))


@functools.cache
def held() -> dict[str, list[Test]]:
    """Return the tests of each promise. Raises AssertionError for a mark that names no promise."""
    found: dict[str, list[Test]] = {name: [] for name in promises()}
    for test in read_tests():
        for name in test.promises:
            assert name in found, f"{test.name}: {name!r} is no promise; see tests/promises.py"
            found[name].append(test)
        for name in test.expects & set(error_names()):
            found[f"error: {name}"].append(test)
    return found


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| promise | by day | by night |", "|---|---|---|"]
    for name, tests in held().items():
        cells = (_cell([test for test in tests if test.is_nightly is by_night]) for by_night in (False, True))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(tests: list[Test]) -> str:
    shown = "<br>".join(f"`{test.name.removeprefix('tests/')}`" for test in tests[:_SHOWN])
    return f"{shown}<br>and others" if len(tests) > _SHOWN else shown


if __name__ == "__main__":
    README.write_text(replace_marked(README.read_text(), "promises", table(), where=str(README)))
