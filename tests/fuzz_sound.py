"""What `fuzz` looks at of sound: MP3 and Ogg, whose lengths are counted, and what headers claim, in batches at another rate."""

from __future__ import annotations

import functools
import io
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from crc32c import crc32c

import datapipe as dp
from datapipe.codecs.audio.decoding import checked_facts, read_frames
from datapipe.codecs.audio.library import import_soundfile
from datapipe.codecs.audio.streams import mp3_streams, ogg_streams

_RATE = 8000
_TAGS = b"ID3\4\0\0\0\0\0\x0a" + bytes(10), b"APETAGEX" + (60).to_bytes(4, "little") * 2 + bytes(76), b"TAG" + bytes(125)


@functools.cache
def _encoded(name: str, coding: str, num: int) -> bytes:
    sink, samples = io.BytesIO(), np.random.default_rng(num).normal(size=num).astype(np.float32) / 10
    import_soundfile().write(sink, samples, _RATE, format=name, subtype=coding)
    return sink.getvalue()


def mp3_files() -> list[bytes]:
    one, two = (_encoded("MP3", "MPEG_LAYER_III", num) for num in (2000, 5000))
    bare = [data[data.index(data[:2], 4) :] for data in (one, two)]  # without the first frame, which says how many follow
    before, between, after = _TAGS
    return [one, bare[1], one + two, bare[0] + between + bare[1], before + one + after + before + two + after]


def ogg_files() -> list[bytes]:
    vorbis, opus = ([_encoded("OGG", coding, num) for num in (1000, 3000)] for coding in ("VORBIS", "OPUS"))
    return [vorbis[0], opus[0], vorbis[0] + vorbis[1], vorbis[1] + vorbis[0], opus[0] + opus[1], opus[0] + vorbis[0]]


def look_at_sound(data: bytes, scratch: Path) -> None:
    """Find the streams, count the sound, and read all of it."""
    for find in (mp3_streams, ogg_streams):
        end = 0
        for stream in find(lambda place, num: data[place : place + num], len(data)):
            assert end <= stream.start < stream.start + stream.nbytes <= len(data)
            end = stream.start + stream.nbytes
    facts = checked_facts(io.BytesIO(data), len(data))
    sound = np.empty((facts.num_frames, facts.channels), np.float32)
    read_frames(io.BytesIO(data), 0, sound, rate=facts.rate, has_streams=facts.has_streams)
    assert np.isfinite(sound).all()


def claiming_files() -> list[bytes]:
    """Files whose headers say how long they are."""
    codings = (("WAV", "PCM_U8"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("AIFF", "PCM_16"), ("CAF", "ALAC_16"), ("W64", "PCM_24"))
    return [_encoded(*coding, 3000) for coding in codings] + [_encoded("OGG", "OPUS", 3000)]


def look_at_claims(data: bytes, scratch: Path) -> None:
    """Read a whole recording at another rate, and crops of it, beside one that is sound."""
    path, sound = scratch.with_suffix(".sound.wav"), scratch.with_suffix(".whole.wav")
    path.write_bytes(data)
    sound.write_bytes(_encoded("WAV", "PCM_16", 3000))
    os.utime(path, ns=(0, crc32c(data)))  # within a tick of the clock, files of one size would count as the same
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, XDG_CACHE_HOME=cache):
        for settings in ({"whole": True}, {"seconds": 0.1}):
            data = dp.Audio([str(path), str(sound)], rate=16_000, skip_bad=True, **settings)
            for batch in dp.DataLoader(data, 2, num_workers=0, on_error="skip"):
                assert np.isfinite(batch["audio"].numpy()).all()
