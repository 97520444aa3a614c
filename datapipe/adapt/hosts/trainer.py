"""Hugging Face Transformers' `Trainer`, which makes its loaders itself, and makes torch's of any other when it resumes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import trainer as host

from datapipe.adapt.hosts.accelerate import OurLoader, PreparedLoader, SkippedLoader, check_fits, is_our_loader
from datapipe.errors import DependencyError, OptionError
from datapipe.kinds.images.data import Images

_ADDED = ("id", "real")  # what a loader adds to a batch besides fields


class LoaderMixin:
    """A Trainer that takes datapipe's loaders where it takes datasets: `class MyTrainer(LoaderMixin, Trainer)`.

    `train_dataset`, `eval_dataset` (a dict of them too) and `predict` may be given loaders with `output="dict"` and names that
    the model's forward knows; datasets are handled by Trainer. `per_device_train_batch_size` and `per_device_eval_batch_size`
    must be the loaders'. "id" and "real" do not reach the model, unless `remove_unused_columns=False`. With
    `resume_from_checkpoint` the loader continues after the last step in the checkpoint, decoding nothing before it.
    """

    def get_train_dataloader(self: Any) -> Any:
        """Return the training loader: the one given as `train_dataset`, or Trainer's."""
        if not is_our_loader(self.train_dataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        check_fits(self.accelerator, self.train_dataset)
        _check_batches(self.train_dataset, self._train_batch_size, "per_device_train_batch_size")
        return self.train_dataset

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> Any:
        """Return an evaluation loader: the one given as `eval_dataset`, or Trainer's."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        if not is_our_loader(chosen):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._prepared(chosen)

    def get_test_dataloader(self: Any, test_dataset: Any) -> Any:
        """Return the loader of a prediction: the one given, or Trainer's."""
        if not is_our_loader(test_dataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._prepared(test_dataset)

    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        """Train as Trainer does, resuming without decoding the steps already done."""
        with _skipping():
            return super().train(*arguments, **options)  # type: ignore[misc]

    def _prepared(self: Any, loader: OurLoader) -> PreparedLoader:
        check_fits(self.accelerator, loader)
        _check_batches(loader, self.args.eval_batch_size, "per_device_eval_batch_size")
        return PreparedLoader(loader)

    def _prepare_inputs(self: Any, inputs: Any) -> Any:
        if self.args.remove_unused_columns and isinstance(inputs, dict):
            inputs = {name: value for name, value in inputs.items() if name not in _ADDED}
        return super()._prepare_inputs(inputs)  # type: ignore[misc]


def _check_batches(loader: Any, expected: int, name: str) -> None:
    are_images = isinstance(getattr(loader, "dataset", None), Images)  # batches of other kinds are dicts
    if are_images and loader.options.output != "dict" and loader.collate_fn is None:
        raise OptionError(
            "Trainer needs batches by name, and the loader's are tuples; pass output='dict', or the model's names, such as "
            "output={'image': 'pixel_values', 'label': 'labels'}"
        )
    if loader.batch_size != expected:
        raise OptionError(
            f"the loader has batch_size={loader.batch_size}, Trainer assumes {expected} samples per step and process "
            f"(in its logs, and for the weight of the last batch in a loss); pass {name}={loader.batch_size}"
        )


@contextmanager
def _skipping() -> Iterator[None]:
    """Replace the function through which Trainer resumes, as it would make torch's loader of any other."""
    torchs = getattr(host, "skip_first_batches", None)
    if torchs is None:
        raise DependencyError(
            "this release of transformers does not resume through trainer.skip_first_batches, which LoaderMixin replaces; "
            "use a release that docs/hosts.md names"
        )

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        return SkippedLoader(loader, num_batches) if is_our_loader(loader) else torchs(loader, num_batches)

    host.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        host.skip_first_batches = torchs
