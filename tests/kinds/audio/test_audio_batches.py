"""Batches of sound have the samples of the files: crops where they were drawn, whole utterances beside others as long."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sound_files import RATE, in_16_bits, sound, write_sound

import datapipe as dp
from datapipe.cli.main import main
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError, StateError, StorageError
from datapipe.kinds import registry
from datapipe.opening.recordings import shards

FIELDS = ["audio", "lengths", "label", "id"]
SECONDS = [0.4, 1.0, 1.3, 2.0, 2.1, 3.0, 0.9, 2.2, 2.6, 1.7, 0.5, 3.3]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve files in folders of two classes, of 0.4 to 3.3 s. Not to be changed."""
    root = tmp_path_factory.mktemp("words")
    for number, seconds in enumerate(SECONDS):
        suffix = ("flac", "wav")[number % 2]
        write_sound(root / f"class{number // 6}" / f"{number:02d}.{suffix}", sound(seconds, seed=number))
    return root


def written(number: int) -> np.ndarray[Any, Any]:
    return in_16_bits(sound(SECONDS[number], seed=number))[:, 0]


def loader_of(path: Any, *, batch_size: int = 4, **options: Any) -> Any:
    names = ("shuffle", "num_workers", "ranks", "tail", "on_error", "output", "batch_transform", "sampler", "device")
    of_loader = {name: options.pop(name) for name in names if name in options}
    data = dp.Audio(path, **options)
    return dp.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, "num_workers": 2} | of_loader)


def place_of(crop: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> int:
    """Where a crop lies in the whole."""
    at_first = np.flatnonzero(whole[: len(whole) - len(crop) + 1] == crop[0]).tolist()
    (found,) = [at for at in at_first if (whole[at : at + len(crop)] == crop).all()]
    return int(found)


def test_crops_come_from_each_utterance_once_where_they_are_drawn(words: Path) -> None:
    loader = loader_of(words, seconds=1, fields=FIELDS)
    assert loader.dataset.classes == ("class0", "class1")
    places: list[dict[int, int]] = []
    for _ in range(2):
        places.append({})
        for batch in loader:
            assert (batch["audio"].dtype, batch["audio"].shape[1]) == (torch.float32, RATE)
            for audio, length, label, number in zip(*(batch[name].numpy() for name in FIELDS), strict=True):
                assert label == number // 6
                assert length == min(RATE, len(written(number)))
                assert (audio[length:] == 0).all()
                places[-1][int(number)] = place_of(audio[:length], written(number))
    assert sorted(places[0]) == list(range(12))
    long = [number for number, seconds in enumerate(SECONDS) if seconds > 1]
    assert sum(places[0][number] != places[1][number] for number in long) >= len(long) - 1
    assert all(0 <= places[0][number] <= len(written(number)) - RATE for number in long)


@pytest.mark.parametrize(("crop", "share"), [("start", 0.0), ("center", 0.5)])
def test_crops_that_are_not_drawn(words: Path, crop: str, share: float) -> None:
    for batch in loader_of(words, seconds=0.25, crop=crop, fields=FIELDS):
        for audio, number in zip(batch["audio"].numpy(), batch["id"].tolist(), strict=True):
            first = int(share * (len(written(number)) - 4000 + 1))
            assert (audio == written(number)[first : first + 4000]).all()


def test_what_becomes_of_short_utterances(words: Path) -> None:
    assert len(dp.Audio(words, seconds=2)) == 12
    kept = loader_of(words, seconds=2, short="drop")
    assert len(kept.dataset) == sum(seconds >= 2 for seconds in SECONDS)
    assert all((batch["lengths"] == 2 * RATE).all() for batch in kept)
    with pytest.raises(OptionError, match=r"00\.flac.* is shorter than 2 s; pass short='pad' or 'drop'"):
        dp.Audio(words, seconds=2, short="error")
    with pytest.raises(MissingDataError, match="no samples are left"):
        dp.Audio(words, seconds=20, short="drop")


def test_what_is_dropped_does_not_matter_for_the_rate(tmp_path: Path) -> None:
    write_sound(tmp_path / "long.wav", sound(2))
    write_sound(tmp_path / "short.wav", sound(0.5, rate=8000), rate=8000)
    with pytest.raises(OptionError, match=r"recordings have rates of 8,000 to 16,000 Hz"):
        dp.Audio(tmp_path, seconds=1)
    assert dp.Audio(tmp_path, seconds=1, short="drop").samples.rate == RATE
    assert dp.Audio(tmp_path, whole=True, between=(1, 9)).samples.rate == RATE


@pytest.mark.parametrize("shuffle", [True, False])
def test_whole_utterances_come_beside_others_as_long(words: Path, shuffle: bool) -> None:
    loader = loader_of(words, whole=True, batch_size=3, shuffle=shuffle, fields=FIELDS)
    seen: list[int] = []
    for batch in loader:
        lengths = batch["lengths"].tolist()
        assert batch["audio"].shape == (3, max(lengths))
        for audio, length, number in zip(batch["audio"].numpy(), lengths, batch["id"].tolist(), strict=True):
            assert length == len(written(number))
            assert (audio[:length] == written(number)).all()
            assert (audio[length:] == 0).all()
            seen.append(number)
    assert sorted(seen) == list(range(12))
    assert (seen == sorted(seen)) is not shuffle
    if shuffle:
        shortest = [min(SECONDS[number] for number in seen[row : row + 3]) for row in range(0, 12, 3)]
        assert sorted(shortest) == sorted(SECONDS)[::3], "neighbours in length share a step"


def test_batches_of_so_many_seconds(words: Path) -> None:
    loader = loader_of(words, whole=True, max_seconds=7, batch_size=1, fields=FIELDS)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == len(loader.dataset)
        assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(12))
        assert all(batch["audio"].numel() <= 7 * RATE for batch in batches)
        for batch in batches:
            for audio, length, number in zip(*(batch[name].numpy() for name in ("audio", "lengths", "id")), strict=True):
                assert (audio[:length] == written(number)).all()
    with pytest.raises(OptionError, match=r"3\.300 s.* is longer than max_seconds=3; pass more, or between=\(0, 3\)"):
        dp.Audio(words, whole=True, max_seconds=3)
    assert len(dp.Audio(words, whole=True, max_seconds=3, between=(0, 3)).samples) == 11


