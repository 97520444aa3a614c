"""Parts of documents that programs write, between lines that mark them."""

from __future__ import annotations


def replace_marked(text: str, name: str, part: str, *, where: str) -> str:
    """`text` with `part` between the lines that mark it by that name. Raises SystemExit where it has none."""
    opening, closing = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, begin, rest = text.partition(opening)
    _, end, tail = rest.partition(closing)
    if not begin or not end:
        raise SystemExit(f"{where}: has no lines `{opening}` and `{closing}`; put them where it belongs")
    return f"{head}{opening}\n{part}\n{closing}{tail}"
