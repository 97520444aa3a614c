"""The index of video files: an Arrow file that is mapped, so memory does not grow with the number of files.

One row for each file, or range of a file: `path`, `start` and `nbytes` of the range, `file_nbytes` and `mtime_ns` of the file
when it was read, and `problem`, why it is no video that can be decoded ("": it can). How it is coded: `codec`, `extradata`,
`pixel_format`, `width`, `height`, `rotation`, `changes_parameters`. Times are in units of `time_num` / `time_den` seconds;
`first_dts` and `shift` complete those of packets and frames. `num_others` are tracks besides this one; `ts_stride` and `ts_pid`
say how packets lie in a transport stream (0: it is none). `packets`, a list: `step` of the decode times (int32), `delay` from
a decode time to the time when it is shown (int32), `offset` (int64), `size` (int32), `is_key` (uint8). `frames`, a list of the
packets of presented frames (int32). `groups`, a list: `packet` and `frame` at which each begins (int32).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.codecs.video.track import Ints, VideoCoding, VideoPackets, VideoTrack
from datapipe.codecs.video.transport import Framing
from datapipe.core import arrow_maps
from datapipe.core.printable import listed
from datapipe.errors import FormatError
from datapipe.index.arrow_buffers import array_of, lists_of, strings_of, values_of
from datapipe.index.entries import place_in
from datapipe.index.media import MediaSource, read_batches, urls_among

VERSION = "3"
_VERSION_KEY = "datapipe.index.videos"
_MAX_STEP = (1 << 31) - 1
_MAX_ROWS, _MAX_PACKETS = 4096, 1 << 20  # of a batch in the file
_PACKET = {"step": np.int32, "delay": np.int32, "offset": np.int64, "size": np.int32, "is_key": np.uint8}
_GROUP = {"packet": np.int32, "frame": np.int32}
_NUMBERS = {
    "start": np.int64, "nbytes": np.int64, "file_nbytes": np.int64, "mtime_ns": np.int64, "width": np.int32, "height": np.int32,
    "rotation": np.int32, "changes_parameters": np.uint8, "time_num": np.int64, "time_den": np.int64, "first_dts": np.int64,
    "shift": np.int64, "num_frames": np.int64, "num_others": np.int32, "ts_stride": np.int32, "ts_pid": np.int32,
}  # fmt: skip
_STRINGS = ("path", "problem", "codec", "pixel_format", "extradata")


class VideoEntry(NamedTuple):
    """What is known of a video."""

    source: MediaSource  # with its number of bytes
    file_nbytes: int
    mtime_ns: int
    track: VideoTrack | None  # None: it cannot be decoded
    problem: str = ""  # why not


class VideoIndex:
    """The videos of an index file, by their numbers. Thread-safe. Raises FormatError for a file that is none, or damaged."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        try:
            found = path.stat()
            batches = read_batches(path, _SCHEMA)
            for batch in batches:
                batch.validate()
        except arrow_maps.DAMAGE as exc:
            raise FormatError(f"{path}: no index of videos, or damaged ({exc}); remove it, and it is made again") from exc
        self._set([_Columns(batch) for batch in batches])
        self._places = [_Place(path.absolute(), (found.st_size, found.st_mtime_ns))]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the places of its files, for another process of this machine while they lie there."""
        return _opened_again, (self._places, self.fingerprint)

    @classmethod
    def joined(cls, parts: Sequence[VideoIndex]) -> VideoIndex:
        """Return the videos of several indexes, one after the other."""
        index = cls.__new__(cls)
        index.fingerprint = hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest()[:16]
        index._set([batch for part in parts for batch in part._batches])
        index._places = [place for part in parts for place in part._places]
        return index

    def _set(self, batches: list[_Columns]) -> None:
        self._batches = batches
        self._starts = np.cumsum([0, *(len(batch.num_groups) for batch in batches)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @functools.cached_property
    def num_frames(self) -> Ints:
        """The (n,) numbers of presented frames of all videos; 0 for those that cannot be decoded."""
        return np.concatenate([np.zeros(0, np.int64), *(batch.numbers["num_frames"] for batch in self._batches)])

    @functools.cached_property
    def shown_sizes(self) -> Ints:
        """The (n, 2) heights and widths in pixels of the videos as a player shows them."""
        found = [np.zeros((0, 2), np.int64)]
        for batch in self._batches:
            sizes = np.stack([batch.numbers["height"], batch.numbers["width"]], axis=1).astype(np.int64)
            is_turned = np.isin(batch.numbers["rotation"], (90, 270))
            found.append(np.where(is_turned[:, None], sizes[:, ::-1], sizes))
        return np.concatenate(found)

    @functools.cached_property
    def group_frames(self) -> NDArray[np.int32]:
        """The (g,) frames at which groups of pictures begin, of all videos one after the other."""
        return np.concatenate([np.zeros(0, np.int32), *(batch.group_frames for batch in self._batches)])

    @functools.cached_property
    def _group_starts(self) -> Ints:
        """The (n + 1,) groups before each video, and in all."""
        return np.cumsum(np.concatenate([np.zeros(1, np.int64), *(batch.num_groups for batch in self._batches)]))

    def groups_at(self, videos: Ints, frames: Ints) -> Ints:
        """Return (k,) the groups in which frames of videos lie, as numbers in `group_frames`."""
        starts, most = self._group_starts, int(self.num_frames.max(initial=0)) + 1
        of_group = np.repeat(np.arange(len(self)), np.diff(starts)) * most + self.group_frames  # ascending
        return np.searchsorted(of_group, videos * most + frames, side="right") - 1

    def equal_size(self, numbers: Ints) -> tuple[int, int] | None:
        """Return the (height, width) in pixels of these videos as a player shows them; None if they differ, or there are none."""
        sizes = self.shown_sizes[np.unique(numbers)]
        return (int(sizes[0, 0]), int(sizes[0, 1])) if len(sizes) and (sizes == sizes[0]).all() else None

    def source(self, number: int) -> MediaSource:
        """Return where a video lies."""
        batch, row = self._place(number)
        numbers = batch.numbers
        return MediaSource(os.fsdecode(batch.text("path", row)), int(numbers["start"][row]), int(numbers["nbytes"][row]))

    def urls(self) -> list[str]:
        """Return the URLs of the objects that hold videos, each once; none if they lie on disks."""
        having = [batch for batch in self._batches if batch.has_urls]
        paths = (os.fsdecode(batch.text("path", row)) for batch in having for row in range(len(batch.num_groups)))
        return urls_among(paths)

    def stamp(self, number: int) -> tuple[int, int]:
        """Return the size in bytes and the modification time in ns of the file of a video when it was read."""
        batch, row = self._place(number)
        return int(batch.numbers["file_nbytes"][row]), int(batch.numbers["mtime_ns"][row])

    def problem(self, number: int) -> str:
        """Return why a video cannot be decoded, for people; "" if it can."""
        batch, row = self._place(number)
        return batch.text("problem", row).decode()

    def track(self, number: int) -> VideoTrack:
        """Return the track of a video. Raises FormatError if it cannot be decoded."""
        batch, row = self._place(number)
        problem = batch.text("problem", row).decode()
        if problem:
            raise FormatError(problem)
        return batch.track(row)

    def entry(self, number: int) -> VideoEntry:
        """Return what is known of a video."""
        problem = self.problem(number)
        return VideoEntry(self.source(number), *self.stamp(number), None if problem else self.track(number), problem)

    def _place(self, number: int) -> tuple[_Columns, int]:
        batch, row = place_in(self._starts, number)
        return self._batches[batch], row


class _Place(NamedTuple):
    """The file of an index, as it was when it was opened."""

    path: Path
    stamp: tuple[int, int]  # bytes, and the time of modification in ns


def _opened_again(places: Sequence[_Place], fingerprint: str) -> VideoIndex:
    """Return the index that lies there. Raises FormatError if another one took the place of a file."""
    parts = [VideoIndex(place.path, fingerprint) for place in places]
    index = VideoIndex.joined(parts)
    if index._places != places:
        raise FormatError(f"{listed([str(place.path) for place in places])}: made anew meanwhile; open the videos again")
    index.fingerprint = fingerprint
    return index


class _Columns:
    """The columns of a batch of rows as arrays over the map."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.numbers = {name: values_of(batch.column(name), dtype) for name, dtype in _NUMBERS.items()}
        self._texts = {name: _strings(batch.column(name)) for name in _STRINGS}
        self._packets, self._frames, self._groups = (_list(batch.column(name)) for name in ("packets", "frames", "groups"))

    @property
    def group_frames(self) -> NDArray[np.int32]:
        """The (g,) frames at which groups begin, of all rows one after the other."""
        ends, values = self._groups
        return values_of(values.field(1), np.int32)[int(ends[0]) : int(ends[-1])]

    @property
    def num_groups(self) -> Ints:
        """The (n,) numbers of groups."""
        return np.diff(self._groups[0])

    @property
    def has_urls(self) -> bool:
        """Whether a path looks like a URL."""
        return b"://" in bytes(self._texts["path"][1])

    def text(self, name: str, row: int) -> bytes:
        ends, data = self._texts[name]
        return bytes(data[ends[row] : ends[row + 1]])

    def track(self, row: int) -> VideoTrack:
        numbers = {name: int(column[row]) for name, column in self.numbers.items()}
        ends, values = self._packets
        part = slice(int(ends[row]), int(ends[row + 1]))
        step, delay, offset, size, is_key = (
            values_of(values.field(number), dtype)[part] for number, dtype in enumerate(_PACKET.values())
        )
        dts = np.cumsum(step, dtype=np.int64) + numbers["first_dts"]
        framing = Framing(numbers["ts_stride"], numbers["ts_pid"]) if numbers["ts_stride"] else None
        packets = VideoPackets(dts + delay, dts, offset, size.astype(np.int64), is_key.astype(np.bool_), framing)
        ends, values = self._frames
        frames = values_of(values, np.int32)[int(ends[row]) : int(ends[row + 1])].astype(np.int64)
        ends, values = self._groups
        part = slice(int(ends[row]), int(ends[row + 1]))
        group_packet, group_frame = (values_of(values.field(number), np.int32)[part].astype(np.int64) for number in (0, 1))
        coding = VideoCoding(
            codec=self.text("codec", row).decode(),
            extradata=self.text("extradata", row),
            width=numbers["width"],
            height=numbers["height"],
            pixel_format=self.text("pixel_format", row).decode(),
            rotation=numbers["rotation"],
            changes_parameters=bool(numbers["changes_parameters"]),
        )
        time_base = (numbers["time_num"], numbers["time_den"])
        shift, num_others = numbers["shift"], numbers["num_others"]
        return VideoTrack(coding, time_base, packets, frames, shift, group_packet, group_frame, num_others)


