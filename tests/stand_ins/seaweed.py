"""A real S3 service for tests: SeaweedFS on loopback, on ports of its own, one for a whole test session.

Decides how the server is started, found ready and ended. Must never know what is tested with it.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_until

BUCKET = "the-bucket"
ACCESS_KEY, SECRET_KEY = "testing-access", "testing-secret-key-1234567890"
_NAMES = ("master", "volume", "filer", "s3", "master.grpc", "volume.grpc", "filer.grpc", "s3.grpc")
_TRIES = 5  # somebody else may take a port between the moment we find it free and the server's start
_LOOK_SECONDS = 10.0
_numbers = itertools.count()


@dataclass
class Seaweed:
    """A running server: the ports of its S3, filer and master, and its one bucket. (Each bucket takes several
    volumes, and there are only so many: tests share the bucket and have prefixes of their own.)"""

    port: int
    filer: int
    master: int
    folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prefix(self) -> str:
        """A folder of the bucket that nobody has used."""
        return f"home-{next(_numbers)}/of"

    def versioned(self) -> str:
        """Another bucket, which keeps old versions."""
        bucket, enable = (
            "versioned-bucket",
            b"""<VersioningConfiguration
            xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>""",
        )
        assert _ask(self.filer, "POST", f"/buckets/{bucket}/") in (200, 201, 409)
        assert _ask(self.port, "PUT", f"/{bucket}?versioning", enable) == 200
        return bucket

    def uploads(self) -> list[str]:
        """The unfinished multipart uploads."""
        return [entry["FullPath"] for entry in self._entries(f"/buckets/{BUCKET}/.uploads/")]

    def sent(self, key: str) -> int:
        """The bytes that lie on the disk for unfinished uploads of this key."""
        name = hashlib.sha1(key.encode()).hexdigest()
        folders = [path for path in self.uploads() if path.rpartition("/")[2].startswith(f"{name}_")]
        return sum(entry["FileSize"] for path in folders for entry in self._entries(f"{path}/"))

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.filer, timeout=PATIENCE)
        connection.request("GET", folder, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        listed = json.loads(answer.read() or b"{}") if answer.status == 200 else {}
        connection.close()
        return listed.get("Entries") or []

    def vacuum(self) -> None:
        """Frees the disk space of what was deleted, which it otherwise does every quarter of an hour."""
        _ask(self.master, "GET", "/vol/vacuum?garbageThreshold=0.01", seconds=300)


@contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """Runs a server whose data lie in the folder."""
    for number in range(1, _TRIES + 1):
        (folder / str(number)).mkdir()
        server = _started(folder / str(number))
        try:
            wait_until(
                lambda server=server: server.process.poll() is not None or _is_ready(server),  # type: ignore[misc]
                lambda server=server: f"SeaweedFS: {_tail(server.folder / 'log')}",  # type: ignore[misc]
            )
            if server.process.poll() is None:
                yield server
                return
        finally:
            server.process.kill()  # it takes ten seconds to leave by itself, and nobody needs its data
            server.process.wait()
    raise AssertionError(f"SeaweedFS: {_tail(folder / str(_TRIES) / 'log')}")


def _started(folder: Path) -> Seaweed:
    ports = _free_ports()
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    owner = {"name": "tests", "actions": ["Admin"], "credentials": [keys]}
    anyone = {"name": "anonymous", "actions": ["Admin"]}  # requests without any signature
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [owner, anyone]}), "utf-8")
    (folder / "data").mkdir()
    command = [
        str(Path(sys.executable).parent / "weed"), "-v=0", "server", f"-dir={folder / 'data'}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}",
        "-s3.autoCreateBucket=false", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=128", "-volume.max=60", f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        *(f"-{name.replace('.grpc', '.port.grpc') if 'grpc' in name else f'{name}.port'}={port}"
          for name, port in ports.items()),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    return Seaweed(ports["s3"], ports["filer"], ports["master"], folder, process)


def _is_ready(server: Seaweed) -> bool:
    try:
        if _ask(server.port, "GET", "/", seconds=_LOOK_SECONDS) not in (200, 403):
            return False
        made = _ask(server.filer, "POST", f"/buckets/{BUCKET}/", seconds=_LOOK_SECONDS)
        ready = f"/buckets/{BUCKET}/ready"
        return made in (200, 201) and _ask(server.filer, "PUT", ready, b"x", _LOOK_SECONDS) in (200, 201)
    except OSError:
        return False


def _ask(port: int, method: str, path: str, body: bytes = b"", seconds: float = PATIENCE) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-2000:]


def _free_ports() -> dict[str, int]:
    """Ports that are free now. All are held until the last is drawn, so that none comes twice."""
    with ExitStack() as held:
        found = {}
        for name in _NAMES:
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found[name] = listener.getsockname()[1]
        return found


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """One server for all tests of this process; each test asks for a bucket of its own."""
    with seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
