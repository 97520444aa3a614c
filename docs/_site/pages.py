"""Pages of the site that are not in docs/: the command line, and files of the repository that pages link to.

mkdocs calls these functions (`hooks` of mkdocs.yml). A link such as `../examples/train.py` works in the repository; on the site
it leads to a page with the contents of that file.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
_ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"(?<!!)(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
_NAMED = re.compile(r"\[([\w./-]+\.md)\]\(([^)\s:#]+)")  # [loader.md](loader.md), which the site calls by its title
_CODE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_AND_SO_ON = re.compile(r",\s*\.\.\.\)")  # further arguments, which Python refuses after named ones
_LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for the command line, and one for each file of the repository that is linked to, directly or not."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    waiting = [("docs/" + file.src_uri, file.content_string) for file in files.documentation_pages()]
    waiting += [(path, (ROOT / path).read_text()) for path in _ALWAYS]
    seen: set[str] = set()
    while waiting:
        origin, text = waiting.pop()
        if not origin.startswith("docs/"):
            files.append(File.generated(config, site_path(origin), content=as_page(origin, text)))
        for path in linked(origin, text):
            if path not in seen and not path.startswith("docs/") and path not in _ALWAYS and (ROOT / path).is_file():
                seen.add(path)
                waiting.append((path, (ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository into links to their pages. Raises PluginError for code that cannot be right."""
    here = page.file.src_uri
    origin = repository_path(here)
    faults = faults_of_code(markdown) if origin.startswith("docs/") else []
    if faults:
        from mkdocs.exceptions import PluginError

        raise PluginError("\n".join(f"{origin}, line {line}: {fault}" for line, fault in faults))

    def turned(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        if origin.startswith("docs/") and path.startswith("docs/"):
            return match[0]
        target = path.removeprefix("docs/") if path.startswith("docs/") else site_path(path)
        return match[1] + os.path.relpath(target, posixpath.dirname(here) or ".") + match[3]

    return _LINK.sub(turned, _NAMED.sub(lambda match: f"[{title_of(origin, match)}]({match[2]}", markdown))


def title_of(origin: str, match: re.Match[str]) -> str:
    """Return the first heading of a page that is linked to by the name of its file, or that name."""
    path = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
    first = path.read_text().partition("\n")[0] if path.is_file() else ""
    return first.removeprefix("# ") if first.startswith("# ") else match[1]


def faults_of_code(markdown: str) -> list[tuple[int, str]]:
    """Return (line, fault) for pieces of Python that do not parse, or that use a name which datapipe does not have."""
    import datapipe

    faults = []
    for match in _CODE.finditer(markdown):
        line = markdown.count("\n", 0, match.start()) + 1
        try:
            tree = ast.parse(_AND_SO_ON.sub(")", match[1]))
        except SyntaxError as exc:
            faults.append((line + (exc.lineno or 0), f"the code does not parse: {exc.msg}"))
            continue
        used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
        for node in used:
            is_known = node.attr in datapipe.__all__ or (ROOT / "datapipe" / node.attr).is_dir()
            if node.value.id in ("dp", "datapipe") and not is_known:
                faults.append((line + node.lineno, f"datapipe has no public name {node.attr!r}"))
    return faults


def linked(origin: str, text: str) -> Iterator[str]:
    """Yield the paths, from the repository's root, of the files that a page links to."""
    for match in _LINK.finditer(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))


def site_path(path: str) -> str:
    """Return the place on the site of a file of the repository."""
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def repository_path(src_uri: str) -> str:
    """Return the file of the repository that a page comes from."""
    if not src_uri.startswith("repository/"):
        return "docs/" + src_uri
    path = src_uri.removeprefix("repository/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def as_page(path: str, text: str) -> str:
    """Return Markdown as it is, and other files as a page with their contents."""
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def command_line() -> str:
    """Return a page with the help of each command."""
    os.environ["COLUMNS"] = "100"  # argparse wraps by it
    os.environ["NO_COLOR"] = "1"
    from datapipe.cli.main import build_parser

    parser = build_parser()
    parts = ["# Command line", "`datapipe COMMAND --help` prints the same.", f"```text\n{parser.format_help()}```"]
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    parts += [f"## datapipe {name}\n\n```text\n{command.format_help()}```" for name, command in commands.items()]
    return "\n\n".join(parts) + "\n"
