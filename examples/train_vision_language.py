"""Pictures and questions to a small vision-language model: conversations packed into rows, trained by hand or by Trainer.

python examples/train_vision_language.py                       # makes pictures of coloured shapes, and asks what they are
python examples/train_vision_language.py --trainer             # the same by Transformers' Trainer
python examples/train_vision_language.py --data llava.json --root images --model Qwen2.5-VL-3B-Instruct

The model is a Qwen2-VL of random weights, 1 million of them; `--model` gives only the tokenizer, the template and the processor.

Pip: gpu-datapipe[tokens] torchvision
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration, Trainer, TrainingArguments

import datapipe as dp
from converters import ConvertOptions, Tokenizing, convert
from datapipe.adapt.hosts.trainer import LoaderMixin
from datapipe.kinds.conversations import trial_data

OF_MODEL = ["input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw"]


class LoaderTrainer(LoaderMixin, Trainer):
    """Takes loaders where Trainer takes datasets."""


def small_model(folder: Path, vocab_size: int) -> Qwen2VLForConditionalGeneration:
    """Return a Qwen2-VL with random weights for the tokens of a model's folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start, stop, image = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"])
    text = {
        "vocab_size": vocab_size, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 4]},
        "use_cache": False,  # with a cache, transformers does not keep the conversations of a row apart
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 96, "num_heads": 4, "mlp_ratio": 2}
    ids = {"image_token_id": image, "vision_start_token_id": start, "vision_end_token_id": stop}
    torch.manual_seed(0)
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **ids))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small vision-language model on packed conversations.")
    parser.add_argument("--data", type=Path, help="LLaVA's JSON, or what else `datapipe convert` takes; made if it is left out")
    parser.add_argument("--root", type=Path, help="the folder of the images that the data names")
    parser.add_argument("--model", type=Path, help="a model's folder, whose tokenizer and processor are used")
    parser.add_argument("--out", type=Path, default=Path("vlm-out"))
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row, those of images included")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num", type=int, default=600, help="conversations that are made")
    parser.add_argument("--trainer", action="store_true", help="train with Transformers' Trainer")
    arguments = parser.parse_args()
    data, model = arguments.data, arguments.model
    if data is None:
        data, model = arguments.out / "made" / "conversations.json", arguments.out / "made" / "model"
        if not data.exists():
            data.parent.mkdir(parents=True, exist_ok=True)
            trial_data.make(data, arguments.num)
    shards = arguments.out / "shards"
    if not (shards / "dataset.json").exists():
        tokens = Tokenizing.of(model, chat_template="auto")
        convert(ConvertOptions(data, shards, to="tokens", form="conversations", root=arguments.root, tokens=tokens))
    loader = dp.DataLoader(dp.Conversations(shards, arguments.length, model, fields=OF_MODEL), 1, shuffle=True, seed=0)
    (train_by_trainer if arguments.trainer else train)(arguments, loader, small_model(model, loader.dataset.vocab_size))


def train(arguments: argparse.Namespace, loader: Any, model: Any) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(arguments.epochs):
        losses = []
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f} per token, in {len(losses)} rows", flush=True)


def train_by_trainer(arguments: argparse.Namespace, loader: Any, model: Any) -> None:
    settings = TrainingArguments(
        str(arguments.out / "trainer"),
        per_device_train_batch_size=1,
        num_train_epochs=arguments.epochs,
        learning_rate=2e-3,
        logging_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = LoaderTrainer(model, settings, train_dataset=loader)
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    for epoch, loss in enumerate(losses):
        print(f"epoch {epoch}: loss {float(loss):.3f} per token", flush=True)


if __name__ == "__main__":
    main()
