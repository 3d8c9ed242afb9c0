"""A Hub on loopback that serves folders as repositories, in place of huggingface.co, which tests cannot ask.

It speaks the part of the Hub's API that an inspection uses, as the Hub documents it and as its own client expects
it: the commit of a revision, listings in pages with `Link`, and `resolve`, which leads large files to a store on
another port. Each answer can be spoiled, and all requests are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from attrs import define, field

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")


@define
class Request:
    """A request as it came in: `at` is "hub" or "store"."""

    at: str
    path: str
    query: str
    headers: Mapping[str, str]

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte that were asked for."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2])) if match else None


@define
class Reply:
    """What is sent back. `declared` in place of the body's length; `endless`: the body again and again."""

    status: int
    headers: dict[str, str] = field(factory=dict)
    body: bytes = b""
    declared: int | None = None
    endless: bool = False


Spoil = Callable[[Request, Reply], Reply | None]


@define
class FakeHub:
    """Repositories by name, each a folder; `spoil` sees each request and the right reply, and may give another."""

    repositories: dict[str, Path] = field(factory=dict)
    revisions: dict[str, str] = field(factory=lambda: {"main": COMMIT, COMMIT: COMMIT})
    page: int = 1000
    token: str | None = None
    """Where set, who does not show it sees no repository."""
    gated: bool = False
    has_ranges: bool = True
    spoil: list[Spoil] = field(factory=list)
    listing: list[dict[str, Any]] | None = None
    """In place of what lies in the folder."""
    requests: list[Request] = field(factory=list)
    ports: dict[str, int] = field(factory=dict)
    sent: list[int] = field(factory=list)
    """Bytes of each body that were written."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['hub']}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead here, and past any proxy."""
        return {"HF_ENDPOINT": self.endpoint, "NO_PROXY": "127.0.0.1"}

    def asked(self, at: str, part: str = "") -> list[Request]:
        """The requests to the hub or the store whose path has this in it."""
        return [one for one in self.requests if one.at == at and part in one.path]

    def once(self, part: str, *replies: Reply) -> None:
        """Give these replies, one after the other, to requests whose path has this in it."""
        left = list(replies)

        def give(request: Request, right: Reply) -> Reply | None:
            return left.pop(0) if left and part in request.path else None

        self.spoil.append(give)

    def always(self, part: str, reply: Reply, at: str = "hub") -> None:
        """Give this reply to all requests there whose path has this in it."""
        self.spoil.append(lambda request, right: reply if request.at == at and part in request.path else None)

    def reply(self, request: Request) -> Reply:
        """The reply to a request."""
        self.requests.append(request)
        right = self._store(request) if request.at == "store" else self._hub(request)
        return next((other for spoil in self.spoil if (other := spoil(request, right)) is not None), right)

    def _hub(self, request: Request) -> Reply:
        api = re.fullmatch(
            r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)(?:/(.*))?", request.path
        ) or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.*)", request.path)
        if api is None:
            return error(404, "")
        name, what, revision, path = api[1], api[2], unquote(api[3]), unquote(api[4] or "")
        root = self.repositories.get(name)
        if root is None or (self.token and request.headers.get("authorization") != f"Bearer {self.token}"):
            return error(401, "RepoNotFound")
        commit = self.revisions.get(revision)
        if commit is None:
            return error(404, "RevisionNotFound")
        if what == "revision":
            return document({"_id": "x", "id": name, "sha": commit})
        if what == "tree":
            return self._tree(request, root, path)
        return self._resolve(request, root / path, commit)

    def _tree(self, request: Request, root: Path, path: str) -> Reply:
        entries = self.listing
        if entries is None:
            if not (root / path).is_dir():
                return error(404, "EntryNotFound")
            entries = [_entry(root, one) for one in sorted((root / path).iterdir())]
        start = int(parse_qs(request.query).get("cursor", ["0"])[0])
        found = document(entries[start : start + self.page])
        if start + self.page < len(entries):
            link = f"{self.endpoint}{request.path}?limit={self.page}&cursor={start + self.page}"
            found.headers["Link"] = f'<{link}>; rel="next"'
        return found

    def _resolve(self, request: Request, path: Path, commit: str) -> Reply:
        if self.gated:
            return error(403, "GatedRepo")
        if not path.is_file():
            return error(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{path.name}"'}
        if not path.name.endswith(LARGE):
            return self._bytes(request, path, headers)
        headers |= {
            "X-Linked-Size": str(path.stat().st_size),
            "X-Linked-ETag": f'"{path.name}"',
            "Location": f"http://127.0.0.1:{self.ports['store']}{quote(str(path))}?X-Signature=secret",
        }
        return Reply(302, headers, b"Found. Redirecting")

    def _store(self, request: Request) -> Reply:
        return self._bytes(request, Path(unquote(request.path)), {})

    def _bytes(self, request: Request, path: Path, headers: dict[str, str]) -> Reply:
        size = path.stat().st_size
        wanted = request.range if self.has_ranges else None
        if wanted is None:
            return Reply(200, headers, path.read_bytes())
        begin, end = wanted[0], min(wanted[1], size - 1)
        if begin >= size:
            return Reply(416, {"Content-Range": f"bytes */{size}"})
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end + 1 - begin)
        return Reply(206, {**headers, "Content-Range": f"bytes {begin}-{end}/{size}"}, body)


def error(status: int, code: str) -> Reply:
    """A refusal as the Hub sends it."""
    headers = {"X-Error-Code": code, "X-Error-Message": "no"} if code else {}
    return Reply(status, headers, b'{"error":"no"}')


def document(told: Any) -> Reply:
    """JSON."""
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(told).encode())


def _entry(root: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(root))
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    size = path.stat().st_size
    entry: dict[str, Any] = {"type": "file", "oid": "1" * 40, "size": size, "path": name}
    if path.name.endswith(LARGE):
        # Sparse files of terabytes are not hashed.
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if size < 2**24 else "0" * 64
        entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 135}
    return entry


@contextmanager
def serving(**settings: Any) -> Iterator[FakeHub]:
    """A hub and its store, each on a port of its own."""
    hub = FakeHub(**settings)
    servers = {at: _Server(("127.0.0.1", 0), _handler(hub, at)) for at in ("hub", "store")}
    hub.ports = {at: server.server_address[1] for at, server in servers.items()}
    threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in servers.values()]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may go away at any time."""


def _handler(hub: FakeHub, at: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10
        wbufsize = -1  # head and body in one piece, or each answer waits for the other side's word

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = hub.reply(Request(at, parts.path, parts.query, headers))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            length = len(reply.body) if reply.declared is None else reply.declared
            if reply.endless:
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.close_connection |= length != len(reply.body)
            hub.sent.append(0)
            mine = len(hub.sent) - 1
            while True:
                self.wfile.write(reply.body)
                self.wfile.flush()
                hub.sent[mine] += len(reply.body)
                if not reply.endless:
                    break

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    return Handler
