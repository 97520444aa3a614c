"""What stands in several places says the same: versions, tools, workflows, make targets."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import datapipe

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_stated_once() -> None:
    assert "version" in PROJECT["dynamic"]
    places = subprocess.run(
        ["git", "grep", "-lF", f'"{datapipe.__version__}"', "--", "*.py", "*.toml", "*.yml", "docker"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if places.returncode > 1:
        pytest.skip("not in a git checkout")
    assert places.stdout.split() == ["datapipe/__init__.py"]


@pytest.mark.parametrize("path", [*WORKFLOWS, *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")], ids=lambda path: path.name)
def test_workflows_and_templates_parse_and_call_what_there_is(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for called in re.findall(r"\bmake ([a-z-]+)", path.read_text()):
        assert called in targets


def test_python_versions_are_those_that_are_checked() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]["checks"]["strategy"]["matrix"]
    claimed = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert matrix["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_ruff_is_the_same_at_each_commit_and_in_the_checks() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks["repos"][0]["rev"] == f"v{PINS['ruff']}"


def test_each_direct_dependency_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["docs"], *extras["release"], *extras["dev"]]
    names = {re.split(r"[\[<>=]", one)[0] for one in wanted} - {"gpu-datapipe"}
    pinned = {name.lower().replace("_", "-") for name in PINS}
    assert {name.lower().replace("_", "-") for name in names} <= pinned


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("Dockerfile.*")), ids=lambda path: path.name)
def test_containers_install_what_there_is_and_run_without_rights(path: Path) -> None:
    """Lines are instructions, what is copied exists and is not ignored, and extras have the torch that `make resolve` tries."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    words = [line.split() for line in lines]
    assert words[0][0] == "FROM"
    assert {word[0] for word in words} == {"FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR", "HEALTHCHECK", "ENTRYPOINT"}
    assert lines.index("USER datapipe") > max(number for number, word in enumerate(words) if word[0] == "RUN")
    assert '"datapipe", "doctor"' in next(line for line in lines if line.startswith("HEALTHCHECK"))
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for word in words:
        if word[0] == "COPY":
            for source in word[1:-1]:
                assert (ROOT / source).exists()
                assert source.split("/")[0] in allowed
    extras = {extra for found in re.findall(r"/src\[([\w,-]+)\]", path.read_text()) for extra in found.split(",")}
    assert extras <= PROJECT["optional-dependencies"].keys()
    is_cuda_12 = path.suffix == ".cu12"
    assert ("torch<2.11" in path.read_text()) is is_cuda_12 is any(extra.endswith("cu12") for extra in extras)


def test_the_development_container_is_set_up_by_make() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"].startswith("make setup")