def test_batches_of_so_many_seconds_resume_on_other_ranks(words: Path) -> None:
    def ids(loader: Any, num: int) -> list[list[int]]:
        return [batch["id"].tolist() for _, batch in zip(range(num), loader, strict=False)]

    options = {"whole": True, "max_seconds": 4, "batch_size": 1, "fields": FIELDS, "tail": "drop"}
    whole = ids(loader_of(words, **options), 100)
    first = [loader_of(words, ranks=(rank, 2), **options) for rank in range(2)]
    begun = [ids(loader, 1) for loader in first]
    alone = loader_of(words, **options)
    alone.load_state_dict(first[0].state_dict())
    assert begun[0] + begun[1] + ids(alone, 100) == whole


def test_other_rates_and_channels(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.flac", sound(2, rate=44_100, channels=2, seed=1), rate=44_100)
    write_sound(tmp_path / "b.wav", sound(2, rate=8000, seed=1), rate=8000)
    with pytest.raises(OptionError, match=r"rates of 8,000 to 44,100 Hz; pass rate=8000"):
        dp.Audio(tmp_path, seconds=1)
    (batch,) = loader_of(tmp_path, seconds=1, rate=16_000, batch_size=2)
    assert batch["audio"].shape == (2, 16_000)
    (batch,) = loader_of(tmp_path, whole=True, rate=16_000, channels=2, batch_size=2, shuffle=False)
    assert batch["audio"].shape == (2, 2, 32_000)
    assert batch["lengths"].tolist() == [32_000, 32_000]
    assert (batch["audio"][1, 0] == batch["audio"][1, 1]).all()
    write_sound(tmp_path / "c.wav", sound(1, channels=8))
    with pytest.raises(DecodeError, match=r"c\.wav: .*has 8 channels, which are not made 2; pass channels=1, or 8"):
        list(loader_of(tmp_path, seconds=1, rate=16_000, channels=2))
    assert len(list(loader_of(tmp_path, seconds=1, rate=16_000, batch_size=3))) == 1


def test_bad_files_are_named_when_the_data_is_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_sound(tmp_path / "good.wav", sound(1))
    (tmp_path / "no.wav").write_bytes(b"no sound at all, but a name")
    write_sound(tmp_path / "none.flac", sound(0))
    with pytest.raises(FormatError, match=r"no\.wav: cannot be decoded .*, or pass skip_bad=True \(and 1 other\)"):
        dp.Audio(tmp_path, seconds=1)
    data = dp.Audio(tmp_path, seconds=1, skip_bad=True)
    assert len(data) == 1
    said = f"2 utterances left out: {tmp_path}/no.wav: cannot be decoded"
    assert [one.getMessage()[: len(f"{tmp_path}: {said}")] for one in caplog.records] == [f"{tmp_path}: {said}"]
    assert f"bad       {said}" in str(dp.explain(dp.DataLoader(data, batch_size=1)))
    assert f"bad       {said}" in str(dp.explain(dp.DataLoader(dp.mix([dp.Audio(tmp_path / "good.wav", seconds=1), data]), 1)))
    with pytest.raises(MissingDataError, match=r"no samples are left \(1 utterance left out: .*no\.wav: .*\); check the path"):
        dp.Audio(tmp_path / "no.wav", seconds=1, skip_bad=True)
    with pytest.raises(MissingDataError):
        dp.Audio(tmp_path / "nothing", seconds=1)


def claiming_flac(path: Path) -> Path:
    """A short recording of which the header says that it has 20 million samples, as many as its bytes might hold."""
    write_sound(path, sound(2))
    data = bytearray(path.read_bytes())
    data[22:26] = struct.pack(">I", 20_000_000)  # the lower 32 bits of the total of samples
    path.write_bytes(data)
    return path


def slow_wav(path: Path) -> Path:
    """A recording of 20,000 samples, at one a second."""
    return write_sound(path, sound(1.25), rate=1)


@pytest.mark.parametrize(("make", "claim"), [(claiming_flac, r"1,250 s at 16,000 Hz"), (slow_wav, r"20,000 s at 1 Hz")])
def test_lengths_that_a_few_bytes_claim_cost_no_memory(make: Any, claim: str, tmp_path: Path) -> None:
    source, converted = tmp_path / "in", tmp_path / "out"
    write_sound(source / "good.wav", sound(1))
    odd = make(source / f"odd.{make.__name__[-4:].strip('_')}")
    said = rf"{odd.name}: sample 1 .*says that it lasts {claim}, which [\d,]+ bytes would be [\d,]+ MiB of; pass seconds=5 for "
    with pytest.raises(FormatError, match=said + r".*, between=\(0, 60\) .*, or pass skip_bad=True"):
        dp.Audio(source, whole=True, rate=16_000)
    for options in ({"skip_bad": True}, {"between": (0, 60)}, {"skip_bad": True, "max_seconds": 10}):
        size = 1 if "max_seconds" in options else 32
        (batch,) = loader_of(source, whole=True, rate=16_000, batch_size=size, tail="mask", **options)
        assert batch["audio"].shape[1:] == (16_000,)
    crops = dp.Audio(odd, seconds=0.5, rate=16_000, crop="start")  # of which a sample has as many as the user says
    assert next(iter(dp.DataLoader(crops, 1)))["audio"].shape == (1, 8_000)
    options = ["--audio-rate", "400000", "--on-error", "skip"]
    assert main(["convert", str(source), str(converted), "--to", "webdataset", *options]) == 0
    (line,) = (converted / "errors.jsonl").read_text().splitlines()
    assert re.search(rf"{odd.name}.*has 20,000(,000)? samples at [\d,]+ Hz, [\d,]+ MiB decoded, too many at once for", line)


@pytest.mark.daily(1)
@pytest.mark.parametrize("options", [{"seconds": 1}, {"whole": True}, {"whole": True, "max_seconds": 4}])
def test_a_damaged_file_is_replaced_by_one_that_fits(options: dict[str, Any], tmp_path: Path) -> None:
    for number in range(20):
        write_sound(tmp_path / f"{number:02d}.flac", sound(1 + number % 4, seed=number))
    bad = tmp_path / "06.flac"
    bad.write_bytes(bad.read_bytes()[:6000])
    size = 1 if "max_seconds" in options else 5
    with pytest.raises(DecodeError, match=r"06\.flac: sample 6 .*pass on_error='skip' or 'replace'"):
        list(loader_of(tmp_path, batch_size=size, fields=["audio", "lengths", "id"], **options))
    seen = []
    for batch in loader_of(tmp_path, batch_size=size, on_error="replace", fields=["audio", "lengths", "id"], **options):
        for audio, length, number in zip(*(batch[name].numpy() for name in ("audio", "lengths", "id")), strict=True):
            seen.append(int(number))
            whole = in_16_bits(sound(1 + number % 4, seed=number))[:, 0]
            assert (audio[:length] == whole).all() if "whole" in options else place_of(audio[:length], whole) >= 0
    assert len(seen) == 20
    assert 6 not in seen
    skipped = loader_of(tmp_path, batch_size=size, on_error="skip", fields=["audio", "lengths", "id"], **options)
    assert sorted(number for batch in skipped for number in batch["id"].tolist()) == [n for n in range(20) if n != 6]


def test_an_hour_in_one_file_is_read_where_its_parts_are(tmp_path: Path) -> None:
    whole = in_16_bits(sound(60, seed=3))
    write_sound(tmp_path / "long.flac", whole)
    rows = "".join(f"long.flac,{start},{start + 2},part {start}\n" for start in range(0, 60, 3))
    (tmp_path / "parts.csv").write_text("path,start,end,text\n" + rows)
    for batch in loader_of(tmp_path / "parts.csv", whole=True, fields=["audio", "lengths", "text"]):
        for audio, length, text in zip(batch["audio"].numpy(), batch["lengths"].tolist(), batch["text"], strict=True):
            first = int(text.split()[1]) * RATE
            assert length == 2 * RATE
            assert (audio == whole[first : first + length, 0]).all()


def test_all_sound_of_joined_files_is_read_and_converted(tmp_path: Path) -> None:
    one, two = (write_sound(tmp_path / f"{number}.mp3", sound(1, seed=number)).read_bytes() for number in range(2))
    whole = np.concatenate(
        [next(iter(dp.DataLoader(dp.Audio(tmp_path / f"{n}.mp3", whole=True), 1)))["audio"][0] for n in (0, 1)]
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.mp3").write_bytes(one + two)
    (tmp_path / "parts.csv").write_text("path,start,end\nin/a.mp3,0.5,1.5\nin/a.mp3,1.25,\n")
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "webdataset"]) == 0
    assert main(["convert", str(tmp_path / "parts.csv"), str(tmp_path / "cut"), "--to", "parquet"]) == 0
    for name, expected, within in (
        ("in", [whole], 0), ("out", [whole], 0), ("parts.csv", [whole[8000:24_000], whole[20_000:]], 0),
        ("cut", [whole[8000:24_000], whole[20_000:]], 1 / 32768),
    ):  # fmt: skip
        for batch, samples in zip(loader_of(tmp_path / name, whole=True, shuffle=False, batch_size=1), expected, strict=True):
            assert batch["lengths"].tolist() == [len(samples)]
            assert np.abs(batch["audio"][0].numpy() - samples).max() <= within


