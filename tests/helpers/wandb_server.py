"""A server on this machine that answers W&B's client as its own does, so far as a run needs it: who asks, which run it
is, and the streams of its files.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "a" * 40  # a key's form; this server asks for no more


@dataclass
class Shown:
    """What the server was told of one run."""

    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    files: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))  # name -> number -> line
    is_complete: bool = False

    def points(self) -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in sorted(self.files["wandb-history.jsonl"].items())]

    def values(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of every point with `key`."""
        step = f"{key.rpartition('/')[0]}/step"
        return [(point[step], point[key]) for point in self.points() if key in point]


@dataclass
class Sweep:
    """The file of a sweep, and the trials that its agents will be given: (id of the run, value of each key)."""

    text: str
    waiting: list[tuple[str, dict[str, Any]]]

    def next(self) -> list[dict[str, Any]]:
        """The commands for an agent that is idle."""
        if not self.waiting:
            return [{"type": "exit"}]
        run, values = self.waiting.pop(0)
        chosen = {key: {"value": value} for key, value in values.items()}
        return [{"id": run, "type": "run", "run_id": run, "program": "gpt1-ds", "args": chosen}]


class Server:
    """`runs` has what was told, by ENTITY/PROJECT/ID."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.runs: dict[str, Shown] = defaultdict(Shown)
        self.sweeps: dict[str, Sweep] = {}  # by id
        self.views: list[dict[str, Any]] = []  # saved workspaces, as told
        self.environment = {"WANDB_BASE_URL": address, "WANDB_API_KEY": KEY}

    def asked(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        if operation == "Viewer":
            return {
                "viewer": {"id": "1", "entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}}
            }
        if operation == "RunResumeStatus":
            return {
                "model": {
                    "id": "1",
                    "name": given["project"],
                    "entity": {"id": "1", "name": given["entity"]},
                    "bucket": self._there(given),
                }
            }
        if operation == "UpsertBucket":
            entity, project, name = given["entity"] or "someone", given["project"], given["name"]
            run = self.runs[f"{entity}/{project}/{name}"]
            run.config |= {key: one.get("value") for key, one in json.loads(given["config"] or "{}").items()}
            run.tags = given["tags"] or run.tags
            place = {"id": "1", "name": project, "entity": {"id": "1", "name": entity}}
            bucket = {
                "id": name,
                "name": name,
                "displayName": name,
                "sweepName": None,
                "historyLineCount": 0,
                "project": place,
            }
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if operation == "SweepWithRuns":
            told = {"config": self.sweeps[given["sweep"]].text, "runs": {"edges": []}}
            return {"project": {"sweep": told}}
        if operation == "CreateAgent":
            return {"createAgent": {"agent": {"id": given["sweep"]}}}  # one agent at a time
        if operation == "Heartbeat":
            commands = [] if json.loads(given["runState"]) else self.sweeps[given["id"]].next()
            return {"agentHeartbeat": {"agent": {"id": given["id"]}, "commands": json.dumps(commands)}}
        if operation == "UpsertView2":
            self.views.append({**given, "spec": json.loads(given["spec"])})
            return {"upsertView": {"view": {"id": "1", "name": given["name"]}, "inserted": True}}
        return {}

    def _there(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """The state of a run that a client continues."""
        name = f"{given['entity'] or 'someone'}/{given['project']}/{given['name']}"
        if name not in self.runs:
            return None
        run = self.runs[name]
        points = run.points()
        return {
            **{"id": given["name"], "name": given["name"], "summaryMetrics": "{}", "displayName": given["name"]},
            **{
                "logLineCount": 0,
                "historyLineCount": len(points),
                "eventsLineCount": len(run.files["wandb-events.jsonl"]),
            },
            **{"historyTail": json.dumps([json.dumps(points[-1])] if points else []), "eventsTail": "[]"},
            **{"config": json.dumps({key: {"value": value} for key, value in run.config.items()}), "tags": run.tags},
            **{"wandbConfig": json.dumps({"t": 1})},
        }

    def streamed(self, place: str, told: dict[str, Any]) -> None:
        run = self.runs[place]
        for name, part in (told.get("files") or {}).items():
            run.files[name].update(enumerate(part["content"], part["offset"]))
        run.is_complete |= bool(told.get("complete"))


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server at a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _body(self) -> bytes:
            length = self.headers.get("Content-Length")
            if length is not None:
                content = self.rfile.read(int(length))
            else:
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

        def do_POST(self) -> None:
            content, answer = self._body(), {}
            with lock:
                if self.path == "/graphql":
                    told = json.loads(content)
                    named = re.match(r"\s*(?:query|mutation)\s+(\w+)", told.get("query", ""))
                    operation = told.get("operationName") or (named[1] if named else "Viewer")
                    answer = {"data": server.asked(operation, told.get("variables") or {})}
                elif self.path.endswith("/file_stream"):
                    server.streamed("/".join(self.path.split("/")[2:5]), json.loads(content))
            self._answer(answer)

        def do_GET(self) -> None:
            self._answer({})

        def do_PUT(self) -> None:
            self._body()
            self._answer({})

        def _answer(self, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    lock = threading.Lock()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = Server(f"http://127.0.0.1:{listening.server_port}")
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield server
        listening.shutdown()
