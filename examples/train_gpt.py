"""Text files to a small GPT: a tokenizer, token shards, packed rows, exact loss; goes on where it was stopped.

python examples/train_gpt.py docs                      # any folder of .txt and .md files
torchrun --nproc-per-node 2 examples/train_gpt.py docs

Pip: gpu-datapipe[tokens]
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F

import datapipe as dp
from converters import ConvertOptions, Tokenizing, convert


class Block(nn.Module):
    """Attention within documents, and a network for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norms[1](x))


class SmallGPT(nn.Module):
    """A decoder-only transformer over packed rows: tokens see those before them in their own document."""

    def __init__(self, vocab_size: int, length: int, *, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        is_same = documents[:, None, :, None] == documents[:, None, None, :]
        mask = is_same & torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        x = self.tokens(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def write_tokenizer(texts: Path, path: Path, vocab_size: int) -> None:
    """Train a byte-level BPE on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    files = [str(file) for pattern in ("*.txt", "*.md") for file in sorted(texts.rglob(pattern))]
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<|end|>"], initial_alphabet=alphabet))
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on a folder of texts.")
    parser.add_argument("texts", type=Path, help="a folder of .txt and .md files")
    parser.add_argument("--out", type=Path, default=Path("gpt-out"))
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch-size", type=int, default=8, help="rows per process and micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step of the optimizer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=2000)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    tokenizer, tokens = arguments.out / "tokenizer.json", arguments.out / "tokens"
    if is_first and not (tokens / "dataset.json").exists():
        write_tokenizer(arguments.texts, tokenizer, arguments.vocab_size)
        convert(ConvertOptions(arguments.texts, tokens, to="tokens", tokens=Tokenizing.of(tokenizer, eos="<|end|>")))
    if dist.is_initialized():
        dist.barrier()
    train(arguments, tokens, is_first=is_first)
    if dist.is_initialized():
        dist.barrier()  # no process leaves while another still uses the group
        gc.collect()  # what is left of the model holds the group, whose threads must be gone before the interpreter is
        dist.destroy_process_group()


def train(arguments: argparse.Namespace, tokens: Path, *, is_first: bool) -> None:
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
    data = dp.Tokens(tokens, arguments.length, balance="step", accumulate=arguments.accumulate)
    loader = dp.DataLoader(data, arguments.batch_size, shuffle=True, drop_last=True, seed=0, device=device)
    torch.manual_seed(0)
    model = SmallGPT(data.vocab_size, arguments.length).to(device)
    model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world_size = dist.get_world_size() if dist.is_initialized() else 1

    last = arguments.out / "last.pt"
    first_epoch = 0
    if last.exists():  # of a run that was stopped, on any number of ranks
        state = torch.load(last, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first_epoch = state["epoch"]
    for epoch in range(first_epoch, arguments.epochs):
        total = num = 0.0
        for step, batch in enumerate(loader):
            logits = model(batch["input_ids"], batch["position_ids"], batch["document_ids"])
            # Labels are the tokens themselves, -100 where a document begins: the logits of a place predict the next one.
            lost = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
            # By the labels of the whole step on all ranks, so that accumulation and ranks change nothing; DDP divides by ranks.
            (lost * world_size / batch["loss_tokens"]).backward()
            if (step + 1) % arguments.accumulate == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            total, num = total + lost.item(), num + (batch["labels"][:, 1:] != -100).sum().item()
        if is_first:
            print(f"epoch {epoch}: loss {total / num:.3f} per token, over {num:,.0f} tokens of rank 0", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(state | {"epoch": epoch + 1}, last.with_suffix(".new"))
            os.replace(last.with_suffix(".new"), last)


if __name__ == "__main__":
    main()