@pytest.mark.parametrize("source", ["folder", "pattern"])
def test_members_of_tars_are_read_where_they_lie(source: str, words: Path, tmp_path: Path) -> None:
    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for number in range(6 * shard, 6 * shard + 6):
                path = write_sound(tmp_path / "loose" / f"{number:02d}.flac", sound(SECONDS[number], seed=number))
                tar.add(path, path.name)
                for name, text in ((f"{number:02d}.cls", str(number // 6)), (f"{number:02d}.txt", f"word {number}\n")):
                    member = tarfile.TarInfo(name)
                    member.size = len(text)
                    tar.addfile(member, io.BytesIO(text.encode()))
    shutil.rmtree(tmp_path / "loose")
    place = tmp_path if source == "folder" else str(tmp_path / "*.tar")
    fields = ["audio", "lengths", "label", "text", "id"]
    seen = []
    for batch in loader_of(place, whole=True, fields=fields):
        for audio, length, label, text, number in zip(*(batch[name] for name in fields), strict=True):
            assert (audio[:length].numpy() == written(int(number))).all()
            assert (label, text) == (number // 6, f"word {number}")
            seen.append(int(number))
    assert sorted(seen) == list(range(12))
    assert main(["inspect", str(tmp_path)]) == 0
    damaged = bytearray((tmp_path / "1.tar").read_bytes())
    damaged[-20_000:-12_000] = bytes(8000)
    (tmp_path / "1.tar").write_bytes(damaged)
    skipping = loader_of(place, whole=True, on_error="skip", fields=fields)
    assert sum(len(batch["id"]) for batch in skipping) in (10, 11)
    assert all("1.tar" in bad.where for bad in skipping.bad_samples)


def test_columns_of_parquet_are_read_where_they_lie(words: Path, tmp_path: Path) -> None:
    """As Hugging Face's datasets write `Audio`: a struct of bytes and path, not compressed."""
    files = sorted(words.rglob("*.*"))
    rows = [{"audio": {"bytes": path.read_bytes(), "path": path.name}, "sentence": path.stem} for path in files]
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: row["sentence"]))
    pq.write_table(table, tmp_path / "0.parquet", compression="none", use_dictionary=False, row_group_size=5)
    seen = []
    for batch in loader_of(tmp_path, whole=True, fields=["audio", "lengths", "text", "id"]):
        for audio, length, text, number in zip(batch["audio"], *(batch[name] for name in ("lengths", "text", "id")), strict=True):
            assert (audio[:length].numpy() == written(int(number))).all()
            assert text == f"{int(number):02d}"
            seen.append(int(number))
    assert sorted(seen) == list(range(12))
    assert main(["inspect", str(tmp_path)]) == 0
    pq.write_table(pa.table({"audio": ["a path"], "value": [1.0]}), tmp_path / "0.parquet")
    assert registry.open_path(tmp_path)[0] == "tables"


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "snappy", "use_dictionary": True},
        {"compression": "zstd"},
        {"compression": "gzip", "use_dictionary": False},
        {"compression": "none", "use_dictionary": True},
        {"compression": "snappy", "data_page_version": "2.0"},
    ],
    ids=str,
)
def test_compressed_columns_of_parquet_are_unpacked_once(
    words: Path, tmp_path: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    files = sorted(words.rglob("*.*"), key=lambda path: path.stem)
    rows = [{"audio": {"bytes": path.read_bytes(), "path": path.name}, "text": f"says {path.stem}"} for path in files]
    for number in range(2):
        table = pa.Table.from_pylist(rows[6 * number : 6 * number + 6])
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=4, **how)
    fields = ["audio", "lengths", "id"]
    expected = list(loader_of(words, seconds=0.5, fields=fields))
    for _ in range(2):
        found = list(loader_of(tmp_path / "in", seconds=0.5, fields=fields))
        for one, other in zip(found, expected, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in fields)
        monkeypatch.setattr(shards, "_write", None)  # it is there
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = sorted((tmp_path / "cache").rglob("unpacked/*/*.parquet"), key=lambda path: path.name)
    assert [path.name for path in kept] == ["0.parquet", "1.parquet"]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    kept[0].write_bytes(kept[0].read_bytes()[:-1])  # not whole: made again
    sizes = next(kept[1].parent.glob("sizes.npy"))
    sizes.write_bytes(b"no array")
    assert len(list(loader_of(tmp_path / "in", seconds=0.5))) == 3
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "in" / "1.parquet", row_group_size=4, **how)
    assert len(dp.Audio(tmp_path / "in", whole=True)) == 8


