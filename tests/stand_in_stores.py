"""Stores for tests, all on the loopback interface: a directory served with planted faults, and moto."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_store import Directory, FaultyStore, Weather, passed_on

BUCKET = "bkt"
_PAUSE_S = 0.05

_SETTINGS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_EC2_METADATA_DISABLED")

needs_obstore = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="needs obstore (the extra `remote`)")
needs_moto = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("obstore", "moto", "flask")),
    reason="needs moto[s3], flask and obstore",
)


@contextlib.contextmanager
def environment(endpoint: str) -> Iterator[None]:
    """Let s3:// URLs mean the server at `endpoint`, and pauses be short: it has no load to recover from."""
    from datapipe.stores import failures
    from datapipe.stores.opening import forget_stores

    values = dict(zip(_SETTINGS, (endpoint, "id-of-key", "very-secret", "us-east-1", "true"), strict=True))
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    forget_stores()
    longest_pause_s, failures.LONGEST_PAUSE_S = failures.LONGEST_PAUSE_S, _PAUSE_S
    try:
        yield
    finally:
        failures.LONGEST_PAUSE_S = longest_pause_s
        forget_stores()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def directory_store(root: Path, **sets: Path) -> Iterator[FaultyStore]:
    """Serve copies of directories as s3://bkt/NAME, from `root`."""
    for name, source in sets.items():
        shutil.copytree(source, root / BUCKET / name)
    with FaultyStore(Directory(root), Weather(seed=1)) as store, environment(store.url):
        yield store


@contextlib.contextmanager
def moto_store() -> Iterator[FaultyStore]:
    """Serve moto's S3 with an empty bucket `bkt` through a proxy that may plant faults."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("POST", "/moto-api/reset", headers={"Content-Length": "0"})
        connection.getresponse().read()
        connection.request("PUT", f"/{BUCKET}", headers={"Content-Length": "0"})
        assert connection.getresponse().status == 200
        connection.close()
        with FaultyStore(passed_on(host, port), Weather(seed=1)) as store, environment(store.url):
            yield store
    finally:
        server.stop()


def upload(source: Path, prefix: str) -> None:
    """Put the files of a directory into the store that s3:// means, under s3://bkt/PREFIX."""
    import obstore

    from datapipe.stores.opening import open_store
    from datapipe.stores.places import parse_location

    store = open_store(parse_location(f"s3://{BUCKET}"))
    for path in sorted(source.rglob("*")):
        if path.is_file():
            obstore.put(store, f"{prefix}/{path.relative_to(source)}", path.read_bytes())


def repeated_until_quiet(store: FaultyStore, look: Callable[[], None]) -> None:
    """Repeat a look at data whose objects are kept on a disk, until it asks the store for nothing: they are fetched beside it."""
    latest = time.monotonic() + 60
    while True:
        store.log.clear()
        look()
        if not store.log:
            return
        assert time.monotonic() < latest, store.log
