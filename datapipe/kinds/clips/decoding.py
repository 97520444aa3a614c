"""Decode clips that lie close together: each frame once, cut for each clip that shows it."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.video.conversion import FrameConverter, Resize
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.depth import FORMAT, NUM_CODES, Depth
from datapipe.codecs.video.runs import reads_of, runs_of
from datapipe.codecs.video.track import ReadAt, VideoCoding, VideoTrack
from datapipe.errors import DecodeError
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.clips import AnyClips, Camera, ClipFrames, Tracks, track_of
from datapipe.index.entries import Extents
from datapipe.kernel.kind import Reason
from datapipe.kinds.clips.settings import ClipSettings
from datapipe.kinds.clips.table_images import TableImages
from datapipe.order.draws import Draws, Ints
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, cut_through, row_cuts

_Decode = Callable[[Ints], Iterator[tuple[int, Any]]]  # numbers of frames -> each with a frame, or a DecodeError
_Cut = Callable[[Any, dict[int, tuple[RowCut, ...]], dict[int, NDArray[Any]]], None]
_MM, _MOST_MM = 1000.0, 65535  # millimetres in a metre; the most that are told apart


class FrameDecoder(Protocol):
    """Decodes frames of videos, for one thread; see `VideoDecoder`."""

    def decode(self, track: VideoTrack, read: ReadAt, frames: Ints, /) -> Iterator[tuple[int, Any]]:
        """Yield the number of each wanted frame with the frame, a `VideoFrame` of PyAV, or the DecodeError that it has."""


class ClipDecoder:
    """Decodes clips for one thread. `recipe`: its geometry is carried out on each frame, with one draw for a clip.

    `images`: of cameras of images, if there are such. `decoder`: None: the CPU's.
    `resize`: EXACT: frames are resized as images are, by the transforms; FAST: by the converter, if all of the geometry is a
    crop, a bilinear resize and flips.
    """

    def __init__(
        self,
        cameras: Sequence[Camera],
        videos: Tracks,
        recipe: Recipe,
        files: Files,
        resize: Resize,
        *,
        images: TableImages | None = None,
        decoder: FrameDecoder | None = None,
    ) -> None:
        self._cameras, self._videos, self._recipe, self._files, self._resize = cameras, videos, recipe, files, resize
        self._images = images
        self._decoder: FrameDecoder = VideoDecoder() if decoder is None else decoder
        self._converter = FrameConverter(resize)
        self._memory = np.empty(0, np.uint8)  # of a frame, or a part of it, before it is cut

    def decode(
        self, camera: int, clips: Sequence[ClipFrames], draws: Draws, out: torch.Tensor, rows: Ints | None = None
    ) -> dict[int, Reason]:
        """Write what a camera shows of clips of one run into `out`, (k, t, h, w, c) of its `decoded_dtype`.

        Returns the bad clips, by their places. `draws`: those of the clips. `rows`: (k, t) where frames are written in `out`,
        (u, h, w, c) then, each once: for a geometry that cuts all clips alike. Raises MissingDataError or StorageError for a
        file that cannot be read.
        """
        shows: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by frame: clips, and places in them
        for clip, one in enumerate(clips):
            for place, frame in enumerate(one.frames.tolist()):
                shows[frame].append((clip, place))
        size, decoded, cut = self._source(camera, clips[0].video)
        chain = self._recipe.draw_cuts(draws, np.array([size] * len(clips), np.int64))
        steps = list(zip(*map(row_cuts, chain), strict=True))
        alike = _firsts(steps)
        depth = self._cameras[camera].depth
        pixels = out.numpy() if depth is None else out.numpy().view(np.uint16)
        bad: dict[int, Reason] = {}
        if -1 in shows:
            bad.update((clip, DecodeError(clips[clip].lacking)) for clip, _ in shows.pop(-1))
        for number, frame in decoded(np.array(sorted(shows), np.int64)):
            if isinstance(frame, DecodeError):
                bad.update((clip, frame) for clip, _ in shows[number] if clip not in bad)
                continue
            of_cut: dict[int, list[NDArray[Any]]] = defaultdict(list)  # where the results of each cut go
            for clip, place in shows[number]:
                if rows is None:
                    of_cut[alike[clip]].append(pixels[clip, place])
                elif not of_cut:
                    of_cut[alike[clip]].append(pixels[rows[clip, place]])
            how, firsts = {clip: steps[clip] for clip in of_cut}, {clip: targets[0] for clip, targets in of_cut.items()}
            try:
                cut(frame, how, firsts)
            except DecodeError as exc:
                bad.update((clip, exc) for clip, _ in shows[number] if clip not in bad)
                continue
            for first, *others in of_cut.values():
                for target in others:
                    target[:] = first
        return bad

    def _source(self, camera: int, video: int) -> tuple[tuple[int, int], _Decode, _Cut]:
        """Return the (height, width) of frames of a video, or of images, what decodes some, and what cuts one."""
        facts = self._cameras[camera]
        if facts.is_of_images:
            assert facts.size is not None
            assert self._images is not None
            return facts.size, functools.partial(self._images.decode, camera, facts.size), _cut_image
        track, source = track_of(self._videos, video), self._videos.source(video)
        read = self._files.reader(source.path, source.start)
        cut = self._cut if facts.depth is None else self._cut_depth
        return (
            track.coding.shown_size,
            functools.partial(self._decoder.decode, track, read),
            lambda frame, how, out: cut(frame, track.coding, how, out),
        )

    def _cut(
        self, frame: Any, coding: VideoCoding, steps: dict[int, tuple[RowCut, ...]], out: dict[int, NDArray[np.uint8]]
    ) -> None:
        """Write what each chain of cuts makes of a frame."""
        is_done = {key: self._resize is Resize.FAST and _is_crop_and_resize(chain) for key, chain in steps.items()}
        for key, chain in steps.items():
            if is_done[key]:
                self._converter.convert(frame, coding, out[key], region=chain[0].region)
                _flip(out[key], chain[0].flip)
        for key, chain in steps.items():
            if not is_done[key] and _is_nothing(chain, coding.shown_size):
                self._converter.convert(frame, coding, out[key])
                is_done[key] = True
        others = [key for key, done in is_done.items() if not done]
        if len(others) == 1:  # only what it needs of the frame
            chain = steps[others[0]]
            cut_through(self._converted(frame, coding, chain[0].region), chain, out[others[0]])
        elif others:
            height, width = coding.shown_size
            whole = self._converted(frame, coding, [0, 0, height, width])
            for key in others:
                top, left, height, width = steps[key][0].region
                cut_through(whole[top : top + height, left : left + width], steps[key], out[key])

    def _cut_depth(
        self, frame: Any, coding: VideoCoding, steps: dict[int, tuple[RowCut, ...]], out: dict[int, NDArray[np.uint16]]
    ) -> None:
        """Write what each cut makes of a frame of depth: the numbers that are stored, the nearest ones where it is resized."""
        if frame.format.name != FORMAT:
            frame = frame.reformat(format=FORMAT)
        for key, (step,) in steps.items():
            top, left, height, width = step.region
            is_whole = (height, width) == coding.shown_size
            self._converter.convert(frame, coding, out[key], region=None if is_whole else (top, left, height, width))
            _flip(out[key], step.flip)

    def _converted(self, frame: Any, coding: VideoCoding, region: list[int]) -> NDArray[np.uint8]:
        """Return the RGB of a region of a frame, in memory that the next call overwrites."""
        height, width = region[2:]
        nbytes = 3 * height * width
        if len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        pixels = self._memory[:nbytes].reshape(height, width, 3)
        is_whole = (height, width) == coding.shown_size
        self._converter.convert(frame, coding, pixels, region=None if is_whole else (region[0], region[1], height, width))
        return pixels


def _flip(pixels: NDArray[Any], flip: Sequence[bool]) -> None:
    vertically, horizontally = flip
    if vertically or horizontally:
        pixels[:] = pixels[:: -1 if vertically else 1, :: -1 if horizontally else 1].copy()


def frames_of(index: AnyClips, clips: Ints, camera: int) -> list[ClipFrames]:
    """Return the frames of clips that a camera shows."""
    return [index.frames(clip, camera) for clip in clips.tolist()]


def decoded_dtype(camera: Camera) -> torch.dtype:
    """Return the type of decoded frames: RGB is uint8, and depth the 16 bits of unsigned numbers, which torch calls signed."""
    return torch.uint8 if camera.depth is None else torch.int16


@functools.lru_cache(maxsize=64)
def _millimetres(depth: Depth) -> NDArray[np.float32]:
    """Return (4096,) the whole millimetres that each stored number means, by torch, whose rounding is LeRobot's."""
    low, high = depth.least, depth.most
    if depth.is_log:
        low, high = math.log(low + depth.shift), math.log(high + depth.shift)
    values = torch.arange(NUM_CODES, dtype=torch.float32).mul_((high - low) / (NUM_CODES - 1)).add_(low)
    if depth.is_log:
        values.exp_().sub_(depth.shift)
    values.clamp_(depth.least, depth.most).mul_(_MM).round_().clamp_(0, _MOST_MM)
    found: NDArray[np.float32] = values.numpy()
    return found


