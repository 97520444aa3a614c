"""`Workers`: which machines decode for a loader, and how they know it."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field

from datapipe.core.checks import whole_number
from datapipe.core.regular_files import read_bytes
from datapipe.errors import MissingDataError, OptionError, StorageError

TOKEN = "DATAPIPE_TOKEN"  # the variable of the environment that holds a token which is not passed
LEAST_TOKEN = 16  # characters of a token
_MOST_CPUS = 1 << 16
_PLACES = re.compile(r"grpc(?P<is_encrypted>\+tls)?://(?P<places>.+)")
_PLACE = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Workers:
    """Machines that decode for a loader: each runs `datapipe serve`, or Ray starts workers on them.

    >>> workers = datapipe.Workers("grpc+tls://decoder-1:7071,decoder-2:7071", certificate="decoders.pem")
    >>> loader = datapipe.DataLoader("/shared/train", batch_size=256, shuffle=True, transform=train, workers=workers)
    >>> workers = datapipe.Workers("ray", num_cpus=64)

    places: "grpc+tls://HOST:PORT,HOST:PORT", or "grpc://..." without encryption, which only this machine's own addresses may be;
        or "ray": nodes of a Ray cluster, but not this one. Ray starts the workers, replaces those that die, and ends them with
        the last loader of this process that uses them; loaders that are given equal `Workers` share them.
    token: what `datapipe serve` asks for; None: the variable DATAPIPE_TOKEN of the environment.
    certificate: a PEM file with the certificates that are trusted; None: those that gRPC brings.
    num_cpus: with "ray", the cores of all workers together.
    cpus_per_worker: with "ray", the cores of a worker, which are on one node; None: 8, or fewer where nodes are smaller.
    address: with "ray", the cluster, "HOST:PORT" or "auto"; None: the one that this process is connected to, that of the
        variable RAY_ADDRESS, or the one that this machine belongs to.

    Raises OptionError for what is no place, for a token that is missing or too short, and for options of other places.
    """

    places: str
    token: str | None = field(default=None, repr=False)
    certificate: str | os.PathLike[str] | None = None
    num_cpus: int | None = None
    cpus_per_worker: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.are_rays:
            self._check_rays()
            return
        addresses(self.places)
        rays = {"num_cpus": self.num_cpus, "cpus_per_worker": self.cpus_per_worker, "address": self.address}
        for name, value in rays.items():
            if value is not None:
                raise OptionError(f"Workers({self.places!r:.80}): {name} belongs to workers of Ray; write Workers('ray', ...)")
        check_token(self.secret, f"Workers(token=...) or {TOKEN}")
        if self.certificate is not None and not self.is_encrypted:
            raise OptionError(
                f"Workers({self.places!r}): certificate is given, and the places are not encrypted; write grpc+tls://"
            )

    def _check_rays(self) -> None:
        for name, own in (("token", self.token), ("certificate", self.certificate)):
            if own is not None:
                raise OptionError(f"Workers('ray'): {name} is given, and workers of Ray get one of their own; leave it out")
        if self.num_cpus is None:
            raise OptionError("Workers('ray'): num_cpus is missing, the cores of all workers together, such as num_cpus=64")
        for name, number in (("num_cpus", self.num_cpus), ("cpus_per_worker", self.cpus_per_worker)):
            if number is not None:
                whole_number(number, f"Workers('ray'): {name}", least=1, most=_MOST_CPUS)
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise OptionError(f"Workers('ray'): address is {self.address!r:.40}; write HOST:PORT, or 'auto'")

    @property
    def are_rays(self) -> bool:
        """Whether Ray starts them."""
        return self.places == "ray"

    @property
    def secret(self) -> str:
        """The token."""
        return os.environ.get(TOKEN, "") if self.token is None else self.token

    @property
    def is_encrypted(self) -> bool:
        return self.places.startswith("grpc+tls:")

    def trusted(self) -> bytes | None:
        """Return the certificates that are trusted, PEM. Raises what `read_pem` raises."""
        return None if self.certificate is None else read_pem(self.certificate, "CERTIFICATE")


def read_named(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a small file that a user named. Raises MissingDataError and StorageError."""
    name = os.fspath(path)
    try:
        return read_bytes(path)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{name}: is missing") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{name}: cannot be read ({exc.strerror})") from exc


def read_pem(path: str | os.PathLike[str], what: str) -> bytes:
    """Return the bytes of a PEM file that holds a "CERTIFICATE" or a "PRIVATE KEY".

    Raises what `read_named` raises, and OptionError for a file that holds none.
    """
    data = read_named(path)
    if re.search(rb"-----BEGIN (\w+ )*" + what.encode() + b"-----", data) is None:
        raise OptionError(f"{os.fspath(path)}: holds no {what.lower()} in PEM; see docs/clusters.md")
    return data


def workers_or_none(workers: object) -> Workers | None:
    """Return what was passed as `workers=`. Raises OptionError for anything but `Workers` and None."""
    if workers is None or isinstance(workers, Workers):
        return workers
    raise OptionError(f"workers is {workers!r:.60}; pass datapipe.Workers('grpc+tls://HOST:PORT', token=...), or of Ray")


def addresses(places: str) -> list[str]:
    """Return the URL of each place. Raises OptionError."""
    found = _PLACES.fullmatch(places) if isinstance(places, str) else None
    if found is None:
        raise OptionError(f"workers are at {places!r:.80}; write grpc+tls://HOST:PORT,HOST:PORT, or ray")
    urls = []
    for place in found["places"].split(","):
        one = _PLACE.fullmatch(place.strip())
        if one is None or not 0 < int(one["port"]) < 1 << 16:
            raise OptionError(f"workers are at {places!r:.80}, and {place.strip()!r:.40} is no HOST:PORT, such as decoder-1:7071")
        if not found["is_encrypted"] and not is_loopback(one["host"]):
            raise OptionError(
                f"{place.strip()} is another machine, and grpc:// sends the token and the images unencrypted; write grpc+tls://, "
                "and give `datapipe serve` a certificate"
            )
        urls.append(f"grpc{found['is_encrypted'] or '+tcp'}://{one['host']}:{one['port']}")
    if len({*urls}) < len(urls):
        raise OptionError(f"workers are at {places!r:.80}: a place is named twice")
    return urls


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by an address that no other reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(token: str, what: str) -> str:
    """Return a token that can be a header. Raises OptionError for one that is missing or easily guessed. `what`: its source."""
    if not token:
        raise OptionError(f"{what}: the token of `datapipe serve` is missing")
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(f"{what}: a token has at least {LEAST_TOKEN} characters of ASCII, without spaces; see `datapipe serve`")
    return token
