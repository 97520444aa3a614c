"""Sound becomes members of tars, or a column of Parquet, that load to the same samples; bad files and silence say why not."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of
from sound_files import RATE, Floats, in_16_bits, sound, soundfile, write_sound
from source_trees import put
from trees import contents, run_cli

import datapipe as dp
from converters import Check, ConvertOptions, OnError, convert, preview, recognise
from converters.options import Encode, Limit, Part, Split, parse_silence
from converters.samples import sounds
from converters.samples.examine import AudioTreatment, Treatment
from converters.samples.reading import LeftOutSample, PlannedSample, Roots, made_samples
from converters.verify import verify
from converters.writers import StoredSample
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.field_names import is_audio
from datapipe.errors import DecodeError, MissingDataError, OptionError
from datapipe.index.listed import Origin
from datapipe.index.manifest import read_manifest
from datapipe.opening.recordings.opening import open_utterances

TARGETS = ("webdataset", "parquet")


class Utterance(NamedTuple):
    audio: Floats  # (n,), or (channels, n)
    label: int | None
    text: str | None


def utterances(path: Any, *, rate: int | None = None, channels: int = 1) -> list[Utterance]:
    """What a loader gives of a path, in order."""
    loader = dp.DataLoader(dp.Audio(str(path), whole=True, rate=rate, channels=channels), batch_size=1, num_workers=1)
    found = []
    for batch in loader:
        label = int(batch["label"][0]) if "label" in batch else None
        found.append(Utterance(batch["audio"][0].numpy().copy(), label, batch["text"][0] if "text" in batch else None))
    return found


def assert_alike(found: list[Utterance], expected: list[Utterance], *, within: float = 0) -> None:
    assert [one[1:] for one in found] == [one[1:] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.audio.shape == other.audio.shape
        assert np.abs(one.audio - other.audio).max(initial=0) <= within


def classes_of_all_formats(root: Path) -> Path:
    suffixes = ("flac", "wav", "mp3", "ogg", "opus", "aiff", "au", "caf", "w64", "rf64")
    for number, suffix in enumerate(suffixes):
        options: dict[str, Any] = {"format": "OGG", "subtype": "OPUS"} if suffix == "opus" else {}
        write_sound(root / f"class{number % 3}" / f"{number}.{suffix}", sound(0.3 + number / 20, seed=number), **options)
    return root


def librispeech(root: Path) -> Path:
    for speaker in (19, 26):
        folder = root / str(speaker) / "1"
        names = [f"{speaker}-1-{number:04d}" for number in range(3)]
        for number, name in enumerate(names):
            write_sound(folder / f"{name}.flac", sound(0.5, seed=speaker + number))
        put(folder / f"{speaker}-1.trans.txt", "".join(f"{name} SAYS {name[-1]} Ä\n" for name in names))
    return root


def common_voice(root: Path) -> Path:
    for number in range(3):
        write_sound(root / "clips" / f"c{number}.mp3", sound(0.5, seed=number, rate=32_000), rate=32_000)
    rows = "".join(f'{number}\tc{number}.mp3\t"an "odd one {number}\n' for number in (2, 0, 1))
    put(root / "validated.tsv", "client_id\tpath\tsentence\n" + rows)
    return root


def parts_list(root: Path) -> Path:
    write_sound(root / "a.flac", sound(3, seed=1))
    write_sound(root / "b.wav", sound(2, seed=2, channels=2), subtype="PCM_24")
    rows = ["a.flac,0.5,1.25,go,one", "b.wav,0,,stop,two", "a.flac,2.9,9,go,three", "a.flac,,0.1,stop,", "a.flac,,,go,all"]
    return put(root / "parts.csv", "path,start,end,label,text\n" + "\n".join(rows) + "\n")


def tars(root: Path) -> Path:
    root.mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(root / f"s-{shard}.tar", "w") as tar:
            for number in range(3):
                key, data = (
                    f"{shard}{number}",
                    write_sound(root.parent / "x.flac", sound(0.4, seed=10 * shard + number)).read_bytes(),
                )
                members = {"cls": str(number).encode(), "flac": data, "json": b'{"speaker": 7}', "txt": f" said {key}\n".encode()}
                for suffix, value in members.items():
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))
    return root


def parquet(root: Path, *, compression: str = "snappy") -> Path:
    """A file as `datasets` writes it; compressed, as before 4.6."""
    rows = [{"bytes": write_sound(root / "x.wav", sound(0.3, seed=n)).read_bytes(), "path": f"{n}.wav"} for n in range(5)]
    (root / "x.wav").unlink()
    table = pa.table({"audio": rows, "sentence": [f"says {n}" for n in range(5)], "label": [n % 2 for n in range(5)]})
    pq.write_table(table, root / "train.parquet", compression=compression, row_group_size=2)
    return root / "train.parquet"


SOURCES = {
    "classes": classes_of_all_formats, "librispeech": librispeech, "common voice": common_voice, "list": parts_list, "tars": tars,
}  # fmt: skip


@pytest.mark.promise("form: audio")
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_loads_to_the_same_samples_texts_labels_and_ids(kind: str, to: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "in")
    out = converted(source, tmp_path / "out", to=to, check=Check.DECODE)
    assert recognise(ConvertOptions(source, out)).form == "audio"
    assert verify(out).problems == ()
    rate = 16_000 if kind == "classes" else None  # opus is at 48 kHz
    expected = utterances(source, rate=rate)
    assert_alike(utterances(out, rate=rate), expected)
    assert open_utterances(out).classes == open_utterances(source).classes
    assert kinds_of(out)["audio"] == "bytes"
    text = {"txt": "text"} if to == "webdataset" else {"text": "text"}
    assert (text.items() <= kinds_of(out).items()) == (expected[0].text is not None)
    again = converted(out, tmp_path / "again", to=TARGETS[to == "webdataset"], seed=3)
    assert field_of(again, "audio") == field_of(out, "audio")
    assert_alike(utterances(again, rate=rate), expected)


def test_bytes_stay_as_they_are_with_the_suffix_of_their_format(tmp_path: Path) -> None:
    source = classes_of_all_formats(tmp_path / "in")
    misnamed = source / "class0" / "0.flac"
    misnamed.rename(misnamed.with_suffix(".mp3"))
    out = converted(source, tmp_path / "out", seed=None)
    files = [source / name for name in sources_of(out)]
    assert field_of(out, "audio") == [file.read_bytes() for file in files]
    with tarfile.open(next(out.glob("*.tar"))) as tar:
        suffixes = [name.partition(".")[2] for name in tar.getnames()]
    assert suffixes[1::2] == ["cls"] * 10
    assert suffixes[::2] == ["flac", *(file.suffix[1:] for file in files[1:])]
    (out / "dataset.json").unlink()  # as tars of others
    pattern = utterances(out / "*.tar", rate=16_000)
    assert_alike(pattern, utterances(source, rate=16_000))


def test_parquet_is_as_hugging_face_has_it(tmp_path: Path) -> None:
    source = parts_list(tmp_path / "in")
    out = converted(source, tmp_path / "out", to="parquet", seed=None)
    (path,) = out.glob("*.parquet")
    table = pq.read_table(path)
    assert table.schema.field("audio").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["audio"] == {"_type": "Audio"}
    assert features["label"] == {"names": ["go", "stop"], "_type": "ClassLabel"}
    rows = table.to_pylist()
    assert [(row["label"], row["text"]) for row in rows] == [(0, "one"), (1, "two"), (0, "three"), (1, ""), (0, "all")]
    assert rows[1]["audio"]["path"] == "b.wav"
    assert rows[1]["audio"]["bytes"] == (tmp_path / "in" / "b.wav").read_bytes()
    (path.parent / "dataset.json").rename(tmp_path / "dataset.json")  # what datapipe knows of it
    for index in path.parent.glob("*.arrow"):
        index.unlink()
    foreign = utterances(path)
    assert [(one.text, one.label) for one in foreign] == [(row["text"], row["label"]) for row in rows]


def test_parts_are_cut_to_the_frame(tmp_path: Path) -> None:
    source = parts_list(tmp_path / "in")
    out = converted(source, tmp_path / "out", seed=None)
    whole = in_16_bits(sound(3, seed=1))[:, 0]
    found = utterances(out)
    spans = [(8000, 20_000), None, (46_400, 48_000), (0, 1600), (0, 48_000)]
    for one, span in zip(found, spans, strict=True):
        if span is not None:
            assert (one.audio == whole[slice(*span)]).all()
    stored = field_of(out, "audio")
    assert [soundfile.info(io.BytesIO(data)).format for data in stored] == ["FLAC", "WAV", "FLAC", "FLAC", "FLAC"]
    assert stored[1] == (tmp_path / "in" / "b.wav").read_bytes()
    assert stored[4] == (tmp_path / "in" / "a.flac").read_bytes()
    assert sources_of(out)[:4] == ["a.flac, 0.5 to 1.25 s", "b.wav", "a.flac, 2.9 to 9 s", "a.flac, 0 to 0.1 s"]


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT"])
@pytest.mark.parametrize("form", ["flac", "wav"])
def test_encoded_sound_has_16_bits_or_24(form: str, subtype: str, tmp_path: Path) -> None:
    write_sound(tmp_path / "in" / "0.wav", sound(0.5, channels=2), subtype=subtype)
    rows = "path,start\n0.wav,0.1\n"
    out = converted(put(tmp_path / "in" / "list.csv", rows), tmp_path / "out", audio_format=form, check=Check.DECODE)
    (data,) = field_of(out, "audio")
    bits = 16 if subtype in ("PCM_U8", "PCM_16") else 24
    assert (soundfile.info(io.BytesIO(data)).format, soundfile.info(io.BytesIO(data)).subtype) == (form.upper(), f"PCM_{bits}")
    is_exact = subtype in ("PCM_U8", "PCM_16", "PCM_24")
    expected = utterances(tmp_path / "in" / "list.csv", channels=2)
    assert_alike(utterances(out, channels=2), expected, within=0 if is_exact else 2.0**-23)


@pytest.mark.parametrize("to", TARGETS)
def test_resampled_sound_is_that_of_the_loader(to: str, tmp_path: Path) -> None:
    for number, rate in enumerate((8000, 16_000, 22_050, 44_100)):
        write_sound(tmp_path / "in" / f"{number}.flac", sound(0.7, rate=rate, channels=1 + number % 2, seed=number), rate=rate)
    write_sound(tmp_path / "in" / "4.mp3", sound(0.5))
    options: dict[str, Any] = {"audio_rate": 16_000, "audio_channels": 1, "audio_format": "flac"}
    out = converted(tmp_path / "in", tmp_path / "out", to=to, **options)
    assert_alike(utterances(out), utterances(tmp_path / "in", rate=16_000), within=2.0**-16)
    infos = [soundfile.info(io.BytesIO(data)) for data in field_of(out, "audio")]
    assert {(one.format, one.samplerate, one.channels) for one in infos} == {("FLAC", 16_000, 1)}
    kept = converted(tmp_path / "in", tmp_path / "kept", to=to, audio_rate=16_000)
    stored = field_of(kept, "audio")
    assert [soundfile.info(io.BytesIO(data)).channels for data in stored] == [1, 2, 1, 2, 1]
    assert stored[1] == (tmp_path / "in" / "1.flac").read_bytes()  # it is at that rate already
    assert stored[4] == (tmp_path / "in" / "4.mp3").read_bytes()


def test_loud_sound_is_clipped_rather_than_wrapped(tmp_path: Path) -> None:
    square = np.where(np.arange(4000) % 80 < 40, 1.0, -1.0)[:, None].astype(np.float32)
    write_sound(tmp_path / "in" / "0.wav", square, subtype="FLOAT")
    out = converted(tmp_path / "in", tmp_path / "out", audio_rate=44_100)
    (found,) = utterances(out)
    (expected,) = utterances(tmp_path / "in", rate=44_100)
    assert np.abs(expected.audio).max() > 1.05
    assert np.abs(found.audio - expected.audio.clip(-1, 1)).max() < 1e-6


@pytest.mark.nightly
def test_the_same_bytes_on_any_number_of_workers_and_after_a_restart(tmp_path: Path) -> None:
    source = classes_of_all_formats(tmp_path / "in")
    options: dict[str, Any] = {"shard_nbytes": 30_000, "audio_rate": 8000, "audio_silence": -60.0}
    outs = [converted(source, tmp_path / f"out{workers}", num_workers=workers, **options) for workers in (1, 2)]
    for index in (2, 1):
        convert(ConvertOptions(source, tmp_path / "parts", num_workers=1, part=Part(index, 2), **options))
    outs.append(tmp_path / "parts")
    assert len(list(outs[0].glob("*.tar"))) > 2
    assert contents(outs[0]) == contents(outs[1]) == contents(outs[2])
    again = convert(ConvertOptions(source, outs[0], num_workers=1, **options))
    assert again.compared is not None
    with pytest.raises(OptionError, match="audio_rate was 8000, now 11025"):
        converted(source, outs[0], **options | {"audio_rate": 11_025})


def bad_files(root: Path) -> Path:
    write_sound(root / "a.flac", sound(0.5))
    put(root / "b.flac", b"fLaC and nothing else")
    write_sound(root / "c.wav", sound(0, seed=1))
    data = bytearray(write_sound(root / "d.flac", sound(2, seed=2)).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    put(root / "d.flac", bytes(data))
    write_sound(root / "e.wav", np.full((800, 1), np.nan, np.float32), subtype="FLOAT")
    put(root / "f.mp3", b"")
    return root


def test_bad_files_are_named_and_counted(tmp_path: Path) -> None:
    source = bad_files(tmp_path / "in")
    with pytest.raises(DecodeError, match=r"b\.flac: bad sample: cannot be decoded .* --on-error skip or quarantine"):
        converted(source, tmp_path / "failed", seed=None)
    bad = skipping(source, tmp_path / "out")
    assert bad.keys() == {"b.flac", "c.wav", "f.mp3"}
    assert bad["c.wav"] == "holds no sound, 0 samples"
    deep = skipping(source, tmp_path / "deep", check=Check.DECODE, on_error=OnError.QUARANTINE)
    assert deep.keys() == {"b.flac", "c.wav", "d.flac", "e.wav", "f.mp3"}
    assert "no numbers" in deep["e.wav"]
    assert (tmp_path / "deep" / "quarantine" / "d.flac").read_bytes() == (source / "d.flac").read_bytes()
    assert verify(tmp_path / "deep").problems == ()
    with pytest.raises(DecodeError, match="exceed --max-errors 2"):
        converted(source, tmp_path / "many", on_error=OnError.SKIP, max_errors=Limit(2))


def test_what_claims_more_than_memory_holds_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sound(tmp_path / "in" / "a.flac", sound(1))
    write_sound(tmp_path / "in" / "b.flac", sound(2))
    monkeypatch.setattr(sounds, "_MAX_NBYTES", 100_000)
    treatment = Treatment(Check.DECODE, None, Encode("keep"), audio=AudioTreatment())
    fields = (FieldSpec("audio", FieldKind.BYTES),)
    planned = []
    for number, name in enumerate((b"a.flac", b"b.flac")):
        status = (tmp_path / "in" / name.decode()).stat()
        origin = Origin.whole(name, status.st_size, status.st_mtime_ns)
        planned.append(PlannedSample(number, number, -1, name, None, {"audio": origin}, {}, status.st_size))
    roots = Roots(str(tmp_path / "in").encode(), b"")
    make = sounds.SoundMaker(AudioTreatment(), Check.DECODE).made
    made = made_samples(roots, planned, fields, treatment, check=lambda sample: None, is_made=is_audio, make=make)
    (_, good), (_, bad) = made
    assert isinstance(good, StoredSample)
    assert isinstance(bad, LeftOutSample)
    assert "has 32,000 samples at 16,000 Hz, 0 MiB decoded, too many at once for" in bad.reason


def test_silence_is_left_out_only_if_that_is_asked(tmp_path: Path) -> None:
    for number, level in enumerate((0.5, 1e-4, 0.0, 0.01)):
        write_sound(tmp_path / "in" / f"{number}.wav", np.full((800, 1), level, np.float32), subtype="FLOAT")
    assert len(utterances(converted(tmp_path / "in", tmp_path / "all"))) == 4
    out = tmp_path / "out"
    report = convert(ConvertOptions(tmp_path / "in", out, audio_silence=-60.0, num_workers=1))  # under the policy "fail"
    assert (report.num_samples, report.num_errors) == (2, 2)
    lines = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
    assert {line["source"]: line["reason"].partition(" (")[0] for line in lines} == {
        "1.wav": "silence: its loudest sample is at -80.0 dBFS",
        "2.wav": "silence: all samples are 0",
    }
    assert verify(out).problems == ()
    assert len(utterances(out)) == 2
    put(tmp_path / "in" / "bad.wav", b"RIFF")
    few = skipping(tmp_path / "in", tmp_path / "few", audio_silence=-30.0, max_errors=Limit(1))  # of bad ones, not of silence
    assert few.keys() == {"1.wav", "2.wav", "3.wav", "bad.wav"}


def test_lists_name_what_is_not_there_and_parts_after_the_end(tmp_path: Path) -> None:
    source = parts_list(tmp_path / "in")
    rows = "path,start,end\na.flac,1,2\ngone.flac,,\na.flac,5,6\nb.wav,,\n"
    bad = skipping(put(tmp_path / "in" / "list.csv", rows), tmp_path / "out")
    assert bad == {"gone.flac": "no such file", "a.flac, 5 to 6 s": "it has no sound then: it ends at 3.000 s"}
    elsewhere = put(tmp_path / "lists" / "list.csv", "audio_filepath,offset,duration\na.flac,1,0.5\n")
    assert len(utterances(converted(elsewhere, tmp_path / "rooted", root=source.parent))[0].audio) == RATE // 2
    with pytest.raises(MissingDataError, match="--root"):
        converted(elsewhere, tmp_path / "unrooted")


def test_compressed_columns_of_parquet_are_converted(tmp_path: Path) -> None:
    for compression in ("snappy", "zstd", "gzip", "none"):
        root = tmp_path / compression
        root.mkdir()
        out = converted(parquet(root, compression=compression), root / "out")
        found = utterances(out)
        assert [(one.text, one.label) for one in found] == [(f"says {number}", number % 2) for number in range(5)]
        for number, one in enumerate(found):
            assert (one.audio == in_16_bits(sound(0.3, seed=number))[:, 0]).all()


def test_other_members_of_tars_stay(tmp_path: Path) -> None:
    source = tars(tmp_path / "in")
    out = converted(source, tmp_path / "out")
    assert field_of(out, "json") == [b'{"speaker": 7}'] * 6
    without = converted(source, tmp_path / "without", form="audio", fields=())
    assert labels_of(without) == [0, 1, 2, 0, 1, 2]
    as_tars = converted(source, tmp_path / "tars", form="tar")
    assert kinds_of(as_tars)["flac"] == "bytes"
    assert len(utterances(as_tars)) == 6


def test_splits_duplicates_previews_and_class_maps(tmp_path: Path) -> None:
    source = classes_of_all_formats(tmp_path / "in")
    (source / "class2" / "copy.flac").write_bytes((source / "class0" / "0.flac").read_bytes())
    shown = preview(ConvertOptions(source, tmp_path / "out", audio_rate=8000))
    assert (shown.fields, shown.num_classes, shown.needed_nbytes) == ((("audio", "bytes"), ("label", "label")), 3, None)
    mapped = put(tmp_path / "map.json", '{"class0": 2, "class1": 0, "class2": 1}')
    out = converted(source, tmp_path / "out", split=Split.parse_all("a=0.5,b=0.5"), dedupe=True, class_map=mapped)
    assert read_manifest(out / "a").num_samples + read_manifest(out / "b").num_samples == 10
    assert {*labels_of(out / "a"), *labels_of(out / "b")} == {0, 1, 2}
    assert read_manifest(out / "a").classes == ("class1", "class2", "class0")
    flat = converted(source, tmp_path / "flat", class_from=dp.Form(class_from="none").class_from)
    assert kinds_of(flat) == {"audio": "bytes"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "hdf5"}, "--to hdf5: datapipe.Audio reads WebDataset tars and Parquet"),
        ({"to": "tfrecord"}, "--to tfrecord"),
        ({"video_size": 64}, "--video-size 64: the samples of .* have no videos"),
        ({"strip_exif": True}, "are for images; sound takes --audio-rate"),
        ({"audio_rate": 0}, "--audio-rate is 0 Hz; it must be from 1 to 655350"),
        ({"audio_channels": 9}, "--audio-channels is 9; it must be from 1 to 8"),
        ({"audio_format": "mp3"}, "--audio-format 'mp3' is not known; choose one of: flac, wav"),
    ],
    ids=str,
)
def test_wrong_options_say_what_to_do(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_sound(tmp_path / "in" / "0.flac", sound(0.2))
    with pytest.raises(OptionError, match=message):
        converted(tmp_path / "in", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", ["--audio-rate 16000", "--audio-channels 1", "--audio-format wav", "--audio-silence drop"])
def test_options_of_sound_are_refused_for_other_data(flags: str, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a" / "0.npy", b"")
    result = run_cli("convert", tmp_path / "in", tmp_path / "out", "--to", "webdataset", *flags.split())
    assert result.returncode == 2
    assert f"{flags.split()[0]} is for sound, and {tmp_path / 'in'} is a folder of arrays; leave it out" in result.stderr
    put(tmp_path / "t.csv", "a,b\n1,2\n")
    result = run_cli("convert", tmp_path / "t.csv", tmp_path / "out", "--to", "parquet", *flags.split())
    assert result.returncode == 2
    assert f"{flags.split()[0]} is for files of samples, and {tmp_path / 't.csv'} is a table; leave it out" in result.stderr


@pytest.mark.parametrize(("text", "level"), [("keep", None), ("drop", -60.0), ("drop:-42.5", -42.5)])
def test_levels_of_silence(text: str, level: float | None) -> None:
    assert parse_silence(text) == level


@pytest.mark.parametrize("text", ["", "drop:", "drop:40", "drop:-1000.", "Drop", "keep:-60"])
def test_wrong_levels_of_silence(text: str) -> None:
    with pytest.raises(OptionError, match="is none of keep, drop, drop:DBFS"):
        parse_silence(text)


def test_the_command_converts_verifies_and_inspects(tmp_path: Path) -> None:
    source = librispeech(tmp_path / "in")
    for to in TARGETS:
        out = tmp_path / to
        flags = ("--audio-rate", "8000", "--audio-format", "flac", "--audio-silence", "drop:-50", "--workers", "1")
        result = run_cli("convert", source, out, "--to", to, *flags)
        assert (result.returncode, "recognised as sound" in result.stderr) == (0, True), result.stderr
        assert "label" not in result.stderr  # there are texts instead
        assert "intact; 6 samples" in run_cli("verify", out).stdout
        shown = run_cli("inspect", out)
        assert "6 utterances of 6 recordings" in shown.stdout, shown.stderr
        assert "with texts" in shown.stdout
        assert "8,000 Hz (6)" in shown.stdout
    listed = run_cli("inspect", parts_list(tmp_path / "listed"))
    assert "5 utterances of 2 recordings" in listed.stdout, listed.stderr
    again = run_cli("convert", tmp_path / "webdataset", tmp_path / "again", "--to", "parquet", "--workers", "1")
    assert (again.returncode, "recognised as sound (it holds dataset.json" in again.stderr) == (0, True), again.stderr
