"""The `datapipe` command: what it says of arguments that it does not know."""

from __future__ import annotations

import pytest

from datapipe.cli.main import COMMANDS, main, parse

_REQUIRED = {
    "convert": ["src", "dst", "--to", "hdf5"],
    "verify": ["path"],
    "inspect": ["path"],
    "fit": ["src", "recipe.json"],
    "index": ["path"],
    "bench": ["path"],
    "diagnose": ["script.py"],
    "train": ["path"],
    "doctor": [],
    "demo": [],
    "completion": ["bash"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_answered_by_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage of that command, not the list of all commands."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--learning-rat=3", *_REQUIRED[command]])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: datapipe {command} [")
    assert f"datapipe {command}: error: unrecognized arguments: --learning-rat" in said


def test_what_belongs_to_a_diagnosed_script_is_its_own() -> None:
    assert parse(["diagnose", "script.py", "--learning-rat", "3"]).command == ["script.py", "--learning-rat", "3"]


def test_unknown_commands_are_answered_by_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["konvert"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: datapipe [-h] [--version] COMMAND")
