"""HTML and SVG put together from elements: text is escaped unless it is `Markup` already. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from datapipe.diagnostics.report.words import plain

_VOID = frozenset({"meta", "br", "rect", "path", "line", "circle"})


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is markup, and not escaped again."""

    text: str


Child: TypeAlias = "Markup | str | int | Iterable[Markup | str | int | None] | None"


def element(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element. An attribute that is None or False is left out, one that is True has no value; `class_` is `class`,
    and `aria_label` is `aria-label`."""
    opening = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{opening}>" if tag in ("meta", "br") else f"<{opening}/>")
    return Markup(f"<{opening}>{join(*children).text}</{tag}>")


def join(*children: Child) -> Markup:
    """Several, one after the other."""
    return Markup("".join(_text(child) for child in children))


def escape(text: object) -> str:
    """Text that may stand in an element or a quoted attribute; control characters and halves of characters, which no
    page can hold, are replaced."""
    return html.escape(plain(text), quote=True)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.text
    if isinstance(child, str | int):
        return escape(child)
    return "".join(_text(one) for one in child)


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
