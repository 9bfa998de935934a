"""Finds an engine in docker's own settings: DOCKER_HOST and related variables, or a context's files.

We read them ourselves. The SDK ignores DOCKER_CONTEXT, and it finds contexts only next to a config.json,
which docker's CLI does not need. Opens no connection and reads no certificate.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import user
from orchestrator.errors import InputError
from orchestrator.files import read_own

DEFAULT = "default"
_SOCKET = "unix:///var/run/docker.sock"
_ENDPOINT = "docker"


@dataclass(frozen=True)
class Certificates:
    """The client's side of mutual TLS. With `verify` False, the server's certificate is not checked."""

    ca: Path
    cert: Path
    key: Path
    verify: bool = True


@dataclass(frozen=True)
class Endpoint:
    """One engine's address, and its TLS files if any."""

    host: str
    certificates: Certificates | None = None


def chosen(context: str | None) -> Endpoint:
    """The engine of this context. For None, the engine that a docker command would use here.

    Raises InputError for an unknown context, with the names of the known ones.
    """
    if context is None and (host := os.environ.get("DOCKER_HOST")):
        return Endpoint(host, _of_environment())
    name = context or named()
    return Endpoint(_SOCKET) if name == DEFAULT else _of_context(name)


def named() -> str:
    """The context that DOCKER_CONTEXT or docker's own config names."""
    return os.environ.get("DOCKER_CONTEXT") or _current()


def known() -> tuple[str, ...]:
    """The names of all contexts."""
    metas = sorted((_folder() / "contexts" / "meta").glob("*/meta.json"))
    return (DEFAULT, *(str(_json(path).get("Name", "?")) for path in metas))


def _folder() -> Path:
    """Docker's own config. Raises NoHome."""
    given = os.environ.get("DOCKER_CONFIG")
    try:
        return Path(given) if given else user.home() / ".docker"
    except user.NoHome as error:
        raise user.NoHome(f"docker's config is not known: {error}; set HOME or DOCKER_CONFIG") from None


def _of_environment() -> Certificates | None:
    verify, given = bool(os.environ.get("DOCKER_TLS_VERIFY")), os.environ.get("DOCKER_CERT_PATH")
    if not verify and not given:
        return None
    return _certificates(Path(given) if given else _folder(), verify)


def _certificates(folder: Path, verify: bool) -> Certificates:
    return Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem", verify)


def _current() -> str:
    if not os.environ.get("DOCKER_CONFIG") and user.known_home() is None:
        return DEFAULT
    path = _folder() / "config.json"
    return str(_json(path).get("currentContext") or DEFAULT) if path.is_file() else DEFAULT


def _of_context(name: str) -> Endpoint:
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = _folder() / "contexts" / "meta" / key / "meta.json"
    if not meta.is_file():
        raise InputError(f"unknown docker context {name!r}; valid: {', '.join(known())}")
    endpoint = (_json(meta).get("Endpoints") or {}).get(_ENDPOINT) or {}
    tls = _folder() / "contexts" / "tls" / key / _ENDPOINT
    verify = not endpoint.get("SkipTLSVerify", False)
    return Endpoint(
        str(endpoint.get("Host") or _SOCKET), _certificates(tls, verify) if tls.is_dir() else None
    )


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(read_own(path, 1 << 20))
    except (OSError, ValueError) as error:
        raise InputError(f"docker's {path} cannot be read: {error}") from error
    return document if isinstance(document, dict) else {}
