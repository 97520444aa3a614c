"""TFRecord shards: one `tf.train.Example` per sample, with the names that TensorFlow's users expect, and DALI's index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from converters.writers import ShardStream, StoredSample, WrittenShard, add_sample, sample_key
from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, FieldSpec
from datapipe.containers.tfrecord import layout as form
from datapipe.containers.tfrecord.scanner import scan_frames
from datapipe.errors import DecodeError
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import FieldExtent, SidecarRows

_LABEL_ENCODING = "varint"
_AROUND_FIELDS = 16_384  # bytes: more than the names and lengths of the maximum number of fields


def companions(shard: Path, sidecar: Sidecar) -> dict[str, bytes]:
    """Return DALI's index of the shard; see `converters.writers.Target.companions`."""
    return {form.DALI_INDEX_SUFFIX: form.dali_index(scan_frames(shard))}


class Writer:
    """A TFRecord file being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> None:
        self._stream = ShardStream(path)
        names = tuple(field.name for field in fields)
        self._features = {name: _feature_name(name, names) for name in names}  # by field
        self._rows = SidecarRows(names)
        self._frames: list[tuple[int, int]] = []  # start, bytes

    def check(self, sample: StoredSample) -> None:
        nbytes = sum(len(field.data) for field in sample.fields.values())
        if nbytes > form.MAX_EXAMPLE_NBYTES - _AROUND_FIELDS:
            raise DecodeError(
                f"{nbytes} bytes of fields exceed the {form.MAX_EXAMPLE_NBYTES} of a tf.train.Example;"
                " leave the sample out, or convert to webdataset or hdf5"
            )

    def append(self, sample: StoredSample) -> None:
        example = form.encode_example(self._values(sample))
        start = self._stream.position
        self._stream.put(form.frame_head(example.nbytes), *example.parts, form.frame_tail(example.parts))
        self._frames.append((start, self._stream.position - start))
        extents = {name: self._extent(sample, name, example, start + form.HEAD_NBYTES) for name in self._features}
        add_sample(self._rows, sample, extents)

    def finish(self) -> WrittenShard:
        self._stream.finish()
        index = form.dali_index(self._frames)
        return WrittenShard(self._stream.position, self._stream.sha256.hexdigest(), self._rows, {form.DALI_INDEX_SUFFIX: index})

    def abandon(self) -> None:
        self._stream.abandon()

    def _values(self, sample: StoredSample) -> dict[str, bytes | int]:
        values: dict[str, bytes | int] = {form.KEY: sample_key(sample.id).encode()}
        for name, feature in self._features.items():
            values[feature] = sample.label if name == LABEL_FIELD.name else sample.fields[name].data
        if IMAGE_FIELD.name in self._features:
            height, width = sample.size
            encoding = sample.fields[IMAGE_FIELD.name].encoding
            values |= {form.FORMAT: encoding.encode(), form.HEIGHT: height, form.WIDTH: width}
        return values

    def _extent(self, sample: StoredSample, name: str, example: form.EncodedExample, start: int) -> FieldExtent:
        offset, nbytes = example.extents[self._features[name]]
        if name == LABEL_FIELD.name:
            return FieldExtent(_LABEL_ENCODING, start + offset, nbytes, crc32c(form.encode_int(sample.label)))
        field = sample.fields[name]
        return FieldExtent(field.encoding, start + offset, nbytes, crc32c(field.data))


def _feature_name(field: str, fields: tuple[str, ...]) -> str:
    if field == IMAGE_FIELD.name:
        return form.IMAGE
    if field == LABEL_FIELD.name:
        return form.LABEL if IMAGE_FIELD.name in fields else form.LABEL_ALONE
    return field
