"""The contenders of `benchmarks.tokens`: each reads, packs or encodes the same documents, in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTH, BATCH_SIZE, NUM_PROCESSES = 4096, 8, 2
PACKINGS = ("datapipe", "axolotl", "olmo-core", "trl")
BATCHES = ("datapipe", "datapipe, 2 threads", "torch, 2 workers", "torch, no workers", "grain, packing")
PEERS = frozenset(("axolotl", "olmo-core", "trl", "grain, packing"))
_MIN_S = 3.0  # of batches


def web_lengths(num: int) -> NDArray[np.int64]:
    """Lengths of documents in tokens, as those of web pages."""
    rng = np.random.default_rng(0)
    return np.clip(np.exp(rng.normal(np.log(415), 1.13, num)), 16, 200_000).astype(np.int64)


def write_corpus(path: Path, nbytes: int) -> tuple[Path, int]:
    """Write documents as JSON lines, and train a tokenizer on them; return its path, and the number of documents.

    The tokenizer divides texts into words by Qwen 2's pattern. fastokens has code for the patterns of known models, and
    takes five times as long by any other.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(0)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    texts: list[str] = []
    total = 0
    while total < nbytes:
        for file in files:
            text = file.read_text(encoding="utf-8", errors="ignore")
            while text and total < nbytes:
                num = int(min(max(rng.lognormvariate(7.4, 1.2), 64), 200_000))
                texts.append(text[:num])
                text, total = text[num:], total + num
    rng.shuffle(texts)
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    tokenizer = Tokenizer(models.BPE())
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:8000], trainer)
    tokenizer.save(str(path.with_name("tokenizer.json")))
    return path.with_name("tokenizer.json"), len(texts)


def write_documents(path: Path, num: int) -> Path:
    """Write documents of random ids as datatrove does."""
    lengths = web_lengths(num)
    path.mkdir()
    np.random.default_rng(1).integers(1, 50_000, int(lengths.sum())).astype("<u2").tofile(path / "x.ds")
    np.cumsum(lengths).astype("<u8").tofile(path / "x.ds.index")
    return path


