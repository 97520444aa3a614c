"""Utterances are found in folders, lists and the layouts of known sets, and looked at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sound_files import sound, write_sound

from converters import ConvertOptions, recognise
from datapipe.errors import FormatError, MissingDataError, OptionError
from datapipe.index.utterances import Utterances
from datapipe.kinds import registry
from datapipe.opening.recordings import indexing
from datapipe.opening.recordings.opening import open_utterances

RATE = 8000


def write(path: Path, seconds: float = 0.5) -> Path:
    return write_sound(path, sound(seconds, rate=RATE), rate=RATE)


def names(found: Utterances) -> list[str]:
    return [Path(found.recordings.path(number)).name for number in found.recording.tolist()]


def test_a_folder_of_classes_and_one_without(tmp_path: Path) -> None:
    for name in ("b/1.wav", "b/2.flac", "a/x/3.wav", "a/note.txt", ".hidden/4.wav"):
        write(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).write_text("no sound")
    found = open_utterances(tmp_path)
    assert names(found) == ["3.wav", "1.wav", "2.flac"]
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes) == ([0, 1, 1], ("a", "b"))
    write(tmp_path / "loose.wav")
    flat = open_utterances(tmp_path)
    assert (len(flat), flat.labels, flat.classes) == (4, None, None)


def test_librispeech(tmp_path: Path) -> None:
    for speaker, chapter in ((19, 198), (26, 495)):
        folder = tmp_path / str(speaker) / str(chapter)
        for number in range(2):
            write(folder / f"{speaker}-{chapter}-{number:04d}.flac")
        lines = [f"{speaker}-{chapter}-{number:04d} SPEAKER {speaker} SAYS {number}\n" for number in range(2)]
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    found = open_utterances(tmp_path)
    assert names(found) == ["19-198-0000.flac", "19-198-0001.flac", "26-495-0000.flac", "26-495-0001.flac"]
    assert found.texts_of([1, 2]) == ["SPEAKER 19 SAYS 1", "SPEAKER 26 SAYS 0"]
    (tmp_path / "26/495/26-495-0001.flac").unlink()
    with pytest.raises(FormatError, match=r"26-495.trans.txt: line 2: 26-495-0001 has no sound file beside it"):
        open_utterances(tmp_path)


@pytest.mark.parametrize(
    ("before", "texts", "end"),
    [
        ("", ["ONE\u2028TWO", "THREE\x85\u2029X\x1cY\x0cZ"], "\n"),
        ("\ufeff", ["ONE", "TWO"], "\n"),
        ("", ["ONE TWO", "ÄÖ"], "\r\n"),
        ("", ["ONE", "TWO\u2028"], " \n\n"),
    ],
)
def test_transcripts_have_lines_that_line_feeds_end(before: str, texts: list[str], end: str, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"1-2-{number}.flac", 0.1)
    content = before + "".join(f"1-2-{number} {text}{end}" for number, text in enumerate(texts))
    (tmp_path / "1-2.trans.txt").write_bytes(content.encode())
    assert open_utterances(tmp_path).texts_of([0, 1]) == texts


def test_transcripts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.flac", 0.1)
    (tmp_path / "1.trans.txt").write_bytes("1 CAFÉ\n".encode("latin-1"))
    with pytest.raises(FormatError, match=r"1\.trans\.txt: line 1: byte 0xc9 is not UTF-8; save the file as UTF-8"):
        open_utterances(tmp_path)


def test_common_voice_has_quotes_in_sentences_that_mean_nothing_else(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "clips" / f"{number}.mp3" if number else tmp_path / "clips" / "0.wav")
    rows = [("c", "0.wav", '"Hello", she said.'), ("c", "1.mp3", 'an "odd one'), ("d", "2.mp3", "plain")]
    text = "client_id\tpath\tsentence\tup_votes\n" + "".join(f"{a}\t{b}\t{c}\t2\n" for a, b, c in rows)
    (tmp_path / "validated.tsv").write_text(text)
    (tmp_path / "train.tsv").write_text("\n".join(text.splitlines()[:3]) + "\n")
    found = open_utterances(tmp_path)
    assert names(found) == ["0.wav", "1.mp3", "2.mp3"]
    assert found.texts_of([0, 1, 2]) == [row[2] for row in rows]
    assert names(open_utterances(tmp_path / "train.tsv")) == ["0.wav", "1.mp3"]


def test_lists_with_parts_labels_and_texts(tmp_path: Path) -> None:
    write(tmp_path / "sub/a.wav", 2)
    (tmp_path / "list.csv").write_text('path,start,end,label,text\nsub/a.wav,0.25,1,yes,"one, two"\nsub/a.wav,1,,no,\n')
    found = open_utterances(tmp_path / "list.csv")
    assert len(found.recordings) == 1
    assert (found.first.tolist(), found.num_frames.tolist()) == ([2000, 8000], [6000, 8000])
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes) == ([1, 0], ("no", "yes"))
    assert found.texts_of([0, 1]) == ["one, two", ""]
    row = {"audio_filepath": str(tmp_path / "sub/a.wav"), "offset": 0.5, "duration": 9.0, "text": "to the end"}
    (tmp_path / "nemo.jsonl").write_text(json.dumps(row) + "\n")
    found = open_utterances(tmp_path / "nemo.jsonl")
    assert (found.first.tolist(), found.num_frames.tolist()) == ([4000], [12_000])
    (tmp_path / "bad.csv").write_text("path,start,end\nsub/a.wav,2,1\n")
    with pytest.raises(FormatError, match=r"bad.csv: line 2: from 2 to 1 s is no part of a file"):
        open_utterances(tmp_path / "bad.csv")


@pytest.mark.parametrize("name", ["a\0.wav", "a\ud800.wav"])
def test_names_that_no_file_can_have_are_missing_files(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.wav", seconds=1)
    rows = [{"path": name}, {"path": "a.wav"}]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_utterances(tmp_path / "list.jsonl")
    assert (found.recordings.num_frames > 0).tolist() == [False, True]


def test_a_time_that_is_no_number_names_its_line(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", seconds=1)
    (tmp_path / "list.jsonl").write_text(json.dumps({"path": "a.wav", "start": 10**400}) + "\n")
    with pytest.raises(FormatError, match=r"list\.jsonl: line 1: start is 1000\d*; give seconds"):
        open_utterances(tmp_path / "list.jsonl")


def test_nemos_manifests_may_be_called_json(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", 2)
    rows = [{"audio_filepath": "a.wav", "offset": 0.5, "duration": 1, "text": "one"}, {"audio_filepath": "a.wav", "duration": 2}]
    path = tmp_path / "train_manifest.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_utterances(path)
    assert (found.first.tolist(), found.num_frames.tolist(), found.texts_of([0])) == ([4000, 0], [8000, 16_000], ["one"])
    assert registry.open_path(path)[0] == "audio"
    assert recognise(ConvertOptions(path, tmp_path / "out")).form == "audio"
    for other in ('[{"audio_filepath": "a.wav"}]', json.dumps(rows[0], indent=1), '{"images": [], "annotations": []}'):
        path.write_text(other)
        with pytest.raises(FormatError, match=r"manifest\.json: (line \d+: .* one|no column names the files)"):
            open_utterances(path)


def test_files_patterns_and_what_is_not_there(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.wav"), write(tmp_path / "2.wav")
    assert names(open_utterances([two, one])) == ["2.wav", "1.wav"]
    assert names(open_utterances(str(tmp_path / "*.wav"))) == ["1.wav", "2.wav"]
    assert names(open_utterances(one)) == ["1.wav"]
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "none.wav", str(tmp_path / "*.ogg"), tmp_path / "empty"):
        with pytest.raises(MissingDataError):
            open_utterances(source)
    with pytest.raises(OptionError):
        open_utterances([])


def test_files_are_looked_at_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look_at = indexing.look_at
    monkeypatch.setattr(indexing, "look_at", lambda source: looked.append(Path(source.path).name) or look_at(source))
    for number in range(3):
        write(tmp_path / f"{number}.wav", 0.5)
    first = open_utterances(tmp_path)
    assert sorted(looked) == ["0.wav", "1.wav", "2.wav"]
    again = open_utterances(tmp_path)
    assert len(looked) == 3
    assert again.fingerprint == first.fingerprint
    write(tmp_path / "1.wav", 0.75)
    changed = open_utterances(tmp_path)
    assert looked[3:] == ["1.wav"]
    assert changed.fingerprint != first.fingerprint
    assert changed.num_frames.tolist() == [4000, 6000, 4000]


def test_an_mp3_that_says_more_than_it_can_hold_is_bad(tmp_path: Path) -> None:
    """Memory would be made for it."""
    path = write(tmp_path / "a.mp3")
    data = bytearray(path.read_bytes())
    xing = data.find(b"Xing")
    data[xing + 8 : xing + 12] = (10**6).to_bytes(4, "big")
    path.write_bytes(data)
    found = open_utterances(path)
    assert found.num_frames.tolist() == [0]
    assert "samples, more than" in found.recordings.entry(0).problem


def test_problems_stay_in_the_index(tmp_path: Path) -> None:
    write(tmp_path / "0.wav")
    (tmp_path / "1.wav").write_bytes(b"RIFF and no more")
    (tmp_path / "2.wav").mkdir()
    found = open_utterances([tmp_path / "0.wav", tmp_path / "1.wav"])
    assert np.flatnonzero(found.num_frames == 0).tolist() == [1]
    assert "cannot be decoded" in found.recordings.entry(1).problem
    assert found.problem(1).startswith(f"{tmp_path}/1.wav: cannot be decoded")
