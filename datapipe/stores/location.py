"""URLs of objects and prefixes in object stores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from datapipe.errors import FormatError, OptionError

BUCKET_SCHEMES = ("s3", "gs", "az")
WEB_SCHEMES = ("http", "https")  # of web servers, which list nothing, and may redirect
HUB_SCHEME = "hf"
SCHEMES = (*BUCKET_SCHEMES, HUB_SCHEME, *WEB_SCHEMES)
_QUOTED = str.maketrans({one: quote(one) for one in "%?#"})
_DATASET = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/convert/\w+|refs/pr/\d+|[^/]+))?(?:/(.*))?")
_HUB_PAGE = re.compile(r"datasets/([^/@]+/[^/@]+)(?:/(?:resolve|blob|tree|raw)/(refs/convert/\w+|refs/pr/\d+|[^/]+))?(?:/(.*))?")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Location:
    """An object, or a prefix of objects, in a store. Holds no credentials."""

    scheme: str  # one of SCHEMES
    root: str  # bucket, container, "host:port", or "owner/name@revision" of a Hugging Face dataset
    key: str  # within the root, without a slash at either end; "" for the root itself

    def __str__(self) -> str:
        """Return the URL, in which only what would mean something else is quoted."""
        return f"{self.top}/{self.key.translate(_QUOTED)}" if self.key else self.top

    @property
    def top(self) -> str:
        """The URL of the bucket, of the server, or of the dataset on the Hub."""
        return f"hf://datasets/{self.root}" if self.scheme == HUB_SCHEME else f"{self.scheme}://{self.root}"

    @property
    def has_etags(self) -> bool:
        """Whether etags tell objects apart: not on the Hub, whose commits do not change, and whose etags differ by server."""
        return self.scheme != HUB_SCHEME

    def __truediv__(self, name: str) -> Location:
        """The object `name` under this prefix."""
        return Location(self.scheme, self.root, f"{self.key}/{name}" if self.key else name)

    @property
    def parent(self) -> Location:
        """The prefix that the last part of the key is below."""
        return Location(self.scheme, self.root, self.key.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]


Place = Path | Location  # a path, or a prefix or an object in a store


def url_inside(root: Location, text: str, *, named_in: str) -> str:
    """Return the URL of a path below a prefix. Raises FormatError, which names `named_in`, for one that leads elsewhere."""
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise FormatError(f"{named_in}: names {text!r:.100}, which leads out of {root}; repair it")
    return str(root / text)


def is_url(text: str) -> bool:
    """Return whether the text is a URL, of an object store or of something else, rather than the path of a file."""
    return _URL.match(text) is not None


def located(url: str) -> Location:
    """Return the location that a URL names, asking nobody. `places.parse_location` says what it is on the Hub.

    Pages of datasets on huggingface.co, and URLs of their files, are their place on the Hub.

    Raises OptionError for unsupported schemes, for user names and passwords in a URL, and for queries, as signed URLs
    have: a signature is valid for one object, and a dataset has several. The message contains no part of them.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise OptionError(f"{redacted(url)}: not a URL ({exc}); check it") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        raise OptionError(f"{redacted(url)}: {scheme}:// is not read; pass one of {', '.join(f'{name}://' for name in SCHEMES)}")
    if parts.username is not None or parts.password is not None:
        raise OptionError(f"{redacted(url)}: has a user name in it; leave it out, and give credentials by the environment")
    if parts.query or parts.fragment:
        raise OptionError(
            f"{redacted(url)}: has a query (removed here), as signed URLs do; a signature is good for one object: "
            "pass the plain URL of the dataset, and give credentials by the environment"
        )
    root, key = parts.hostname or "", unquote(parts.path).strip("/")
    of_hub = _HUB_PAGE.fullmatch(key) if (scheme, root) == ("https", "huggingface.co") else None
    if of_hub is not None:
        dataset, revision, key = of_hub.groups(default="")
        scheme, root = HUB_SCHEME, f"{dataset}@{revision or 'main'}"
    elif scheme in ("http", "https"):
        root += "" if port is None else f":{port}"
    elif scheme == HUB_SCHEME:
        root, key = _hugging_face(url, parts.netloc, key)
    else:
        root = parts.netloc  # names of buckets keep their case
    if not root:
        raise OptionError(f"{redacted(url)}: names no bucket or host; write {scheme}://NAME/PREFIX")
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise OptionError(f"{redacted(url)}: has an empty part, '.' or '..' in its path; write the path as the store lists it")
    return Location(scheme, root, key)


def _hugging_face(url: str, kind: str, path: str) -> tuple[str, str]:
    """Return the dataset with its revision, and the rest, of hf://datasets/OWNER/NAME[@REVISION]/PATH."""
    found = _DATASET.fullmatch(path)
    if kind != "datasets" or found is None:
        raise OptionError(f"{redacted(url)}: write hf://datasets/OWNER/NAME/PATH, or NAME@REVISION in place of NAME")
    dataset, revision, key = found.groups(default="")
    return f"{dataset}@{revision or 'main'}", key


def redacted(url: str) -> str:
    """Return the URL without user, password, query and fragment, for messages."""
    head, _, rest = url.partition("://")
    bare = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = bare.partition("/")
    return f"{head}://{host.rpartition('@')[2] if head != 'hf' else host}{slash}{path}"