def test_rows_without_sound_and_no_room_for_what_is_compressed(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good = {"bytes": next(words.rglob("*.flac")).read_bytes(), "path": "a.flac"}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"audio": [good, None, {"bytes": b"odd", "path": "b"}, good]}), tmp_path / "in" / "0.parquet")
    with pytest.raises(FormatError, match=r"in/0\.parquet: sample 1 \(1\): .*skip_bad=True \(and 1 other\)"):
        dp.Audio(tmp_path / "in", whole=True)
    assert len(dp.Audio(tmp_path / "in", whole=True, skip_bad=True)) == 2
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(StorageError, match=r"needs about .* MB and has 0.0 MB; set XDG_CACHE_HOME, or convert it"):
        dp.Audio(tmp_path / "in", whole=True, skip_bad=True)


def test_damage_in_compressed_parquet_is_said_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not of the copy in the cache, also where sets are mixed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good = write_sound(tmp_path / "a.flac", sound(1)).read_bytes()
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"audio": [{"bytes": data, "path": "x.flac"} for data in (good, good[:5000])]}), tmp_path / "in/0.parquet"
    )
    data = dp.Audio(tmp_path / "in", seconds=0.9)
    for set_of in (data, dp.mix([dp.Audio(tmp_path / "a.flac", seconds=0.9), data])):
        with pytest.raises(DecodeError, match=rf"{tmp_path}/in/0\.parquet: sample \d \(x\.flac\): "):
            list(dp.DataLoader(set_of, 1, shuffle=False))


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_texts_that_cannot_be_read_make_their_utterances_bad(form: str, tmp_path: Path) -> None:
    data = write_sound(tmp_path / "a.flac", sound(0.2)).read_bytes()
    said: list[bytes | None] = ["\ufeffONE\u2028TWO\n".encode(), "CAFÉ".encode("latin-1") if form == "tar" else None, b""]
    if form == "tar":
        with tarfile.open(tmp_path / "s.tar", "w") as tar:
            for number, text in enumerate(said):
                for name, value in ((f"{number}.flac", data), (f"{number}.txt", text or b"")):
                    member = tarfile.TarInfo(name)
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))
    else:
        texts = [None if text is None else text.decode() for text in said]
        pq.write_table(
            pa.table({"audio": [{"bytes": data, "path": f"{n}"} for n in range(3)], "text": texts}), tmp_path / "s.parquet"
        )
    (tmp_path / "a.flac").unlink()
    why = "text is not UTF-8: byte 0xc9 at 3; save it as UTF-8" if form == "tar" else "no value: null"
    with pytest.raises(FormatError, match=rf"s\.{form}: sample 1 \(1\): te?xt: {why}, or pass skip_bad=True$"):
        dp.Audio(tmp_path, whole=True)
    assert main(["inspect", str(tmp_path)]) == 0
    kept = dp.Audio(tmp_path, whole=True, skip_bad=True)
    assert "1 utterance left out: " in str(dp.explain(dp.DataLoader(kept, 1)))
    assert [batch["text"][0] for batch in dp.DataLoader(kept, 1, shuffle=False)] == ["ONE\u2028TWO", ""]


