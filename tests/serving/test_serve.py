"""`datapipe serve`: who is let in, what is read, how it ends, and that nothing that is sent does more than be refused."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.flight as flight
import pytest
import torch
from decoders import TOKEN, Decoder, is_alive, wait_until
from fixtures import make_folder

import datapipe as dp
from datapipe.cli.main import main
from datapipe.index.entries import Entries, Extents
from datapipe.kinds.images.served import asked, packed_recipe
from datapipe.order.draws import Draws
from datapipe.remote_workers.connection import Address, Connection, UnableError
from datapipe.remote_workers.wire import HELLO, LOOK, Look, Request, packed
from datapipe.transforms import Recipe

SIZE = 24
RECIPE = packed_recipe(Recipe.of([dp.transforms.RandomResizedCrop(SIZE)]), 0, "exact")


@pytest.fixture(scope="module")
def folder(decoder: Decoder) -> Path:
    return make_folder(decoder.top / "serving", num=6, size=(40, 48))


@pytest.fixture
def connection(decoder: Decoder) -> Connection:
    return Connection(Address(decoder.url, TOKEN))


def request_of(*paths: Path | str, recipe: bytes = RECIPE, size: int = SIZE) -> tuple[torch.Tensor, bytes]:
    num = len(paths)
    nothing, out = np.zeros(num, np.int64), torch.empty((num, size, size, 3), dtype=torch.uint8)
    extents = Extents(
        [*map(str, paths)], nothing, np.full(num, -1), nothing.astype(np.uint32), nothing.astype(np.uint8), one_file_each=True
    )
    return out, asked(recipe, out, Entries(nothing, nothing, extents), Draws(0, 0, nothing), ())


def test_it_says_what_it_is(connection: Connection) -> None:
    hello = connection.hello(10)
    assert (hello.node, hello.cores, hello.seats, hello.kinds) == (
        socket.gethostname(),
        1,
        2,
        ["images", "clips", "conversations", "audio"],
    )
    assert hello.versions["processor"]


@pytest.mark.parametrize("token", ["", "token-of-the-testz", "token-of-the-tests-", "Bearer token-of-the-tests"])
def test_nothing_is_said_without_the_token(decoder: Decoder, folder: Path, token: str) -> None:
    client = flight.FlightClient(decoder.url)
    for headers in ([], [(b"authorization", f"Bearer {token}".encode())], [(b"authorization", TOKEN.encode())]):
        options = flight.FlightCallOptions(headers=headers, timeout=10)
        calls: list[Any] = [
            lambda options=options: list(client.do_action(flight.Action(HELLO, b""), options)),
            lambda options=options: list(client.do_action(flight.Action(LOOK, packed(Look([b"/etc/passwd"]))), options)),
            lambda options=options: client.do_get(flight.Ticket(request_of(next(folder.rglob("*.jpg")))[1]), options).read_all(),
            lambda options=options: list(client.list_flights(options=options)),
        ]
        for call in calls:
            with pytest.raises(flight.FlightUnauthenticatedError):
                call()


def test_links_and_names_that_lead_out_are_refused(folder: Path, connection: Connection, tmp_path: Path) -> None:
    inside = next(folder.rglob("*.jpg"))
    outside = make_folder(tmp_path / "outside", num=1, size=(40, 48))
    image = next(outside.rglob("*.jpg"))
    link, linked = folder / "link.jpg", folder / "linked"
    link.symlink_to(image)
    linked.symlink_to(image.parent)
    try:
        below = f"{folder}/../../{folder.parent.name}x/0.jpg"
        for path in (image, link, linked / image.name, below, "/proc/self/environ", f"{inside}\0", "s3://bucket/x.jpg"):
            out, request = request_of(inside, path)
            with pytest.raises(UnableError, match=r"lies below none of the roots|is no path"):
                connection.fill(out, request, 30)
            (found,) = connection.look([str(path)], 30).found
            assert isinstance(found, str)
    finally:
        link.unlink()
        linked.unlink()
    connection.fill(*request_of(inside), 30)


@pytest.mark.parametrize(
    "path", ["relative.jpg", "", ".", "{folder}/.", "{folder}/../..", "file:///etc/passwd", "http://127.0.0.1/x"]
)
def test_paths_that_no_loader_sends_are_refused(folder: Path, connection: Connection, path: str) -> None:
    (found,) = connection.look([path.format(folder=folder)], 30).found
    assert isinstance(found, str)


def test_what_is_no_request_is_refused_and_the_service_goes_on(folder: Path, connection: Connection, decoder: Decoder) -> None:
    inside = next(folder.rglob("*.jpg"))
    before = decoder.processes()
    out, good = request_of(inside)
    bodies = [
        b"", b"\x00", good[:-5], good + b"x",
        packed(Request("tables", msgspec.Raw(packed({})))), packed(Request("../x", msgspec.Raw(b"\xc0"))),
        request_of(inside, recipe=packed({"transforms": [], "num_pixels": 0, "decode": "exact"}))[1],  # images of their own size
        request_of(inside, recipe=packed({"transforms": [], "num_pixels": 9, "decode": "exact"}))[1],
        request_of(inside, recipe=packed({"transforms": [{"transform": "os.system"}], "num_pixels": 0, "decode": "exact"}))[1],
        good.replace(b"\x92\x18\x18", b"\x92\xce\xff\xff\xff\xff\xce\xff\xff\xff\xff"),  # rows of 4 billion x 4 billion pixels
        good.replace(b"\x92\x18\x18", b"\x92\xff\xff"),
    ]  # fmt: skip
    for body in bodies:
        with pytest.raises(UnableError):
            connection.fill(out, body, 30)
    connection.fill(out, good, 30)
    with pytest.raises(UnableError, match="the action 'stop' is not known"):
        connection._act("stop", b"", 10)
    assert {*before} <= {*decoder.processes()}


def test_encryption(folder: Path, tmp_path: Path) -> None:
    """With a certificate of its own, which the loader is given; another, or none, is not trusted."""
    for name in ("one", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
             "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    service = Decoder(folder, "--certificate", str(tmp_path / "one.pem"), "--key", str(tmp_path / "one.key"))
    assert service.url.startswith("grpc+tls://")
    options: dict[str, Any] = {"batch_size": 3, "num_workers": 0, "transform": [dp.transforms.CenterCrop(SIZE)]}
    loader = dp.DataLoader(folder, **options, workers=service.workers(certificate=tmp_path / "one.pem"))
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(loader, dp.DataLoader(folder, **options), strict=True))
    for certificate in (tmp_path / "other.pem", None):
        with pytest.raises(dp.errors.BackendError, match="does not answer"):
            next(iter(dp.DataLoader(folder, **options, workers=service.workers(certificate=certificate))))
    plain = dp.Workers(service.url.replace("+tls", ""), token=TOKEN)
    with pytest.raises(dp.errors.BackendError, match="does not answer"):
        next(iter(dp.DataLoader(folder, **options, workers=plain)))
    service.stop()


def test_a_loader_that_is_killed_leaves_nothing_behind(folder: Path, decoder: Decoder) -> None:
    script = f"""
