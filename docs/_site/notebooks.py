"""Make notebooks of the guides that are typed from beginning to end: the same words, files and commands, as cells.

python docs/_site/notebooks.py            # writes examples/notebooks/
python docs/_site/notebooks.py --check    # changes nothing; exit status 1 if a notebook is not that of its guide
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GUIDES = {"own-dataset": "nvimgcodec", "small-gpt": "tokens", "clips": "video"}  # and the extra that each needs
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!http)[^)]+\)")  # into the pages, which a notebook is not among
# How to type a page, installing included, which the cells do.
_TYPING = re.compile(r"(?:In the clone, [^\n]*\n)?(?:Then t|T)ype everything as it stands.*?Outputs are shortened\.", re.DOTALL)
_INSTALL = "# In a clone of the project, this notebook's folder:\n%pip install -q '../../.[{extra}]'"


def notebook(page: str, extra: str) -> dict[str, Any]:
    """Return the notebook of a page, as nbformat 4.5 describes it."""
    cells: list[dict[str, Any]] = []
    page, num_replaced = _TYPING.subn("Run the cells from top to bottom.", page)
    if num_replaced != 1:
        raise ValueError(f"a page must say 'Type everything ... Outputs are shortened.' exactly once; found {num_replaced}")
    place = 0
    for found in _BLOCK.finditer(page):
        _add(cells, "markdown", _LINK.sub(r"\1", page[place : found.start()]))
        if not place:
            _add(cells, "code", _INSTALL.format(extra=extra))
        language, title, text = found.groups()
        if language == "bash":
            _add(cells, "code", f"%%bash\n{text}")
        elif language == "python":
            _add(cells, "code", f"%%writefile {title}\n{text}" if title else text)
        place = found.end()  # what a command prints, the notebook shows by itself
    _add(cells, "markdown", _LINK.sub(r"\1", page[place:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _add(cells: list[dict[str, Any]], kind: str, text: str) -> None:
    if not text.strip():
        return
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
    cell["source"] = text.strip("\n").splitlines(keepends=True)
    cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))


def main() -> None:
    """Write the notebooks, or compare them."""
    parser = argparse.ArgumentParser(description="Make notebooks of guides.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a notebook differs")
    check = parser.parse_args().check
    for name, extra in GUIDES.items():
        path = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
        page = (ROOT / "docs" / "guides" / f"{name}.md").read_text()
        text = json.dumps(notebook(page, extra), indent=1) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            raise SystemExit(f"{path}: is not the notebook of its guide; run python docs/_site/notebooks.py")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
