"""Open videos, and say what they are, in facts and in words."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np

from datapipe.containers.form import Form, refuse_choices
from datapipe.containers.forms import LEROBOT
from datapipe.core.printable import counted, listed
from datapipe.core.ranges import spread
from datapipe.index.clips import VideoParts
from datapipe.index.videos import VideoIndex
from datapipe.opening.videos.lerobot import open_cameras
from datapipe.opening.videos.opening import open_parts
from datapipe.stores.places import parse_place

_LOOKED_AT = 200  # videos, spread over all
_MAX_SHOWN = 5  # bad videos
_FAR_FRAMES = 120  # between key frames: decoding a clip begins at the one before


def open_place(path: str, form: Form) -> VideoParts:
    """Return the videos of a folder, a file, a list or shards. Of a LeRobot dataset they are those of all cameras."""
    refuse_choices(path, form, "clips")
    return open_cameras(parse_place(path)) if form.name == LEROBOT else open_parts(path)[0]


def describe(parts: VideoParts, args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of videos, JSON-safe, and draw a contact sheet of them if asked."""
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
    some = good[spread(len(good), _LOOKED_AT)]
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
