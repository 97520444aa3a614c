"""Recognise videos, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import Any

import numpy as np

from datapipe.codecs.video.transport import BEGINNING_NBYTES, Framing
from datapipe.containers.form import Form
from datapipe.containers.listing import is_image_name, is_video_name
from datapipe.core.printable import counted, listed
from datapipe.errors import OptionError
from datapipe.index.clips import VideoParts
from datapipe.index.manifest import MANIFEST_NAME
from datapipe.index.videos import VideoIndex
from datapipe.opening.videos.lerobot import is_lerobot, open_cameras
from datapipe.opening.videos.opening import are_video_shards, open_parts
from datapipe.stores.location import is_url, parse_place

_LOOKED_AT = 200  # videos, spread over all
_MAX_SHOWN = 5  # bad videos
_FAR_FRAMES = 120  # between key frames: decoding a clip begins at the one before


def claim(path: str, form: Form | None = None) -> VideoParts | None:
    """Return the videos of a folder, or a video; None for what is none, and for folders that hold images too.

    Of a LeRobot dataset they are those of all cameras.
    """
    if form is not None:
        if form.has_choices:
            raise OptionError(f"{path}: --root, --field, --class-from and --class-map have no effect on clips; leave them out")
        return open_parts(path)[0]
    if is_lerobot(path):
        return open_cameras(parse_place(path))
    if is_video_name(os.fsencode(path)) or are_video_shards(path):
        return open_parts(path)[0]
    if is_url(path) or os.path.lexists(os.path.join(path, MANIFEST_NAME)):
        return None
    return open_parts(path)[0] if os.path.isdir(path) and _holds_videos(path) else None


def _holds_videos(path: str) -> bool:
    """Return True for a folder with videos, in it or in a folder in it, and no images."""
    is_found = False
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        encoded = [os.fsencode(name) for name in names]
        if any(map(is_image_name, encoded)):
            return False
        is_found = is_found or any(_is_video(folder, name) for name in names)
    return is_found


def _is_video(folder: str, name: str) -> bool:
    """Return True if a file's name says that it is a video, and it is no TypeScript, which shares the ending `.ts`."""
    if not name.lower().endswith(".ts"):
        return is_video_name(os.fsencode(name))
    path = os.path.join(folder, name)
    if not os.path.isfile(path):  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return Framing.of(file.read(BEGINNING_NBYTES)) is not None
    except OSError:
        return False


def describe(parts: VideoParts, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of videos, JSON-safe, and draw a contact sheet of them if asked."""
    if args.tokenizer is not None:
        raise OptionError(f"--tokenizer: {args.path} holds videos, and no token ids; leave it out")
    videos = parts.videos
    facts = _facts(videos) | {
        "parts": len(parts),
        "classes": None if parts.classes is None else len(parts.classes),
        "labels": len({*parts.labels.tolist()}) if parts.has_labels else None,
    }
    if args.grid is not None:
        from datapipe.kinds.clips.contact_sheet import draw_sheet

        draw_sheet(parts, args.grid, num_videos=args.num)
        facts["grid"] = str(args.grid)
    return facts


def _facts(videos: VideoIndex) -> dict[str, Any]:
    good = np.flatnonzero(videos.num_frames > 0)
    bad = np.flatnonzero(videos.num_frames == 0).tolist()
    some = good[np.unique(np.linspace(0, len(good) - 1, min(len(good), _LOOKED_AT)).astype(np.int64))] if len(good) else good
    tracks = [videos.track(number) for number in some.tolist()]
    seconds = [float(track.times[-1] - track.times[0]) for track in tracks]
    rates = [(len(track) - 1) / length for track, length in zip(tracks, seconds, strict=True) if length > 0]
    groups = [len(track) / len(track.group_frame) for track in tracks]
    return {
        "container": "videos",
        "videos": len(videos),
        "frames": int(videos.num_frames.sum()),
        "bytes": sum(videos.source(number).nbytes for number in good.tolist()),
        "looked_at": {
            "videos": len(tracks),
            "codecs": dict(Counter(track.coding.codec for track in tracks).most_common()),
            "sizes": {f"{w} x {h}": n for (h, w), n in Counter(track.coding.shown_size for track in tracks).most_common(5)},
            "median_seconds": float(np.median(seconds)) if seconds else None,
            "median_fps": float(np.median(rates)) if rates else None,
            "median_frames": int(np.median([len(track) for track in tracks])) if tracks else None,
            "median_frames_per_group": float(np.median(groups)) if groups else None,
            "several_tracks": sum(track.num_others > 0 for track in tracks),
            "rotated": sum(track.coding.rotation != 0 for track in tracks),
        },
        "bad": [videos.problem(number) for number in bad[:_MAX_SHOWN]],
        "num_bad": len(bad),
    }


def as_text(path: str, facts: dict[str, Any]) -> str:
    """Return the facts as text for people."""
    seen = facts["looked_at"]
    frames = f"{counted(facts['frames'], 'frame')} in all"
    lines = [f"{path}: {counted(facts['videos'], 'video')}, {frames}, {facts['bytes'] / 1e6:,.1f} MB"]
    if facts["classes"] is not None:
        lines.append(f"  classes   {facts['classes']:,}")
    if seen["videos"]:
        codecs = ", ".join(f"{name} ({num})" for name, num in seen["codecs"].items())
        rate = "" if seen["median_fps"] is None else f", {seen['median_fps']:.3g} frames a second"
        lines += [
            f"  looked at {counted(seen['videos'], 'video')}: {codecs}; {listed([*seen['sizes']], most=3)} pixels",
            f"  median    {seen['median_seconds']:.1f} s, {counted(seen['median_frames'], 'frame')}{rate}",
            f"  groups    of {seen['median_frames_per_group']:.3g} frames: decoding a clip begins at the key frame before it",
        ]
        if seen["median_frames_per_group"] > _FAR_FRAMES:
            lines.append("  advice    key frames lie far apart: per_visit=8 or more decodes each group for more clips at once")
        if seen["several_tracks"]:
            having = counted(seen["several_tracks"], "video")
            lines.append(f"  tracks    {having} with several of video: read is the one that is marked as default, or the first")
        if seen["rotated"]:
            lines.append(f"  rotated   {counted(seen['rotated'], 'video')}, shown as a player turns them")
    if facts["num_bad"]:
        lines.append(f"  bad       {counted(facts['num_bad'], 'video')} cannot be decoded; skip_bad=True leaves them out")
        lines += [f"    {reason}" for reason in facts["bad"]]
    if "grid" in facts:
        lines.append(f"  sheet     {facts['grid']}")
    return "\n".join(lines)
