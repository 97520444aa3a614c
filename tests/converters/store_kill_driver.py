"""Converts into a store, and kills itself before or after the PUT of one object.

python store_kill_driver.py SOURCE URL NAME before|after
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from converters import ConvertOptions
from converters.to_store import convert_to_store
from datapipe.stores import transfers
from datapipe.stores.location import Location
from datapipe.stores.places import parse_location


def main(source: str, url: str, name: str, when: str) -> None:
    put = transfers._put

    def put_and_die(location: Location, contents: Any, *, overwrite: bool) -> None:
        if location.name == name and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        put(location, contents, overwrite=overwrite)
        if location.name == name:
            os.kill(os.getpid(), signal.SIGKILL)

    transfers._put = put_and_die
    convert_to_store(ConvertOptions(Path(source), Path("unused"), shard_nbytes=1_000_000, num_workers=1), parse_location(url))


if __name__ == "__main__":
    main(*sys.argv[1:])
