"""Ask the Hub over HTTP, and wait as it asks: all processes of a user do, once one has been told to."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from datapipe.core.printable import get_logger
from datapipe.core.user_cache import one_at_a_time
from datapipe.stores.failures import Cause, FailedRequestError, Failure, ShortBodyError
from datapipe.stores.hub.keeping import keep, place_for, read_kept

WINDOW_S = 300.0  # in which the Hub counts requests
_ASK_S = 20.0  # for one answer, at most
_MOST_NBYTES = 256 << 20  # of an answer
_LONGEST_WAIT_S = 3600.0
_RESET = re.compile(r"\bt\s*=\s*(\d+)")  # of `RateLimit: "api";r=0;t=55`

logger = get_logger(__name__)


def endpoint() -> str:
    """Return the URL of the Hub: huggingface.co, or what HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Return whether the user lets nobody ask the Hub, by HF_HUB_OFFLINE; what is kept is used."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def token_headers() -> dict[str, str]:
    """Return the headers of requests to the Hub, with the user's token: HF_TOKEN, or that of `hf auth login`."""
    token = os.environ.get("HF_TOKEN")
    if not token:
        with contextlib.suppress(ImportError):
            from huggingface_hub import get_token

            token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the Hub that is no error."""

    status: int
    headers: Message
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: each is looked at first."""


def ask(method: str, url: str) -> Answer:
    """Return the Hub's answer. Raises FailedRequestError, and OSError if there is none."""
    server = endpoint()
    if not server.startswith(("http://", "https://")):
        raise FailedRequestError(
            Failure(Cause.BROKEN, f"HF_ENDPOINT is {server!r:.80}, which is not a URL; correct it, or unset it")
        )
    if is_offline():
        what = "HF_HUB_OFFLINE is set, and this was not asked for before; unset it once"
        raise FailedRequestError(Failure(Cause.BROKEN, what))
    left_s = _pause_s(server)
    if left_s > 0:
        raise _busy(left_s)
    request = urllib.request.Request(url, headers={**token_headers(), "User-Agent": "datapipe"}, method=method)
    try:
        response = urllib.request.build_opener(_NoRedirects).open(request, timeout=_ASK_S)
    except urllib.error.HTTPError as exc:
        response = exc
    with response:
        answer = Answer(int(response.status), response.headers, _body(response))
    if answer.status == 429:
        asked_s = _asked_wait_s(answer.headers)
        _note_pause(server, asked_s)
        raise _busy(asked_s)
    if answer.status >= 400:
        raise FailedRequestError(_failure(answer))
    return answer


def _body(response: Any) -> bytes:
    pieces, held, until_s = [], 0, time.monotonic() + _ASK_S
    while piece := response.read1(1 << 20):
        pieces.append(piece)
        held += len(piece)
        if held > _MOST_NBYTES:
            raise not_understood(f"an answer of more than {_MOST_NBYTES} bytes")
        if time.monotonic() > until_s:
            raise TimeoutError
    if getattr(response, "length", None):  # of what was announced
        raise ShortBodyError(f"{held} of {held + response.length} bytes")
    return b"".join(pieces)


def parsed(answer: Answer) -> Any:
    """Return what an answer says as JSON. Raises FailedRequestError."""
    try:
        return msgspec.json.decode(answer.body)
    except ValueError:
        raise not_understood("an answer that is no JSON") from None


def not_understood(what: str) -> FailedRequestError:
    """Return the error for an answer that is not as the Hub's are. `what`: what is strange in it."""
    return FailedRequestError(Failure(Cause.BROKEN, f"the Hub's answer is not understood: {what}; check HF_ENDPOINT"))


_NOT_FOUND = (
    "no such dataset on the Hub, or a private one; check its name, or give a token that may read it: HF_TOKEN, `hf auth login`"
)
_BY_ERROR = {
    "RepoNotFound": (Cause.MISSING, _NOT_FOUND),
    "RevisionNotFound": (Cause.MISSING, "the dataset has no such branch, tag or commit; check what follows the '@'"),
    "EntryNotFound": (Cause.MISSING, "no such object; check the URL"),
    "GatedRepo": (
        Cause.DENIED,
        "the dataset is gated: accept its terms on its page, and give your token: HF_TOKEN, or `hf auth login`",
    ),
}


def _failure(answer: Answer) -> Failure:
    """Return an answer that is an error as a failure. The Hub says 401 of what is not there, unless one is logged in."""
    kind, what = _BY_ERROR.get(answer.headers.get("X-Error-Code", ""), (None, ""))
    if kind is not None:
        return Failure(kind, what)
    if answer.status in (401, 404):
        return Failure(Cause.MISSING, _NOT_FOUND)
    if answer.status == 403:
        return Failure(Cause.DENIED, "forbidden (403); the token lacks the right to read it: check HF_TOKEN")
    if answer.status == 408 or answer.status >= 500:
        return Failure(Cause.TRANSIENT, f"the Hub answers {answer.status}; try again later")
    return Failure(Cause.BROKEN, f"the Hub answers {answer.status}; check the URL and HF_ENDPOINT")


# -- waits that the Hub asks for ---------------------------------------------------------------------------


def _busy(wait_s: float) -> FailedRequestError:
    what = f"the Hub allows no more requests for {math.ceil(wait_s)} s (429)"
    if wait_s > _LONGEST_WAIT_S:
        return FailedRequestError(Failure(Cause.BROKEN, f"{what}; try again then, or give a token that may ask more: HF_TOKEN"))
    return FailedRequestError(Failure(Cause.THROTTLED, what, wait_s=wait_s))


def _asked_wait_s(headers: Message) -> float:
    """Return for how many seconds an answer asks to wait: by `Retry-After`, or until the window that `RateLimit` names ends."""
    after = headers.get("Retry-After", "")
    if after.strip().isdigit():
        return max(1.0, float(after))
    reset = _RESET.search(headers.get("RateLimit", ""))
    return max(1.0, float(reset.group(1))) if reset else WINDOW_S


def _pause_s(server: str) -> float:
    """Return for how many seconds from now nobody is to ask the Hub."""
    until_s = read_kept(_pause_place(server)).get("until_s")
    return until_s - time.time() if isinstance(until_s, float) else 0.0


def _note_pause(server: str, wait_s: float) -> None:
    """Let all processes of this user wait, and say so, unless another one has said it."""
    place = _pause_place(server)
    with one_at_a_time(place.with_suffix(".lock")):
        left_s = _pause_s(server)
        if left_s < 1.0:
            logger.warning(
                "%s: allows no more requests for %d s (429); all processes of this machine wait for it", server, math.ceil(wait_s)
            )
        if left_s < wait_s:
            keep(place, {"until_s": time.time() + wait_s})


def _pause_place(server: str) -> Path:
    return place_for(server, "pause.json")


def is_of(server: str, url: str) -> bool:
    """Return whether a URL is one of this server's."""
    ours, theirs = urlsplit(server), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