def test_parts_after_the_end_of_a_recording_are_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sound(tmp_path / "a.wav", sound(1))
    (tmp_path / "parts.csv").write_text("path,start,end\na.wav,0,0.5\na.wav,1,2\na.wav,0.5,2\na.wav,5,6\n")
    said = r"a\.wav: sample 1 begins after its end, at 1\.000 s; repair the list"
    for options in ({"whole": True}, {"seconds": 0.25}, {"seconds": 0.25, "short": "drop"}, {"seconds": 0.25, "short": "error"}):
        with pytest.raises(FormatError, match=rf"{said}, or pass skip_bad=True \(and 1 other\)$"):
            dp.Audio(tmp_path / "parts.csv", **options)
        data = dp.Audio(tmp_path / "parts.csv", skip_bad=True, **options)
        assert re.search(f"2 utterances left out: .*{said}", str(dp.explain(dp.DataLoader(data, 1))))
        assert len(data) == 2
    (tmp_path / "none.csv").write_text("path,start,end\na.wav,0.5,0.50001\n")
    with pytest.raises(FormatError, match=r"a\.wav: sample 0 has no sound, 0 samples; repair the list"):
        dp.Audio(tmp_path / "none.csv", whole=True)
    assert main(["inspect", str(tmp_path / "parts.csv")]) == 0
    out = capsys.readouterr().out
    assert "2 utterances cannot be read; skip_bad=True leaves them out" in out
    assert re.search(said, out)