def write_videos(file: IO[bytes], entries: Iterable[VideoEntry]) -> None:
    """Write an index of these videos, some of which are in memory together. `file`: open for writing; the caller closes it."""
    rows: list[VideoEntry] = []
    num_packets = 0
    with pa.ipc.new_stream(file, _SCHEMA) as writer:
        for entry in entries:
            rows.append(entry)
            num_packets += 0 if entry.track is None else len(entry.track.packets)
            if len(rows) == _MAX_ROWS or num_packets >= _MAX_PACKETS:
                writer.write_batch(_batch_of(rows))
                rows, num_packets = [], 0
        writer.write_batch(_batch_of(rows))


def _batch_of(entries: Sequence[VideoEntry]) -> pa.RecordBatch:
    arrays = [strings_of([_text(name, entry) for entry in entries], _SCHEMA.field(name).type) for name in _STRINGS]
    rows = [_number_row(entry) for entry in entries]
    for name, dtype in _NUMBERS.items():
        arrays.append(array_of(np.array([row[name] for row in rows], dtype)))
    tracks = [entry.track for entry in entries]
    packets = [{} if one is None else _packed(one) for one in tracks]
    for name, parts in (("packets", packets), ("groups", [{} if one is None else _groups(one) for one in tracks])):
        dtypes = _PACKET if name == "packets" else _GROUP
        columns = {key: _joined([part.get(key, ()) for part in parts], dtype) for key, dtype in dtypes.items()}
        values = pa.StructArray.from_arrays([array_of(one) for one in columns.values()], list(columns))
        lengths = [len(part[next(iter(dtypes))]) if part else 0 for part in parts]
        arrays.append(lists_of(lengths, values))
    frames = [np.zeros(0, np.int64) if one is None else one.frame_packet for one in tracks]
    arrays.append(lists_of([len(one) for one in frames], array_of(_joined(frames, np.int32))))
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _struct(dtypes: dict[str, Any]) -> pa.DataType:
    return pa.struct([pa.field(name, pa.from_numpy_dtype(dtype)) for name, dtype in dtypes.items()])


