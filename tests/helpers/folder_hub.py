"""A folder served as the Hugging Face hub serves its repositories, as far as reading goes: nothing leaves the machine.

`root/datasets/NAME/` and `root/models/NAME/` are repositories. `gated` repositories ask for a token; of a file
in `broken` half of the bytes come, once; files in `missing` are listed but not there.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/(datasets|models)/([\w.-]+/[\w.-]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?$")
_FILE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)$")


class HubServer(ThreadingHTTPServer):
    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.gated: set[str] = set()
        self.asked: list[str] = []  # "GET /path" of every request
        self.broken: list[str] = []  # names of files
        self.missing: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve(root: Path) -> Iterator[HubServer]:
    server = HubServer(root)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {path}")
        if match := _API.match(path):
            kind, name, what, _, below = match.groups()
            folder = self._repository(kind, name)
            if folder is not None:
                self._say(200, self._facts(folder, name, what, below or "", body))
        elif match := _FILE.match(path):
            kind, name, _, inside = match.groups()
            folder = self._repository("datasets" if kind else "models", name)
            if folder is not None:
                self._send(folder / inside)
        else:
            self._say(404, {"error": "not found"})

    def _repository(self, kind: str, name: str) -> Path | None:
        """Its folder, or None where an error was answered."""
        folder = self.server.root / kind / name
        if not folder.is_dir():
            self._say(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif name in self.server.gated and "Authorization" not in self.headers:
            message = f"Access to dataset {name} is restricted. You must be authenticated to access it."
            self._say(401, {"error": message}, {"X-Error-Code": "GatedRepo", "X-Error-Message": message})
        else:
            return folder
        return None

    def _facts(self, folder: Path, name: str, what: str | None, below: str, body: bytes) -> Any:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        entries = [_entry(path, folder) for path in files]
        if what == "tree":
            return [entry for entry in entries if entry["path"].startswith(below)]
        if what == "paths-info":
            form = parse_qs(body.decode())
            wanted = form["paths"] if "paths" in form else json.loads(body)["paths"]
            folders = {"/".join(e["path"].split("/")[:n]) for e in entries for n in range(1, e["path"].count("/") + 1)}
            found: list[Any] = [entry for entry in entries if entry["path"] in wanted]
            return found + [{"type": "directory", "path": x, "oid": SHA} for x in wanted if x in folders]
        siblings = [{"rfilename": entry["path"]} for entry in entries]
        return {"id": name, "sha": SHA, "private": False, "gated": False, "tags": [], "siblings": siblings}

    def _say(self, code: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._write(code, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, path: Path) -> None:
        if not path.is_file() or path.name in self.server.missing:
            self._say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})
            return
        content = path.read_bytes()
        headers = {"ETag": f'"{_oid(path)}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content = content[first : last + 1]
        self._write(206 if wanted else 200, content, headers, path.name)

    def _write(self, code: int, content: bytes, headers: dict[str, str], name: str = "") -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.server.broken:
            self.server.broken.remove(name)
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    relative = path.relative_to(folder).as_posix()
    return {"type": "file", "path": relative, "size": path.stat().st_size, "oid": _oid(path)}
