"""Videos to a small network that tells actions: clips that share their decoding, one crop for each; goes on where it was stopped.

python examples/train_actions.py                       # makes videos of dots that move in four ways
python examples/train_actions.py path/to/videos        # a folder with a folder of videos for each action

Pip: gpu-datapipe[video]
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

ACTIONS = {"down": (0, 1), "left": (-1, 0), "right": (1, 0), "up": (0, -1)}


def write_videos(path: Path, num: int) -> None:
    """Write videos of two seconds, in which dots drift in one direction; one frame alone does not say in which."""
    for action, (x_step, y_step) in ACTIONS.items():
        (path / action).mkdir(parents=True, exist_ok=True)
        for number in range(num):
            rng = np.random.default_rng([number, *map(ord, action)])
            places, size = rng.integers(0, 80, (12, 2)), 80
            colours = rng.integers(80, 255, (12, 3))
            with av.open(str(path / action / f"{number}.mp4"), "w") as output:
                stream = output.add_stream("libx264", rate=30, options={"preset": "veryfast", "x264-params": "keyint=30"})
                stream.width = stream.height = size
                stream.pix_fmt = "yuv420p"
                for time in range(60):
                    frame = rng.integers(0, 30, (size, size, 3)).astype(np.uint8)
                    for (x, y), colour in zip((places + time * np.array([x_step, y_step])) % size, colours, strict=True):
                        frame[y : y + 6, x : x + 6] = colour
                    output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
                output.mux(stream.encode(None))


class SmallNetwork(nn.Module):
    """Convolutions over time and space; (b, t, 3, h, w) float32 -> (b, classes)."""

    def __init__(self, num_classes: int, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        layers = [
            nn.Sequential(nn.Conv3d(one, other, 3, stride=(1, 2, 2), padding=1), nn.BatchNorm3d(other), nn.ReLU())
            for one, other in itertools.pairwise(sizes)
        ]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(sizes[-1], num_classes))

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        return self.layers(video.transpose(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to tell the actions in videos.")
    parser.add_argument("videos", type=Path, nargs="?", help="a folder of classes; none: videos are made")
    parser.add_argument("--out", type=Path, default=Path("actions-out"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--videos-per-class", type=int, default=12, help="that are made")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    videos = arguments.videos or arguments.out / "videos"
    if arguments.videos is None and not videos.exists():
        write_videos(videos, arguments.videos_per_class)

    torch.manual_seed(0)
    data = dp.Clips(videos, frames=8, stride=2, step=8)
    transform = [T.RandomCrop(64), T.ToDtype(torch.float32, scale=True)]
    loader = dp.DataLoader(data, batch_size=16, shuffle=True, seed=0, drop_last=True, transform=transform)
    assert data.classes is not None, "put videos in a folder for each action"
    model = SmallNetwork(len(data.classes)).to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first, kept = 0, arguments.out / "last.pt"
    if kept.exists():
        last = torch.load(kept)
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        loader.load_state_dict(last["loader"])
        first = last["epoch"]

    for epoch in range(first, arguments.epochs):
        losses, num_right, num = [], 0, 0
        for batch in loader:
            scores = model(batch["video"])
            loss = nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            num_right += int((scores.argmax(1) == batch["label"]).sum())
            num += len(scores)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {num_right / num:.0%} of clips right", flush=True)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "epoch": epoch + 1,
        }
        torch.save(state, kept)


if __name__ == "__main__":
    main()
