"""Make lists of the lines `name: meaning` that docstrings have for arguments, and code of their examples, for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_LINE = re.compile(r"^(`?[a-z_]\w*`?(?:, [a-z_]\w*)*): (?=\S)")


class Arguments(griffe.Extension):
    """Change the docstrings of classes and functions as they are loaded. The source stays as it is."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of `obj`, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """Return `text` with a list item for each line `name: meaning`, and its indented continuation; examples are code."""
    lines: list[str] = []
    is_item = is_code = False
    for line in text.splitlines():
        if line.startswith((">>> ", "... ")) != is_code:
            lines.append("```" if is_code else "```python")
            is_code = not is_code
        if is_code:
            lines.append(line[4:])
            continue
        match = _LINE.match(line)
        if match:
            if lines and lines[-1] and not is_item:
                lines.append("")
            lines.append(f"- **{match[1].replace('`', '')}**: {line[match.end() :]}")
            is_item = True
        else:
            is_item = is_item and line.startswith("  ")
            lines.append("  " + line.strip() if is_item else line)
    return "\n".join(lines)
