"""Clips that a worker on another machine decodes: what it is asked, and how it does so, as `ClipDecoder` does here.

A request has all that is needed of the index: the packets and frames of the groups of pictures that hold the clips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from datapipe.codecs.probe import MAX_PIXELS
from datapipe.codecs.video.conversion import Resize
from datapipe.codecs.video.depth import Depth
from datapipe.codecs.video.track import VideoCoding, VideoPackets, VideoTrack
from datapipe.codecs.video.transport import Framing
from datapipe.errors import FormatError
from datapipe.fetch.files import Files
from datapipe.index.clips import Camera, ClipFrames
from datapipe.index.media import MediaSource
from datapipe.kinds.clips.decoding import ClipDecoder, decoded_dtype, takes_depth
from datapipe.order.draws import Draws, Ints
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.wire import (
    MAX_ROWS,
    Bad,
    DrawsForm,
    array_of,
    bytes_of,
    draws_of,
    form_of_draws,
    packed,
    packed_request,
    place_of,
    placed,
    unpacked,
)
from datapipe.transforms import Recipe
from datapipe.transforms.naming import named, recipe_named

_MAX_PACKETS = 1 << 22  # of a request: hours of video
_ANY_SIZE = (48, 64)


class ClipRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How frames are made: the transforms by their names, of which the geometry is carried out."""

    transforms: list[Any]
    resize: Literal["exact", "fast"]


class TrackForm(msgspec.Struct, frozen=True, array_like=True):
    """A `VideoTrack`, and the file that holds it."""

    path: bytes
    start: int
    nbytes: int
    codec: str
    extradata: bytes
    width: int
    height: int
    pixel_format: str
    rotation: int
    changes_parameters: bool
    time_base: tuple[int, int]
    shift: int
    framing: tuple[int, int] | None
    pts: bytes
    dts: bytes
    offset: bytes
    size: bytes
    is_key: bytes
    frame_packet: bytes
    group_packet: bytes
    group_frame: bytes


class ClipRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clips of one run to be decoded."""

    recipe: msgspec.Raw
    track: TrackForm
    depth: tuple[float, float, float, bool] | None
    num_clips: int
    num_frames: int  # of a clip
    frames: bytes  # of all clips, of the track; -1: none
    draws: DrawsForm
    shape: list[int]  # of what is made: (k, t, h, w, c), or (u, h, w, c) with `rows`
    rows: bytes | None


def packed_recipe(recipe: Recipe, resize: Resize) -> bytes:
    """Return a recipe as it is sent."""
    return packed(ClipRecipe(named(recipe), resize.value))


def asked(
    recipe: bytes,
    track: VideoTrack,
    source: MediaSource,
    depth: Depth | None,
    frames: Ints,
    draws: Draws,
    out: torch.Tensor,
    rows: Ints | None,
) -> bytes:
    """Return the request for clips. `frames`: (k, t) of the track, -1: none. `out`, `rows`: as for `ClipDecoder.decode`."""
    present = frames[frames >= 0]
    part, first = track.around(int(present.min()), int(present.max()) + 1)
    body = ClipRequest(
        msgspec.Raw(recipe),
        _form_of(part, source),
        None if depth is None else (depth.least, depth.most, depth.shift, depth.is_log),
        frames.shape[0],
        frames.shape[1],
        bytes_of(np.where(frames < 0, -1, frames - first)),
        form_of_draws(draws),
        list(out.shape),
        None if rows is None else bytes_of(rows),
    )
    return packed_request("clips", body)


class SentVideo:
    """The video of the request that is served; each has another number, as tracks are remembered by theirs."""

    def __init__(self) -> None:
        self._number = 0

    def hold(self, track: VideoTrack, source: MediaSource) -> int:
        """Hold a video in place of the one before, and return its number."""
        self._track, self._source = track, source
        self._number += 1
        return self._number

    def track(self, number: int) -> VideoTrack:
        return self._track

    def source(self, number: int) -> MediaSource:
        return self._source


@dataclass(frozen=True, slots=True)
class Served:
    """A decoder of the clips of one recipe and one kind of camera."""

    recipe: Recipe
    videos: SentVideo
    decoder: ClipDecoder


def serve(body: msgspec.Raw, desk: Desk) -> tuple[torch.Tensor, bytes]:
    """Decode the clips of a request; return them, and the answer. Raises FormatError, OptionError and what reading raises."""
    request = unpacked(body, ClipRequest)
    track, source = _track_of(request.track)
    num, each = request.num_clips, request.num_frames
    if not 0 < num * each <= MAX_ROWS or num < 1:
        raise FormatError(f"{num} clips of {each} frames are asked for, which is none, or too much at once")
    frames = array_of(request.frames, np.int64, num * each).reshape(num, each)
    if frames.min() < -1 or frames.max() >= len(track):
        raise FormatError("a clip is asked for with frames that its video does not have")
    files = desk.files([source.path])
    camera = Camera("video", each, None, depth=None if request.depth is None else _depth_of(request.depth))
    served = desk.opened(
        ("clips", bytes(request.recipe), camera, files),
        lambda: _open(unpacked(request.recipe, ClipRecipe), camera, files),
    )
    size = served.recipe.check_equal_sizes(track.coding.shown_size)
    rows = None if request.rows is None else array_of(request.rows, np.int64, num * each).reshape(num, each)
    first = (num, each) if rows is None else tuple(request.shape[:1])
    if tuple(request.shape) != (*first, *size, camera.channels):
        raise FormatError(f"clips of the shape {tuple(request.shape)!r:.60} are asked for, and frames are {size}")
    if rows is not None and (rows.min() < 0 or rows.max() >= request.shape[0]):
        raise FormatError("frames are asked for outside of the rows")
    out = desk.rows(request.shape, decoded_dtype(camera))
    number = served.videos.hold(track, source)
    clips = [ClipFrames(number, one, np.zeros(each, np.bool_)) for one in frames]
    bad = served.decoder.decode(0, clips, draws_of(request.draws, num), out, rows)
    return out, packed(Bad(sorted(bad)))


def _open(recipe: ClipRecipe, camera: Camera, files: Files) -> Served:
    whole = recipe_named(recipe.transforms)
    if camera.depth is not None and not takes_depth(whole, _ANY_SIZE):
        raise FormatError("depth is asked for with transforms that it cannot have")
    geometry, videos = whole.geometry_alone(), SentVideo()
    return Served(geometry, videos, ClipDecoder([camera], videos, geometry, files, Resize(recipe.resize)))


def _depth_of(form: tuple[float, float, float, bool]) -> Depth:
    depth = Depth(*form)
    if depth.problem:
        raise FormatError(depth.problem)
    return depth


def _form_of(track: VideoTrack, source: MediaSource) -> TrackForm:
    coding, packets = track.coding, track.packets
    return TrackForm(
        place_of(source.path),
        source.start,
        source.nbytes,
        coding.codec,
        coding.extradata,
        coding.width,
        coding.height,
        coding.pixel_format,
        coding.rotation,
        coding.changes_parameters,
        track.time_base,
        track.shift,
        None if packets.framing is None else (packets.framing.stride, packets.framing.pid),
        bytes_of(packets.pts),
        bytes_of(packets.dts),
        bytes_of(packets.offset),
        bytes_of(packets.size),
        bytes_of(packets.is_key, np.uint8),
        bytes_of(track.frame_packet),
        bytes_of(track.group_packet),
        bytes_of(track.group_frame),
    )


def _track_of(form: TrackForm) -> tuple[VideoTrack, MediaSource]:
    """Return the track that was sent, and where it lies. Raises FormatError."""
    num_packets, num_frames, num_groups = len(form.is_key), len(form.frame_packet) // 8, len(form.group_packet) // 8
    if max(num_packets, num_frames, num_groups) > _MAX_PACKETS or form.width * form.height > MAX_PIXELS:
        raise FormatError("a video of too many packets, or too large frames, is asked for")
    pts, dts, offset, size = (array_of(one, np.int64, num_packets) for one in (form.pts, form.dts, form.offset, form.size))
    if form.start < 0 or (len(offset) and (offset.min() < 0 or size.min() < 0)):
        raise FormatError("a packet is asked for before the beginning of its file")
    packets = VideoPackets(
        pts,
        dts,
        offset,
        size,
        array_of(form.is_key, np.uint8, num_packets).astype(np.bool_),
        None if form.framing is None else Framing(*form.framing),
    )
    track = VideoTrack(
        VideoCoding(
            form.codec, form.extradata, form.width, form.height, form.pixel_format, form.rotation, form.changes_parameters
        ),
        form.time_base,
        packets,
        array_of(form.frame_packet, np.int64, num_frames),
        form.shift,
        array_of(form.group_packet, np.int64, num_groups),
        array_of(form.group_frame, np.int64, num_groups),
    )
    return track, MediaSource(placed(form.path), form.start, form.nbytes)
