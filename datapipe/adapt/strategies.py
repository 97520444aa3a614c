"""The ways in which datapipe takes over a torch loader, in the order in which `from_torch` tries them.

Each is a function of (facts, settings, why) that returns the loader in place of torch's, or the reason why it cannot: a sentence
without a capital. `why`: the reason for which the samples are left to torch's workers, as far as that is known by then.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from PIL import ImageFile
from torch.utils.data import default_collate

from datapipe.adapt.device_decoding import choose_decoder
from datapipe.adapt.episodes import compared_episodes
from datapipe.adapt.facts import LoaderFacts, TakeoverSettings
from datapipe.adapt.keys import handover_point
from datapipe.adapt.loaders import arguments_of, collation_of, common_arguments
from datapipe.adapt.whole_batches import gathered_rows
from datapipe.adapt.workers import AnyLoader, decoding_loader, gathering_loader, own_code_loader, unchanged_loader
from datapipe.datasets import DatasetFiles, converted_index, episode_source
from datapipe.deferral.own_code import reads_batches
from datapipe.errors import OptionError
from datapipe.kinds.clips.data import Clips
from datapipe.kinds.images.choice import asks_for_dali
from datapipe.kinds.images.data import Images, of_torch_dataset
from datapipe.kinds.images.samples import ImageSettings
from datapipe.kinds.loader import DataLoader
from datapipe.transforms import Recipe
from datapipe.transforms.lowering import flatten

OTHER_KIND = "its Dataset is none"  # the reason of a strategy for one kind of Dataset alone
_FAITHFUL = "faithful=True leaves its samples to them"


class Strategy(NamedTuple):
    """A way to take over a loader."""

    name: str
    take: Callable[[LoaderFacts, TakeoverSettings, str], AnyLoader | str]
    says_why: bool = False  # whether its reason is the one for which the samples are left to torch's workers


def lines_of_strategy(name: str, reasons: Sequence[tuple[str, str]], *, origin: str) -> tuple[str, ...]:
    """Return the lines of `explain` about the strategy that took a loader over, and why those before it did not.

    `reasons`: (name of the strategy, reason); `origin`: the line above, which may say one of them.
    """
    names: dict[str, list[str]] = {}
    for of, reason in reasons:
        names.setdefault("see `from`" if reason in origin else reason, []).append(of)
    return (f"strategy  {name}", *(f"          not {', '.join(of)}: {reason}" for reason, of in names.items()))


# -- read by datapipe's threads ------------------------------------------------------------------------


def read_files(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Read, decode and transform the files of torchvision's and Hugging Face's datasets, and `Subset`s of them."""
    if facts.is_pipeline:
        return OTHER_KIND
    files = _files(facts, settings)
    if isinstance(files, str):
        return files
    left = _left_to_workers(facts, settings)
    if settings.is_faithful:
        return _FAITHFUL
    if left is not None:
        return left
    arguments = arguments_of(facts.loader, settings.seed, shares=settings.shares)
    return _of_images(facts, settings, files, arguments)


