"""A read-only image registry on loopback, for engines that can reach no other.

It implements the part of the distribution protocol that a pull needs. It holds one small image,
`tests/small:1`. `tests/private` requires a login, `tests/busy` has had too many requests, `tests/broken`
fails, and every other name is unknown.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_REFUSALS = {
    "tests/private": (401, "UNAUTHORIZED", "authentication required"),
    "tests/busy": (429, "TOOMANYREQUESTS", "too many requests, come back later"),
    "tests/broken": (500, "UNKNOWN", "the registry's own disk is broken"),
}


@dataclass
class Registry:
    """`address` is host and port, the first part of an image's name. `asked` holds every requested path."""

    address: str
    objects: dict[str, bytes]
    digest: str
    asked: list[str] = field(default_factory=list)

    @property
    def small(self) -> str:
        return f"{self.address}/tests/small"


@contextmanager
def serving(architecture: str) -> Iterator[Registry]:
    """A registry whose image is for `architecture`, named as the engine names it."""
    objects, manifest = _small(architecture)
    registry = Registry("", objects, manifest)
    handler = type("Handler", (_Handler,), {"registry": registry})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield registry
        server.shutdown()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.registry.asked.append(path)
        if path == "v2":
            self._answer(200, b"{}", "application/json")
            return
        name, _, what = path.removeprefix("v2/").rpartition("/")
        name, _, kind = name.rpartition("/")
        found = self.registry.objects.get(what) if name == "tests/small" else None
        if found is not None:
            self._answer(200, found, _MANIFEST if kind == "manifests" else "application/octet-stream")
        else:
            code, word, message = _REFUSALS.get(name, (404, "MANIFEST_UNKNOWN", "manifest unknown"))
            errors = {"errors": [{"code": word, "message": message}]}
            self._answer(code, json.dumps(errors).encode(), "application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        if code == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="tests"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", _digest(content))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _small(architecture: str) -> tuple[dict[str, bytes], str]:
    """Every object by its digest, the manifest also by its tag; then the manifest's digest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("small.txt")
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"small"))
    layer = buffer.getvalue()
    config = json.dumps({
        "architecture": architecture, "os": "linux", "config": {"Cmd": ["/small"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        "history": [{"created": "2025-01-01T00:00:00Z", "created_by": "tests"}],
    }).encode()  # fmt: skip
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": _MANIFEST,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                   "digest": _digest(config)},
        "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(layer),
                    "digest": _digest(layer)}],
    }).encode()  # fmt: skip
    objects = {_digest(each): each for each in (layer, config, manifest)}
    return {**objects, "1": manifest}, _digest(manifest)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
