"""Feeds damaged images to DALI, as far as its gate lets them through; a crash names the batch.

python tests/kinds/images/fuzz_images_dali.py --inputs 1000000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parents[1]), str(here.parents[2])]

from encoded_images import FOR_DALI

from datapipe.codecs.decode import checked_header
from datapipe.errors import DecodeError
from datapipe.kinds.images.dali.gate import CutForm, can_decode
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.transforms.protocols import Cuts

_BATCH = 64
_SIDE = 16
_MAX_PIXELS = 4_000_000  # a damaged size may be large: time is for many inputs


def damaged(rng: np.random.Generator) -> bytes:
    """One of the good files with bytes of its header replaced, left out or doubled, or bits of its pixels flipped."""
    files = list(FOR_DALI.values())
    data = bytearray(files[rng.integers(len(files))])
    scan = data.find(b"\xff\xda")
    header = scan + 12 if scan > 0 else 64
    first = int(rng.integers(2, header))
    last = int(rng.integers(first, min(len(data), first + 40)))
    match rng.integers(6):
        case 0 | 1 | 2:
            for place in rng.integers(2, header, rng.integers(1, 4)):
                data[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        case 3:
            del data[first:last]
        case 4:
            data[first:first] = data[first:last]
        case _:
            for place in rng.integers(header, len(data), rng.integers(1, 4)):
                data[place] ^= 1 << int(rng.integers(8))
    return bytes(data)


def cuts_within(sizes: np.ndarray, rng: np.random.Generator) -> Cuts:
    """Random regions, some of them whole images."""
    shares = np.where(rng.random((len(sizes), 1)) < 0.3, 1.0, rng.uniform(0.1, 1, sizes.shape))
    region = np.empty((len(sizes), 4), np.int64)
    region[:, 2:] = np.maximum(1, sizes * shares)
    region[:, :2] = rng.random(sizes.shape) * (sizes - region[:, 2:] + 1)
    window = np.tile([0, 0, _SIDE, _SIDE], (len(sizes), 1))
    return Cuts(region, window[:, 2:], window, np.zeros((len(sizes), 2), np.bool_))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pipeline = DaliPipeline(GraphOptions(_SIDE, _SIDE, _BATCH, None, CutForm(False, (0, 0, 0)), True, 2, 0.0))
    num_seen = num_failed = 0
    waiting: list[tuple[bytes, int, int]] = []
    for number in range(arguments.inputs):
        if number % _BATCH == 0:
            print("from input", number, flush=True)
        data = damaged(np.random.default_rng((arguments.seed, number)))
        try:
            header = checked_header(data)
        except DecodeError:
            continue
        if header.height * header.width <= _MAX_PIXELS and can_decode(data, header):
            waiting.append((data, header.height, header.width))
        if len(waiting) == _BATCH:
            encoded, heights, widths = zip(*waiting, strict=True)
            cuts = cuts_within(np.stack([heights, widths], axis=1), np.random.default_rng((arguments.seed, number, 1)))
            try:
                pipeline.run(encoded, cuts, None)
            except RunError:
                pipeline.forgive()
                num_failed += 1
            num_seen += _BATCH
            waiting.clear()
    print(f"{num_seen} of {arguments.inputs} inputs came as far as DALI, in batches of which {num_failed} failed")


if __name__ == "__main__":
    main()
