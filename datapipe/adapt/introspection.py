"""Find out what a torch loader reads and does, as far as datapipe certainly gives the same."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from PIL import ImageFile
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, default_collate

from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn, is_in_order, is_plain_shuffle, sampler_of
from datapipe.datasets import SeenStream, Unseen, see_through, webdataset_stream
from datapipe.errors import OptionError
from datapipe.index.concat import AnyIndex
from datapipe.kernel.drawing import may_draw
from datapipe.kernel.seeding import SeedSource
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import flatten


@dataclass(frozen=True, slots=True)
class Introspection:
    """A torch loader's files and transforms, and the arguments with which datapipe does the same."""

    index: AnyIndex
    recipe: Recipe
    arguments: dict[str, Any]
    fields: tuple[str, ...] | None = None  # of a batch; None: those that data of others has
    in_workers: str | None = None  # why torch's workers must run what follows our decoding; None: they need not
    notes: tuple[str, ...] = ()  # differences from the torch loader


def introspect(
    loader: TorchDataLoader, seed: SeedSource, *, shares: bool, takes_cut_files: bool, draws_in_workers: bool
) -> Introspection | Unseen:
    """Return what a loader reads and does, or why that cannot be determined.

    `takes_cut_files`: whether truncated files must stay images if Pillow is set to accept them. `draws_in_workers`: whether a
    collate_fn that may draw random numbers is left to torch's workers. Raises OptionError for a loader that torch could not
    run either.
    """
    if takes_cut_files and ImageFile.LOAD_TRUNCATED_IMAGES:
        return Unseen("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, and to datapipe truncated files are bad samples")
    stream = webdataset_stream(loader.dataset)
    if isinstance(stream, SeenStream):
        return _of_stream(loader, stream, seed, shares=shares)
    if isinstance(stream, str):
        return Unseen(stream)
    if isinstance(loader.dataset, IterableDataset):
        return Unseen("it is an IterableDataset, which has no place that could be saved")
    if loader.batch_sampler is None:
        return Unseen("batch_size=None asks for single samples")
    seen = see_through(loader.dataset)
    if isinstance(seen, Unseen):
        return seen
    if not seen.gives_tuples:
        return Unseen("its samples are dicts of PIL images, meant for its collate_fn")
    recipe = Recipe.of(seen.transform, input_kind="pil")
    why = recipe.rest_reason or _needs_workers(loader, seen.transform, recipe, draws=draws_in_workers)
    if why is not None and not recipe.rest:
        recipe = Recipe.of([seen.transform, handover_point], input_kind="pil")
    arguments = arguments_of(loader, seed, shares=shares)
    return _with_any_sizes(Introspection(seen.index, recipe, arguments, in_workers=why))


def _of_stream(loader: TorchDataLoader, stream: SeenStream, seed: SeedSource, *, shares: bool) -> Introspection | Unseen:
    if (loader.batch_size is None) == (stream.batch_size is None):
        return Unseen("its batches are made by the loader and by the webdataset pipeline, or by neither")
    if stream.batch_size is not None and has_collate_fn(loader):
        return Unseen("its collate_fn takes the batches that the webdataset pipeline has made")
    recipe = Recipe.of(stream.transform, input_kind="pil")
    why = recipe.rest_reason or _needs_workers(loader, stream.transform, recipe, draws=False)
    if why is not None:  # torch's workers could not split what datapipe decodes
        return Unseen(why)
    notes = ["its buffered shuffle became one of all samples, which resumes exactly"] if stream.shuffles else []
    if loader.num_workers > 1:
        notes.append("batches are made of all shards together, not of the shards of each worker")
    arguments = _stream_arguments(loader, stream, seed, shares=shares)
    return _with_any_sizes(Introspection(stream.index, recipe, arguments, fields=stream.fields, notes=tuple(notes)))


