"""Read datatrove's tokenised files: `x.ds`, token ids, and `x.ds.index`, the ends of documents in tokens (u64)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datapipe.codecs.tokens import TokenFacts
from datapipe.core import arrow_maps
from datapipe.errors import FormatError, MissingDataError
from datapipe.index.tokens import TokenShard

SUFFIX = ".ds"
_BY_SIZE = {2: "uint16", 4: "uint32"}


def open_shard(path: Path) -> tuple[TokenShard, str]:
    """Return the documents of a file, and their dtype, which follows from its size.

    Raises MissingDataError if its index is missing, FormatError if the two do not fit together.
    """
    index_path = path.with_name(path.name + ".index")
    try:
        ends = np.frombuffer(arrow_maps.map_file(index_path), "<i8")
        nbytes = path.stat().st_size
    except FileNotFoundError as exc:
        raise MissingDataError(f"{exc.filename}: no such file; datatrove's data is a .ds and a .ds.index") from exc
    except (OSError, ValueError) as exc:
        raise FormatError(f"{index_path}: no list of the ends of documents ({exc}); get the file again") from exc
    num_tokens = np.diff(ends, prepend=0)
    dtype = _BY_SIZE.get(nbytes // int(ends[-1])) if len(ends) and ends[-1] > 0 and not nbytes % int(ends[-1]) else None
    if dtype is None or (num_tokens < 0).any():
        raise FormatError(
            f"{path}: its {nbytes} bytes do not fit the ends of documents in {index_path.name}; get the files again"
        )
    stored = TokenFacts(dtype).stored
    return TokenShard(str(path), stored, (ends - num_tokens) * stored.itemsize, num_tokens), dtype