def convert(name: str, corpus: Path, tokenizer: Path) -> float:
    """Return bytes of text per second, by two processes."""
    with tempfile.TemporaryDirectory(dir=corpus.parent) as scratch:
        started = time.perf_counter()
        if name == "datapipe":
            from converters import ConvertOptions
            from converters import convert as run
            from converters.tokenizer import Tokenizing

            tokens = Tokenizing.of(tokenizer, eos="<|endoftext|>")
            nbytes = max(1_000_000, corpus.stat().st_size // 4)
            out = Path(scratch) / "out"
            options = ConvertOptions(corpus, out, to="tokens", tokens=tokens, num_workers=NUM_PROCESSES, shard_nbytes=nbytes)
            run(options)
        else:
            jobs = [(str(corpus), str(tokenizer), f"{scratch}/{number}", number) for number in range(NUM_PROCESSES)]
            with multiprocessing.get_context("spawn").Pool(NUM_PROCESSES) as pool:
                pool.map(_by_reference, jobs)
        return corpus.stat().st_size / (time.perf_counter() - started)


def _by_reference(job: tuple[str, str, str, int]) -> None:
    """Encode every other document by `tokenizers`, in batches, and write the ids."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    corpus, path, out, number = job
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    with open(corpus) as lines, open(out, "wb") as file:
        batch: list[str] = []
        for place, line in enumerate(lines):
            if place % NUM_PROCESSES == number:
                batch.append(json.loads(line)["text"])
            if len(batch) == 256:
                _write(tokenizer, batch, file)
                batch.clear()
        _write(tokenizer, batch, file)


def _write(tokenizer: Any, batch: list[str], file: Any) -> None:
    for one in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
        file.write(np.array([*one.ids, 0], np.uint16).tobytes())


def pack(name: str, documents: Path, tokenizer: Path) -> float:
    """Return documents per second, packed into rows of 4,096, of lengths that fit."""
    lengths = np.minimum(web_lengths(262_144), LENGTH)
    if name == "datapipe":
        from datapipe.packing.fit import best_fit

        return _timed(lengths, lambda some: best_fit(some, LENGTH), 65_536)
    if name == "axolotl":
        from axolotl.utils.samplers.multipack import pack_group

        return _timed(lengths, lambda some: pack_group(some, 0, LENGTH, len(some), 100_000), 65_536, num=65_536)
    if name == "olmo-core":
        from olmo_core.data.utils import InstancePacker

        def packed(some: NDArray[np.int64]) -> None:
            ends = np.cumsum(some)
            InstancePacker(LENGTH).pack_documents(np.stack([ends - some, ends], axis=1))

        return _timed(lengths, packed, 65_536, num=65_536)
    from datasets import Dataset
    from trl import pack_dataset

    some = lengths[:16_384]
    data = Dataset.from_dict({"input_ids": [np.zeros(num, np.int32) for num in some.tolist()]})
    started = time.perf_counter()
    pack_dataset(data, LENGTH, "bfd", {"keep_in_memory": True})
    return len(some) / (time.perf_counter() - started)


def _timed(lengths: NDArray[np.int64], packed: Any, window: int, num: int | None = None) -> float:
    """Return documents per second, after a first window that warms up."""
    packed(lengths[:4096])
    lengths = lengths[:num]
    started = time.perf_counter()
    for first in range(0, len(lengths), window):
        packed(lengths[first : first + window])
    return len(lengths) / (time.perf_counter() - started)


def batches(name: str, documents: Path, tokenizer: Path) -> float:
    """Return tokens per second of batches of eight packed rows, with labels, positions and document ids."""
    if name == "grain, packing":
        return _grain(documents)
    import datapipe as dp

    data = dp.Tokens(documents, LENGTH)
    loader: Any
    if name.startswith("datapipe"):
        loader = dp.DataLoader(data, BATCH_SIZE, shuffle=True, seed=0, num_workers=2 if "threads" in name else 0)
    else:
        loader = _torch(data, documents, 0 if "no workers" in name else 2)
    return _rate(loader, lambda batch: int(batch["input_ids"].numel()))


def _rate(loader: Any, num_of: Any) -> float:
    """Return tokens per second, over whole passes, after a first one."""
    for _ in loader:
        pass
    num, started = 0, time.perf_counter()
    while time.perf_counter() - started < _MIN_S:
        num += sum(num_of(batch) for batch in loader)
    return num / (time.perf_counter() - started)


def _torch(data: Any, documents: Path, num_workers: int) -> Any:
    """The same packs from a map-style Dataset, as people write it by hand."""
    import torch

    segments = data.corpora[0].packs.segments(np.arange(len(data)), seed=None, epoch=0)
    bounds = np.searchsorted(segments.row, np.arange(len(data) + 1))
    starts = data.index.shard(0).offset // 2
    tokens = np.memmap(documents / "x.ds", "<u2", "r")

    class Packed(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            ids, labels = np.zeros(LENGTH, np.int64), np.full(LENGTH, -100, np.int64)
            positions, numbers = np.zeros(LENGTH, np.int64), np.full(LENGTH, -1, np.int32)
            at = 0
            for part in range(bounds[row], bounds[row + 1]):
                num = int(segments.num[part])
                first = int(starts[segments.document[part]] + segments.first[part])
                ids[at : at + num] = tokens[first : first + num]
                labels[at + 1 : at + num] = ids[at + 1 : at + num]
                positions[at : at + num] = np.arange(num)
                numbers[at : at + num] = part - bounds[row]
                at += num
            found = {"input_ids": ids, "labels": labels, "position_ids": positions, "document_ids": numbers}
            return {name: torch.from_numpy(value) for name, value in found.items()}

    return torch.utils.data.DataLoader(
        Packed(), BATCH_SIZE, shuffle=True, num_workers=num_workers, persistent_workers=bool(num_workers)
    )


def _grain(documents: Path) -> float:
    import grain
    from grain import experimental

    ends = np.fromfile(documents / "x.ds.index", "<u8").astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    tokens = np.memmap(documents / "x.ds", "<u2", "r")

    class Documents:
        def __len__(self) -> int:
            return len(ends)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"input_ids": tokens[starts[number] : min(ends[number], starts[number] + LENGTH)].astype(np.int64)}

    def loader() -> Any:
        data = grain.MapDataset.source(Documents()).shuffle(seed=0).to_iter_dataset()
        packed = experimental.FirstFitPackIterDataset(data, length_struct={"input_ids": LENGTH}, num_packing_bins=8)
        return packed.batch(BATCH_SIZE)

    num, started = 0, time.perf_counter()
    for batch in loader():
        num += batch["input_ids"].size
        if time.perf_counter() - started > 2 * _MIN_S:
            break
    return num / (time.perf_counter() - started)


if __name__ == "__main__":
    part, name, where, tokenizer = sys.argv[1:]
    print(json.dumps({"convert": convert, "pack": pack, "batches": batches}[part](name, Path(where), Path(tokenizer))))
