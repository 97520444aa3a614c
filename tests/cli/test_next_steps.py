"""`datapipe` without a command, and the completion of commands in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from converters import ConvertOptions, convert
from datapipe.cli.main import COMMANDS, main
from datapipe.cli.next_steps import look
from datapipe.testing.synthetic_images import make_image_folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, shards of them, two scripts, and things that concern nobody."""
    folder = tmp_path_factory.mktemp("work")
    make_image_folder(folder / "my photos", num_images=6, num_classes=2, scale="small")
    convert(ConvertOptions(folder / "my photos", folder / "shards"))
    convert(ConvertOptions(folder / "my photos", folder / "sets" / "train"))
    shutil.copytree(folder / "my photos", folder / "unfinished" / ".building")
    (folder / "train.py").write_text("loader = torch.utils.data.DataLoader(data)")
    (folder / "other.py").write_text("print(1)")
    (folder / "notes.txt").write_text("milk")
    os.mkfifo(folder / "pipe.py")
    return folder


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(folder)
    assert main([]) == 0
    return capsys.readouterr().out


def test_it_says_what_to_do_with_what_lies_here(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(work, monkeypatch, capsys)
    assert "datapipe convert 'my photos' 'my photos-shards' --to webdataset" in said
    assert "datapipe inspect shards --grid sheet.png" in said
    assert "datapipe bench sets/train --against torch" in said
    assert "datapipe diagnose train.py" in said
    assert said.index("unfinished: a conversion into it has not ended") < said.index("train.py")
    for name in ("other.py", "notes.txt", "pipe.py"):
        assert name not in said


def test_inside_a_source_or_a_dataset_it_is_about_that(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "datapipe convert . '../my photos-shards' --to webdataset" in told(work / "my photos", monkeypatch, capsys)
    assert ".: a dataset that datapipe converted" in told(work / "shards", monkeypatch, capsys)


def test_in_an_empty_folder_it_says_how_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "datapipe demo --photos photos" in told(tmp_path, monkeypatch, capsys)


def test_only_some_of_many_things_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        (tmp_path / f"train_{number:02d}.py").write_text("DataLoader")
    assert len(look(tmp_path)) == 12
    assert "... and 7 more" in told(tmp_path, monkeypatch, capsys)


def test_what_belongs_to_tools_is_never_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("env/lib/images", "conda/share", "cached/a", "node_modules/a", "project/env/lib", ".hidden/a"):
        make_image_folder(tmp_path / folder, num_images=2, num_classes=2, scale="small")
    for mark in ("env/pyvenv.cfg", "project/env/pyvenv.cfg", "cached/CACHEDIR.TAG"):
        (tmp_path / mark).touch()
    (tmp_path / "conda" / "conda-meta").mkdir()
    make_image_folder(tmp_path / "recipe.json.vocabularies", num_images=2, num_classes=2, scale="small")
    (tmp_path / "src" / "package").mkdir(parents=True)  # a folder of folders
    assert look(tmp_path) == []
    assert "datapipe demo --photos photos" in told(tmp_path / "env", monkeypatch, capsys)


def test_a_table_is_a_table_here_as_for_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), tmp_path / "t.parquet")
    (tmp_path / "many").mkdir()
    for number in range(2):
        shutil.copy(tmp_path / "t.parquet", tmp_path / "many" / f"part-{number}.parquet")
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    pq.write_table(pa.table({"image": [b"\xff\xd8"], "label": [0]}), tmp_path / "images.parquet")
    assert main(["convert", str(tmp_path / "t.parquet"), str(tmp_path / "converted"), "--to", "parquet"]) == 0
    said = told(tmp_path, monkeypatch, capsys)
    for name in ("t.parquet", "many", "converted"):
        assert f"dp.TableLoader('{name}'" in said
        assert f"convert {name} " not in said
        assert main(["inspect", name]) == 0
        assert "parquet table, " in capsys.readouterr().out
    assert "datapipe convert rows.csv rows-shards --to parquet\n" in said
    assert "datapipe convert images.parquet images-shards --to webdataset\n" in said
    assert ".: a table\n" in told(tmp_path / "many", monkeypatch, capsys)


def test_sets_held_apart_are_converted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "val"):
        make_image_folder(tmp_path / "photos" / name, num_images=4, num_classes=2, scale="small")
    said = told(tmp_path, monkeypatch, capsys)
    command = "datapipe convert photos/train photos-shards/train --to webdataset"
    assert f"  {command}\n" in said
    assert main(command.split()[1:]) == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    for words, expected in (
        (["datapipe", ""], set(COMMANDS)),
        (["datapipe", "convert", "--shard"], {"--shard-size"}),
        (["datapipe", "convert", "--to", "w"], {"webdataset"}),
    ):
        script = f"""source completion; COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
            _shtab_datapipe; printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert set(done.stdout.split()) >= expected, words


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_their_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert all(command in said for command in COMMANDS)
