"""Redirects of web servers: which are followed, with which headers, and what an error says about them."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ill_server import IllServer, ill_server
from stand_in_stores import environment, needs_obstore

import datapipe as dp
from datapipe.stores.location import Location
from datapipe.stores.objects import object_facts, read_object
from datapipe.stores.opening import forget_stores
from datapipe.stores.places import parse_location
from datapipe.stores.redirects import redirect_target
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote
from datapipe.stores.transfers import download

pytestmark = needs_obstore
BODY = bytes(range(256)) * 4
FILES = {"set/a": BODY}
MAX_REDIRECTS = 10  # the library's, which has no setting for them; to name the target, as many are looked at again
SIGNATURE = "sig=very-secret"


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    forget_stores()
    apply_settings(Remote(timeout_s=1.5))
    yield
    apply_settings(Remote())
    forget_stores()


@pytest.fixture
def server() -> Iterator[IllServer]:
    with ill_server(FILES) as server:
        yield server


@pytest.fixture
def target() -> Iterator[IllServer]:
    with ill_server(FILES) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate, and what a server needs to show one for 127.0.0.1 that the authority has signed."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography, which comes with moto")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    here, now = tmp_path_factory.mktemp("tls"), datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    certificates = []
    for key, name, is_authority in zip(keys, names, (True, False), strict=True):
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificates.append(
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
            .add_extension(usage, critical=True)
            .sign(keys[0], hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )
    form = serialization.PrivateFormat.PKCS8
    key_text = keys[1].private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    trusted, shown = here / "authority.pem", here / "server.pem"
    trusted.write_bytes(certificates[0])
    shown.write_bytes(key_text + certificates[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown)
    return trusted, context


@pytest.fixture
def secure(authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch) -> Iterator[IllServer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    with ill_server(FILES, tls=authority[1]) as server:
        yield server


def downloaded(location: Location) -> bytes:
    found = bytearray()
    download(location, lambda piece, offset: found.extend(piece))
    return bytes(found)


READERS = [read_object, object_facts, downloaded]
each_reader = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


def refused(read: Callable[[Location], object], url: str) -> str:
    with pytest.raises(dp.errors.StorageError) as caught:
        read(parse_location(url))
    assert "very-secret" not in str(caught.value)
    return str(caught.value)


def test_ten_redirects_are_followed_and_no_more(server: IllServer) -> None:
    assert read_object(parse_location(server.url(f"hops/{MAX_REDIRECTS}", "set/a"))) == BODY
    said = refused(read_object, server.url(f"hops/{MAX_REDIRECTS + 1}", "set/a"))
    assert "/hops/11/set/a (redirected to " in said
    assert "/hops/1/set/a): the server redirects in a circle, or more than ten times; " in said


def test_a_circle_of_redirects_is_named_and_not_tried_again(server: IllServer) -> None:
    with pytest.raises(dp.errors.StorageError, match="redirects in a circle"):
        read_object(parse_location(server.url("loop")))
    assert server.seen["loop"] == MAX_REDIRECTS + 2


@pytest.mark.parametrize("scheme", ["ftp", "file"])
def test_redirects_lead_to_no_other_scheme(scheme: str, server: IllServer) -> None:
    server.target = f"{scheme}://localhost/x"
    with pytest.raises(
        dp.errors.StorageError,
        match=rf"/elsewhere/set \(redirected to {scheme}://localhost/x/set\): .* a scheme that is not read",
    ):
        read_object(parse_location(server.url("elsewhere")))
    assert server.seen["elsewhere"] == 2


def test_an_endpoint_of_another_scheme_is_not_taken_for_a_redirect() -> None:
    with environment("ftp://127.0.0.1:9"):
        assert "the endpoint is not a URL of http:// or https://" in refused(read_object, "s3://b/x")


@each_reader
def test_https_never_leads_to_plain_http(read: Callable[[Location], object], secure: IllServer, target: IllServer) -> None:
    secure.target = f"{target.url('well', 'set/a')}?{SIGNATURE}&"
    url = secure.url("elsewhere", "x")
    said = refused(read, url)
    assert said.startswith(
        f"{url} (redirected to {target.url('well', 'set/a')}): redirects from https to plain http are not followed"
    )
    assert "pass the http:// URL itself if you trust the network" in said
    assert not target.headers
    assert secure.seen["elsewhere"] == 1


def test_https_leads_to_https(secure: IllServer, authority: tuple[Path, ssl.SSLContext]) -> None:
    with ill_server(FILES, tls=authority[1]) as other:
        secure.target = other.url("well", "set/a?")
        assert read_object(parse_location(secure.url("elsewhere", "x"))) == BODY
        secure.target = other.url("well", "none?")
        with pytest.raises(dp.errors.MissingDataError, match=rf"\(redirected to {other.url('well', 'none')}\): no such object"):
            read_object(parse_location(secure.url("elsewhere", "x")))


def test_plain_http_leads_to_https(server: IllServer, secure: IllServer) -> None:
    server.target = secure.url("well", "set/a?")
    assert read_object(parse_location(server.url("elsewhere", "x"))) == BODY


@each_reader
def test_an_error_after_a_redirect_names_the_target(
    read: Callable[[Location], object], server: IllServer, target: IllServer
) -> None:
    url = server.url("elsewhere", "x")
    server.target = f"{target.url('forbidden')}?{SIGNATURE}&"
    assert refused(read, url).startswith(f"{url} (redirected to {target.url('forbidden')}): forbidden (403)")
    server.target = f"{target.url('well', 'none')}?{SIGNATURE}&"
    with pytest.raises(dp.errors.MissingDataError) as caught:
        read(parse_location(url))
    assert str(caught.value) == f"{url} (redirected to {target.url('well', 'none')}): no such object; check the URL"


@pytest.mark.nightly
@each_reader
def test_so_does_one_after_the_last_attempt(read: Callable[[Location], object], server: IllServer, target: IllServer) -> None:
    url = server.url("elsewhere", "x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for place, found in ((closed, "the connection was refused"), (target.url("silent"), "no answer in time")):
            server.target = f"{place}?{SIGNATURE}&"
            said = refused(read, url)
            assert said.startswith(f"{url} (redirected to {place}): no success in ")
            assert found in said


def test_user_names_in_a_target_are_not_told(server: IllServer, target: IllServer) -> None:
    server.target = f"http://me:very-secret@127.0.0.1:{target.port}/forbidden/x?"
    assert f"(redirected to {target.url('forbidden', 'x')}): " in refused(read_object, server.url("elsewhere", "x"))


def test_an_error_without_a_redirect_names_none(server: IllServer) -> None:
    url = server.url("forbidden")
    assert refused(read_object, url).startswith(f"{url}: forbidden (403)")


def test_a_redirect_to_nowhere_is_not_taken_for_a_bucket_of_another_region(server: IllServer) -> None:
    assert "the server redirects, but not to a URL; " in refused(read_object, server.url("nowhere"))
    server.target = "http://[::bad/"
    assert "the server redirects, but not to a URL; " in refused(read_object, server.url("elsewhere", "x"))
    server.target = "http://127.0.0.1:99999/"
    assert "the server redirects to a damaged URL" in refused(read_object, server.url("elsewhere", "x"))


def test_nobody_is_asked_for_a_target_past_a_proxy(server: IllServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.target = "http://localhost/x?"
    place = parse_location(server.url("elsewhere", "x"))
    assert asyncio.run(redirect_target(place)) == "http://localhost/x"
    before = server.seen["elsewhere"]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert asyncio.run(redirect_target(place)) == ""
    assert server.seen["elsewhere"] == before


def test_a_dataset_behind_redirects_says_where_it_was_looked_for(server: IllServer, target: IllServer) -> None:
    server.target = target.url("forbidden", "x?")
    with pytest.raises(
        dp.errors.StorageError, match=rf"dataset.json \(redirected to {target.url('forbidden', 'x')}\): forbidden"
    ):
        dp.DataLoader(server.url("elsewhere"), batch_size=4, device="cpu")
