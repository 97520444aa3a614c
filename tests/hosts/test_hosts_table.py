"""The table of docs/hosts.md says what tests show."""

from __future__ import annotations

import ast
from pathlib import Path

import hosts_table


def test_every_entry_has_its_test() -> None:
    for cells in hosts_table.TABLE.values():
        assert len(cells) == len(hosts_table.HOSTS)
        for cell in filter(None, cells):
            file, function = cell.test
            path = next(folder / file for folder in Path(__file__).parents if (folder / file).exists())
            tree = ast.parse(path.read_text())
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, cell


def test_the_documents_have_the_table() -> None:
    for document in hosts_table.DOCUMENTS:
        text = document.read_text()
        assert text == hosts_table.with_table(text), f"{document}: run python tests/hosts/hosts_table.py"