def write_depth(frames: torch.Tensor | list[torch.Tensor], depth: Depth, out: torch.Tensor) -> None:
    """Write the millimetres that t decoded frames of depth mean into (t, h, w, 1) float32."""
    table = _millimetres(depth)
    for target, frame in zip(out, frames, strict=True):
        np.take(table, frame.numpy().view(np.uint16), out=target.numpy(), mode="clip")


def takes_depth(recipe: Recipe, size: tuple[int, int]) -> bool:
    """Return True for a geometry that depth of this (height, width) can have: a region, resized, and flips."""
    chain = recipe.draw_cuts(Draws(0, 0, np.arange(16, dtype=np.int64)), np.array([size] * 16, np.int64))
    (cuts, *others) = chain
    return not others and all(one.window == [0, 0, *one.size] for one in row_cuts(cuts))


def _cut_image(image: NDArray[np.uint8], steps: Mapping[int, tuple[RowCut, ...]], out: Mapping[int, NDArray[np.uint8]]) -> None:
    """Write what each chain of cuts makes of an image."""
    for key, chain in steps.items():
        if _is_nothing(chain, (image.shape[0], image.shape[1])):
            out[key][:] = image
            continue
        top, left, height, width = chain[0].region
        cut_through(image[top : top + height, left : left + width], chain, out[key])


