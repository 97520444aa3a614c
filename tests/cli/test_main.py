"""The `datapipe` command: what it says of arguments that it does not know."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from converters.options import AUDIO_FORMATS, ENGINES, TARGETS, Check, ConvertOptions, Encode, OnError, parse_nbytes
from converters.tables.options import COMPRESSIONS, TableConversion
from datapipe.cli.convert import _options as options_of
from datapipe.cli.main import main, parse
from datapipe.containers.form import ClassFrom
from datapipe.containers.forms import FORMS
from datapipe.training.options import TrainOptions
from tests.fixtures import make_folder

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
}


@pytest.mark.parametrize("command", _REQUIRED)
def test_an_unknown_option_is_answered_by_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage of that command, not the list of all commands."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--learning-rat=3", *_REQUIRED[command]])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: datapipe {command} [")
    assert f"datapipe {command}: error: unknown option --learning-rat" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["convert", "a", "b", "--to=tokens", "--tokeniser", "c"],
            "unknown option --tokeniser; did you mean --tokenizer?",
        ),
        (["inspect", "texts", "--gird=sheet.png"], "unknown option --gird; did you mean --grid?"),
        (
            ["inspect", "a", "--gird=b", "--nmu", "--zzz"],
            "unknown options --gird, --nmu, --zzz; did you mean --grid and --num?",
        ),
        (["verify", "a", "b", "c"], "unrecognized arguments: b c"),
        (["verify", "a", "--zzz"], "unknown option --zzz\n"),
    ],
)
def test_a_misspelt_option_names_the_one_that_is_meant(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert f"error: {said}" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_long_wait_is_told_without_a_level(capfd: pytest.CaptureFixture[str]) -> None:
    """It is no fault; what is one has its level."""
    code = (
        "from unittest import mock; from datapipe.cli import main; from datapipe.core import waiting\n"
        "def run(args):\n"
        "    waiting.logger.warning('waiting for a, since 3 s'); waiting.get_logger('datapipe.b').warning('slow')\n"
        "    return 0\n"
        "with mock.patch('datapipe.cli.doctor.run', run):\n"
        "    main.main(['doctor'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert capfd.readouterr().err == "waiting for a, since 3 s\nWARNING: slow\n"


@pytest.mark.parametrize("command", _REQUIRED)
def test_an_error_of_arguments_is_two_lines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What must be given, and what is wrong: not every option there is."""
    with pytest.raises(SystemExit):
        main([command, "--learning-rat=3", *_REQUIRED[command]])
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert len(said.split("\n")[0]) < 130
    with pytest.raises(SystemExit):
        main(["convert", "src"])
    usage = (
        "datapipe convert [options] SRC DST --to webdataset|hdf5|parquet|tfrecord|tokens     (options: datapipe convert --help)"
    )
    assert capsys.readouterr().err.startswith(f"usage: {usage}\ndatapipe convert: error: ")


def test_an_error_of_a_value_names_its_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "src", "dst", "--to", "hdf5", "--resize", "256"])
    assert "error: --resize '256' is none of shorter:N" in capsys.readouterr().err


def test_what_belongs_to_a_diagnosed_script_is_its_own() -> None:
    assert parse(["diagnose", "script.py", "--learning-rat", "3"]).command == ["script.py", "--learning-rat", "3"]


def test_unknown_commands_are_answered_by_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["konvert"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: datapipe [options] COMMAND")


@pytest.mark.parametrize("command", _REQUIRED)
def test_each_command_names_a_function_that_exists(command: str) -> None:
    module, _, function = parse([command, *_REQUIRED[command]]).run.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("command", _REQUIRED)
def test_help_wraps_descriptions_and_leaves_examples_as_they_are(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = parse([command, *_REQUIRED[command]]).parser
    said = parser.format_help()
    assert max(map(len, said.split("\n\n")[1].splitlines())) <= 80
    assert "\n" not in parser.epilog.strip() or parser.epilog.strip() in said


def test_help_needs_none_of_what_commands_need() -> None:
    code = (
        "import sys\nfrom datapipe.cli.main import build_parser\nbuild_parser().format_help()\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'msgspec', 'converters') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.nightly
def test_commands_on_files_start_without_torch_and_pandas(tmp_path: Path) -> None:
    """`import torch` takes a second or two, and each worker of a conversion would import pandas again."""
    make_folder(tmp_path / "photos", num=3)
    commands = [
        ["convert", "photos", "shards", "--to", "parquet", "--workers", "1"],
        ["verify", "shards"],
        ["inspect", "shards", "--grid", "grid.png"],
        ["index", "photos"],
        [],
    ]
    code = (
        f"import sys\nfrom datapipe.cli.main import main\nfor command in {commands!r}:\n    assert main(command) == 0\n"
        "print([name for name in ('torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_options_of_convert_are_those_of_its_classes() -> None:
    """The parser names them once more, so that `--help` imports nothing."""
    args = parse(["convert", "photos", "shards", "--to", "webdataset"])
    for name, parser in (("encode", Encode.parse), ("shard_size", parse_nbytes)):
        setattr(args, name, parser(getattr(args, name)) if isinstance(getattr(args, name), str) else getattr(args, name))
    assert options_of(args) == ConvertOptions(Path("photos"), Path("shards"))
    choices = {action.dest: action.choices for action in args.parser._actions if action.choices}
    assert choices == {
        "to": TARGETS,
        "form": ("auto", *FORMS),
        "class_from": tuple(one.value for one in ClassFrom),
        "engine": ENGINES,
        "check": tuple(one.value for one in Check),
        "on_error": tuple(one.value for one in OnError),
        "compression": COMPRESSIONS,
        "audio_format": AUDIO_FORMATS,
    }
    assert f"rows of a row group ({TableConversion(Path('a'), Path('b')).group_rows})" in " ".join(
        args.parser.format_help().split()
    )


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["conv"], ["convert"]),
        (["convert", "--to", "p"], ["parquet"]),
        (["convert", "photos", "shards", "--shard-s"], ["--shard-size"]),
        (["train", "--resume", "pho"], ["photos"]),
        (["verify", "pho"], ["photos"]),
    ],
)
def test_bash_completes_what_is_typed(typed: list[str], completed: list[str], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    bash = f"""
        eval "$({sys.executable} -m datapipe --print-completion bash)"
        COMP_WORDS=(datapipe "$@"); COMP_CWORD=$#
        "$(complete -p datapipe | grep -o -- '-F [^ ]*' | cut -c 4-)"
        echo "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", bash, "bash", *typed]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.split(), done.stderr) == (completed, "")


def test_what_train_is_not_told_is_left_to_its_options() -> None:
    args = vars(parse(["train", "path"]))
    given = {name: args[name] for name in TrainOptions.__dataclass_fields__ if name in args}
    assert given == {"out": Path("train-out"), "activation_checkpointing": False, "channels_last": True, "compile": None}
    default = TrainOptions()
    text = " ".join(parse(["train", "path"]).parser.format_help().split())
    for shown in (f"--epochs N (default: {default.epochs})", f"STEPS line of metrics (default: {default.log_every})"):
        assert shown in text
