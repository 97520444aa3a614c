"""Run as a program: two epochs of each dataset in full shuffle, under a limit of open files; prints what came, as JSON.

few_descriptors.py LIMIT JSON

JSON: a list of paths, with the directory of a cache or null, and the loader's options.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from typing import Any

import datapipe as dp
from datapipe import transforms as T


def epochs(path: str, cache: str | None, options: dict[str, Any]) -> list[int] | str:
    """How many samples came in each, none of them bad; or what was raised."""
    crop = [T.Resize(8), T.CenterCrop(8)]
    try:
        data = dp.Images(path, cache=cache)
        loader = dp.DataLoader(data, batch_size=16, shuffle=True, num_workers=2, device="cpu", transform=crop, **options)
        counts = [sum(len(images) for images, _ in loader) for _ in range(2)]
    except Exception as exc:
        return repr(exc)
    found = repr(loader.bad_samples) if loader.bad_samples else counts
    del loader, data
    gc.collect()  # the files of one loader are no concern of the next
    return found


if __name__ == "__main__":
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    dp.DataLoader  # noqa: B018 -- imported here, so that no collection walks over torch
    gc.freeze()
    print(json.dumps([epochs(path, cache, options) for path, cache, options in json.loads(sys.argv[2])]))
