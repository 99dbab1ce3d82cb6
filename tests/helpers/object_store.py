"""A server on this machine that speaks S3's language, and the variables with which its clients find it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


class ObjectStore:
    """An S3 server with one bucket, `runs`. What it holds is lost when it ends."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address, self.log = f"http://127.0.0.1:{self.port}", log
        self.environment = {
            **{"AWS_ENDPOINT_URL": self.address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
            **{"AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "2"},
        }

    def __enter__(self) -> ObjectStore:
        command = [sys.executable, "-m", "moto.server", "-p", str(self.port)]
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/moto-api/data.json", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, self.log.read_text()
                assert self._process.poll() is None, self.log.read_text()
                time.sleep(0.1)
        self.system().mkdir("runs")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def system(self) -> Any:
        import fsspec

        return fsspec.filesystem(
            "s3",
            key="test",
            secret="test",
            endpoint_url=self.address,
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def names(self, below: str) -> list[str]:
        system = self.system()
        return sorted(path.removeprefix(f"runs/{below}/") for path in system.find(f"runs/{below}"))
