"""`datapipe bench --workers`: what other machines bring, for each kind of data that they make."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoders import TOKEN, Decoder
from fixtures import make_folder

from datapipe.cli.main import main
from datapipe.diagnostics.ceilings import of_workers

FEW = ("--images", "16", "--rounds", "1", "--size", "24", "--batch-size", "4", "--num-workers", "1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is of no interest here."""
    monkeypatch.setenv("DATAPIPE_TOKEN", TOKEN)
    monkeypatch.setattr(of_workers, "_NETWORK_S", 0.2)
    monkeypatch.setattr(of_workers, "costs_of", functools.partial(of_workers.costs_of, least_s=0.1))


def test_images(decoder: Decoder, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(decoder.top / "bench", num=16, size=(40, 48))
    assert main(["bench", str(folder), *FEW, "--workers", decoder.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] == f"127.0.0.1:{decoder.port} (1 core)"
    assert {*found["ways"]} == {"this machine alone", "the workers alone", "both"}
    assert all(way["per_s"] > 0 and way["cpu_s"] > 0 and len(way["rounds"]) == 1 for way in found["ways"].values())
    assert found["row_nbytes"] == 24 * 24 * 3
    assert found["network_per_s"] > 1e7


def test_sound_in_words(decoder: Decoder, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("soundfile")
    from sound_files import sound, write_sound

    for number in range(8):
        write_sound(decoder.top / "bench-sound" / f"{number}.wav", sound(1.0, seed=number))
    assert main(["bench", str(decoder.top / "bench-sound"), *FEW, "--workers", decoder.url]) == 0
    printed = capsys.readouterr().out
    assert f"workers: 127.0.0.1:{decoder.port} (1 core)" in printed
    assert "network" in printed
    assert "With the workers it is " in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "decoder"), "workers are at 'decoder'; write grpc+tls://HOST:PORT"),
        (("--workers", "ray"), "--workers ray: write ray:N"),
        (("--workers", "ray:many"), "--workers ray:many: write ray:N"),
        (("--workers", "grpc://127.0.0.1:1", "--ceilings"), "leave out --ceilings and --against"),
        (("--workers", "grpc://127.0.0.1:1", "--against", "torch"), "leave out --ceilings and --against"),
        (("--certificate", "a.pem"), "--certificate is that of workers; pass --workers, too"),
    ],
)
def test_what_cannot_be_measured(
    options: tuple[str, ...], message: str, decoder: Decoder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(decoder.top / "bench-errors", num=2, size=(40, 48))
    assert main(["bench", str(folder), *FEW, *options]) == 2
    assert message in capsys.readouterr().err


def test_nobody_answers(decoder: Decoder, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(decoder.top / "bench-nobody", num=2, size=(40, 48))
    assert main(["bench", str(folder), *FEW, "--workers", "grpc://127.0.0.1:1"]) == 1
    assert "workers: the worker at 127.0.0.1:1 does not answer" in capsys.readouterr().err


def test_tables_are_made_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), path)
    assert main(["bench", str(path), "--workers", "grpc://127.0.0.1:1"]) == 2
    assert "--workers: other machines make images, clips, conversations, audio, and " in capsys.readouterr().err
