"""Workers that Ray begins: it places them on nodes with free cores, and begins those anew that die, wherever there is room.

Ray carries where a worker listens, its token and its certificate, and no data. A worker that cannot be placed yet is a demand
that an autoscaler sees. Ray ends the workers once nobody in this process holds them, and when this process is gone.
"""

from __future__ import annotations

import datetime
import importlib
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from datapipe.core.environment import install_command
from datapipe.core.ray_cluster import cores_of_others, joined
from datapipe.errors import DependencyError
from datapipe.remote_workers.connection import Address, LostError
from datapipe.remote_workers.settings import Workers

_ASKED_FOR = "Workers('ray')"
_SERVICE = "datapipe.serving.ray_actor"  # of the room above this one
_MOST_CPUS_EACH = 8  # of a worker whose size is not given: most nodes have as many
_HOSTNAME = "datapipe-workers"  # in the certificate of all workers, wherever they are
_VALID_DAYS = 3650
_TOKEN_NBYTES = 24
_OF_BEGINNING = "creation task"  # Ray says so where an actor's own code failed when it began


def begun(workers: Workers) -> Sequence[RayPlace]:
    """Return the workers that Ray has begun for these settings, or begins now.

    Raises OptionError if no cluster answers, DependencyError if Ray is missing.
    """
    ray = joined(_ASKED_FOR, workers.address, f"Workers('ray', address={workers.address!r})")
    with _lock:
        actors = _begun.get(workers)
        if actors is None or actors.job != _job(ray):
            actors = _begun[workers] = _Actors(ray, workers)
    return [RayPlace(actors, number) for number in range(len(actors.handles))]


class _Actors:
    """The workers of this process for equal settings. They end with this object."""

    def __init__(self, ray: Any, workers: Workers) -> None:
        self.ray, self.job = ray, _job(ray)
        here = ray.get_runtime_context().get_node_id()
        self.token = secrets.token_urlsafe(_TOKEN_NBYTES)
        self.certificate, key = _certificate()
        self.cores = _sizes(ray, workers)
        # Not of the placement group of a training that Ray has begun, whose nodes have GPUs.
        placing = {"scheduling_strategy": "DEFAULT", "label_selector": {"ray.io/node-id": f"!{here}"}, "max_restarts": -1}
        actor = ray.remote(importlib.import_module(_SERVICE).Decoder)
        self.handles = [
            actor.options(num_cpus=cores, **placing).remote(cores, self.token, self.certificate, key) for cores in self.cores
        ]


class RayPlace:
    """Wherever Ray has placed one worker. Thread-safe."""

    def __init__(self, actors: _Actors, number: int) -> None:
        self._actors, self._number = actors, number
        self.name, self.cores = f"Ray's worker {number + 1}", actors.cores[number]
        self._lock = threading.Lock()
        self._asked: Any = None  # what the actor will answer, which is asked once while it is not there

    def find(self, timeout_s: float) -> Address:
        """Return where it listens. Raises LostError while Ray begins it, DependencyError if it cannot be begun."""
        ray = self._actors.ray
        with self._lock:
            if self._asked is None:
                self._asked = self._actors.handles[self._number].url.remote()
            asked = self._asked
        try:
            if not ray.wait([asked], timeout=timeout_s)[0]:
                raise LostError(f"{self.name} waits for a node with {self.cores} free cores, or begins there")
            with self._lock:
                self._asked = None
            return Address(ray.get(asked), self._actors.token, self._actors.certificate, _HOSTNAME)
        except ray.exceptions.ActorUnavailableError as exc:
            raise LostError(f"{self.name} died, and is begun anew") from exc
        except ray.exceptions.RayError as exc:
            text = str(exc).strip()
            what = text.splitlines()[-1][:300]
            if _OF_BEGINNING not in text:  # the cluster, or who has killed it
                raise LostError(f"{self.name} has ended ({what})") from exc
            raise DependencyError(
                f"{self.name} cannot be begun ({what}); every node needs the same datapipe: {install_command('ray')}"
            ) from exc


_begun: weakref.WeakValueDictionary[Workers, _Actors] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _job(ray: Any) -> str:
    """Return what tells a connection to a cluster from an earlier one of this process."""
    return str(ray.get_runtime_context().get_job_id())


def _sizes(ray: Any, workers: Workers) -> list[int]:
    """Return the cores of each worker."""
    assert workers.num_cpus is not None
    each = workers.cpus_per_worker
    if each is None:
        each = min([_MOST_CPUS_EACH, *cores_of_others(ray)])
    whole, rest = divmod(workers.num_cpus, each)
    return [each] * whole + [rest] * (rest > 0)


def _certificate() -> tuple[bytes, bytes]:
    """Return a new certificate, which is trusted as it is, and its key, PEM. Raises DependencyError."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as exc:
        raise DependencyError(f"{_ASKED_FOR}: cryptography is not installed; {install_command('ray')}") from exc
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOSTNAME)])
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)  # as clocks differ
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOSTNAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return signed.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