def _needs_workers(loader: TorchDataLoader, transform: object, recipe: Recipe, *, draws: bool) -> str | None:
    """Return why torch's workers must give the samples as the transforms leave them; None if they need not.

    `draws`: whether a collate_fn that may draw random numbers is a reason.
    """
    if not all(map(callable, flatten(transform))):  # datapipe's own transforms, which torch cannot call
        return None
    collates = has_collate_fn(loader)
    if recipe.output_kind == "pil" and not collates and not isinstance(loader.dataset, IterableDataset):
        raise OptionError(
            "from_torch: the dataset's transforms leave PIL images, which torch cannot batch (its default_collate raises "
            "TypeError); end them with ToTensor(), or give the loader a collate_fn"
        )
    if recipe.output_kind == "pil":
        return "its samples are PIL images"
    if collates and recipe.output_kind == "image":
        return "its collate_fn takes tv_tensors.Image"
    if collates and loader.worker_init_fn is not None and loader.num_workers:
        return "its worker_init_fn prepares workers for its collate_fn"
    if collates and draws and (what := may_draw(loader.collate_fn)) is not None:
        return f"its collate_fn may draw random numbers (it uses {what})"
    return None


def _with_any_sizes(found: Introspection) -> Introspection:
    """Let torch's default_collate stack images that may differ in size; it raises an error if they do."""
    size = found.recipe.output_size(found.index.manifest.image_size)
    arguments = found.arguments
    if (
        found.in_workers is not None
        or size is not None
        or arguments["collate_fn"] is not None
        or arguments.get("batch_size") == 1
    ):
        return found
    note = "no crop or resize makes its images equal in size, so torch's default_collate stacks them"
    return dataclasses.replace(found, arguments={**arguments, "collate_fn": default_collate}, notes=(*found.notes, note))


def handover_point(image: Any) -> Any:
    """Return the image unchanged. Marks the point in a chain of transforms from which torch's workers continue."""
    return image


def as_default_collate(batch: Any, memory_format: torch.memory_format) -> list[Any]:
    """Return a datapipe batch as torch's default_collate would: a list, its images in that memory format."""
    images, *others = batch
    return [images.contiguous(memory_format=memory_format), *others]


# -- arguments -----------------------------------------------------------------------------------------


def arguments_of(loader: TorchDataLoader, seed: SeedSource, *, shares: bool = False) -> dict[str, Any]:
    """Return torch's arguments as those of `datapipe.DataLoader`.

    `shares`: ranks share the samples even without a DistributedSampler. Raises OptionError if a sampler of the user's
    decides instead.
    """
    arguments = {**_common_arguments(loader, seed), **({} if shares else {"ranks": (0, 1)})}
    if loader.prefetch_factor not in (None, 2):  # 2 is torch's default
        arguments["prefetch_factor"] = loader.prefetch_factor * max(1, loader.num_workers)
    batches = loader.batch_sampler
    is_plain = is_plain_shuffle(loader) or is_in_order(loader)
    if shares and not is_plain:
        raise OptionError(
            f"share_among_ranks=True: a {type(sampler_of(loader)).__qualname__} decides the order, for its rank alone; "
            "leave it out, or give the loader shuffle=True or no sampler instead"
        )
    if type(batches) is not BatchSampler:
        return {**arguments, "batch_sampler": batches}
    sampler = batches.sampler
    arguments |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if is_plain:
        return {**arguments, "shuffle": type(sampler) is RandomSampler}
    if isinstance(sampler, DistributedSampler):
        arguments |= {"ranks": (sampler.rank, sampler.num_replicas)}
    return {**arguments, "sampler": sampler}


def _stream_arguments(loader: TorchDataLoader, stream: SeenStream, seed: SeedSource, *, shares: bool = False) -> dict[str, Any]:
    """Return the arguments of a stream and its loader as datapipe's; a stream that every rank reads whole has no ranks."""
    return {
        **_common_arguments(loader, seed),
        "batch_size": loader.batch_size or stream.batch_size,
        "shuffle": stream.shuffles,
        "drop_last": stream.drop_last or loader.drop_last,
        **({} if stream.splits_by_node or shares else {"ranks": (0, 1)}),
    }


def _common_arguments(loader: TorchDataLoader, seed: SeedSource) -> dict[str, Any]:
    return {
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if has_collate_fn(loader) else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        **({"generator": seed} if isinstance(seed, torch.Generator) else {"seed": seed}),
    }
