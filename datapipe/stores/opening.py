"""Open a location as a client of `obstore`, with credentials from the environment."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.core.environment import install_command
from datapipe.errors import DatapipeError, DependencyError, OptionError
from datapipe.stores.failures import TIMEOUT_S
from datapipe.stores.hub.commits import forget_commits
from datapipe.stores.hub.targets import forget_targets, target
from datapipe.stores.location import HUB_SCHEME, Location
from datapipe.stores.reachability import forget_reached

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_MAX_IDLE = 512  # connections kept for the next requests, per host
_CONNECT_S = 5
_SILENCE_S = 10  # time without a byte after which an attempt is abandoned

_PART_RETRIES = 10

_MOST_TARGETS = 256  # clients of files on the Hub: each has its own, as each has a signed URL of its own

_stores: dict[tuple[str, str, bool, bool], ObjectStore] = {}
_targets: OrderedDict[str, ObjectStore] = OrderedDict()  # by the URL of the bytes, the one used last at the end
_lock = threading.Lock()


def open_store(location: Location, *, for_uploads: bool = False, retries: bool = False) -> ObjectStore:
    """Return the client of the location's bucket or host; a process has one for each. Makes no request.

    `for_uploads`: return one that allows the store to be silent while a large body is sent. Clients do not retry, as their users
    do; but with `retries`, for the parts of an object, which only the library can write again. Raises DependencyError if
    `obstore`, or what a profile needs, is not installed, and OptionError if `obstore` does not accept the environment's settings.
    """
    place = location.scheme, location.root, for_uploads, retries
    with _lock:
        if place not in _stores:
            _stores[place] = _opened(location, None if for_uploads else _SILENCE_S, retries=retries)
        return _stores[place]


async def reach(location: Location) -> tuple[ObjectStore, str]:
    """Return the client and the key by which to ask for an object, to be awaited in the thread of the requests.

    Of a file on the Hub the client is that of its bytes' URL. Raises what `open_store` raises, and FailedRequestError.
    """
    if location.scheme != HUB_SCHEME:
        return open_store(location), location.key
    found = await asyncio.to_thread(target, location.root, location.key)
    with _lock:
        store = _targets.pop(found.url, None)
        if store is None:
            store = _created(location, lambda: _web_store(found.url, found.headers, _SILENCE_S, _retry_config(False)))
        _targets[found.url] = store
        while len(_targets) > _MOST_TARGETS:
            _targets.popitem(last=False)
    return store, ""


def forget_stores() -> None:
    """Read credentials and settings from the environment again at the next use of each store."""
    with _lock:
        _stores.clear()
        _targets.clear()
    forget_commits()
    forget_targets()
    forget_reached()


def _opened(location: Location, silence_s: float | None, *, retries: bool) -> ObjectStore:
    return _created(location, lambda: _OPENERS[location.scheme](location, silence_s, _retry_config(retries)))


def _created(location: Location, create: Callable[[], ObjectStore]) -> ObjectStore:
    try:
        import obstore  # noqa: F401
    except ImportError as exc:
        raise DependencyError(f"{location}: object stores need obstore; {install_command('remote')}") from exc
    from obstore.exceptions import BaseError

    try:
        return create()
    except DatapipeError:
        raise
    except (BaseError, ValueError) as exc:
        kind = type(exc).__name__  # not its text, which may quote the settings
        raise OptionError(f"{location}: the store's settings in the environment are not accepted ({kind}); check them") from None


def _client(endpoint: str | None, silence_s: float | None, *, headers: dict[str, str] | None = None) -> ClientConfig:
    config: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(hours=1),  # of a whole object; an attempt ends when no bytes come, not by its duration
        "pool_max_idle_per_host": str(_MAX_IDLE),
    }
    if silence_s is not None:
        config["read_timeout"] = timedelta(seconds=silence_s)
    if endpoint is not None and endpoint.startswith("http://"):
        config["allow_http"] = True
    if headers:
        config["default_headers"] = headers
    return config


def _retry_config(has_retries: bool) -> Any:
    if has_retries:
        return {"max_retries": _PART_RETRIES, "retry_timeout": timedelta(seconds=TIMEOUT_S)}
    return {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}


def _open_s3(location: Location, silence_s: float | None, retry_config: Any) -> ObjectStore:
    from obstore.store import S3Store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    settings: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is not None:
        settings["region"] = region
    if _wants_profile():
        settings |= _profile(location, region)
    return S3Store(location.root, client_options=_client(endpoint, silence_s), retry_config=retry_config, **settings)


def _wants_profile() -> bool:
    """Return whether there are credentials that only boto3 finds, in the files of AWS's command line."""
    given = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SKIP_SIGNATURE")
    if any(os.environ.get(name) for name in given):
        return False
    if os.environ.get("AWS_PROFILE"):
        return True
    files = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
    return any(Path(os.environ.get(name, usual)).expanduser().is_file() for name, usual in files.items())


def _profile(location: Location, region: str | None) -> dict[str, Any]:
    profile = os.environ.get("AWS_PROFILE")
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as exc:
        if profile is None:
            return {}  # the files may be for another purpose; without credentials the store's error says so
        raise DependencyError(f"{location}: AWS_PROFILE names a profile, which boto3 reads; pip install boto3") from exc
    try:
        session = boto3.Session(profile_name=profile)
        if session.get_credentials() is None:
            return {}
        found = {"credential_provider": Boto3CredentialProvider(session)}
    except (BotoCoreError, ValueError) as exc:
        raise OptionError(f"{location}: the AWS profile cannot be used ({type(exc).__name__}); check AWS_PROFILE") from None
    return found if region is not None or session.region_name is None else {**found, "region": session.region_name}


def _open_gs(location: Location, silence_s: float | None, retry_config: Any) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(
        location.root, client_options=_client(os.environ.get("GOOGLE_BASE_URL"), silence_s), retry_config=retry_config
    )


def _open_az(location: Location, silence_s: float | None, retry_config: Any) -> ObjectStore:
    from obstore.store import AzureStore

    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
    local = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
    client = _client("http://" if local else endpoint, silence_s)
    return AzureStore(location.root, client_options=client, retry_config=retry_config)


def _open_http(location: Location, silence_s: float | None, retry_config: Any) -> ObjectStore:
    return _web_store(location.top, {}, silence_s, retry_config)


def _web_store(url: str, headers: Mapping[str, str], silence_s: float | None, retry_config: Any) -> ObjectStore:
    from obstore.store import HTTPStore

    return HTTPStore.from_url(url, client_options=_client(url, silence_s, headers=dict(headers)), retry_config=retry_config)


_OPENERS: dict[str, Callable[[Location, float | None, Any], ObjectStore]] = {
    "s3": _open_s3, "gs": _open_gs, "az": _open_az, "http": _open_http, "https": _open_http,
}  # fmt: skip
