"""What the site adds to mkdocs: code in pages that cannot be right is found, and links out of docs/ lead to pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """The hooks of mkdocs.yml, which lie in no package."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "_site" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("loader = dp.DataLoader('x', shuffle=True, ...)", []),
        ("from datapipe.training import fit\ndatapipe.training.fit", []),
        ("1\ndp.DataLoadr('x')", [(5, "datapipe has no public name 'DataLoadr'")]),
        ("for x in", [(4, "the code does not parse: invalid syntax")]),
    ],
)
def test_code_that_cannot_be_right_is_found(pages: ModuleType, code: str, faults: list[tuple[int, str]]) -> None:
    assert pages.faults_of_code(f"# Title\n\n```python\n{code}\n```\n") == faults


@pytest.mark.parametrize("path", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))])
def test_no_page_has_such_code(pages: ModuleType, path: str) -> None:
    assert pages.faults_of_code((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("here", "link", "expected"),
    [
        ("hosts.md", "[x](loader.md#seed)", "[x](loader.md#seed)"),
        ("hosts.md", "[x](../examples/train.py)", "[x](repository/examples/train.py.md)"),
        ("guides/resume.md", "[x](../../examples/train.py)", "[x](../repository/examples/train.py.md)"),
        ("repository/CONTRIBUTING.md", "[x](docs/loader.md#seed)", "[x](../loader.md#seed)"),
        ("repository/benchmarks/README.md", "[x](../docs/benchmarks.md)", "[x](../../benchmarks.md)"),
        ("hosts.md", "[loader.md](loader.md)", "[The loader](loader.md)"),
        ("hosts.md", "[x](https://a.b/c.md) ![y](images/z.png)", "[x](https://a.b/c.md) ![y](images/z.png)"),
    ],
)
def test_links_lead_to_pages_of_the_site(pages: ModuleType, here: str, link: str, expected: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=here))
    assert pages.on_page_markdown(link, page=page, config=None, files=None) == expected


def test_the_page_of_commands_has_all_of_them(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from datapipe.cli.main import COMMANDS

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "")
    text = pages.command_line()
    assert [line.removeprefix("## datapipe ") for line in text.splitlines() if line.startswith("## ")] == list(COMMANDS)
    assert "--shard-size" in text
