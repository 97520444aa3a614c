"""A new form of shards that hold sound, worked out: `.sounds` files of a label and a sound file for each sample.

It begins with the four bytes SNDS; then come, for each sample, the label (int32) and the number of bytes (uint32) of a sound
file, both little endian, and the file: FLAC, WAV, MP3, whatever libsndfile reads. As of any form of shards, one function says
where the bytes of each sample lie (see form_pack.py). The field `audio`, and the kind "audio" of the form, make utterances of
them: `datapipe.Audio`, `inspect` and `convert` read them where they lie. A form of videos has a field `mp4` and the kind
"clips". In datapipe this file is `datapipe/containers/sounds.py`, with a line in `datapipe/containers/forms.py`:

    FORMS["sounds"] = FormFacts(title="packs of sound", shards="datapipe.containers.sounds", kind="audio",
                                files=re.compile(r".+\\.sounds"))
"""

from __future__ import annotations

import struct
from pathlib import Path

from datapipe.codecs.field_values import LABEL_FIELD, FieldSpec
from datapipe.containers.field_names import AUDIO_FIELD
from datapipe.containers.labels import class_label
from datapipe.containers.mapped import mapped
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldExtent, SidecarRows

MAGIC = b"SNDS"
_HEAD = struct.Struct("<iI")  # label, bytes of the sound file
_FIELDS = (AUDIO_FIELD, LABEL_FIELD)


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one file; ids are row numbers. Fields: the sound and the label.

    Raises MissingDataError, StorageError or FormatError, naming the file and the sample.
    """
    rows = SidecarRows((AUDIO_FIELD.name,))
    with mapped(path, "a pack of sound") as data:
        if data[: len(MAGIC)] != MAGIC:
            raise FormatError(f"{path}: does not begin with {MAGIC!r}, so it is no pack of sound; get the file again")
        position = len(MAGIC)
        while position < len(data):
            where = f"{path}: sample {len(rows)}"
            if position + _HEAD.size > len(data):
                raise FormatError(f"{where}: cut within its head at byte {position}; get the file again")
            label, nbytes = _HEAD.unpack_from(data, position)
            start = position + _HEAD.size
            if start + nbytes > len(data):
                raise FormatError(f"{where}: reaches to byte {start + nbytes}, the file ends at {len(data)}; get the file again")
            rows.append(
                id=len(rows),
                key=str(len(rows)).encode(),
                source=b"",
                label=class_label(label, where),
                size=(0, 0),  # of images
                extents={AUDIO_FIELD.name: FieldExtent("", start, nbytes, None)},
            )
            position = start + nbytes
    if not len(rows):
        raise FormatError(f"{path}: no samples")
    return rows, _FIELDS


def write_sounds(path: Path, samples: list[tuple[bytes, int]]) -> None:
    """Write sound files and their labels as such a file; for the test, and for whoever makes such files."""
    parts = [MAGIC]
    for sound, label in samples:
        parts += [_HEAD.pack(label, len(sound)), sound]
    path.write_bytes(b"".join(parts))
