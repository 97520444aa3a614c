"""Spoken words to a small network that tells them: random crops, log-mel features; goes on where it was stopped.

python examples/train_keywords.py                     # makes speech by espeak-ng, or of tones where that is not installed
python examples/train_keywords.py path/to/words       # a folder with a folder of sound files for each word

Pip: gpu-datapipe[audio]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

WORDS = ("yes", "no", "up", "down", "left", "right")
RATE = 16_000
VOICES = ("en-us", "en-gb", "en-gb-scotland", "en-029")


def write_words(path: Path, num: int) -> None:
    """Write each word in several voices, pitches and speeds, with some noise."""
    espeak = shutil.which("espeak-ng")
    for label, word in enumerate(WORDS):
        (path / word).mkdir(parents=True, exist_ok=True)
        for number in range(num):
            rng = np.random.default_rng([label, number])
            file = path / word / f"{number:03d}.wav"
            if espeak:
                voice, pitch, speed = VOICES[number % len(VOICES)], rng.integers(20, 80), rng.integers(130, 200)
                command = [espeak, "-v", voice, "-p", str(pitch), "-s", str(speed), "-w", str(file), word]
                subprocess.run(command, check=True, timeout=60)
                spoken, rate = soundfile.read(file, dtype="float32")
            else:  # two tones that glide, others for each word
                rate, times = RATE, np.arange(int(rng.uniform(0.5, 0.8) * RATE)) / RATE
                low, high = rng.uniform(0.9, 1.1) * np.array([200 + 60 * label, 1500 - 150 * label])
                spoken = 0.3 * np.sin(2 * np.pi * low * times) + 0.2 * np.sin(2 * np.pi * (high + 200 * times) * times)
            noise = rng.normal(0, rng.uniform(0.001, 0.02), len(spoken))
            soundfile.write(file, spoken + noise, rate)


class SmallNetwork(nn.Module):
    """Convolutions over time; (b, mels, t) float32 -> (b, classes)."""

    def __init__(self, num_mels: int, num_classes: int, width: int = 48) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(num_mels, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, num_classes),
        )  # fmt: skip

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        return self.layers((mel + 5) / 5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to tell spoken words.")
    parser.add_argument("words", type=Path, nargs="?", help="a folder of classes; none: speech is made")
    parser.add_argument("--out", type=Path, default=Path("keywords-out"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--files-per-word", type=int, default=40, help="that are made")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    words = arguments.words or arguments.out / "words"
    if arguments.words is None and not words.exists():
        write_words(words, arguments.files_per_word)

    torch.manual_seed(0)
    data = dp.Audio(words, seconds=0.8, rate=RATE)
    mel = T.LogMel(RATE, n_mels=40)
    loader = dp.DataLoader(data, batch_size=16, shuffle=True, seed=0, drop_last=True, batch_transform=mel)
    assert data.classes is not None, "put sound files in a folder for each word"
    model = SmallNetwork(mel.n_mels, len(data.classes)).to(loader.device)
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
            scores = model(batch["mel"])
            loss = nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            num_right += int((scores.argmax(1) == batch["label"]).sum())
            num += len(scores)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, {num_right / num:.0%} of words right", flush=True)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "epoch": epoch + 1,
        }
        torch.save(state, kept)


if __name__ == "__main__":
    main()
