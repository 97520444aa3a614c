"""Choose the fields of a dataset that a batch has, and name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core.errors import OptionError
from datapipe.index.concat import AnyIndex
from datapipe.transforms import Recipe

IMAGE, LABEL = "image", "label"  # the field that the recipe applies to; the field that the index itself holds
ADDED = ("real", "id")  # what a batch may have besides fields: which samples are no repeats (tail="mask"), and sample ids

_MOVED = (FieldKind.MASK, FieldKind.BOXES, FieldKind.IMAGE)  # cut and flipped with the image


@dataclass(frozen=True, slots=True)
class BatchFields:
    """The fields of a batch, in the order of its tuple."""

    specs: tuple[FieldSpec, ...]

    @classmethod
    def of(cls, index: AnyIndex, names: Iterable[str] | None) -> BatchFields:
        """Return the fields of these names. None: all of a converted dataset; image and label of data that others wrote.

        Raises OptionError for a name that the dataset does not have, for one given twice, and for none at all.
        """
        has = {spec.name: spec for spec in index.manifest.fields}
        if names is None:
            first = [name for name in (IMAGE, LABEL) if name in has]
            rest = [name for name in has if name not in first]
            return cls(tuple(has[name] for name in (first if first and index.is_foreign else first + rest)))
        wanted = [names] if isinstance(names, str) else list(names)
        unknown = [name for name in wanted if name not in has]
        if unknown or not wanted or len(set(wanted)) < len(wanted):
            problem = f"no field {unknown[0]!r}" if unknown else "a field named twice" if wanted else "no fields"
            raise OptionError(f"fields={wanted}: {problem}; {index.where} has {', '.join(has)}")
        return cls(tuple(has[name] for name in wanted))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    @property
    def has_image(self) -> bool:
        return IMAGE in self.names

    @property
    def has_label(self) -> bool:
        return LABEL in self.names

    @property
    def stored(self) -> tuple[FieldSpec, ...]:
        """The fields that lie in the dataset's files; the image first."""
        return tuple(
            sorted((spec for spec in self.specs if spec.kind is not FieldKind.LABEL), key=lambda spec: spec.name != IMAGE)
        )

    def looked_up(self, index: AnyIndex) -> str:
        """Return the field with which to ask the index for labels: one of the batch's, if it has any."""
        return next(spec.name for spec in (*self.stored, *index.manifest.fields) if spec.kind is not FieldKind.LABEL)

    @property
    def further(self) -> tuple[FieldSpec, ...]:
        """The fields other than the image and the label."""
        return tuple(spec for spec in self.specs if spec.name != IMAGE and spec.kind is not FieldKind.LABEL)

    @property
    def moved(self) -> tuple[FieldSpec, ...]:
        """The fields that are cut and flipped with the image."""
        return tuple(spec for spec in self.further if spec.kind in _MOVED) if self.has_image else ()

    def check_recipe(self, recipe: Recipe) -> None:
        """Check the transforms. Raises OptionError for one that lacks its field, or would not move a field along."""
        if recipe.transforms and not self.has_image:
            raise OptionError(f"transform={recipe!r} is for images, and batches have {', '.join(self.names)}; leave it out")
        if recipe.batch and not self.has_label:
            raise OptionError(f"{recipe.batch[0][1]!r} mixes labels, and batches have {', '.join(self.names)}")
        moving = [
            *(step.op for step in recipe.pixels if getattr(step.op, "moves_pixels", False)),
            *(op for _, op in recipe.batch),
            *recipe.rest[:1],
        ]
        if moving and self.moved:
            left_behind = ", ".join(spec.name for spec in self.moved)
            raise OptionError(
                f"{moving[0]!r} may move pixels after the geometry, and {left_behind} would not move along; leave it out, "
                "or choose other fields by fields="
            )

    def check_rename(self, rename: Mapping[str, str]) -> None:
        """Check new names. Raises OptionError for a key that no batch has, and if two fields would get one name."""
        names = [*self.names, *ADDED]
        unknown = [name for name in rename if name not in names]
        if unknown:
            raise OptionError(f"rename has {unknown}, which no batch has; its fields are {', '.join(names)}")
        renamed = [rename.get(name, name) for name in names]
        if len(set(renamed)) < len(renamed):
            raise OptionError(f"rename would give two fields one name: {', '.join(renamed)}")
