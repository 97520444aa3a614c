"""Tokens on the GPU: are batches the host's, are packed documents apart, how long does a network wait for its rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.device import Device, open_device
from benchmarks.gpu.pace import bf16_step, first_and_steady, run_paced
from benchmarks.gpu.settings import Check
from benchmarks.gpu.token_feeds import FEEDS, Batch, open_ours

_COMPARED = 40  # batches
_PAD = -100


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: question ("parity", "apart", "train" or "rate"), file, length, rows; feed, warmup_s, seconds."""
    device = open_device(check.device)
    file, length, rows = Path(arguments["file"]), arguments["length"], arguments["rows"]
    if arguments["question"] == "parity":
        yield parity(file, length, rows, device)
        return
    if arguments["question"] == "apart":
        yield apart(file, length, rows, device, check)
        return
    batches = FEEDS[arguments["feed"]](file, length, rows, device.name)
    if arguments["question"] == "rate":
        found = rate(batches, device, arguments)
    else:
        torch.set_num_threads(1)  # the host only queues work
        step, losses = training_step(device.name, length, check)
        step(next(batches))
        device.synchronise()
        pace = run_paced(batches, step, device, warmup_s=arguments["warmup_s"], seconds=arguments["seconds"])
        found = {name: round(value, 5) for name, value in pace.summed_up(rows * length).items()}
        found["tokens_per_s"] = found.pop("images_per_s")
        found["is_loss_finite"] = bool(torch.isfinite(torch.stack(losses)).all())
    yield {"feed": arguments["feed"], **found}


def parity(file: Path, length: int, rows: int, device: Device) -> dict[str, Any]:
    """Batches on the device, while its stream is held, against the host's."""
    num_different = num_values = 0
    pairs = zip(open_ours(file, length, rows, device.name), open_ours(file, length, rows, "cpu"), strict=True)
    for (batch, expected), _ in zip(pairs, range(_COMPARED), strict=False):
        device.keep_busy(2.0)
        for name, values in expected.items():
            same = batch[name].cpu().equal(values) if isinstance(values, torch.Tensor) else batch[name] == values
            num_different += not same
            num_values += 1
    return {"num_compared": num_values, "num_different": num_different}


def apart(file: Path, length: int, rows: int, device: Device, check: Check) -> dict[str, Any]:
    """How far tokens' losses are from those of their documents alone: packed by `cu_seqlens`; by attention to all before."""
    torch.manual_seed(0)
    model = GPT(length, *check.pick((4, 256, 4), (2, 32, 2))).to(device.name)
    batch = next(iter(open_ours(file, length, rows, device.name, layout="flat")))
    ids, labels, positions, bounds = (batch[name] for name in ("input_ids", "labels", "position_ids", "cu_seqlens"))
    edges = bounds.tolist()
    with torch.no_grad(), torch.autocast(device.name, dtype=torch.bfloat16):
        attend = varlen_attention(bounds, batch["max_seqlen"]) if device.name == "cuda" else masked(batch["document_ids"][0])
        packed = model.losses(ids, labels, positions, attend)
        leaky = model.losses(ids, labels, positions, causal)
        whole = [slice(start, end) for start, end in itertools.pairwise(edges)]
        alone = torch.cat([model.losses(ids[:, part], labels[:, part], positions[:, part], causal) for part in whole])
    found = {name: round(float((losses - alone).abs().mean()), 6) for name, losses in (("packed", packed), ("leaky", leaky))}
    return {**found, "loss": round(float(alone.mean()), 4), "num_documents": len(edges) - 1}


def rate(batches: Iterator[Batch], device: Device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second from batch to batch, once it runs."""
    first_batch_s, taken = first_and_steady(batches, device, arguments, lambda batch: batch[0].numel())
    return {"tokens_per_s": round(taken.num / taken.wall_s), "first_batch_s": round(first_batch_s, 3)}


# -- a network -----------------------------------------------------------------------------------

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # (b, h, n, d) each


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def masked(documents: torch.Tensor) -> Attention:
    """Within documents, by a mask. documents: (n,)."""
    mask = (documents[:, None] == documents).tril()
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def varlen_attention(bounds: torch.Tensor, longest: int) -> Attention:
    """Within documents, by torch's kernel of variable lengths (2.10 and later), for one flat row."""
    from torch.nn.attention.varlen import varlen_attn

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
        found: Any = varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=(-1, 0))
        answer: torch.Tensor = found.transpose(0, 1)[None]
        return answer

    return attend


class Block(nn.Module):
    """Attention, then a network for each token; norms before both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, attend: Attention) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.first(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(*parts).transpose(1, 2).reshape(rows, length, width))
        answer: torch.Tensor = x + self.mlp(self.second(x))
        return answer


class GPT(nn.Module):
    """GPT-2's shape, with learned places."""

    def __init__(self, length: int, depth: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50_304) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def losses(self, ids: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        """Of each token, 0 where it has no label. ids, labels, positions: (b, n) int64; a label is the next token. -> (b * n,)"""
        x = self.tokens(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, attend)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_PAD, reduction="none")


def training_step(device: str, length: int, check: Check) -> tuple[Callable[[Batch], None], list[torch.Tensor]]:
    """See `bf16_step`; 124 M weights.

    Attention is causal over whole rows, as nanoGPT's is, so that all feeds give the network the same work.
    """
    torch.manual_seed(0)
    model = GPT(length, *check.pick((), (2, 32, 2))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")

    def loss_of(batch: Batch) -> torch.Tensor:
        ids, labels, positions = batch
        return model.losses(ids, labels, positions, causal).sum() / (labels != _PAD).sum()

    return bf16_step(loss_of, optimizer, device)
