"""`datapipe serve`: decode for loaders on other machines."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
from pathlib import Path

from datapipe.core.environment import num_usable_cores
from datapipe.core.printable import counted, say
from datapipe.errors import MissingDataError, OptionError
from datapipe.remote_workers.settings import TOKEN, check_token, is_loopback, read_named, read_pem
from datapipe.serving.service import Encryption, Service
from datapipe.stores.location import is_url, located

_TOKEN_NBYTES = 24  # of a token that is made here


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted or terminated. Returns 0."""
    host, port = _place(args.listen)
    encryption = _encryption(args)
    if encryption is None and not is_loopback(host):
        raise OptionError(
            f"--listen {args.listen}: other machines would send the token and get images unencrypted; pass --certificate and "
            "--key, or listen on 127.0.0.1"
        )
    roots = [_root(root) for root in args.root]
    token, is_new = _token(args.token_file)
    cores = num_usable_cores() if args.cores is None else args.cores
    if cores < 1:
        raise OptionError(f"--cores is {cores}; it must be at least 1")
    scheme = "grpc+tcp" if encryption is None else "grpc+tls"
    url = f"{scheme}://{host}:{port}"
    service = Service(url, token=token, roots=roots, cores=cores, encryption=encryption, allows_code=args.allow_code)
    stopping = _signals()
    shown = scheme.removesuffix("+tcp")
    say(f"serves {', '.join(roots)} with {counted(cores, 'core')} at {shown}://{host}:{service.port}")
    if args.allow_code:
        say("whoever has the token may run any code here, as this user (--allow-code)")
    if is_new:
        say(f"token: {token}    (--token-file, or the variable {TOKEN}, for one of your own)")
    try:
        os.read(stopping, 1)
    finally:
        service.end()
    return 0


def _signals() -> int:
    """Let an interrupt and a termination be read from the descriptor that is returned, rather than end this process.

    The kernel may give a signal to any thread, such as one of gRPC's. Python's main thread then hears of it when it next runs
    Python code, which it would not while it waits for a lock.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise OptionError(f"--listen {text!r:.80}: write HOST:PORT, such as 0.0.0.0:7071")
    return host, int(port)


def _encryption(args: argparse.Namespace) -> Encryption | None:
    if (args.certificate is None) != (args.key is None):
        raise OptionError("--certificate and --key belong together; pass both")
    if args.certificate is None:
        return None
    return Encryption(read_pem(args.certificate, "CERTIFICATE"), read_pem(args.key, "PRIVATE KEY"))


def _root(root: str) -> str:
    if is_url(root):
        return str(located(root))
    if not os.path.isdir(root):
        raise MissingDataError(f"--root {root}: is no folder; pass one that holds data, or the URL of a store")
    return os.path.realpath(root)


def _token(path: Path | None) -> tuple[str, bool]:
    """Return the token, and whether it was made here."""
    if path is not None:
        return check_token(read_named(path).decode(errors="replace").strip(), f"--token-file {path}"), False
    if TOKEN in os.environ:
        return check_token(os.environ[TOKEN], TOKEN), False
    return secrets.token_urlsafe(_TOKEN_NBYTES), True
