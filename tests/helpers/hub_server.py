"""A hub of models on this machine: the endpoints that huggingface_hub's client uses to make a repository and to commit
files to it, small ones in the commit and large ones by LFS. It keeps what it is sent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WRITER, READER = "hf_writerwriterwriter", "hf_readerreaderreader"  # tokens of one person, with and without the right
LARGE = (".safetensors", ".png", ".model")


@dataclass
class Hub:
    """What is on the hub. `address` is for HF_ENDPOINT; with `broken`, commits are answered by that status."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # by sha256
    requests: list[str] = field(default_factory=list)
    broken: int = 0


class RefusedError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                status, reply = 200, respond(hub, self.command, self.path.partition("?")[0], body, token)
            except RefusedError as refused:
                status, reply = refused.status, {"error": f"refused {token}"}  # a server may quote anything
            content = json.dumps(reply).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def respond(hub: Hub, method: str, path: str, body: bytes, token: str) -> Any:
    """The answer to one request; raises RefusedError."""
    if method == "PUT":  # an address signed for whoever has it
        hub.objects[path.rpartition("/")[2]] = body
        assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
        return {}
    if token not in (WRITER, READER):
        raise RefusedError(401)
    if path == "/api/whoami-v2":
        return {"type": "user", "name": "me", "orgs": []}
    if path == "/api/validate-yaml":
        return {"errors": [], "warnings": []}
    if method == "GET" and path.startswith("/api/models/"):
        name = path.removeprefix("/api/models/")
        if name not in hub.repositories:
            raise RefusedError(404)
        return {"id": name, "private": hub.private[name], "siblings": [], "tags": []}
    if token != WRITER:
        raise RefusedError(403)
    asked = [json.loads(line) for line in body.splitlines() if line]
    if path == "/api/repos/create":
        return _create(hub, asked[0])
    if path.endswith(".git/info/lfs/objects/batch"):
        return {"transfer": "basic", "objects": [_place(hub, one) for one in asked[0]["objects"]]}
    name = path.removeprefix("/api/models/").rsplit("/", 2)[0]
    if path.endswith("/preupload/main"):
        return {"files": [_mode(file["path"]) for file in asked[0]["files"]]}
    if path.endswith("/commit/main"):
        return _commit(hub, name, asked)
    raise RefusedError(501)


def _create(hub: Hub, asked: dict[str, Any]) -> Any:
    if asked.get("organization") not in (None, "me"):
        raise RefusedError(403)
    name = f"me/{asked['name']}"
    if name in hub.repositories:
        raise RefusedError(409)
    hub.repositories[name], hub.private[name] = {}, asked.get("visibility") == "private"
    return {"url": f"{hub.address}/{name}", "id": name}


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False}


def _place(hub: Hub, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "actions": {"upload": {"href": f"{hub.address}/objects/{one['oid']}"}}}


def _commit(hub: Hub, name: str, lines: list[dict[str, Any]]) -> Any:
    if hub.broken:
        raise RefusedError(hub.broken)
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            hub.repositories[name][value["path"]] = hub.objects[value["oid"]]
    return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{hub.address}/{name}/commit/{'0' * 40}"}
