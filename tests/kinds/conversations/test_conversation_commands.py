"""Commands know sets of conversations: what is in them, as a model will see it, and how fast it comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conversation_sets import picture, words_model, write_set

from datapipe.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_model(tmp_path_factory.mktemp("words") / "model")


@pytest.fixture(scope="module")
def shards(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [[7, picture(56, 28), 8], [9, picture(1, 300)], [10, 11, 12], [13, picture(28, 28), picture(28, 56)]]
    return write_set(tmp_path_factory.mktemp("documents") / "shards", documents, model)


def test_inspect_says_what_images_there_are(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(shards)]) == 0
    said = capsys.readouterr().out
    assert "4 conversations with 4 images in 1 shard" in said
    assert "at most 2 in a conversation, 1 without any" in said
    assert "--processor MODEL tells how many tokens images become" in said


def test_inspect_shows_conversations_as_the_model_sees_them(
    shards: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(shards), "--processor", str(model)]) == 0
    said = capsys.readouterr().out
    assert "[image of 56 x 28 pixels: grid of 2 x 4, 2 tokens]" in said
    assert "[image of 28 x 56 pixels: grid of 4 x 2, 2 tokens]" in said
    assert "[image of 1 x 300 pixels, which the model refuses]" in said
    assert "refused   1 image, whose conversations are bad samples" in said
    assert main(["inspect", str(shards), "--processor", str(model), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["image_tokens"] == 2 + 1 + 2
    assert facts["model"]["tokens"] == facts["tokens"] - 4 + 5


def test_bench_measures_rows_for_a_model(shards: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(shards)]) == 2
    assert "say for which model: --processor MODEL" in capsys.readouterr().err
    path = write_set(shards.with_name("good"), [[number, picture(30, 30, seed=number)] for number in range(9)], model)
    assert main(["bench", str(path), "--processor", str(model), "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert "9 conversations in 1 row of 8,192 tokens" in said
    assert "images/s" in said


@pytest.mark.nightly
def test_ceilings_are_measured(shards: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_set(shards.with_name("many"), [[number, picture(30, 30, seed=number)] for number in range(9)], model)
    assert main(["bench", str(path), "--processor", str(model), "--ceilings", "--images", "10"]) == 0
    assert "The lowest ceiling is " in capsys.readouterr().out