def clips_alone(index: AnyClips, settings: ClipSettings, clips: NDArray[np.int64]) -> dict[str, Any]:
    """Return the usual fields of clips, in the layout "BTCHW", uint8 and without transforms. Each clip is decoded by itself.

    Raises OptionError if videos differ in size, and the error of a clip that is bad.
    """
    recipe = Recipe.of(None)
    images = TableImages(index, RowGroups())
    decoder = ClipDecoder(index.cameras, index.videos, recipe.geometry_alone(), LocalFiles(), settings.resize, images=images)
    made: dict[str, Any] = {}
    for number, camera in enumerate(index.cameras):
        height, width = recipe.check_equal_sizes(camera.size, such_as="the videos differ in size")
        shape = (len(clips), camera.num_frames, height, width, camera.channels)
        pixels = torch.empty(shape, dtype=decoded_dtype(camera))
        for place in range(len(clips)):
            one = clips[place : place + 1]
            for reason in decoder.decode(
                number, frames_of(index, one, number), Draws(0, 0, one), pixels[place : place + 1]
            ).values():
                raise reason
        if camera.depth is not None:
            codes, pixels = pixels, torch.empty(shape)
            write_depth(codes.flatten(0, 1), camera.depth, pixels.flatten(0, 1))
        video = pixels.permute(0, 1, 4, 2, 3)
        made[camera.name] = video if camera.has_time else video.squeeze(1)
    for name in index.columns:
        values = index.values(name, clips)
        made[name] = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return made


def extents_of(index: AnyClips, clips: Ints, camera: int) -> Extents:
    """Return the ranges of the file that decoding what a camera shows of clips of one run reads; none of images in tables."""
    if index.cameras[camera].is_of_images:
        empty = np.zeros(0, np.int64)
        return Extents([], empty, empty, np.zeros(0, np.uint32), np.zeros(0, np.uint8), one_file_each=False)
    found = frames_of(index, clips, camera)
    track, source = track_of(index.videos, found[0].video), index.videos.source(found[0].video)
    frames = np.unique(np.concatenate([one.frames for one in found]))
    reads = [(start, nbytes) for run in runs_of(track, frames[frames >= 0]) for _, start, nbytes in reads_of(track.packets, run)]
    starts, sizes = (np.array(one, np.int64) for one in zip(*reads, strict=True)) if reads else (np.zeros(0, np.int64),) * 2
    num = len(reads)
    return Extents(
        [source.path] * num, source.start + starts, sizes, np.zeros(num, np.uint32), np.zeros(num, np.uint8), one_file_each=False
    )


def _is_crop_and_resize(steps: tuple[RowCut, ...]) -> bool:
    """Return True for cuts that only take a region, resize it, and flip the result."""
    first = steps[0]
    return len(steps) == 1 and first.window == [0, 0, *first.size] and first.interpolation == "bilinear"


def _is_nothing(steps: tuple[RowCut, ...], size: tuple[int, int]) -> bool:
    """Return True for cuts that leave a frame of this size as it is."""
    first, whole = steps[0], [0, 0, *size]
    return len(steps) == 1 and [first.region, first.window, first.size] == [whole, whole, [*size]] and not any(first.flip)


def _firsts(steps: list[tuple[RowCut, ...]]) -> list[int]:
    """Return for each clip the first one that is cut alike."""
    firsts: dict[str, int] = {}
    return [firsts.setdefault(repr(one), number) for number, one in enumerate(steps)]
