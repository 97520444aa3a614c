"""URLs of the bytes of files on the Hub: where it redirects requests for them, asked for once while the signature holds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, quote, urljoin, urlsplit
from zlib import crc32

from datapipe.core.regular_files import read_bytes
from datapipe.core.user_cache import one_at_a_time
from datapipe.stores.failures import TO_PLAIN, Cause, FailedRequestError, Failure
from datapipe.stores.hub.commits import commit_of, is_commit, listing
from datapipe.stores.hub.keeping import digest, keep, keep_data, place_for, read_kept
from datapipe.stores.hub.requests import ask, endpoint, is_of, not_understood, token_headers
from datapipe.stores.location import redacted

_KEPT_S, _OWN_KEPT_S, _MARGIN_S = 600.0, 86_400.0, 60.0  # unless a URL says it; for the Hub's own; before it expires
_MOST_REDIRECTS = 5
_NUM_LOCKS = 32
_MOST_KEPT_NBYTES = 16 << 20  # of a file that is read as a whole

_targets: dict[tuple[str, str, str], tuple[Target, float, float]] = {}  # by server, root and path: until when, since when


@dataclass(frozen=True, slots=True)
class Target:
    """The URL of a file's bytes, which may be signed and so is shown to nobody, and the headers of requests for it."""

    url: str
    headers: Mapping[str, str]


def target(root: str, path: str) -> Target:
    """Return where the bytes of a file are, asked for once on this machine while it holds. Raises FailedRequestError."""
    server = endpoint()
    known, until_s, _ = _targets.get((server, root, path), (None, 0.0, 0.0))
    if known is not None and time.time() < until_s:
        return known
    if listing(root).find(path) is None:
        raise FailedRequestError(Failure(Cause.MISSING, "no such object; check the URL"))
    dataset, commit = root.rpartition("@")[0], commit_of(root)
    place = _place_of(server, dataset, commit, path)
    with one_at_a_time(place.with_name(f"url-{crc32(place.name.encode()) % _NUM_LOCKS}.lock")):
        found = read_kept(place)
        try:
            url, until_s, since_s = str(found["url"]), float(found["until_s"]), float(found["asked_s"])
        except (KeyError, TypeError, ValueError):
            until_s = 0.0
        if time.time() >= until_s:
            url, since_s = _ask_for_target(server, dataset, commit, path), time.time()
            until_s = since_s + _OWN_KEPT_S if is_of(server, url) else _expiry_s(url, since_s) - _MARGIN_S
            keep(place, {"url": url, "until_s": until_s, "asked_s": since_s})
    answer = Target(url, token_headers() if is_of(server, url) else {})
    _targets[server, root, path] = answer, until_s, since_s
    return answer


def known_url(root: str, path: str) -> str:
    """Return the URL of a file's bytes as far as this process knows it; "" if it does not."""
    known, _, _ = _targets.get((endpoint(), root, path), (None, 0.0, 0.0))
    return "" if known is None else known.url


def renew(root: str, path: str) -> None:
    """Forget the URL of a file's bytes, which is not accepted; but one that was asked for just now, perhaps by another thread."""
    server = endpoint()
    known, _, since_s = _targets.get((server, root, path), (None, 0.0, 0.0))
    if known is None or time.time() - since_s < _MARGIN_S:
        return
    del _targets[server, root, path]
    dataset, commit = root.rpartition("@")[0], commit_of(root)
    with contextlib.suppress(OSError):
        _place_of(server, dataset, commit, path).unlink()


def kept_bytes(root: str, path: str) -> bytes | None:
    """Return the bytes of a file, if this machine has read them as a whole; None if it has not, or its commit is not known."""
    dataset, _, revision = root.rpartition("@")
    if not is_commit(revision):
        return None
    try:
        return read_bytes(_place_of(endpoint(), dataset, revision, path).with_suffix(".bytes"))
    except OSError:
        return None


def keep_bytes(root: str, path: str, data: bytes) -> None:
    """Keep the bytes of a small file for other processes, as they never change."""
    dataset, _, revision = root.rpartition("@")
    if not is_commit(revision) or len(data) > _MOST_KEPT_NBYTES:
        return
    place = _place_of(endpoint(), dataset, revision, path).with_suffix(".bytes")
    with contextlib.suppress(OSError):
        keep_data(place, data)


def forget_targets() -> None:
    """Let this process know no URLs; those that are kept for all are used as before."""
    _targets.clear()


def _place_of(server: str, dataset: str, commit: str, path: str) -> Path:
    return place_for(f"{server} {dataset}", f"url-{digest(f'{commit} {path}')}.json")


def _ask_for_target(server: str, dataset: str, commit: str, path: str) -> str:
    """Return the URL to which the Hub redirects requests for a file, after redirects of its own."""
    url = f"{server}/datasets/{dataset}/resolve/{commit}/{quote(path)}"
    for _ in range(_MOST_REDIRECTS):
        answer = ask("HEAD", url)
        to = answer.headers.get("Location")
        if to is None:
            return url
        try:
            after = urljoin(url, to)
            urlsplit(after)
        except ValueError:
            raise not_understood("it redirects to what is no URL") from None
        if urlsplit(after).scheme not in ("https", urlsplit(server).scheme):
            raise FailedRequestError(Failure(Cause.BROKEN, TO_PLAIN, redacted(after)))
        if not is_of(server, after):
            return after
        url = after
    raise not_understood("it redirects in a circle")


def _expiry_s(url: str, now_s: float) -> float:
    """Return until when, by time.time, a signed URL is accepted, as far as its query says it."""
    query = parse_qs(urlsplit(url).query)

    def one(name: str) -> str:
        return query.get(name, [""])[0]

    if one("Expires").isdigit():  # of CloudFront
        return float(one("Expires"))
    if one("X-Amz-Expires").isdigit():
        with contextlib.suppress(ValueError):
            begun = datetime.strptime(one("X-Amz-Date"), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            return begun.timestamp() + float(one("X-Amz-Expires"))
    return now_s + _KEPT_S
