"""No name of a file reaches a terminal or a log as it is: errors, log records and what commands print are printable."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import jpeg

import datapipe as dp
from datapipe import errors
from datapipe.cli.main import main
from datapipe.core.printable import counted, get_logger, printable
from datapipe.errors import DatapipeError, MissingDataError, StorageError
from datapipe.opening.samples import open_index

EVIL = os.fsdecode(b"a\x1b]0;owned\x07\x1b[31m\xff\n\xc2\x9b2Jb")  # sets a title, a colour; forges a line; C1 controls
SHOWN = r"a\x1b]0;owned\x07\x1b[31m\xff\n\x9b2Jb"


def test_what_prints_stays_and_what_does_not_is_an_escape() -> None:
    assert printable("naïve 日本語 'x\\n' 😀") == "naïve 日本語 'x\\n' 😀"
    assert printable(EVIL) == SHOWN
    assert printable("a\u202eb\u2028\U000e0001\ud800\r\t\x7f") == r"a\u202eb\u2028\U000e0001\ud800\r\t\x7f"
    assert printable(printable(EVIL)) == SHOWN


ERRORS = sorted(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DatapipeError))


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_one_printable_line_and_keeps_what_it_was_given(name: str) -> None:
    error = getattr(errors, name)(f"{EVIL}: is gone")
    assert str(error) == f"{SHOWN}: is gone"
    assert error.args == (f"{EVIL}: is gone",)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_an_error_with_a_number_is_printable_too() -> None:
    error = StorageError(28, f"{EVIL}: disk full")
    assert error.errno == 28
    assert str(error) == f"{SHOWN}: disk full"


def test_what_our_loggers_are_told_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("datapipe.of_a_test").warning("%s: left out", EVIL)
    get_logger("datapipe.of_a_test").warning("%s: left out", EVIL)  # read a second time, not filtered twice
    logging.getLogger("somebody_else").warning("%s", "\x1b[31m")
    assert caplog.messages == [f"{SHOWN}: left out"] * 2 + ["\x1b[31m"]


def test_loader_and_index_show_no_name_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "in" / EVIL
    (root / "class").mkdir(parents=True)
    (root / "class" / "0.jpg").write_bytes(jpeg(0))
    (root / "class" / f"1{EVIL}.jpg").write_bytes(b"no image")
    index = open_index(root)
    assert str(index.describe(1)).isprintable()
    with pytest.raises(dp.errors.DecodeError) as caught:
        list(dp.DataLoader(root, batch_size=2, transform=[dp.transforms.Resize((8, 8))], num_workers=0))
    assert SHOWN in str(caught.value)
    assert str(caught.value).isprintable()
    loader = dp.DataLoader(root, batch_size=2, transform=[dp.transforms.Resize((8, 8))], num_workers=0, on_error="skip")
    assert len(list(loader)) == 1
    assert caplog.messages
    assert all(text.isprintable() for text in (*caplog.messages, loader.bad_samples[0].where))
    with pytest.raises(MissingDataError) as missing:
        open_index(tmp_path / EVIL)
    assert str(missing.value).isprintable()


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("convert", "{evil}", "{tmp}/out", "--to", "webdataset"),
    ("convert", "{good}", "{tmp}/out", "--to", "webdataset", "--dry-run"),
    ("convert", "{good}", "{tmp}/out", "--to", "webdataset"),
    ("convert", "{good}", "{tmp}/{name}", "--to", "webdataset", "--on-error", "skip"),
    ("convert", "{good}", "{tmp}/x", "--to", "{name}"),
    ("convert", "{good}", "{tmp}/x", "--to", "hdf5", "--resize", "{name}"),
    ("verify", "{evil}"),
    ("inspect", "{evil}"),
    ("inspect", "{good}"),
    ("inspect", "{good}", "--grid", "{tmp}/none/{name}.png"),
    ("index", "{evil}"),
    ("bench", "{evil}"),
    ("bench", "{good}", "--images", "1", "--rounds", "1", "--device", "cpu"),
    ("train", "{evil}", "--device", "cpu"),
    ("train", "{good}", "--device", "cpu", "--resume", "{name}", "--out", "{tmp}/{name}"),
    ("diagnose", "{evil}"),
    ("diagnose", "--compare", "{evil}", "{evil}"),
    ("{name}",),
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """An image folder of three samples, one of them bad; a class and the bad one have the evil name."""
    for kind in ("cat", EVIL):
        (tmp_path / "in" / kind).mkdir(parents=True)
        (tmp_path / "in" / kind / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "in" / EVIL / f"{EVIL}.jpg").write_bytes(b"no image")
    return tmp_path / "in"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: re.sub(r"[{}]", "", "-".join(command[:4])))
def test_no_command_prints_a_name_as_it_is(
    command: tuple[str, ...], good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.format(evil=tmp_path / EVIL, good=good, tmp=tmp_path, name=EVIL) for word in command]
    with contextlib.suppress(SystemExit):  # argparse's
        main(words)
    printed = "".join(capsys.readouterr())
    assert printed.replace("\n", "").isprintable()
    assert SHOWN[:24] in printed, printed  # argparse writes what follows otherwise


@pytest.mark.nightly
def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "datapipe", "verify", str(tmp_path / "é")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert r"\xe9: " in done.stderr
    assert "Traceback" not in done.stderr


def test_nouns_agree_with_their_numbers() -> None:
    counts = [counted(1, "epoch"), counted(2, "epoch"), counted(1, "class"), counted(0, "class"), counted(3, "batch")]
    assert counts == ["1 epoch", "2 epochs", "1 class", "0 classes", "3 batches"]
    assert counted(1_234, "row") == "1,234 rows"
