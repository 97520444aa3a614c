"""A conversion of texts may die at any moment; the same command then gives the bytes of an undisturbed run."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from test_convert_killed import assert_gone, children
from tokenizers_of_tests import TEXTS, byte_level
from trees import ROOT, cli_command, contents, run_cli

from datapipe.errors import UnfinishedError
from datapipe.index.manifest import read_manifest


@pytest.mark.nightly
@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_texts_are_converted_to_the_same_bytes_whenever_the_process_is_killed(num_kills: int, tmp_path: Path) -> None:
    """The whole program with two workers, killed as a file of its work appears, or later, and resumed."""
    tokenizer = byte_level(tmp_path / "tokenizer")
    texts = [f"{TEXTS[number % len(TEXTS)]} ({number})" * (1 + number % 5) for number in range(1000)]
    for name, some in (("a", texts[:450]), ("b", texts[450:])):
        source = tmp_path / "source" / f"{name}.jsonl"
        source.parent.mkdir(exist_ok=True)
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    arguments = ["--to", "tokens", "--tokenizer", tokenizer, "--shard-size", "4KB", "--workers", "2", "--pack", "64"]
    reference, out = tmp_path / "reference", tmp_path / "out"
    assert run_cli("convert", tmp_path / "source", reference, *arguments).returncode == 0
    expected = contents(reference)
    assert len(list(reference.glob("*.index.arrow"))) > 20

    command = cli_command("convert", tmp_path / "source", out, *arguments)
    moments, num_killed = random.Random(num_kills), 0
    while num_killed < num_kills:
        num_awaited = num_done(out) + moments.randrange(1, 6)  # shards finished before the kill; at first, the plan
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while process.poll() is None and num_done(out) < num_awaited:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.05))
            workers = children(process.pid)
            is_killed = process.poll() is None
            process.kill()
        assert_gone(workers)
        num_killed += is_killed
        if (out / ".building").is_dir():
            with pytest.raises(UnfinishedError):
                read_manifest(out)
        elif (out / "dataset.json").exists():
            finish_and_compare(command, out, expected)
            shutil.rmtree(out)
    finish_and_compare(command, out, expected)


def num_done(out: Path) -> int:
    """How far a conversion is: files of the work that is under way, and shards that are finished."""
    return len(list(out.glob(".building/*"))) + len(list(out.glob(".building/done/*")))


def finish_and_compare(command: list[str], out: Path, expected: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert contents(out) == expected
