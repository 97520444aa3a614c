"""Hugging Face Transformers: `Trainer` over our loaders, with a small ViT; killed at any moment, the same command resumes.

datapipe convert photos shards --to webdataset --split train=0.9,val=0.1
python examples/trainer_vit.py shards/train shards/val
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import datapipe as dp
from datapipe import transforms as T
from datapipe.adapt.hosts.trainer import LoaderMixin
from datapipe.diagnostics.hosts.trainer import add_monitor

NAMES = {"image": "pixel_values", "label": "labels"}
NORMALIZE = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5] * 3, [0.5] * 3)]


class LoaderTrainer(LoaderMixin, Trainer):
    """Takes loaders where Trainer takes datasets."""


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    predicted: Any = prediction.predictions
    return {"accuracy": float(np.mean(predicted.argmax(1) == prediction.label_ids)), "samples": len(predicted)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small ViT with Transformers' Trainer.")
    parser.add_argument("train")
    parser.add_argument("validation")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--directory", type=Path, default=Path("vit"))
    arguments = parser.parse_args()
    options: dict[str, Any] = {"batch_size": arguments.batch_size, "output": NAMES}
    crop = [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), *NORMALIZE]
    train = dp.DataLoader(arguments.train, shuffle=True, transform=crop, **options)
    validation = dp.DataLoader(arguments.validation, transform=[T.Resize(72), T.CenterCrop(64), *NORMALIZE], **options)
    config = ViTConfig(
        image_size=64, patch_size=16, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        num_labels=len(train.dataset.classes),
    )  # fmt: skip
    trainer = LoaderTrainer(
        ViTForImageClassification(config),
        TrainingArguments(
            str(arguments.directory),
            per_device_train_batch_size=arguments.batch_size,
            per_device_eval_batch_size=arguments.batch_size,
            num_train_epochs=arguments.epochs,
            max_steps=arguments.max_steps,
            learning_rate=1e-3,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=train,
        eval_dataset=validation,
        compute_metrics=accuracy,
    )
    add_monitor(trainer)  # writes a line if data starves the training
    trainer.train(resume_from_checkpoint=any(arguments.directory.glob("checkpoint-*")) or None)
    found = trainer.evaluate()
    print(f"step {trainer.state.global_step}: {found['eval_accuracy']:.2f} of {found['eval_samples']} right")


if __name__ == "__main__":
    main()
