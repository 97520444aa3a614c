"""What tests of Transformers' Trainer run in processes of their own. Each returns plain values."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import datapipe as dp
from datapipe import transforms as T
from datapipe.adapt.hosts.trainer import LoaderMixin

BATCH, EVAL_BATCH = 6, 8


def make_loader(path: Path, **arguments: Any) -> dp.DataLoader:
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": True,
        "num_workers": 1,
        "output": {"image": "pixel_values", "label": "labels"},
        "transform": [T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True)],
    }
    return dp.DataLoader(path, **(options | arguments))


class Plain(nn.Module):
    """With a random state of its own to be restored."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make_model(kind: str = "vit") -> nn.Module:
    set_seed(0)
    if kind == "plain":
        return Plain()
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        num_labels=3, hidden_dropout_prob=0.1,
    )  # fmt: skip
    return ViTForImageClassification(config)


class Recording(LoaderMixin, Trainer):
    """Writes down which samples each step is given, also for a process that is killed."""

    written: Path

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        with self.written.open("a") as file:
            file.write(" ".join(map(str, inputs["id"].tolist())) + f" sum {inputs['pixel_values'].sum().item():.3f}\n")
        return super().training_step(model, inputs, *rest)


class KillAt(TrainerCallback):
    """As the kernel does when memory is short."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(
    path: Path,
    directory: Path,
    loader: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    kill_at: int | None = None,
    resume: bool | str = False,
    kind: str = "vit",
) -> SimpleNamespace:
    arguments = TrainingArguments(
        output_dir=str(directory),
        **({
            "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": EVAL_BATCH,
            "num_train_epochs": 2,
            "save_strategy": "steps",
            "save_steps": 4,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "logging_strategy": "no",
            "seed": 3,  # and so the loader's
        } | (options or {})),
    )  # fmt: skip
    trainer = Recording(
        model=make_model(kind),
        args=arguments,
        train_dataset=make_loader(path, **(loader or {})),
        callbacks=[KillAt(kill_at)] if kill_at else [],
    )
    trainer.written = directory / f"steps-{arguments.process_index}-{os.getpid()}.txt"
    directory.mkdir(parents=True, exist_ok=True)
    error = ""
    try:
        trainer.train(resume_from_checkpoint=resume)
    except ValueError as exc:
        error = f"{type(exc).__name__}: {exc}"
    return SimpleNamespace(
        steps=read_log(trainer.written),
        global_step=trainer.state.global_step,
        epoch=trainer.state.epoch,
        error=error,
        weights=[round(float(value.sum()), 6) for value in trainer.model.state_dict().values()],
    )


EVAL = [T.Resize((16, 16)), T.ToDtype(torch.float32, scale=True)]


def read_log(path: Path) -> list[tuple[list[int], float]]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        ids, _, total = line.partition(" sum ")
        found.append(([int(number) for number in ids.split()], float(total)))
    return found


def evaluation_of_torchs_loader(path: Path) -> dict[str, float]:
    """The same metrics from a torch Dataset of the same images, through Trainer's own loader."""

    class Images(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            batches = list(make_loader(path, shuffle=False, batch_size=1, transform=EVAL))
            self.rows = [{"pixel_values": b["pixel_values"][0], "labels": int(b["labels"][0])} for b in batches]

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    arguments = TrainingArguments(output_dir="unused", per_device_eval_batch_size=EVAL_BATCH, use_cpu=True, report_to="none")
    evaluated: dict[str, float] = Recording(model=make_model(), args=arguments, eval_dataset=Images()).evaluate()
    return evaluated


def evaluate(path: Path, batch_size: int = EVAL_BATCH) -> SimpleNamespace:
    """An untrained model's metrics over our loader, and what was gathered for them."""
    arguments = TrainingArguments(output_dir="unused", per_device_eval_batch_size=batch_size, use_cpu=True, report_to="none")
    counted: list[Any] = []

    def count(prediction: Any) -> dict[str, float]:
        counted.append(prediction.label_ids.tolist())
        return {}

    loader = make_loader(path, shuffle=False, batch_size=batch_size, transform=EVAL)
    trainer = Recording(model=make_model(), args=arguments, eval_dataset={"some": loader}, compute_metrics=count)
    metrics = trainer.evaluate()
    predicted = trainer.predict(loader).predictions.shape
    return SimpleNamespace(metrics=metrics, labels=counted[0], predicted=predicted)


def resume_without_mixin(path: Path, directory: Path) -> str:
    """A Trainer whose `get_train_dataloader` alone is ours."""

    class PlainTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return make_loader(path)

        def _prepare_inputs(self, inputs: Any) -> Any:
            return super()._prepare_inputs({name: value for name, value in inputs.items() if name != "id"})

    arguments = TrainingArguments(
        output_dir=str(directory), per_device_train_batch_size=BATCH, num_train_epochs=2, use_cpu=True, report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = PlainTrainer(model=make_model(), args=arguments, train_dataset=[None])
    try:
        trainer.train(resume_from_checkpoint=True)
    except ValueError as exc:
        return f"{type(exc).__name__}: {exc}"
    return "trained"
