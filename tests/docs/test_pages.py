"""The pages that a newcomer reads first: what they show is typed as it stands."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typed import Block, sections, type_in

import datapipe
import datapipe.training
from datapipe.analysis.judge.fault import MEANINGS
from datapipe.cli.convert_arguments import EPILOG
from datapipe.containers.forms import FORMS

ROOT = Path(__file__).parents[2]
README, QUICK_START = ROOT / "README.md", ROOT / "docs" / "quickstart.md"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The commands of this checkout, found by their names."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, arguments in (("datapipe", "-m datapipe"), ("python", ""), ("torchrun", "-m torch.distributed.run")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{commands}:{os.environ['PATH']}"}


def test_the_page_on_diagnosis_has_every_stage() -> None:
    page = (ROOT / "docs" / "diagnose.md").read_text().replace("`__getitem__`", "__getitem__")
    assert [stage for stage, meaning in MEANINGS.items() if f"| `{stage}` | {meaning} |" not in page] == []


@pytest.mark.nightly
def test_the_quick_start_runs_as_typed(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    found = sections(QUICK_START.read_text())
    found.pop("Install")  # `make check-wheel` installs
    for blocks in found.values():
        type_in(blocks, folder, environment)
    assert (folder / "before" / "diagnosis.html").exists()
    assert (folder / "sheet.png").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "guide", ["folder", "own-dataset", "gpu-waits", "small-gpt", "vision-language", "clips", "bad-files", "resume", "ranks"]
)
def test_a_guide_runs_as_typed(guide: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """From beginning to end, in an environment that lacks torchvision, as a newcomer's does."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torchvision'] = None\n")
    folder = tmp_path / "here"
    folder.mkdir()
    settings = environment | {"PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}"}
    for blocks in sections((ROOT / "docs" / "guides" / f"{guide}.md").read_text()).values():
        type_in(blocks, folder, settings)


def test_notebooks_are_those_of_their_guides() -> None:
    script = ROOT / "docs" / "_site" / "notebooks.py"
    subprocess.run([sys.executable, script, "--check"], check=True, timeout=60)


@pytest.mark.nightly
def test_the_readme_runs_as_typed(tmp_path: Path, environment: dict[str, str]) -> None:
    found = sections(README.read_text())
    type_in(found["Convert"], tmp_path, environment)
    type_in(found["Load"][:2], tmp_path, environment)


def test_a_page_that_promises_something_else_is_caught(tmp_path: Path) -> None:
    environment = dict(os.environ)
    type_in([Block("bash", None, "echo 12 samples"), Block("text", None, "7 samples\n")], tmp_path, environment)
    with pytest.raises(AssertionError, match="the page shows"):
        type_in([Block("bash", None, "echo 12 samples"), Block("text", None, "12 images\n")], tmp_path, environment)
    with pytest.raises(AssertionError, match="no-such-command"):
        type_in([Block("bash", None, "no-such-command-here\ntrue")], tmp_path, environment)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text):
        assert (ROOT / target).exists(), target


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    for name in datapipe.__all__:
        assert f"datapipe.{name}\n" in text or f"`{name}`" in text or name == "__version__", name


def public_names() -> list[tuple[str, Any]]:
    named = [(name, getattr(datapipe, name)) for name in datapipe.__all__ if name != "__version__"]
    named += [(f"transforms.{name}", getattr(datapipe.transforms, name)) for name in datapipe.transforms.__all__]
    return [(name, value) for name, value in named if callable(value)]


@pytest.mark.parametrize(("name", "value"), public_names(), ids=[name for name, _ in public_names()])
def test_every_public_name_has_an_example(name: str, value: Any) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    assert examples, f"{name}: its docstring has no example (>>> ...)"
    for example in examples:
        compile(example.source, name, "exec")
    if name.startswith("transforms.") and len(examples) == 1:
        eval(examples[0].source, {"T": datapipe.transforms, "torch": torch})


def test_every_error_has_its_cause_and_remedy() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    names = [name for name in datapipe.errors.__all__ if name != "DatapipeError"]
    assert len(names) > 8
    for name in [*names, "DivergenceError"]:
        row = re.search(rf"^\| `{name}`.*? \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
        assert row is not None, name
        error = getattr(datapipe.errors, name, None) or getattr(datapipe.training, name)
        assert {f"`{base.__name__}`" for base in error.__bases__ if base is not datapipe.errors.DatapipeError} <= set(
            row[1].split(", ")
        )


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("**/*.md")), ids=lambda page: page.stem)
def test_tables_have_a_heading(page: Path) -> None:
    """Without one, the built page begins such a table with an empty row."""
    assert re.findall(r"^\|(?: *\|)+\n\|[-:| ]+$", page.read_text(), re.MULTILINE) == []


def test_the_table_of_sources_is_that_of_the_forms() -> None:
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, facts in FORMS.items():
        if facts.targets == ():  # read where it lies
            continue
        alike.setdefault(facts.about, []).append(name)
    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(about)} |" for about, names in alike.items()]
    assert "\n".join(rows) in (ROOT / "docs" / "convert.md").read_text()
    assert all(f"{name}: {facts.help}" in EPILOG for name, facts in FORMS.items() if facts.help)
