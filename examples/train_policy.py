"""Clone a demonstrator: two cameras and the state of an arm to its next actions, from a LeRobot dataset that the script makes.

python examples/train_policy.py                       # a hand that reaches for a red cube, 100 episodes
python examples/train_policy.py --epochs 20           # goes on where it was stopped

Pip: gpu-datapipe[video]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

FPS, LENGTH, SIZE, CHUNK = 10, 20, 64, 4  # frames a second and of an episode; pixels; actions that are predicted at once
TOP, WRIST = "observation.images.top", "observation.images.wrist"
SPEED, NEAR = 0.06, 0.05  # of the hand in a step, per axis; distance at which the cube is reached. The table is 1 x 1.


def views(hand: np.ndarray, cube: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the cameras see, (SIZE, SIZE, 3) uint8 each: the whole table, and that around the hand, twice as large."""
    found = []
    for centre, zoom in ((np.array([0.5, 0.5]), 1), (hand, 2)):
        picture = np.full((SIZE, SIZE, 3), 90, np.uint8)
        for thing, colour in ((cube, (220, 40, 40)), (hand, (60, 90, 230))):
            x, y = (((thing - centre) * zoom + 0.5) * SIZE).round().astype(int)
            half = 3 * zoom
            picture[max(0, y - half) : max(0, y + half), max(0, x - half) : max(0, x + half)] = colour
        found.append(picture)
    return found[0], found[1]


def scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return where the hand and the cube are at the beginning."""
    hand, cube = rng.uniform(0.1, 0.9, (2, 2))
    return hand, cube


def write_dataset(root: Path, num_episodes: int) -> None:
    """Write demonstrations as LeRobot does (version 3.0): one video of each camera, one table."""
    rng = np.random.default_rng(0)
    states, actions = [], []
    pictures: dict[str, list[np.ndarray]] = {TOP: [], WRIST: []}
    for _ in range(num_episodes):
        hand, cube = scene(rng)
        for _ in range(LENGTH):
            action = np.clip(cube - hand, -SPEED, SPEED)
            for name, picture in zip(pictures, views(hand, cube), strict=True):
                pictures[name].append(picture)
            states.append(hand.astype(np.float32))
            actions.append(action.astype(np.float32))
            hand = hand + action + rng.normal(0, 0.01, 2)  # so that corrections are demonstrated, too
    for name, frames in pictures.items():
        path = root / "videos" / name / "chunk-000" / "file-000.mp4"
        path.parent.mkdir(parents=True)
        with av.open(str(path), "w") as output:
            stream = output.add_stream("libx264", rate=FPS, options={"g": "2", "crf": "23"})
            stream.width = stream.height = SIZE
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            output.mux(stream.encode(None))
    episode, frame = np.divmod(np.arange(num_episodes * LENGTH), LENGTH)
    columns = {"timestamp": (frame / FPS).astype(np.float32), "frame_index": frame, "episode_index": episode}
    columns |= {"index": np.arange(len(frame)), "task_index": np.zeros(len(frame), np.int64)}
    start = np.arange(num_episodes) * LENGTH
    of_episodes = {"episode_index": np.arange(num_episodes), "length": np.full(num_episodes, LENGTH)}
    of_episodes |= {"dataset_from_index": start, "dataset_to_index": start + LENGTH}
    for what in ("data", f"videos/{TOP}", f"videos/{WRIST}"):
        of_episodes |= {f"{what}/{which}_index": np.zeros(num_episodes, np.int64) for which in ("chunk", "file")}
    for name in pictures:
        of_episodes |= {f"videos/{name}/from_timestamp": start / FPS, f"videos/{name}/to_timestamp": (start + LENGTH) / FPS}
    tables = {
        "data/chunk-000/file-000": {"observation.state": states, "action": actions, **columns},
        "meta/episodes/chunk-000/file-000": of_episodes,
        "meta/tasks": {"task_index": [0], "task": ["reach the cube"]},
    }
    for name, table in tables.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), root / f"{name}.parquet")
    features = {name: {"dtype": str(values.dtype), "shape": [1], "names": None} for name, values in columns.items()}
    features |= {name: {"dtype": "float32", "shape": [2], "names": ["x", "y"]} for name in ("observation.state", "action")}
    features |= {
        name: {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]} for name in pictures
    }
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "chunks_size": 1000}
    info |= {"total_episodes": num_episodes, "total_frames": len(frame), "total_tasks": 1, "robot_type": "none"}
    info |= {"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"}
    info |= {"video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"}
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=1))  # last: without it there is no dataset


class Policy(nn.Module):
    """Two cameras (b, 3, h, w) float32 and the state (b, 2) -> the next actions (b, CHUNK, 2), in steps of SPEED."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.eyes = nn.ModuleList([self.eye(width), self.eye(width)])
        self.head = nn.Sequential(nn.Linear(2 * 4 * width * 16 + 2, 128), nn.ReLU(), nn.Linear(128, 2 * CHUNK))

    @staticmethod
    def eye(width: int) -> nn.Module:
        layers = []
        for one, other in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
            layers += [nn.Conv2d(one, other, 3, stride=2, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten())

    def forward(self, top: torch.Tensor, wrist: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        seen = [eye(picture - 0.5) for eye, picture in zip(self.eyes, (top, wrist), strict=True)]
        return self.head(torch.cat([*seen, state], 1)).view(-1, CHUNK, 2)


def loss_of(policy: Policy, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean error of the actions, in steps of SPEED; those after the end of an episode do not count."""
    made = policy(batch[TOP], batch[WRIST], batch["observation.state"])
    return (made - batch["action"] / SPEED).abs()[~batch["action_is_pad"]].mean()


@torch.no_grad()
def success(policy: Policy, num: int, device: torch.device) -> float:
    """Return the share of new scenes in which the policy reaches the cube in the time of an episode."""
    scenes = [scene(np.random.default_rng([1, number])) for number in range(num)]
    hands, cubes = (np.stack(column) for column in zip(*scenes, strict=True))
    for _ in range(LENGTH):
        seen = [np.stack(pictures) for pictures in zip(*map(views, hands, cubes), strict=True)]
        top, wrist = (torch.from_numpy(one).to(device).permute(0, 3, 1, 2) / 255 for one in seen)
        actions = policy(top, wrist, torch.from_numpy(hands.astype(np.float32)).to(device))[:, 0].cpu().numpy()
        hands = hands + np.clip(actions, -1, 1) * SPEED
    return float((np.linalg.norm(hands - cubes, axis=1) < NEAR).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Clone a demonstrator from a LeRobot dataset.")
    parser.add_argument("--out", type=Path, default=Path("policy-out"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=100, help="that are made; one in ten is held out")
    arguments = parser.parse_args()
    root = arguments.out / "dataset"
    if not (root / "meta" / "info.json").exists():
        write_dataset(root, arguments.episodes)

    torch.manual_seed(0)
    num_train = arguments.episodes - max(1, arguments.episodes // 10)

    def loader_of(episodes: range, *, shuffle: bool) -> dp.DataLoader:
        fields = [TOP, WRIST, "observation.state", "action", "action_is_pad"]
        deltas = {"action": [time / FPS for time in range(CHUNK)]}
        data = dp.Clips(root, delta_timestamps=deltas, episodes=episodes, fields=fields)
        return dp.DataLoader(data, batch_size=32, shuffle=shuffle, seed=0, transform=[T.ToDtype(torch.float32, scale=True)])

    loader = loader_of(range(num_train), shuffle=True)
    held_out = loader_of(range(num_train, arguments.episodes), shuffle=False)
    policy = Policy().to(loader.device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    first, kept = 0, arguments.out / "last.pt"
    if kept.exists():
        last = torch.load(kept)
        policy.load_state_dict(last["policy"])
        optimizer.load_state_dict(last["optimizer"])
        loader.load_state_dict(last["loader"])
        first = last["epoch"]

    for epoch in range(first, arguments.epochs):
        losses = []
        for batch in loader:
            loss = loss_of(policy, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            of_held_out = np.mean([float(loss_of(policy, batch)) for batch in held_out])
        share = success(policy, 50, loader.device)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, held out {of_held_out:.3f}, cube reached {share:.0%}", flush=True)
        state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save({**state, "epoch": epoch + 1}, kept)


if __name__ == "__main__":
    main()
