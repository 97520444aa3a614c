"""Workers that start while a large source is still listed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from converters import ConvertOptions, convert
from converters.engines import local
from converters.tokenizer import Tokenizing
from datapipe.errors import DecodeError
from tests.tokenizers_of_tests import byte_level

NUM = 2 * 4096 + 100


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizing:
    return Tokenizing.of(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(NUM)))
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[subprocess.Popen[bytes], bool]]:
    """Worker processes, each with whether it had a job when it was started."""
    found: list[tuple[subprocess.Popen[bytes], bool]] = []
    start, is_planned = local._start, False
    build = local.Workers.build

    def noted(tokenizing: Tokenizing | None) -> local._Worker:
        worker = start(tokenizing)
        found.append((worker.process, is_planned))
        return worker

    def noted_build(self: local.Workers, job: local.ShardJob, *settings: Any, **listeners: Any) -> None:
        nonlocal is_planned
        is_planned = True
        build(self, job, *settings, **listeners)

    monkeypatch.setattr(local, "_start", noted)
    monkeypatch.setattr(local.Workers, "build", noted_build)
    return found


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.name != "dataset.json"}


@pytest.mark.nightly
def test_workers_of_a_large_source_start_before_it_is_planned_and_write_the_same(
    corpus: Path, tokens: Tokenizing, tmp_path: Path, started: list[tuple[subprocess.Popen[bytes], bool]]
) -> None:
    options = {"to": "tokens", "tokens": tokens, "shard_nbytes": 50_000}
    convert(ConvertOptions(corpus, tmp_path / "two", num_workers=2, **options))
    assert [had_job for _, had_job in started] == [False, False]
    assert all(process.poll() is not None for process, _ in started)
    convert(ConvertOptions(corpus, tmp_path / "one", num_workers=1, **options))
    assert len(started) == 2
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_workers_end_where_one_shard_needs_none_of_them(
    corpus: Path, tokens: Tokenizing, tmp_path: Path, started: list[tuple[subprocess.Popen[bytes], bool]]
) -> None:
    convert(ConvertOptions(corpus, tmp_path / "out", to="tokens", tokens=tokens, num_workers=2))
    assert started
    assert all(process.poll() is not None for process, _ in started)


def test_workers_end_where_a_document_is_bad(
    corpus: Path, tokens: Tokenizing, tmp_path: Path, started: list[tuple[subprocess.Popen[bytes], bool]]
) -> None:
    corpus.write_text(corpus.read_text() + '{"text": 3}\n')
    with pytest.raises(DecodeError, match="is no text: Expected `str`, got `int`"):
        convert(ConvertOptions(corpus, tmp_path / "out", to="tokens", tokens=tokens, num_workers=2, shard_nbytes=50_000))
    assert all(process.poll() is not None for process, _ in started)