_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.binary() if name in ("path", "extradata") else pa.string()) for name in _STRINGS),
        *(pa.field(name, pa.from_numpy_dtype(dtype)) for name, dtype in _NUMBERS.items()),
        pa.field("packets", pa.large_list(_struct(_PACKET))),
        pa.field("groups", pa.large_list(_struct(_GROUP))),
        pa.field("frames", pa.large_list(pa.int32())),
    ],
    metadata={_VERSION_KEY: VERSION},
)


def refuse_unfit(track: VideoTrack, where: str) -> VideoTrack:
    """Return the track. Raises FormatError for one whose times or packets are too large for the numbers of an index."""
    packets = track.packets
    steps = packets.dts[1:] - packets.dts[:-1]
    if any(
        len(one) and max(-int(one.min()), int(one.max())) > _MAX_STEP for one in (steps, packets.pts - packets.dts, packets.size)
    ):
        raise FormatError(f"{where}: its times leap by more than {_MAX_STEP} units, or a packet is as large; get the file again")
    return track


def _packed(track: VideoTrack) -> dict[str, NDArray[Any]]:
    packets = track.packets
    step = np.zeros(len(packets), np.int64)
    np.subtract(packets.dts[1:], packets.dts[:-1], out=step[1:])
    return {
        "step": step,
        "delay": packets.pts - packets.dts,
        "offset": packets.offset,
        "size": packets.size,
        "is_key": packets.is_key,
    }


