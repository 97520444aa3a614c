"""A stand-in of the Hub of Hugging Face, on the loopback interface: its API, signed URLs on another host, and its limits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from faulty_store import Answer, Directory, FaultyStore, ReceivedRequest, Weather

_SMALL = (".md", ".json", ".csv", ".txt", ".gitattributes")  # kept in git, and answered by the Hub itself
TOKEN = "hf_secret"


@dataclass
class StandInHub:
    """The Hub's answers. `limit`: requests that it allows in `window_s`; those for bytes on the other host do not count."""

    root: Path
    limit: int = 1000
    window_s: float = 300.0
    signed_s: float = 3600.0  # for which a URL holds
    most_listed: int = 1_000_000  # files that the answer about a dataset names
    page: int = 1000  # files in a page of the tree
    says_ratelimit: bool = False  # by the header `RateLimit`, in place of `Retry-After`
    counts: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)  # commit by dataset and branch
    port: int = 0
    key: str = "key"  # by which URLs are signed
    begun_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._files = Directory(self.root)

    def push(self, dataset: str, contents: Mapping[str, Path | bytes], branch: str = "main") -> str:
        """Let a branch of a dataset hold these files, by path, and folders; return the commit."""
        commit = hashlib.sha1(f"{dataset} {time.time_ns()}".encode()).hexdigest()
        top = self.root / commit
        for name, content in {".gitattributes": b"* lfs\n", "README.md": b"# Data\n", **contents}.items():
            place = top / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                place.write_bytes(content)
            elif content.is_dir():
                shutil.copytree(content, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".datapipe-index"))
            else:
                shutil.copy(content, place)
        self.branches[dataset, branch] = commit
        return commit

    async def __call__(self, request: ReceivedRequest) -> Answer:
        parts = [unquote(part) for part in urlsplit(request.target).path.strip("/").split("/")]
        if parts[0] == "cdn":
            return await self._bytes(request, parts[1:])
        if time.monotonic() - self.begun_s > self.window_s:
            self.counts.clear()
            self.begun_s = time.monotonic()
        self.counts["api" if parts[0] == "api" and parts[1] != "resolve-cache" else "resolve"] += 1
        if self.counts.total() > self.limit:
            self.refused += 1
            left = str(int(self.begun_s + self.window_s - time.monotonic()) + 1)
            return Answer(429, {"RateLimit": f'"api";r=0;t={left}'} if self.says_ratelimit else {"Retry-After": left}, b"")
        if parts[0] == "datasets":
            return await self._resolve(request, "/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        if parts[1] == "resolve-cache":
            target = quote("/".join(parts[5:]))
            return await self._files(replace(request, target=f"/{parts[5]}/{target.partition('/')[2]}"))
        dataset, what, revision = "/".join(parts[2:4]), parts[4], parts[5]
        refusal = self._refusal(request, dataset)
        if refusal is not None:
            return refusal
        commit = self._commit(dataset, revision)
        if commit is None:
            return Answer(404, {"X-Error-Code": "RevisionNotFound"}, b"")
        files = [self._file(commit, path) for path in sorted((self.root / commit).rglob("*")) if path.is_file()]
        if what == "revision":
            shown = [{"rfilename": path, **facts} for path, facts in files[: self.most_listed]]
            return _json({"sha": commit, "siblings": [] if len(files) > self.most_listed else shown})
        start = int(parse_qs(urlsplit(request.target).query).get("cursor", ["0"])[0])
        entries = [{"type": "directory", "path": "data", "oid": "0", "size": 0}]
        entries += [
            {"type": "file", "path": path, "oid": facts.pop("blobId"), **facts} for path, facts in files[start:][: self.page]
        ]
        after = start + self.page
        url = f'<{self.url}/api/datasets/{dataset}/tree/{commit}?recursive=true&cursor={after}>; rel="next"'
        return _json(entries, {"Link": url} if after < len(files) else {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _file(self, commit: str, path: Path) -> tuple[str, dict[str, object]]:
        data = path.read_bytes()
        facts: dict[str, object] = {"size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
        if not path.name.endswith(_SMALL):
            facts["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return str(path.relative_to(self.root / commit)), facts

    def _refusal(self, request: ReceivedRequest, dataset: str) -> Answer | None:
        is_known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if dataset not in {name for name, _ in self.branches} or (dataset in self.private and not is_known):
            return Answer(401, {"X-Error-Code": "RepoNotFound"}, b"")
        return Answer(403, {"X-Error-Code": "GatedRepo"}, b"") if dataset in self.gated and not is_known else None

    def _commit(self, dataset: str, revision: str) -> str | None:
        known = {commit for (name, _), commit in self.branches.items() if name == dataset}
        is_pushed = len(revision) == 40 and (self.root / revision).is_dir()
        return revision if revision in known or is_pushed else self.branches.get((dataset, revision))

    async def _resolve(self, request: ReceivedRequest, dataset: str, revision: str, path: str) -> Answer:
        commit = self._commit(dataset, revision)
        refusal = self._refusal(request, dataset)
        if refusal is not None:
            return refusal
        if commit is None or not (self.root / commit / path).is_file():
            return Answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
        if path.endswith(_SMALL):
            return Answer(307, {"Location": f"/api/resolve-cache/datasets/{dataset}/{commit}/{quote(path)}"}, b"")
        until = int(time.time() + self.signed_s)
        query = f"Expires={until}&Signature={self._signature(commit, path, until)}"
        return Answer(302, {"Location": f"http://localhost:{self.port}/cdn/{commit}/{quote(path)}?{query}"}, b"")

    def _signature(self, commit: str, path: str, until: int) -> str:
        return hashlib.sha256(f"{self.key} {commit} {path} {until}".encode()).hexdigest()

    async def _bytes(self, request: ReceivedRequest, parts: list[str]) -> Answer:
        query = parse_qs(urlsplit(request.target).query)
        until = int(query.get("Expires", ["0"])[0])
        is_signed = query.get("Signature") == [self._signature(parts[0], "/".join(parts[1:]), until)] and time.time() < until
        if not is_signed or "authorization" in request.headers:
            return Answer(403, {}, b"")
        return await self._files(replace(request, target="/" + quote("/".join(parts))))


def _json(found: object, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(found).encode())


@contextlib.contextmanager
def stand_in_hub(root: Path, **settings: object) -> Iterator[tuple[StandInHub, FaultyStore]]:
    """Let hf:// URLs mean a stand-in that keeps its files below `root`."""
    from datapipe.stores.opening import forget_stores

    root.mkdir(parents=True, exist_ok=True)
    hub = StandInHub(root, **settings)  # type: ignore[arg-type]
    names = ("HF_ENDPOINT", "HF_TOKEN")
    before = {name: os.environ.get(name) for name in names}
    with FaultyStore(hub, Weather(seed=1)) as store:
        hub.port = store.port
        os.environ["HF_ENDPOINT"] = store.url
        os.environ.pop("HF_TOKEN", None)
        forget_stores()
        try:
            yield hub, store
        finally:
            forget_stores()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
