"""The options of a conversion, parsed and checked once."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from converters.tokenizer import Tokenizing
from datapipe.codecs.probe import MAX_PIXELS
from datapipe.containers.form import ClassFrom, FieldChoice, Form
from datapipe.containers.forms import AUDIO, AUTO, CONVERSATIONS, FORMS, VIDEOS
from datapipe.core.checks import path_name
from datapipe.errors import OptionError
from datapipe.stores.location import Location, Place

TARGETS = ("webdataset", "hdf5", "parquet", "tfrecord", "tokens")
ENGINES = ("local", "ray")
_COORDINATES = frozenset(("segmentation", "keypoints", "bbox", "area"))  # in COCO's annotations; resizing makes them wrong
AUDIO_FORMATS = ("flac", "wav")
SILENCE_DBFS = -60.0  # of the loudest sample of an utterance: quieter is silence
_MAX_AUDIO_RATE, _MAX_AUDIO_CHANNELS = 655_350, 8  # of FLAC
SMALL_SHARD_NBYTES = 1_000_000  # of shards below, opening costs more than reading
_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS.update({f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power})


class Check(enum.Enum):
    """The depth of the check of each image."""

    HEADER = "header"  # the header parses and the end marker is there; what is not plainly whole is decoded
    DECODE = "decode"  # in addition, the whole image decodes


class OnError(enum.Enum):
    """The policy for bad samples."""

    FAIL = "fail"
    SKIP = "skip"
    QUARANTINE = "quarantine"  # skipped, and the file is copied to a separate folder


@dataclass(frozen=True, slots=True)
class ResizeRule:
    """Resizing before storage. `mode` "shorter" or "longer" scales that side to `size`; "exact" gives `size` x `width`."""

    mode: str
    size: int  # pixels; the height if the mode is exact
    width: int | None = None

    def __post_init__(self) -> None:
        least = self.size * (1 if self.mode == "longer" else self.width or self.size)
        if least > MAX_PIXELS:
            raise OptionError(f"--resize {self} makes images of {least} pixels at least, where the limit is {MAX_PIXELS}")

    @classmethod
    def parse(cls, text: str) -> ResizeRule:
        if match := re.fullmatch(r"(shorter|longer):([1-9]\d{0,4})", text):
            return cls(match[1], int(match[2]))
        if match := re.fullmatch(r"exact:([1-9]\d{0,4})x([1-9]\d{0,4})", text):
            return cls("exact", int(match[1]), int(match[2]))
        raise OptionError(f"--resize {text!r} is none of shorter:N, longer:N, exact:HxW (in pixels), such as shorter:256")

    def __str__(self) -> str:
        return f"{self.mode}:{self.size}" if self.width is None else f"{self.mode}:{self.size}x{self.width}"


@dataclass(frozen=True, slots=True)
class Encode:
    """The storage format of images. "keep" copies the bytes unchanged."""

    form: str  # "keep", "jpeg", "webp", "png", "raw"
    quality: int | None = None  # of jpeg and webp, 1..100; of webp None is lossless

    @classmethod
    def parse(cls, text: str) -> Encode:
        if text in ("keep", "png", "raw"):
            return cls(text)
        if text == "webp:lossless":
            return cls("webp")
        if (match := re.fullmatch(r"(jpeg|webp):(\d{1,3})", text)) and 1 <= int(match[2]) <= 100:
            return cls(match[1], int(match[2]))
        if text.partition(":")[0] in ("avif", "jxl"):
            raise OptionError(
                f"--encode {text!r}: not written, as not every reader of the shards could take it back; choose webp:80"
            )
        raise OptionError(
            f"--encode {text!r} is none of keep, jpeg:QUALITY (1 to 100), webp:QUALITY, webp:lossless, png, raw; for example"
            " --encode jpeg:90"
        )

    def __str__(self) -> str:
        if self.form == "webp" and self.quality is None:
            return "webp:lossless"
        return self.form if self.quality is None else f"{self.form}:{self.quality}"


@dataclass(frozen=True, slots=True)
class Split:
    """One of several datasets that the source is divided into."""

    name: str
    share: Fraction

    @classmethod
    def parse_all(cls, text: str) -> tuple[Split, ...]:
        """Parse `train=0.9,val=0.1`: shares that add up to 1."""
        splits = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*([A-Za-z0-9_-]+)\s*=\s*(\d*\.?\d+)\s*", part)
            if match is None:
                raise OptionError(f"--split {text!r}: {part!r} is not NAME=SHARE; for example --split train=0.9,val=0.1")
            splits.append(cls(match[1], Fraction(match[2])))
        total = sum((split.share for split in splits), Fraction(0))
        if total != 1 or any(split.share <= 0 for split in splits):
            raise OptionError(f"--split {text!r}: shares add up to {float(total):g}; they must be positive and add up to 1")
        names = [split.name for split in splits]
        if len(set(names)) < len(names) or "quarantine" in names:
            raise OptionError(f"--split {text!r}: names must differ from each other and from 'quarantine'")
        return tuple(splits)


@dataclass(frozen=True, slots=True)
class Limit:
    """The accepted number of bad samples: a count, or a share of all."""

    count: int | None = None
    percent: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> Limit:
        if re.fullmatch(r"\d+", text):
            return cls(count=int(text))
        if (match := re.fullmatch(r"(\d*\.?\d+)%", text)) and Fraction(match[1]) <= 100:
            return cls(percent=Fraction(match[1]))
        raise OptionError(f"--max-errors {text!r} is neither a count nor a percentage, such as 100 or 0.1%")

    def accepted_of(self, num_samples: int) -> int:
        """Return the number of bad samples that is still accepted."""
        return self.count if self.count is not None else int((self.percent or Fraction(0)) * num_samples / 100)

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{float(self.percent or 0):g}%"


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` processes that share a conversion; `index` counts from 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise OptionError(f"--part {text!r} is not I/N with 1 <= I <= N; for example --part 1/4")
        return cls(int(match[1]), int(match[2]))

    def owns(self, shard_number: int) -> bool:
        return shard_number % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_silence(text: str) -> float | None:
    """Parse `keep`, `drop` (at -60 dBFS) or `drop:-50`; return the dBFS above which sound is kept, None for all."""
    match = re.fullmatch(r"keep|drop(?::(-\d{1,3}(?:\.\d+)?))?", text)
    if match is None:
        raise OptionError(f"--audio-silence {text!r} is none of keep, drop, drop:DBFS, such as drop:-50 (dB below full scale)")
    return None if text == "keep" else float(match[1] or SILENCE_DBFS)


def parse_nbytes(text: str) -> int:
    """Parse `256MB` (10^6), `256MiB` (2^20), `1.5GB` or plain bytes."""
    match = re.fullmatch(r"(\d*\.?\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or (nbytes := int(Fraction(match[1]) * _UNITS[match[2].upper()])) < 1:
        raise OptionError(f"--shard-size {text!r} is not a size; for example --shard-size 256MB")
    return nbytes


def check_run(num_workers: int | None, on_error: OnError, max_errors: Limit | None) -> None:
    """Raise OptionError for options of a run that are not possible together."""
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"--workers is {num_workers}; it must be at least 1")
    if max_errors is not None and on_error is OnError.FAIL:
        raise OptionError("--max-errors has no effect with --on-error fail, which stops at the first; add --on-error skip")


def refuse_overlap(source: Place, destination: Place) -> None:
    """Raise OptionError if one of the places lies within the other."""
    one, other = (f"{place if isinstance(place, Location) else os.path.realpath(place)}/" for place in (source, destination))
    if one.startswith(other) or other.startswith(one):
        raise OptionError(f"{source} and {destination} lie within each other; choose another destination")


def changed_options(had: Mapping[str, Any], asked: Mapping[str, Any], *, but: Collection[str] = ()) -> list[str]:
    """Return how the options of a run, `as_typed`, differ from those of an earlier one, leaving out those named in `but`."""
    return [
        f"{name} was {had.get(name)!r}, now {asked[name]!r}" for name in asked if name not in but and asked[name] != had.get(name)
    ]


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of a conversion. Paths may be relative to the working directory."""

    source: Place
    destination: Path
    to: str = "webdataset"
    form: str = AUTO  # of the source, one of FORMS
    fields: tuple[FieldChoice, ...] = ()
    class_from: ClassFrom | None = None  # None: "folder", or "none" for paired files
    root: Path | None = None  # base of a manifest's relative paths; None: its own folder
    shard_nbytes: int = 256_000_000  # source bytes per shard: a target, not a limit
    resize: ResizeRule | None = None
    encode: Encode = Encode("keep")
    dedupe: bool = False  # leave out samples whose image, or whose fields, an earlier one has, byte for byte
    strip_exif: bool = False  # take EXIF, XMP and comments out of images that keep their bytes
    engine: str = "local"  # one of ENGINES
    address: str | None = None  # of a Ray cluster; None: that of the environment, or one on this machine for this run
    num_workers: int | None = None  # None: the cores this process may use, or those of the cluster
    seed: int | None = 0  # of the write shuffle; None: listing order
    split: tuple[Split, ...] = ()
    class_map: Path | None = None
    check: Check = Check.HEADER
    on_error: OnError = OnError.FAIL
    max_errors: Limit | None = None
    part: Part | None = None
    overwrite: bool = False
    tokens: Tokenizing | None = None  # how texts become ids, for tokens
    video_size: int | None = None  # pixels of the shorter side of videos, which are encoded again; never enlarged
    video_keyframes: int | None = None  # frames from one key frame to the next of videos, which are encoded again
    audio_rate: int | None = None  # Hz to which sound is resampled; None: as it is
    audio_channels: int | None = None  # of sound; None: as it has
    audio_format: str | None = None  # of AUDIO_FORMATS, to which sound is encoded again; None: as it is
    audio_silence: float | None = None  # dBFS: sound that is nowhere louder is left out; None: nothing is

    def __post_init__(self) -> None:
        if self.to not in TARGETS:
            raise OptionError(f"--to {self.to!r} is not known; choose one of: {', '.join(TARGETS)}")
        if (self.to == "tokens") != (self.tokens is not None):
            raise OptionError(
                "--to tokens: which tokenizer? Pass --tokenizer tokenizer.json"
                if self.tokens is None
                else f"--tokenizer {self.tokens.path}: has no effect with --to {self.to}; pass --to tokens, or leave it out"
            )
        if self.tokens is not None and (self.transcodes or self.strip_exif) and self.form not in (AUTO, CONVERSATIONS):
            raise OptionError("--to tokens: documents have no images to resize, encode or strip; leave those options out")
        self._check_videos()
        self._check_audio()
        if self.form not in FORMS and self.form != AUTO:
            raise OptionError(f"--from {self.form!r} is not known; choose one of: {', '.join((AUTO, *FORMS))}")
        wrong = sorted(_COORDINATES.intersection(choice.name for choice in self.fields if choice.kind == "json"))
        if wrong and self.form == "coco" and self.resize is not None:
            raise OptionError(
                f"--resize with --field {wrong[0]}=json: the coordinates in it would no longer fit the image;"
                " leave one of them out"
            )
        if self.engine not in ENGINES:
            raise OptionError(f"--engine {self.engine!r} is not known; choose one of: {', '.join(ENGINES)}")
        if self.address is not None and self.engine != "ray":
            raise OptionError(f"--address {self.address} is that of a Ray cluster; add --engine ray, or leave it out")
        for name in ("source", "destination", "root", "class_map"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), Location):
                path_name(getattr(self, name), name)
        names = [choice.name for choice in self.fields]
        if len(set(names)) < len(names):
            raise OptionError(f"--field: {max(names, key=names.count)!r} is given a kind more than once; keep one")
        if self.shard_nbytes < 1:
            raise OptionError(f"--shard-size is {self.shard_nbytes} bytes; it must be positive")
        check_run(self.num_workers, self.on_error, self.max_errors)
        refuse_overlap(self.source, self.destination)

    def _check_videos(self) -> None:
        if self.video_size is not None and (self.video_size < 16 or self.video_size % 2):
            raise OptionError(f"--video-size is {self.video_size} pixels; it must be even, and at least 16")
        if self.video_keyframes is not None and self.video_keyframes < 1:
            raise OptionError(f"--video-keyframes is {self.video_keyframes} frames; it must be at least 1")
        if not self.is_of(VIDEOS):
            return
        if self.to != "webdataset":
            raise OptionError(f"--to {self.to}: datapipe.Clips reads videos from WebDataset tars; pass --to webdataset")
        if self.resize is not None:
            raise OptionError(f"--resize {self.resize}: is for images; videos take --video-size, such as --video-size 256")
        if self.encode.form != "keep" or self.strip_exif:
            raise OptionError("--encode and --strip-exif are for images; videos take --video-size or --video-keyframes")

    def _check_audio(self) -> None:
        if self.audio_rate is not None and not 1 <= self.audio_rate <= _MAX_AUDIO_RATE:
            raise OptionError(f"--audio-rate is {self.audio_rate} Hz; it must be from 1 to {_MAX_AUDIO_RATE}, such as 16000")
        if self.audio_channels is not None and not 1 <= self.audio_channels <= _MAX_AUDIO_CHANNELS:
            raise OptionError(f"--audio-channels is {self.audio_channels}; it must be from 1 to {_MAX_AUDIO_CHANNELS}")
        if self.audio_format not in (None, *AUDIO_FORMATS):
            raise OptionError(f"--audio-format {self.audio_format!r} is not known; choose one of: {', '.join(AUDIO_FORMATS)}")
        given = (name for name in ("audio_rate", "audio_channels", "audio_format", "audio_silence") if getattr(self, name))
        asked = next((f"--{name.replace('_', '-')}" for name in given), None)
        if self.form != AUTO and not self.is_of(AUDIO) and asked is not None:
            what = FORMS[self.form].title if self.form in FORMS else self.form
            raise OptionError(
                f"{asked} is for sound, and {self.source} is {what}; leave it out, or pass --from audio if it is sound"
            )
        if not self.is_of(AUDIO):
            return
        if self.to not in ("webdataset", "parquet"):
            raise OptionError(
                f"--to {self.to}: datapipe.Audio reads WebDataset tars and Parquet; pass --to webdataset or parquet"
            )
        if self.resize is not None or self.encode.form != "keep" or self.strip_exif:
            raise OptionError("--resize, --encode and --strip-exif are for images; sound takes --audio-rate and --audio-format")

    def is_of(self, form: str) -> bool:
        """Return True if the source is of that form, or of one whose shards hold nothing but the same kind of data."""
        facts = FORMS.get(self.form)
        return self.form == form or (facts is not None and bool(facts.shards) and facts.kind == FORMS[form].kind)

    @property
    def how(self) -> Form:
        """How the source is read."""
        return Form(self.form, root=self.root, fields=self.fields, class_from=self.class_from, class_map=self.class_map)

    @property
    def transcodes(self) -> bool:
        """True if images, videos or sound may be stored as other bytes than the source's."""
        return self.resize is not None or self.encode.form != "keep" or self.encodes_videos or self.encodes_audio

    @property
    def encodes_videos(self) -> bool:
        """True if videos are encoded again."""
        return self.video_size is not None or self.video_keyframes is not None

    @property
    def encodes_audio(self) -> bool:
        """True if sound may be encoded again."""
        return bool(self.audio_rate or self.audio_channels or self.audio_format)

    def as_typed(self) -> dict[str, Any]:
        """Return the options that determine the written bytes: JSON-safe, without paths and workers."""
        return {
            "to": self.to,
            "from": self.form,
            "fields": [str(choice) for choice in self.fields] or None,
            "class_from": None if self.class_from is None else self.class_from.value,
            "shard_size": self.shard_nbytes,
            "resize": None if self.resize is None else str(self.resize),
            "encode": str(self.encode),
            "dedupe": self.dedupe or None,
            "strip_exif": self.strip_exif or None,
            "video_size": self.video_size,
            "video_keyframes": self.video_keyframes,
            "audio_rate": self.audio_rate,
            "audio_channels": self.audio_channels,
            "audio_format": self.audio_format,
            "audio_silence": self.audio_silence,
            "seed": self.seed,
            "split": {split.name: str(split.share) for split in self.split} or None,
            "check": self.check.value,
            "on_error": self.on_error.value,
            "max_errors": None if self.max_errors is None else str(self.max_errors),
            **({} if self.tokens is None else {"tokens": self.tokens.facts.as_typed()}),
        }
