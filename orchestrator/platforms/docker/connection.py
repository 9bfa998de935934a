"""The way to one Docker engine, and its errors by what to do next.

Decides nothing about sessions. A client belongs to one thread, as its HTTP session does.
"""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import APIError, DockerException
from docker.errors import NotFound as DockerNotFound
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env

from orchestrator.errors import AccessDenied, BackendError, InputError, NotFound, Rejected, Transient
from orchestrator.platforms.docker.options import DockerOptions, Tls

_NO_ROOM = "no space left on device"
_NO_GPU = ("could not select device driver", "unknown runtime specified nvidia", "nvidia-container-cli",
           "unresolvable cdi devices", "cdi device injection failed")  # fmt: skip
_NO_PROGRAM = ("executable file not found", "no such file or directory: unknown", "exec format error")


class Connection:
    """Clients of one engine, made when they are needed; `name` is the platform's, for error texts."""

    def __init__(self, name: str, options: DockerOptions) -> None:
        self._name = name
        self._options = options
        self._local = threading.local()

    def client(self, operation: str) -> docker.DockerClient:
        """This thread's client. Raises Transient, AccessDenied or InputError where there is none."""
        client: docker.DockerClient | None = getattr(self._local, "client", None)
        if client is None:
            with self.told(operation):
                url, tls = self._address()
                client = docker.DockerClient(url, timeout=int(self._options.timeout_seconds), tls=tls)
            self._local.client = client
        return client

    @property
    def place(self) -> str:
        """Where the engine is, in words."""
        return self._address()[0]

    def _address(self) -> tuple[str, TLSConfig | bool]:
        options = self._options
        if options.host is not None:
            return options.host, _config(options.tls) if options.tls is not None else False
        if options.context is None and (given := kwargs_from_env()).get("base_url"):
            return str(given["base_url"]), given.get("tls", False)
        known = {each.name: each for each in ContextAPI.contexts()}
        name = options.context or get_current_context_name()
        if name not in known:
            raise InputError(
                f"platform {self._name!r}: there is no docker context {name!r}; valid: {', '.join(known)}"
            )
        return str(known[name].Host), known[name].TLSConfig or False

    @contextmanager
    def told(self, operation: str) -> Iterator[None]:
        """Turns what the SDK raises inside into ours."""
        try:
            yield
        except APIError as error:
            raise self._refused(error, operation) from error
        except (DockerException, requests.RequestException, tarfile.TarError, ConnectionError) as error:
            raise self._silent(error, operation) from error

    def _silent(self, error: Exception, operation: str) -> BackendError:
        text = str(error)
        if "Permission denied" in text or "PermissionError" in text:
            return self._error(
                AccessDenied,
                operation,
                f"no right to use {self.place}: join its group (docker) and log in again",
            )
        if "certificate" in text.lower():
            return self._error(AccessDenied, operation, f"TLS with {self.place} failed: {text}")
        return self._error(Transient, operation, f"the Docker engine at {self.place} does not answer: {text}")

    def _refused(self, error: APIError, operation: str) -> BackendError:
        text = str(error.explanation or error)
        low = text.lower()
        if isinstance(error, DockerNotFound):
            return self._error(NotFound, operation, text)
        if _NO_ROOM in low:
            return self._error(Transient, operation, f"the engine's disk is full ({text}): free some, "
                                                     "e.g. with `docker system prune`")  # fmt: skip
        if any(sign in low for sign in _NO_GPU):
            return self._error(
                Rejected, operation, f"the engine gives no GPU ({text}): see `orchestrator doctor`"
            )
        if any(sign in low for sign in _NO_PROGRAM):
            lack = f"the image has no `{self._options.python}` that starts: it must hold Python 3.11 or newer"
            return self._error(Rejected, operation, f"{lack} ({text})")
        if error.status_code in (401, 403):
            return self._error(AccessDenied, operation, text)
        if error.status_code is not None and 400 <= error.status_code < 500 and error.status_code != 409:
            return self._error(Rejected, operation, text)
        return self._error(Transient, operation, text)

    def _error(self, kind: type[BackendError], operation: str, text: str) -> BackendError:
        return kind(text, backend=self._name, operation=operation)


def _config(tls: Tls) -> TLSConfig:
    return TLSConfig(client_cert=(str(tls.cert), str(tls.key)), ca_cert=str(tls.ca), verify=True)
