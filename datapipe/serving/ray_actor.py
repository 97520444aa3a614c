"""The actor that Ray begins on a node: a service like that of `datapipe serve`, for loaders of the process that asked for it."""

from __future__ import annotations

from datapipe.serving.service import Encryption, Service


class Decoder:
    """Serves all files that the node's Ray can read, since whoever begins an actor can run any code there."""

    def __init__(self, cores: int, token: str, certificate: bytes, key: bytes) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self._host = f"[{host}]" if ":" in host else host
        encryption = Encryption(certificate, key)
        self._service = Service(
            f"grpc+tls://{self._host}:0", token=token, roots=None, cores=cores, encryption=encryption, allows_code=True
        )

    def url(self) -> str:
        """Return where it listens."""
        return f"grpc+tls://{self._host}:{self._service.port}"
