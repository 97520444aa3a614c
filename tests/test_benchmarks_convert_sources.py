"""The benchmark of archives and of Ray: the archives that it makes, and its figures."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from benchmarks import convert_sources
from converters import ConvertOptions, convert


def test_archives_hold_the_files_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for number in range(6):
        path = folder / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 16), (40 * number, 0, 0)).save(path)
    archives = convert_sources.make_archives(folder, tmp_path)
    for name, path in archives.items():
        report = convert(ConvertOptions(path, tmp_path / "out" / name, form="archive", num_workers=1))
        assert (name, report.num_samples, report.num_classes) == (name, 6, 2)
    assert len(archives) == 6
    few = convert_sources.make_few(folder, tmp_path / "few")
    assert len(list(few.glob("*/*.jpg"))) == 6


def test_rates_are_those_of_the_folder_and_start_up_is_taken_off() -> None:
    seconds = {"folder": 11.0, "folder-again": 11.0, "plain.tar": 22.0, "local-few": 1.0, "ray": 32.0, "ray-few": 20.0}
    rounds = {name: [{"wall_s": one, "cpu_s": one / 2}] * 3 for name, one in seconds.items()}
    result = convert_sources.summarise(rounds)
    assert {name: rates["cpu_s"]["ratio"] for name, rates in result["rates"].items()} == {"folder-again": 1.0, "plain.tar": 0.5}
    assert result["ray"]["overhead"]["ratio"] == 1.2
    assert result["ray"]["startup_s"] == 20.0
    assert "ray: 1.20" in convert_sources.as_lines(result)[-1]
    del rounds["ray"], rounds["ray-few"], rounds["local-few"]
    assert "ray" not in convert_sources.summarise(rounds), "where Ray is not installed"
