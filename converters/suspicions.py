"""Sources that parse, but whose shape says that they may be something else than they were taken for."""

from __future__ import annotations

from converters.plan import ConversionPlan
from datapipe.codecs.field_values import FieldKind

_LARGE_NBYTES = 1_000_000  # of a field of kind bytes, on average: an archive, or an image that was not recognised
_LABELS_COME_FROM = {
    "image-folder": "--class-from folder, parent or path takes it from the folders",
    "npy": "--class-from folder, parent or path takes it from the folders",
    "pairs": "--class-from folder, parent or path takes it from the folders",
    "manifest": "--field COLUMN=label says which column it is",
    "tar": "--field SUFFIX=label says which members hold it, --from archive that each tar is a class",
}


def suspicions(plan: ConversionPlan) -> list[str]:
    """Return one line for each, with the option that changes it."""
    found = []
    form, kinds = plan.options.get("from"), [field.kind for field in plan.fields]
    if FieldKind.LABEL not in kinds and FieldKind.BOXES not in kinds and plan.options.get("class_from") != "none":
        remedy = _LABELS_COME_FROM.get(str(form), "--field NAME=label says which field it is")
        found.append(f"samples have no label; if they should have one, {remedy}")
    if plan.num_samples == 1:
        found.append("there is only 1 sample; if SRC holds more, --from says what it is")
    elif FieldKind.LABEL in kinds and plan.classes is not None:
        found += _of_classes(plan, str(form))
    for field in plan.fields:
        average = plan.field_nbytes.get(field.name, 0) / max(1, plan.num_samples)
        if field.kind is FieldKind.BYTES and average > _LARGE_NBYTES:
            found.append(
                f"field {field.name!r} is kept as bytes, {average / 1e6:.1f} MB a sample;"
                f" --field {field.name}=KIND says what it is, =none leaves it out"
            )
    return found


def _of_classes(plan: ConversionPlan, form: str) -> list[str]:
    is_folder = form in ("image-folder", "npy", "pairs")
    elsewhere = "; --class-from parent or path takes deeper folders, none gives no labels" if is_folder else ""
    if plan.num_labels == 1:
        return [f"all {plan.num_samples} samples are of one class, {plan.first_class!r}{elsewhere}"]
    if plan.num_labels == plan.num_samples > 2:
        return [f"each of the {plan.num_samples} samples is of a class of its own, such as {plan.first_class!r}{elsewhere}"]
    return []