def _groups(track: VideoTrack) -> dict[str, NDArray[Any]]:
    return {"packet": track.group_packet, "frame": track.group_frame}


def _text(name: str, entry: VideoEntry) -> bytes:
    if name == "path":
        return os.fsencode(entry.source.path)
    if name == "problem":
        return entry.problem.encode(errors="backslashreplace")
    if entry.track is None:
        return b""
    value = getattr(entry.track.coding, name)
    return value if isinstance(value, bytes) else str(value).encode()


def _number_row(entry: VideoEntry) -> dict[str, int]:
    source, track = entry.source, entry.track
    row = dict.fromkeys(_NUMBERS, 0)
    row |= {"start": source.start, "nbytes": source.nbytes, "file_nbytes": entry.file_nbytes, "mtime_ns": entry.mtime_ns}
    if track is not None:
        coding = track.coding
        row |= {"width": coding.width, "height": coding.height, "rotation": coding.rotation}
        row |= {"time_num": track.time_base[0], "time_den": track.time_base[1], "shift": track.shift}
        row |= {"changes_parameters": int(coding.changes_parameters), "num_frames": len(track)}
        row["num_others"] = track.num_others
        if track.packets.framing is not None:
            row |= {"ts_stride": track.packets.framing.stride, "ts_pid": track.packets.framing.pid}
        row["first_dts"] = int(track.packets.dts[0]) if len(track.packets) else 0
    return row


def _joined(parts: Sequence[Any], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype) for part in parts)])


def _strings(array: pa.Array) -> tuple[NDArray[np.int32], memoryview]:
    _, ends, data = array.buffers()
    return np.frombuffer(ends, np.int32, len(array) + 1), memoryview(b"" if data is None else data)


def _list(array: pa.Array) -> tuple[Ints, pa.Array]:
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1), array.values
