"""A server that speaks the HTTP API of the Hugging Face hub, for the real `huggingface_hub` client.

Large files are redirected to another host, as the hub does; they can be cut or damaged on the way. HF_ENDPOINT names
the server. Replies are as of November 2026: headers X-Repo-Commit, X-Linked-Etag, X-Linked-Size, X-Error-Code, ETag.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from training.checkpoint.hub import resolve_checkpoint

NAME = "org/tiny-encoder"
TOKEN = "hf_of_a_reader"
LARGE = (".safetensors", ".bin", ".h5")
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """A repository with one commit."""

    files: dict[str, bytes] = field(default_factory=dict)
    is_gated: bool = False
    """Listed for all, but its files are for readers."""
    is_private: bool = False

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name in sorted(self.files):
            digest.update(name.encode() + hashlib.sha1(self.files[name]).digest())
        return digest.hexdigest()

    @classmethod
    def of(cls, directory: Path, **options: bool) -> Repository:
        """Return a repository with the files of a directory."""
        files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        return cls(files, **options)


class HubServer(ThreadingHTTPServer):
    """The hub on a free port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        """Old name -> new name."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers of each request."""
        self.cuts: list[int] = []
        """Bytes after which the next downloads of large files break off."""
        self.damage = b""
        """Bytes in large files that arrive as zeros."""
        self.status: int | None = None
        """Status code of all replies; None for those that the hub would give."""
        self.body = b""
        """Body of those replies."""
        self.attack: Callable[[BaseHTTPRequestHandler, str], bool] = lambda handler, path: False
        """Answers a request for a path, unless it returns False."""
        self.listing: dict[str, object] = {}
        """Values of each listing instead of the right ones."""
        self.headers: dict[str, str] = {}
        """Headers of the replies for files instead of the right ones."""
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.storage = f"http://localhost:{self.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def downloads(self) -> list[str]:
        """Return the names of the downloaded files, in order."""
        names = []
        for method, path, _ in self.requests:
            if method == "GET" and (match := _FILE.fullmatch(path)):
                names.append(match[3])
            elif method == "GET" and path.startswith("/storage/"):
                names.append(path.rpartition("/")[2])
        return names


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
        with suppress(ConnectionError):
            if self.server.attack(self, path):
                self.close_connection = True
                return
        if self.server.status:
            self._reply(self.server.status, self.server.body)
        elif path.startswith("/storage/"):
            self._large(path)
        elif match := _API.fullmatch(path):
            self._list(match[1], match[2])
        elif match := _FILE.fullmatch(path):
            self._file(*match.groups())
        else:
            self._refuse(404, "EntryNotFound", "Entry not found")

    do_HEAD = do_GET

    def _repository(self, name: str, *, listing: bool) -> Repository | None:
        """Return a repository, or answer with a redirect or refusal."""
        if new := self.server.moved.get(name):
            self._reply(307, b"", {"Location": self.path.replace(name, new)})
            return None
        token = self.headers.get("Authorization")
        if token not in (None, f"Bearer {TOKEN}"):
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repository = self.server.repositories.get(name)
        if repository is None or (repository.is_private and not token):
            status, message = (404, "Repository not found") if token else (401, "Invalid username or password.")
            self._refuse(status, "RepoNotFound" if token else "", message)
            return None
        if repository.is_gated and not token and not listing:
            self._refuse(403, "GatedRepo", f"Access to model {name} is restricted.")
            return None
        return repository

    def _list(self, name: str, revision: str | None) -> None:
        repository = self._repository(name, listing=True)
        if repository is None or not self._has_revision(repository, revision):
            return
        siblings = [_sibling(file, data) for file, data in repository.files.items()]
        values = {"id": name, "sha": repository.commit, "siblings": siblings, "private": False, "tags": []}
        self._reply(200, json.dumps(values | self.server.listing).encode(), {"Content-Type": "application/json"})

    def _has_revision(self, repository: Repository, revision: str | None) -> bool:
        if revision in (None, "main", repository.commit):
            return True
        self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return False

    def _file(self, name: str, revision: str, file: str) -> None:
        repository = self._repository(name, listing=False)
        if repository is None or not self._has_revision(repository, revision):
            return
        if file not in repository.files:
            self._refuse(404, "EntryNotFound", "Entry not found", self.server.headers)
            return
        data = repository.files[file]
        commit = {"X-Repo-Commit": repository.commit} | self.server.headers
        if file.endswith(LARGE):
            etag = hashlib.sha256(data).hexdigest()
            linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))} | self.server.headers
            location = f"{self.server.storage}/storage/{name}/{file}"
            self._reply(302, b"", {**commit, **linked, "Location": location})
        else:
            self._reply(200, data, {"ETag": f'"{_git_digest(data)}"', **commit})

    def _large(self, path: str) -> None:
        """Send a large file, or the rest of it."""
        assert "Authorization" not in self.headers, "the token went to another host"
        _, _, organization, repository, file = path.split("/", 4)
        data = self.server.repositories[f"{organization}/{repository}"].files[file]
        if self.server.damage:
            data = data.replace(self.server.damage, bytes(len(self.server.damage)))
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:] if cut is None else data[start : start + cut])
        self.close_connection = True

    def _refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        headers = {**(headers or {}), **({"X-Error-Code": code} if code else {})}
        self._reply(status, json.dumps({"error": message}).encode(), {**headers, "X-Error-Message": message})

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sibling(file: str, data: bytes) -> dict[str, object]:
    values = {"rfilename": file, "size": len(data), "blobId": _git_digest(data)}
    if file.endswith(LARGE):
        values["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return values


def _git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def refusal(name: str = NAME, revision: str | None = None) -> str:
    """Return the message of a refused checkpoint."""
    with pytest.raises((ValueError, OSError)) as error:
        resolve_checkpoint(name, revision)
    assert "\n" not in str(error.value)
    return str(error.value)


def leftovers(tmp_path: Path) -> list[str]:
    """Return the files that a checkpoint in the cache would be read from."""
    return sorted(path.name for path in tmp_path.glob("cache/models--*/snapshots/*/**/*") if not path.is_dir())
