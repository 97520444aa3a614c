"""Turn a store's failures into errors of one line, or into further attempts if they may pass.

An attempt is repeated after a random pause that doubles. An error says what, where, what was found, and what to do.
Messages consist of the status, the store's error code and our own URL. The text of the library's errors is never
included: it may contain signed URLs.
"""

from __future__ import annotations

import enum
import errno
import random
import re
from dataclasses import dataclass

from datapipe.core.printable import counted
from datapipe.errors import DatapipeError, MissingDataError, StorageError
from datapipe.stores.location import WEB_SCHEMES, Location, redacted

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w{1,60})\s*</Code>")
_REGION = re.compile(r"<Region>\s*([a-z0-9-]{3,30})\s*</Region>|expecting '([a-z0-9-]{3,30})'")
_METADATA_HOSTS = ("169.254.169.254", "metadata.google.internal")  # asked by the library where it finds no other credentials
_NO_CREDENTIALS = ("InvalidCredential", "MissingCredential", "credential")
_PERMANENT_TRANSPORT = (
    "CertificateError",
    "CERTIFICATE_VERIFY_FAILED",
    "invalid peer certificate",
    "UnknownIssuer",
    "URL scheme is not allowed",
)
_PLAIN_TARGET = re.compile(r'url: "(http://[^"\s]+)",\s*source: BadScheme')
TO_PLAIN = (
    "redirects from https to plain http are not followed, as anyone on the way could read and change the data; have the server "
    "redirect to https, or pass the http:// URL itself if you trust the network"
)
_CIRCLE = "the server redirects in a circle, or more than ten times; check the URL, or pass the one to which it leads"
_NO_TARGET = "the server redirects, but not to a URL; check the URL, or pass the one of the file"
_BAD_TARGET = (
    "the server redirects to a damaged URL, or to one of a scheme that is not read; check the URL, or pass the one of the file"
)
_BAD_ENDPOINT = "the endpoint is not a URL of http:// or https://, or redirects to one that is not; check it"
_NO_ANSWER_IN_TIME = "no answer in time; check the network and the endpoint"
_IGNORES_RANGES = "the server ignores ranges (200 in place of 206); take another server, or copy the data to a disk"


class Cause(enum.Enum):
    """The cause of a failure, as far as it decides how to handle it."""

    MISSING = "missing"
    CHANGED = "changed"  # the etag differs from before
    EXISTS = "exists"  # an object exists that must not
    DENIED = "denied"
    THROTTLED = "throttled"
    TRANSIENT = "transient"  # a retry may succeed
    UNREACHED = "unreached"  # no connection: its host's name does not resolve, or nothing listens there
    SILENT = "silent"  # no answer in time, perhaps to a request for a connection or for the host's address
    BROKEN = "broken"  # no retry will succeed


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed."""

    kind: Cause
    what: str  # for users: what was found, and what to do
    target: str = ""  # the URL to which the request was redirected, without its query, where that is known
    wait_s: float = 0.0  # for which the server asks to wait; 0: it does not say

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind in (Cause.THROTTLED, Cause.TRANSIENT, Cause.UNREACHED, Cause.SILENT)

    def place(self, location: Location) -> str:
        """Return the object's URL, and the one to which the request was redirected, if that is another."""
        url = str(location)
        return f"{url} (redirected to {self.target})" if self.target not in ("", url) else url

    def error(self, location: Location) -> DatapipeError:
        """Return the exception for it."""
        text = f"{self.place(location)}: {self.what}"
        if self.kind is Cause.MISSING:
            return MissingDataError(text)
        number = {Cause.CHANGED: errno.ESTALE, Cause.DENIED: errno.EACCES, Cause.EXISTS: errno.EEXIST}.get(self.kind, errno.EIO)
        return StorageError(number, text)


