"""What tests of `from_torch` within hosts run in processes of their own. Each returns plain values."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import datapipe as dp

NUM, BATCH = 50, 6


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Samples that only their own code can make."""

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"id": torch.tensor(index), "x": torch.full((4,), index / NUM), "labels": torch.tensor([index / NUM])}


def make_loader(kind: str, root: Path, batch_size: int = BATCH) -> Any:
    """A torch loader taken over: of an image folder that datapipe sees through ("seen"), or of `Numbers` ("kept")."""
    if kind == "kept":
        torchs: Any = DataLoader(Numbers(), batch_size, shuffle=True, num_workers=1)
    else:
        from benchmarks.contenders.torchvision_transforms import import_torchvision

        import_torchvision()
        from torchvision import datasets, transforms

        chain = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
        torchs = DataLoader(datasets.ImageFolder(root, chain), batch_size, shuffle=True, num_workers=1)
    return dp.from_torch(torchs, seed=3, share_among_ranks=True)


def told(batch: Any) -> list[float]:
    """What a batch is known by: the ids of `Numbers`, or a number for each image."""
    if isinstance(batch, dict):
        return [float(one) for one in batch["id"]]
    return [float((image.double().flatten() * torch.arange(image.numel())).sum()) for image in batch[0]]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.layer(x) - labels) ** 2).mean(), "logits": self.layer(x)}


def with_lightning(kind: str, root: Path, options: dict[str, Any], stop: tuple[int, Path] | None, checkpoint: Path | None) -> Any:
    import lightning.pytorch as pl
    from lightning_runs import StopAt

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 1), list[list[float]]()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen.append(told(batch))
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    model = Module()
    host = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        max_epochs=2, callbacks=[StopAt(*stop)] if stop else [], **options,
    )  # fmt: skip
    with contextlib.suppress(InterruptedError):
        host.fit(model, make_loader(kind, root, BATCH // max(1, host.world_size)), ckpt_path=checkpoint)
    return model.seen


def with_accelerate(kind: str, root: Path, stop_after: int | None, directory: Path) -> list[list[float]]:
    from accelerate import Accelerator

    from datapipe.adapt.hosts.accelerate import prepare

    accelerator = Accelerator(cpu=True)
    _, loader = prepare(accelerator, nn.Linear(2, 2), make_loader(kind, root, BATCH // accelerator.num_processes))
    if directory.exists():
        accelerator.load_state(str(directory))
    first, seen = loader.state_dict()["epoch"], list[list[float]]()
    for _ in range(first, 2):
        for batch in loader:
            known = torch.tensor(told(batch), dtype=torch.float64)
            seen.append(accelerator.gather_for_metrics(known).tolist())
            if len(seen) == stop_after:
                accelerator.save_state(str(directory))
                accelerator.end_training()
                return seen
    accelerator.end_training()
    return seen


def with_trainer(directory: Path, options: dict[str, Any], resume: bool) -> list[list[float]]:
    """The ids of each step, appended to those of earlier runs."""
    from transformers import Trainer, TrainingArguments

    from datapipe.adapt.hosts.trainer import LoaderMixin

    seen: list[list[float]] = []

    class Taking(LoaderMixin, Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            seen.append(told(inputs))
            return super()._prepare_inputs(inputs)

    arguments = TrainingArguments(
        output_dir=str(directory), per_device_train_batch_size=BATCH, num_train_epochs=2, save_strategy="steps", save_steps=4,
        use_cpu=True, report_to="none", disable_tqdm=True, logging_strategy="no", **options,
    )  # fmt: skip
    trainer = Taking(model=Network(), args=arguments, train_dataset=make_loader("kept", directory))
    trainer.train(resume_from_checkpoint=resume)
    return seen
