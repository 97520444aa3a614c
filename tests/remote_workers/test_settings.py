"""What users may say of workers: places, tokens, certificates."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import datapipe as dp
from datapipe.errors import OptionError
from datapipe.remote_workers.settings import addresses, is_loopback

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("places", "urls"),
    [
        ("grpc://127.0.0.1:7071", ["grpc+tcp://127.0.0.1:7071"]),
        ("grpc://localhost:1, [::1]:65535", ["grpc+tcp://localhost:1", "grpc+tcp://[::1]:65535"]),
        (
            "grpc+tls://decoder-1:7071,decoder-2.example.org:80",
            ["grpc+tls://decoder-1:7071", "grpc+tls://decoder-2.example.org:80"],
        ),
    ],
)
def test_places(places: str, urls: list[str]) -> None:
    assert addresses(places) == urls


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ("decoder:7071", r"workers are at 'decoder:7071'; write grpc\+tls://HOST:PORT"),
        ("", r"workers are at ''"),
        (7, r"workers are at 7; write"),
        ("grpc+tls://", r"write grpc\+tls://HOST"),
        ("grpc+tls://decoder", r"'decoder' is no HOST:PORT, such as decoder-1:7071"),
        ("grpc+tls://a:1,,b:2", r"'' is no HOST:PORT"),
        ("grpc+tls://a:0", r"'a:0' is no HOST:PORT"),
        ("grpc+tls://a:70000", r"'a:70000' is no HOST:PORT"),
        ("grpc+tls://u:p@a:1", r"is no HOST:PORT"),
        ("grpc://decoder:7071", r"decoder:7071 is another machine, and grpc:// sends the token and the images unencrypted; "),
        ("grpc://10.0.0.1:7071", r"10\.0\.0\.1:7071 is another machine"),
        ("grpc+tls://a:1,a:1", "a place is named twice"),
    ],
)  # fmt: skip
def test_places_that_are_none(places: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dp.Workers(places, token=TOKEN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"Workers\('ray'\): num_cpus is missing, the cores of all workers together, such as num_cpus=64"),
        ({"num_cpus": 0}, r"Workers\('ray'\): num_cpus is 0; it must be at least 1"),
        ({"num_cpus": 2.5}, r"num_cpus is 2\.5; it must be a whole number"),
        ({"num_cpus": 4, "cpus_per_worker": 0}, r"cpus_per_worker is 0; it must be at least 1"),
        ({"num_cpus": 4, "address": 7}, r"address is 7; write HOST:PORT, or 'auto'"),
        ({"num_cpus": 4, "token": TOKEN}, r"Workers\('ray'\): token is given, and workers of Ray get one of their own"),
        ({"num_cpus": 4, "certificate": "a.pem"}, r"certificate is given, and workers of Ray get one of their own"),
        (
            {"places": "grpc://127.0.0.1:1", "token": TOKEN, "num_cpus": 4},
            r"num_cpus belongs to workers of Ray; write Workers\('ray'",
        ),
    ],
)
def test_options_of_workers_of_ray(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dp.Workers(**{"places": "ray", **options})


@pytest.mark.parametrize("token", ["short", "with a blank in it....", "ümlauts-are-not-ascii", "0123456789\nabcdef", ""])
def test_tokens_that_are_none(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPIPE_TOKEN", raising=False)
    with pytest.raises(OptionError, match=r"Workers\(token=\.\.\.\) or DATAPIPE_TOKEN: "):
        dp.Workers("grpc://127.0.0.1:1", token=token)


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPIPE_TOKEN", TOKEN)
    workers = dp.Workers("grpc://127.0.0.1:1")
    assert workers.secret == TOKEN
    assert TOKEN not in repr(workers)
    assert pickle.loads(pickle.dumps(workers)) == workers


def test_a_certificate_without_encryption_is_refused() -> None:
    with pytest.raises(OptionError, match=r"certificate is given, and the places are not encrypted; write grpc\+tls"):
        dp.Workers("grpc://127.0.0.1:1", token=TOKEN, certificate="x.pem")


def test_a_file_that_holds_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(OptionError, match=r"x\.pem: holds no certificate in PEM"):
        dp.Workers("grpc+tls://decoder:1", token=TOKEN, certificate=tmp_path / "x.pem").trusted()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False), ("[::]", False),
     ("localhost.evil", False), ("127.0.0.1.evil", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