import datapipe as dp
loader = dp.DataLoader({str(folder)!r}, 2, transform=[dp.transforms.RandomResizedCrop({SIZE})], num_workers=0,
                       workers=dp.Workers({decoder.url!r}, token={TOKEN!r}))
for epoch in range(1_000_000):
    for batch in loader:
        print(epoch, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.kill()
    process.communicate()
    num_open = len(os.listdir(f"/proc/{decoder.process.pid}/fd"))
    wait_until(lambda: len(os.listdir(f"/proc/{decoder.process.pid}/fd")) <= num_open, what="connections stay open")
    Connection(Address(decoder.url, TOKEN)).fill(*request_of(next(folder.rglob("*.jpg"))), 30)
    assert all(map(is_alive, decoder.processes()))


def test_idle_connections_cost_nothing(decoder: Decoder) -> None:
    def ticks() -> int:
        found = 0
        for pid in (decoder.process.pid, *decoder.processes()):
            numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += int(numbers[11]) + int(numbers[12])
        return found

    gc.collect()  # loaders of other tests, whose threads look for workers that have gone, and end when they next wake
    connections = [Connection(Address(decoder.url, TOKEN)) for _ in range(10)]
    for one in connections:
        one.hello(10)
    time.sleep(1)
    began, before = ticks(), time.process_time()
    time.sleep(1)
    assert ticks() - began <= 5, "hundredths of a second"
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "/nowhere"], "--root /nowhere: is no folder"),
        (["--root", "{here}", "--listen", "0.0.0.0:7071"], "pass --certificate and --key, or listen on 127.0.0.1"),
        (["--root", "{here}", "--listen", "7071"], "--listen '7071': write HOST:PORT"),
        (["--root", "{here}", "--cores", "0"], "--cores is 0; it must be at least 1"),
        (["--root", "{here}", "--certificate", "x.pem"], "--certificate and --key belong together"),
        (["--root", "{here}", "--certificate", "{here}/x.pem", "--key", "{here}/x.key"], "x.pem: is missing"),
        (["--root", "{here}", "--certificate", "{here}/token", "--key", "{here}/token"], "token: holds no certificate in PEM"),
        (["--root", "{here}", "--token-file", "{here}/none"], "none: is missing"),
        (["--root", "{here}", "--token-file", "{here}/token"], "a token has at least 16 characters of ASCII"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("short\n")
    assert main(["serve", *(one.format(here=tmp_path) for one in arguments)]) in (1, 2)
    out, errors = capsys.readouterr()
    assert not out
    assert message in errors
    assert errors.count("\n") == 1


def test_a_port_that_is_taken_is_named(decoder: Decoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--root", str(tmp_path), "--listen", f"127.0.0.1:{port}", "--cores", "1"]) == 1
    assert f"grpc+tcp://127.0.0.1:{port}: cannot be listened on" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_token_is_made_if_none_is_given(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DATAPIPE_TOKEN"}
    command = [sys.executable, "-m", "datapipe", "serve", "--root", str(tmp_path), "--listen", "127.0.0.1:0", "--cores", "1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    name, token = process.stdout.readline().split()[:2]
    assert name == "token:"
    assert Connection(Address(url, token)).hello(20).seats == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
