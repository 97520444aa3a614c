"""Find out where a web server redirects the requests for an object: the library that follows redirects does not say."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from datapipe.stores.failures import Cause, Failure
from datapipe.stores.hub.targets import known_url
from datapipe.stores.location import HUB_SCHEME, WEB_SCHEMES, Location, redacted

LOOK_S = 2.0  # for finding it out, at most
_MOST = 10  # redirects, as many as the library follows
_LONGEST = 500  # characters of a URL in a message
_STATUSES = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}


async def with_target(failure: Failure, location: Location) -> Failure:
    """Return a request's failure with the URL to which it was redirected, as far as that can be found out now."""
    if failure.target or failure.kind is Cause.CHANGED:
        return failure
    if location.scheme == HUB_SCHEME:
        url = known_url(location.root, location.key)
        return dataclasses.replace(failure, target=redacted(url)) if url else failure
    if location.scheme not in WEB_SCHEMES:
        return failure
    return dataclasses.replace(failure, target=await redirect_target(location))


async def redirect_target(location: Location) -> str:
    """Return the URL to which requests for an object are redirected in the end, without its query; "" for none.

    Asks each server on the way, for at most two seconds in all, and reads no body. Returns the last URL that was found in
    that time. Asks nobody where a proxy is set.
    """
    found: list[str] = []
    with contextlib.suppress(Exception):  # another failure is the one to tell
        async with asyncio.timeout(LOOK_S):
            await _follow(location, found)
    return redacted(found[-1])[:_LONGEST] if found else ""


async def _follow(location: Location, found: list[str]) -> None:
    """Add the URL of each redirect to `found`, up to one that leads back, or that the library would not follow."""
    url = f"{location.top}/{quote(location.key)}"
    parts, known = urlsplit(url), {url}
    while parts.scheme in _PORTS and len(found) < _MOST and not _has_proxy(parts.scheme):
        to = await _redirected(parts)
        if to is None:
            return
        url = urljoin(url, to)
        found.append(url)
        before, parts = parts, urlsplit(url)
        if url in known or (before.scheme, parts.scheme) == ("https", "http"):
            return
        known.add(url)


async def _redirected(parts: SplitResult) -> str | None:
    """Return the `Location` of the answer to a request for one byte; None if it is no redirect."""
    host = parts.netloc.rpartition("@")[2]
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", "Accept: */*", "Range: bytes=0-0", "Connection: close"]
    port = parts.port or _PORTS[parts.scheme]
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=True if parts.scheme == "https" else None)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status, *answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    finally:
        writer.transport.abort()
    if int(status.split()[1]) not in _STATUSES:
        return None
    fields = (line.partition(":") for line in answered)
    return next((value.strip() for name, _, value in fields if name.lower() == "location"), None)


def _has_proxy(scheme: str) -> bool:
    names = f"{scheme}_proxy", "all_proxy"
    return any(os.environ.get(name) or os.environ.get(name.upper()) for name in names)