def test_samples_of_tars_have_one_sound_file_each(words: Path, tmp_path: Path) -> None:
    flac, wav = (next(words.rglob(f"*.{suffix}")).read_bytes() for suffix in ("flac", "wav"))
    for name, members, has in (
        ("one", {"a.flac": flac, "b.wav": wav}, ""),
        ("two", {"a.flac": flac, "a.wav": wav}, "they have flac, wav"),
        ("named", {"a.near.flac": flac, "a.far.flac": flac}, "they have near_flac, far_flac"),
    ):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for member, data in members.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        if not has:
            assert len(dp.Audio(tmp_path / f"{name}.tar", whole=True)) == 2
            continue
        with pytest.raises(OptionError, match=f"each sample must have one sound file, and {has}"):
            dp.Audio(tmp_path / f"{name}.tar", whole=True)


def test_samplers_decide_the_order_and_repeats_are_drawn_again(words: Path) -> None:
    batches = list(loader_of(words, seconds=0.25, sampler=[5, 1, 5, 2], shuffle=None, fields=FIELDS))
    assert [number for batch in batches for number in batch["id"].tolist()] == [5, 1, 5, 2]
    weighted = loader_of(words, seconds=0.25, sampler=dp.WeightedSampler([0.0] * 11 + [1.0], 8), shuffle=None, batch_size=8)
    (batch,) = weighted
    assert len({tuple(row[:50].tolist()) for row in batch["audio"]}) == 8
    with pytest.raises(OptionError, match="max_seconds decides"):
        loader_of(words, whole=True, max_seconds=4, batch_size=1, sampler=[0], shuffle=None)


