"""Commits of datasets on the Hub: at which one a branch stands, and which files it has."""

from __future__ import annotations

import bisect
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from datapipe.core.user_cache import one_at_a_time
from datapipe.stores.hub.keeping import digest, keep, place_for, read_kept
from datapipe.stores.hub.requests import WINDOW_S, ask, endpoint, is_of, is_offline, not_understood, parsed

_MOST_LISTED = 50_000  # files; of more, the answer about a dataset may name some only
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r"<([^<>]*)>\s*;[^,]*\brel=\"?next\"?")
_ABOUT = re.compile(r"\..*|.*\.(md|py)|LICEN[CS]E.*|dataset_infos?\.json", re.IGNORECASE)  # files beside the data

_commits: dict[tuple[str, str], tuple[str, float]] = {}  # by server and root, with the moment until which it counts
_listings: dict[tuple[str, str], HubListing] = {}


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit. `digest`: of its bytes, as the Hub names them."""

    path: str
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class HubListing:
    """The files of a commit, sorted by path."""

    commit: str
    files: tuple[HubFile, ...]

    def below(self, prefix: str) -> Iterator[HubFile]:
        """Yield the files whose paths begin with `prefix`."""
        start = bisect.bisect_left(self.files, prefix, key=_path_of)
        for number in range(start, len(self.files)):
            if not self.files[number].path.startswith(prefix):
                return
            yield self.files[number]

    def find(self, path: str) -> HubFile | None:
        """Return the file of a path; None if there is none."""
        found = next(self.below(path), None)
        return found if found is not None and found.path == path else None

    def only_folder(self) -> str:
        """Return the folder that holds all data, as most datasets have one; "" if the data lies at the top, or in several."""
        folder = ""
        while True:
            inner = [file.path[len(folder) :] for file in self.below(folder)]
            tops = {name.partition("/")[0] + "/" * ("/" in name) for name in inner if not _ABOUT.fullmatch(name)}
            if len(tops) != 1 or not (only := tops.pop()).endswith("/"):
                return folder.rstrip("/")
            folder += only


def forget_commits() -> None:
    """Let this process know nothing; what is kept for all is believed as before."""
    _commits.clear()
    _listings.clear()


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit, which never changes, and no branch or tag."""
    return _COMMIT.fullmatch(revision) is not None


def commit_of(root: str) -> str:
    """Return the commit of "owner/name@revision": where a branch or tag stands, or stood some minutes ago.

    Raises FailedRequestError.
    """
    dataset, _, revision = root.rpartition("@")
    if is_commit(revision):
        return revision
    server = endpoint()
    commit, until_s = _commits.get((server, f"{dataset}@{revision}"), ("", 0.0))
    if time.time() < until_s:
        return commit
    place = place_for(f"{server} {dataset}", f"revision-{digest(revision)}.json")
    with one_at_a_time(place.with_name("listing.lock")):
        found = read_kept(place)
        if not _is_recent(found) or not is_commit(str(found.get("commit"))):
            there = _ask_for_listing(server, dataset, revision)
            keep(_place_of(server, dataset, there.commit), _as_json(there))
            found = {"commit": there.commit, "asked_s": time.time()}
            keep(place, found)
            _listings[server, f"{dataset}@{there.commit}"] = there
    _commits[server, f"{dataset}@{revision}"] = found["commit"], found["asked_s"] + WINDOW_S
    return str(found["commit"])


def _is_recent(found: Mapping[str, Any]) -> bool:
    asked_s = found.get("asked_s")
    return isinstance(asked_s, float) and (is_offline() or 0 <= time.time() - asked_s < WINDOW_S)


def listing(root: str) -> HubListing:
    """Return the files of "owner/name@revision", asked for once on this machine. Raises FailedRequestError."""
    server = endpoint()
    dataset, commit = root.rpartition("@")[0], commit_of(root)
    known = _listings.get((server, f"{dataset}@{commit}"))
    if known is not None:
        return known
    place = _place_of(server, dataset, commit)
    with one_at_a_time(place.with_name("listing.lock")):
        found = _from_json(read_kept(place))
        if found is None:
            found = _ask_for_listing(server, dataset, commit)
            keep(place, _as_json(found))
    _listings[server, f"{dataset}@{commit}"] = found
    return found


def _ask_for_listing(server: str, dataset: str, revision: str) -> HubListing:
    about = f"{server}/api/datasets/{dataset}/revision/{quote(revision, safe='')}?blobs=true"
    found = parsed(ask("GET", about))
    commit, files = (found.get("sha"), found.get("siblings")) if isinstance(found, dict) else (None, None)
    if not isinstance(commit, str) or not is_commit(commit):
        raise not_understood("no commit in its answer")
    if isinstance(files, list) and 0 < len(files) <= _MOST_LISTED:
        return _listing(commit, ((one.get("rfilename"), one.get("blobId"), one) for one in files if isinstance(one, dict)))
    entries = _tree(f"{server}/api/datasets/{dataset}/tree/{commit}?recursive=true")
    return _listing(commit, ((one.get("path"), one.get("oid"), one) for one in entries))


def _tree(url: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a commit, page by page."""
    page: str | None = url
    while page is not None:
        answer = ask("GET", page)
        found = parsed(answer)
        if not isinstance(found, list):
            raise not_understood("a page of files that is no list")
        yield from (one for one in found if isinstance(one, dict) and one.get("type") == "file")
        after = _NEXT.search(answer.headers.get("Link", ""))
        page = None if after is None else urljoin(page, after.group(1))
        if page is not None and not is_of(url, page):
            raise not_understood("its next page is on another host")


def _listing(commit: str, entries: Iterator[tuple[Any, Any, dict[str, Any]]]) -> HubListing:
    files = []
    for path, blob, facts in entries:
        stored = facts.get("lfs")
        named = (stored.get("sha256") or stored.get("oid") or blob) if isinstance(stored, dict) else blob
        nbytes = facts.get("size")
        if not isinstance(path, str) or not isinstance(named, str) or not isinstance(nbytes, int) or nbytes < 0:
            raise not_understood(f"an entry without path, size or digest ({str(facts)[:80]})")
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise not_understood(f"a path that leads elsewhere ({path[:80]!r})")
        files.append(HubFile(path, nbytes, named))
    return HubListing(commit, tuple(sorted(files, key=_path_of)))


def _place_of(server: str, dataset: str, commit: str) -> Path:
    return place_for(f"{server} {dataset}", f"files-{commit}.json")


def _as_json(found: HubListing) -> dict[str, Any]:
    return {"commit": found.commit, "files": [[file.path, file.nbytes, file.digest] for file in found.files]}


def _from_json(found: Mapping[str, Any]) -> HubListing | None:
    try:
        files = [HubFile(str(path), int(nbytes), str(name)) for path, nbytes, name in found["files"]]
        return HubListing(str(found["commit"]), tuple(files))
    except (KeyError, TypeError, ValueError):
        return None


def _path_of(file: HubFile) -> str:
    return file.path