def read_pipeline(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Read the shards of a webdataset pipeline, in datapipe's order."""
    if not facts.is_pipeline:
        return OTHER_KIND
    loader, files = facts.loader, _files(facts, settings)
    if isinstance(files, str):
        return files
    if (loader.batch_size is None) == (files.batch_size is None):
        return "its batches are made by the loader and by the webdataset pipeline, or by neither"
    if files.batch_size is not None and facts.collates:
        return "its collate_fn takes the batches that the webdataset pipeline has made"
    if (left := _left_to_workers(facts, settings)) is not None:
        return left
    if settings.is_faithful:
        return _FAITHFUL
    notes = ["its buffered shuffle became one of all samples, which resumes exactly"] if files.shuffles else []
    if loader.num_workers > 1:
        notes.append("batches are made of all shards together, not of the shards of each worker")
    arguments = {
        **common_arguments(loader, settings.seed),
        "batch_size": loader.batch_size or files.batch_size,
        "shuffle": files.shuffles,
        "drop_last": files.drop_last or loader.drop_last,
        **({} if files.splits_by_node or settings.shares else {"ranks": (0, 1)}),  # every rank reads it whole
    }
    return _of_images(facts, settings, files, arguments, *notes)


def read_episodes(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Read the clips of a LeRobotDataset, after some samples were made both ways and compared."""
    if facts.has_stages or episode_source(facts.dataset) is None:
        return OTHER_KIND
    if settings.differs("data"):
        return why
    if settings.is_faithful:
        return _FAITHFUL
    seen = compared_episodes(facts.loader)
    if isinstance(seen, str):
        return seen
    data, as_collated = seen
    note = f"equal to LeRobot's own code in {as_collated.num_compared} samples that were made both ways"
    arguments = arguments_of(facts.loader, settings.seed, shares=settings.shares)
    return _ours(facts, settings, data, "datapipe reads its videos and tables", note, batch_transform=as_collated, **arguments)


# -- read by torch's workers ---------------------------------------------------------------------------


def decode_in_workers(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Decode and cut images by datapipe in torch's workers, where the user's code does what follows."""
    files = _files(facts, settings)
    if facts.is_pipeline or isinstance(files, str) or facts.recipe is None:
        return why
    arguments_of(facts.loader, settings.seed, shares=settings.shares)  # refuses samplers that cannot be shared
    if settings.is_faithful:
        return _FAITHFUL
    recipe = facts.recipe if facts.recipe.rest else Recipe.of([files.transform, handover_point], input_kind="pil")
    if settings.defers and not recipe.saves_decoding:
        return "to decode whole images, and no more, costs more than Pillow"
    settings.refuse(why, "data", "on_error")
    _refuse_backend(settings, why)
    return decoding_loader(facts, settings, files, recipe, why)


def gather_batches(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Gather whole batches of tensors, of a Hugging Face dataset's columns, or of the arrays that a `__getitem__` slices."""
    _check_arguments(facts, settings, why)
    if facts.is_stream:
        return why
    rows = gathered_rows(facts.loader, tries=not settings.differs("on_error", "backend"))
    if rows is None and collation_of(facts.loader) is None:
        return "its collate_fn takes samples one by one"
    if rows is None:
        return "its samples are no rows of tensors or columns, nor slices of arrays that cost less gathered"
    _refuse_workers(settings, "whole batches are gathered from its memory in this process")
    _refuse_backend(settings, why)
    return gathering_loader(facts, settings, rows)


def run_own_code(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Run the Dataset's own code in torch's workers; images that it opens with Pillow are made together, unless switched off."""
    if facts.is_stream:
        return why
    if settings.is_faithful:
        _refuse_workers(settings, "faithful=True leaves the random state to torch's workers")
    decoding = choose_decoder(facts.loader, settings.backend, settings.place) if settings.defers else None
    if decoding is not None and decoding.dali is not None and settings.workers is not None:
        if asks_for_dali(settings.backend):
            raise OptionError("backend='dali' decodes here, and workers= elsewhere; leave one of them out")
        decoding = dataclasses.replace(decoding, dali=None, reason="workers on other machines decode on CPUs")
    if decoding is None:
        _refuse_backend(settings, why)
    return own_code_loader(facts, settings, why, decoding)


def leave_unchanged(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> AnyLoader | str:
    """Return the loader itself."""
    _refuse_backend(settings, why)
    _refuse_workers(settings, f"its batches are left to torch ({why})")
    return unchanged_loader(facts, settings, why)


STRATEGIES = (
    Strategy("files in datapipe's threads", read_files, says_why=True),
    Strategy("webdataset's shards in datapipe's threads", read_pipeline, says_why=True),
    Strategy("LeRobot's episodes in datapipe's threads", read_episodes, says_why=True),
    Strategy("files that torch's workers decode by datapipe", decode_in_workers),
    Strategy("whole batches gathered", gather_batches),
    Strategy("the Dataset's own code", run_own_code),
    Strategy("torch's loader as it is", leave_unchanged),
)


# -- what can be read ----------------------------------------------------------------------------------


def _files(facts: LoaderFacts, settings: TakeoverSettings) -> DatasetFiles | str:
    """Return the files of the Dataset, or why datapipe cannot read them in its place."""
    if not facts.has_stages and settings.on_error == "raise" and ImageFile.LOAD_TRUNCATED_IMAGES:
        return "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, and to datapipe truncated files are bad samples"
    return facts.files


def _left_to_workers(facts: LoaderFacts, settings: TakeoverSettings) -> str | None:
    """Return why torch's workers must give the samples as the transforms leave them; None if they need not.

    Raises OptionError for a loader that torch could not run either.
    """
    recipe, loader = facts.recipe, facts.loader
    assert recipe is not None
    assert isinstance(facts.files, DatasetFiles)
    if recipe.rest_reason is not None:
        return recipe.rest_reason
    if not all(map(callable, flatten(facts.files.transform))):  # datapipe's own transforms, which torch cannot call
        return None
    if recipe.output_kind == "pil" and not facts.collates and not facts.is_pipeline:
        raise OptionError(
            "from_torch: the dataset's transforms leave PIL images, which torch cannot batch (its default_collate raises "
            "TypeError); end them with ToTensor(), or give the loader a collate_fn"
        )
    if recipe.output_kind == "pil":
        return "its samples are PIL images"
    if facts.collates and recipe.output_kind == "image":
        return "its collate_fn takes tv_tensors.Image"
    if facts.collates and loader.worker_init_fn is not None and loader.num_workers:
        return "its worker_init_fn prepares workers for its collate_fn"
    runs_in_workers = not facts.is_pipeline and (not settings.reseeds or (loader.num_workers > 0 and not settings.differs()))
    if runs_in_workers and facts.draws is not None:
        return f"its collate_fn may draw random numbers (it uses {facts.draws})"
    return None


def _check_arguments(facts: LoaderFacts, settings: TakeoverSettings, why: str) -> None:
    """Raise OptionError for arguments that no loader has whose samples datapipe does not read."""
    settings.refuse(why, "data")
    if facts.has_stages:
        settings.refuse(why, "backend", "on_error")
    if settings.on_error == "raise":
        return
    if facts.is_stream or reads_batches(facts.dataset):
        raise OptionError(
            f"on_error={settings.on_error!r}: {facts.name} is not asked for samples one by one, so it is unknown which one "
            "raised; leave it out, and catch the exception in the Dataset"
        )
    if settings.on_error == "replace" and not settings.reseeds:
        raise OptionError("on_error='replace' takes another sample by the seed of the bad one; leave faithful=True out")


def _refuse_workers(settings: TakeoverSettings, why: str) -> None:
    if settings.workers is not None:
        raise OptionError(f"workers: other machines cannot help, as {why}; leave it out")


def _refuse_backend(settings: TakeoverSettings, why: str) -> None:
    settings.refuse(why if settings.defers or settings.is_faithful else "their images are not deferred", "backend")


# -- datapipe's loaders --------------------------------------------------------------------------------


def _of_images(
    facts: LoaderFacts, settings: TakeoverSettings, files: DatasetFiles, arguments: dict[str, Any], *notes: str
) -> DataLoader:
    recipe = facts.recipe
    assert recipe is not None
    size = recipe.output_size(files.index.manifest.image_size)
    if size is None and arguments["collate_fn"] is None and arguments.get("batch_size") != 1:
        notes = (*notes, "no crop or resize makes its images equal in size, so torch's default_collate stacks them")
        arguments = {**arguments, "collate_fn": default_collate}
    data = settings.data if settings.data is None or isinstance(settings.data, Images) else Images(settings.data)
    given, index = ImageSettings(), files.index
    if data is not None:
        given = _settings_of(data)
        index = index if data.index.fingerprint == index.fingerprint else converted_index(facts.dataset, data.index)
    images = of_torch_dataset(facts.dataset, index, dataclasses.replace(given, fields=files.fields), recipe)
    as_theirs = functools.partial(as_default_collate, memory_format=images.settings.memory_format)
    transforms = {"transform": recipe, "batch_transform": None if facts.collates else as_theirs}
    return _ours(facts, settings, images, "datapipe reads its files", *notes, **transforms, **arguments)


def _ours(facts: LoaderFacts, settings: TakeoverSettings, data: Images | Clips, *parts: str, **arguments: Any) -> DataLoader:
    """Return datapipe's loader in place of torch's. `parts`: what was taken over, and how."""
    given: dict[str, Any] = {name: getattr(settings, name) for name in ("device", "backend", "on_error", "workers")}
    ours = DataLoader(data, **given, **arguments)
    uncalled = ["worker_init_fn is not called"] if facts.loader.worker_init_fn and facts.loader.num_workers else []
    ours.origin = facts.origin(*parts, *uncalled)
    return ours


def _settings_of(data: Images) -> ImageSettings:
    """Return how the samples that are read in place of the dataset's are read. Raises OptionError for other samples."""
    if data.mixture is not None or data.settings.fields is not None:
        what = "is a mixture" if data.mixture is not None else f"has fields={data.settings.fields}"
        raise OptionError(f"data={data!r:.100} {what}; the torch loader decides which samples come, and what is in them")
    return data.settings


def as_default_collate(batch: Any, memory_format: torch.memory_format) -> list[Any]:
    """Return a datapipe batch as torch's default_collate would: a list, its images in that memory format."""
    images, *others = batch
    return [images.contiguous(memory_format=memory_format), *others]
