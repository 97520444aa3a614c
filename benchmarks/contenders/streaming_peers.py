"""LitData and MosaicML Streaming, reading from the benchmark's server as their documentation shows it, with PIL and torchvision.

    python -m benchmarks.contenders.streaming_peers write litdata FOLDER OUT
    python -m benchmarks.contenders.streaming_peers read mds '{"source": ..., "cache_dir": ..., "num_images": ..., ...}'

Runs in an environment of its own, which has those libraries. Both download whole shards into `cache_dir`, empty at the start.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.contenders.torchvision_transforms import import_torchvision, transforms_of
from benchmarks.server_time import Span

_SHARD_NBYTES = 32 << 20


def _samples(folder: Path) -> Iterator[tuple[Path, int]]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for label, name in enumerate(names):
        for path in sorted((folder / name).iterdir()):
            yield path, label


def encoded(sample: tuple[str, int]) -> dict[str, Any]:
    """What both store: the file's own bytes."""
    return {"image": Path(sample[0]).read_bytes(), "label": sample[1]}


def write(peer: str, folder: Path, out: Path) -> None:
    """Write the images of a folder in shuffled order, as both advise, in shards of 32 MiB."""
    samples = [(str(path), label) for path, label in _samples(folder)]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = [samples[number] for number in order]
    if peer == "litdata":
        litdata = importlib.import_module("litdata")
        litdata.optimize(encoded, shuffled, output_dir=str(out), chunk_bytes=_SHARD_NBYTES, num_workers=2)
        return
    if peer == "lance":
        lance, pyarrow = importlib.import_module("lance"), importlib.import_module("pyarrow")
        lance.write_dataset(pyarrow.Table.from_pylist([encoded(sample) for sample in shuffled]), str(out))
        return
    streaming = importlib.import_module("streaming")
    with streaming.MDSWriter(columns={"image": "bytes", "label": "int"}, out=str(out), size_limit=_SHARD_NBYTES) as writer:
        for sample in shuffled:
            writer.write(encoded(sample))


class Decoded:
    """Makes tensors of what a dataset yields."""

    def __init__(self) -> None:
        self._transform = transforms_of()

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO(sample["image"])) as image:
            return self._transform(image.convert("RGB")), int(sample["label"])


def _litdata(source: str, cache_dir: str, batch_size: int, num_workers: int) -> Any:
    litdata = importlib.import_module("litdata")
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    directory = importlib.import_module("litdata.streaming.resolver").Dir(path=cache_dir, url=source)
    downloader = importlib.import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # its client takes https alone, the server here is http
    dataset = litdata.StreamingDataset(
        directory, shuffle=True, drop_last=True, storage_options={**options, **keys}, transform=Decoded()
    )
    return litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True)


def _mds(source: str, cache_dir: str, batch_size: int, num_workers: int) -> Any:
    streaming = importlib.import_module("streaming")
    importlib.import_module("streaming.base.util").clean_stale_shared_memory()  # of a run that was cut off
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    decoded = Decoded()

    class Images(streaming.StreamingDataset):  # type: ignore[name-defined, misc]
        def __getitem__(self, place: Any) -> tuple[torch.Tensor, int]:
            return decoded(super().__getitem__(place))

    dataset = Images(remote=source, local=cache_dir, shuffle=True, batch_size=batch_size)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True)


def read(
    peer: str, *, source: str, cache_dir: str, num_images: int, num_workers: int, batch_size: int, warmup: int
) -> dict[str, float]:
    """Images/s of the first epoch, after `warmup` batches."""
    loader = (_litdata if peer == "litdata" else _mds)(source, cache_dir, batch_size, num_workers)
    batches = iter(loader)
    for _ in range(warmup):
        next(batches)
    done, span = 0, Span()
    while done < num_images:
        done += len(next(batches)[0])
    return span.rates(done)


def main() -> None:
    import_torchvision()
    action, peer, *rest = sys.argv[1:]
    if action == "write":
        write(peer, Path(rest[0]), Path(rest[1]))
    else:
        print(json.dumps(read(peer, **json.loads(rest[0]))), flush=True)


if __name__ == "__main__":
    main()