@pytest.mark.parametrize(("options", "said"), [
    ({}, "say what a sample is"), ({"seconds": 1, "whole": True}, "not both"), ({"seconds": -1}, "more than 0"),
    ({"seconds": 1, "rate": 0}, "rate is 0"), ({"seconds": 1, "channels": 0}, "channels is 0"),
    ({"seconds": 1, "short": "cut"}, "choose one of pad"), ({"seconds": 1, "crop": "end"}, "choose one of random"),
    ({"seconds": 1, "max_seconds": 9}, "max_seconds is for whole=True"), ({"whole": True, "between": (3, 1)}, "between is"),
    ({"seconds": 1, "rate": 2**31}, "rate is 2147483648; it must be at most 10000000"),
    ({"seconds": 1, "channels": 2**62}, "channels is 4611686018427387904; it must be at most 1024"),
    ({"seconds": 1e300}, r"seconds is 1e\+300; it must be at most"), ({"seconds": "5"}, "seconds is '5'; it must be a number"),
    ({"whole": True, "max_seconds": 1e300}, "max_seconds is"), ({"whole": True, "between": 5}, "between is 5; pass"),
    ({"whole": True, "between": (1,)}, "between is"), ({"whole": True, "between": ("1", 2)}, "between is '1'; it must be"),
    ({"seconds": 1, "fields": 5}, "fields is 5; it must be a list of names"),
    ({"seconds": 1, "fields": []}, "fields is empty"), ({"seconds": 1, "fields": ["audio", "text"]}, "fields has 'text'"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(words: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        dp.Audio(words, **options)


def test_what_a_loader_cannot_do_with_sound(words: Path) -> None:
    data = dp.Audio(words, seconds=1)
    for options in ({"transform": [abs]}, {"collate_fn": list}, {"backend": "dali"}, {"output": {"image": "x"}}):
        with pytest.raises(OptionError, match=r"sound|batches have not"):
            dp.DataLoader(data, 4, **options)
    with pytest.raises(OptionError, match="max_seconds says how many"):
        dp.DataLoader(dp.Audio(words, whole=True, max_seconds=4), 4)
    with pytest.raises(OptionError, match=r"datapipe\.Audio\(.*seconds=5\), or whole=True"):
        dp.DataLoader(words)
    renamed = next(iter(dp.DataLoader(data, 4, output={"audio": "input_values"})))
    assert set(renamed) == {"input_values", "lengths", "label"}


def test_states_are_of_the_same_samples_only(words: Path) -> None:
    state = loader_of(words, seconds=1).state_dict()
    with pytest.raises(StateError, match="other seconds, whole, rate"):
        loader_of(words, seconds=2).load_state_dict(state)


def test_it_goes_to_other_processes_as_its_arguments(words: Path) -> None:
    data = dp.Audio(words, whole=True, max_seconds=7, fields=["audio"])
    again = pickle.loads(pickle.dumps(data))
    assert (len(again), again.shown, again.classes) == (len(data), data.shown, data.classes)


def test_explain_says_what_samples_are(words: Path) -> None:
    text = str(dp.explain(loader_of(words, seconds=1)))
    assert "12 utterances of 12 recordings" in text
    assert "a random crop of 1 s of each, at 16,000 Hz, 1 channel" in text
    assert "like lengths" in str(dp.explain(loader_of(words, whole=True)))
    assert "as many as fill 7 s" in str(dp.explain(loader_of(words, whole=True, max_seconds=7, batch_size=1)))
    assert "12 utterances resampled by soxr" in str(dp.explain(loader_of(words, seconds=1, rate=8000)))


def test_commands_know_sound(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(words)]) == 0
    out = capsys.readouterr().out
    assert "12 utterances of 12 recordings" in out
    assert "16,000 Hz (12)" in out
    assert "classes   2" in out
    assert main(["bench", str(words), "--images", "20", "--rounds", "1"]) == 0
    assert "crops of 5 s" in capsys.readouterr().out
    write_sound(tmp_path / "a.wav", sound(1))
    (tmp_path / "b.wav").write_bytes(b"nothing")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "1 utterance cannot be read" in capsys.readouterr().out