class FailedRequestError(Exception):
    """A request failed for a known reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class ShortBodyError(Exception):
    """Fewer bytes came than were requested."""


class WholeObjectError(Exception):
    """The whole object came although a range was requested."""


class TooLargeError(Exception):
    """An object that is read as a whole claims more bytes than such an object has."""


class ChangedError(Exception):
    """A response with another etag or size than the first one: from a server that ignores If-Match."""


def examine(exc: BaseException, location: Location) -> Failure:
    """Classify an exception of `obstore`, or one raised while its result was read."""
    if isinstance(exc, FailedRequestError):
        return exc.failure
    if isinstance(exc, ChangedError):
        return Failure(Cause.CHANGED, "changed")
    text = str(exc)
    if any(host in text for host in _METADATA_HOSTS):  # whose status says nothing about the object
        return _without_credentials(location)
    found = _STATUS.search(text)
    status = int(found.group(1) or found.group(2)) if found else 0
    named = _CODE.search(text)
    code = named.group(1) if named else ""
    if isinstance(exc, TooLargeError):
        return Failure(Cause.BROKEN, f"claims {exc}, more than an index or a manifest has; check the URL")
    if isinstance(exc, TimeoutError):
        return Failure(Cause.SILENT, _NO_ANSWER_IN_TIME)
    if isinstance(exc, ShortBodyError):
        return Failure(Cause.TRANSIENT, f"the answer was cut ({exc}); the network, or a proxy on the way, is at fault")
    if isinstance(exc, WholeObjectError) or type(exc).__name__ == "NotSupportedError" or "NotPartial" in text:
        return Failure(Cause.BROKEN, _IGNORES_RANGES)
    if code in _BY_CODE:
        kind, what = _BY_CODE[code]
        region = _REGION.search(text)
        if region and kind is Cause.DENIED and "region" in what:
            what = f"the bucket is in region {region.group(1) or region.group(2)}; set AWS_REGION to that"
        return Failure(kind, what.format(root=location.root))
    if type(exc).__name__ == "AlreadyExistsError":
        return Failure(Cause.EXISTS, "exists already; another conversion finished first, or pass --overwrite")
    if type(exc).__name__ == "PreconditionError" or status == 412:
        return Failure(Cause.CHANGED, "changed")
    if location.scheme in WEB_SCHEMES and (300 <= status < 400 or "redirect without LOCATION" in text):
        return Failure(Cause.BROKEN, _NO_TARGET)
    if status in _BY_STATUS:
        kind, what = _BY_STATUS[status]
        return Failure(kind, what.format(root=location.root, code=f" {code}" if code else ""))
    if isinstance(exc, FileNotFoundError):
        return Failure(Cause.MISSING, "no such object; check the URL")
    if status >= 500:
        return Failure(Cause.TRANSIENT, f"the store answers {status}{f' {code}' if code else ''}; try again later")
    if status:
        return Failure(Cause.BROKEN, f"the store answers {status}{f' {code}' if code else ''}; check the URL and the endpoint")
    return _without_answer(text, location)


def _without_answer(text: str, location: Location) -> Failure:
    """Classify a failure without a status: no credentials, no such host, no connection, a timeout."""
    if "redirect without LOCATION" in text:
        return Failure(*_OTHER_REGION)
    plain = _PLAIN_TARGET.search(text)
    if plain is not None:
        return Failure(Cause.BROKEN, TO_PLAIN, redacted(plain.group(1)))
    if any(sign in text for sign in _NO_CREDENTIALS):
        return _without_credentials(location)
    if "builder error" in text or "BadScheme" in text:
        return Failure(Cause.BROKEN, _BAD_TARGET if location.scheme in WEB_SCHEMES else _BAD_ENDPOINT)
    if "error following redirect" in text:
        return Failure(Cause.BROKEN, _CIRCLE)
    if any(sign in text for sign in _PERMANENT_TRANSPORT):
        return Failure(Cause.BROKEN, "no trusted connection (TLS); check the endpoint's scheme and certificate")
    if "dns error" in text or "failed to lookup address" in text or "Name or service not known" in text:
        return Failure(Cause.UNREACHED, "the host's name does not resolve (DNS); check the URL, the endpoint and the network")
    if "Connection refused" in text:
        return Failure(Cause.UNREACHED, "the connection was refused; check the endpoint and its port")
    if any(sign in text for sign in ("timed out", "TimedOut", "kind: Timeout")):  # "retry_timeout" is always there
        return Failure(Cause.SILENT, _NO_ANSWER_IN_TIME)
    return Failure(Cause.TRANSIENT, "the connection broke; check the network and the endpoint")


def _without_credentials(location: Location) -> Failure:
    return Failure(Cause.DENIED, f"no credentials were found; {_CREDENTIALS[location.scheme]}")


_ENVIRONMENT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE where boto3 is installed"
_CREDENTIALS = {
    "s3": f"{_ENVIRONMENT}; for a public bucket set AWS_SKIP_SIGNATURE=true",
    "gs": "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a SAS token",
    "hf": "set HF_TOKEN, or log in with `hf auth login`",
    "http": "the server wants none of ours",
    "https": "the server wants none of ours",
}
_NO_BUCKET = "no bucket {root!r}; check its name, and the endpoint and region (AWS_ENDPOINT_URL, AWS_REGION)"
_REFUSED = "forbidden (403{code}); the credentials lack the right to read it, or it does not exist"
_SLOW = "the store throttles requests; use fewer ranks, or lower dp.Remote(requests=...)"
_OTHER_REGION = (Cause.DENIED, "the bucket is in another region; set AWS_REGION to it")
_EXPIRED = (Cause.DENIED, "the credentials have expired; renew them, and resume from the saved state")
_BY_STATUS: dict[int, tuple[Cause, str]] = {
    301: _OTHER_REGION,
    307: _OTHER_REGION,
    401: (Cause.DENIED, "the credentials are missing or not accepted (401{code}); check them"),
    403: (Cause.DENIED, _REFUSED),
    404: (Cause.MISSING, "no such object; check the URL"),
    408: (Cause.TRANSIENT, "no answer in time (408{code}); check the network"),
    416: (Cause.CHANGED, "is shorter than its index says"),
    429: (Cause.THROTTLED, _SLOW),
    503: (Cause.THROTTLED, _SLOW),
}
_BY_CODE: dict[str, tuple[Cause, str]] = {
    "NoSuchBucket": (Cause.MISSING, _NO_BUCKET),
    "ContainerNotFound": (Cause.MISSING, "no container {root!r}; check its name and AZURE_STORAGE_ACCOUNT_NAME"),
    "PermanentRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "RequestTimeTooSkewed": (Cause.DENIED, "this machine's clock differs too much from the store's; set the clock (NTP)"),
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidAccessKeyId": (Cause.DENIED, "the store does not know the access key; check AWS_ACCESS_KEY_ID and the endpoint"),
    "SignatureDoesNotMatch": (Cause.DENIED, "the secret key does not fit the access key; check AWS_SECRET_ACCESS_KEY"),
    "AuthenticationFailed": (Cause.DENIED, "the credentials are not accepted; check the account's key or token"),
    "SlowDown": (Cause.THROTTLED, _SLOW),
    "ServerBusy": (Cause.THROTTLED, _SLOW),
    "PreconditionFailed": (Cause.CHANGED, "changed"),
    "ConditionNotMet": (Cause.CHANGED, "changed"),
}


TIMEOUT_S = 120.0  # without success, after which a request has failed
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
NO_ANSWER = "no answer yet"  # the reason of a wait in which nothing has failed


def pause_s(attempts: int) -> float:
    """Return how many seconds to wait before the next attempt, after so many that failed (0 for the first of them)."""
    return random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempts))


def told(failure: Failure, last: Failure | None) -> Failure:
    """Return which of an attempt's failure and the last one to tell: the attempt may have failed because its time was over."""
    return last if last is not None and failure.kind is Cause.SILENT else failure


def given_up(failure: Failure, location: Location, *, elapsed_s: float, attempts: int, timeout_s: float) -> DatapipeError:
    """Return the error after the last attempt; one whose cause may pass says how long was tried, and how long at most."""
    if not failure.may_pass:
        return failure.error(location)
    tried = f"no success in {elapsed_s:.0f} s and {counted(attempts, 'attempt')}, with {timeout_s:g} s at most"
    return StorageError(errno.EIO, f"{failure.place(location)}: {tried}: {failure.what}")
