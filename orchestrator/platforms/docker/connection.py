"""Connects to one Docker engine, and turns its errors into ours, each with what to do next.

Decides nothing about sessions. Each thread has its own client: HTTP sessions are not shared between threads.
"""

from __future__ import annotations

import math
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
from docker.errors import APIError, DockerException
from docker.errors import NotFound as DockerNotFound
from docker.tls import TLSConfig

from orchestrator.errors import AccessDenied, BackendError, InputError, NotFound, Rejected, Transient
from orchestrator.platforms.docker import builder, contexts
from orchestrator.platforms.docker.contexts import Certificates, Endpoint
from orchestrator.platforms.docker.endings import no_python
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.user import expanded

# How the start of a container fails if the engine cannot provide the GPU:
# docs/references/engines.md#a-gpu-that-the-engine-cannot-give
NO_GPU = ("could not select device driver", "unknown runtime specified nvidia", "nvidia-container-cli",
          "unresolvable cdi devices", "cdi device injection failed")  # fmt: skip
_NO_BOUND = "--storage-opt"  # "… is supported only for overlay over xfs with 'pquota' mount option"
_NO_PROGRAM = ("executable file not found", "no such file or directory: unknown", "exec format error")
_HTTPS = "http request to an https server"
_ADDRESS = re.compile(r"unix:///?[^:]+|(tcp|https?)://[^/]+:[0-9]+/?")  # for others, the SDK says "no answer"
# The useful part of the errors that urllib3 and requests wrap into one another.
_REASONS = (re.compile(r"\[SSL: \w+\] ([^(\"']+)"), re.compile(r"\w+Error\(-?\d+, '([^']+)'\)"),
            re.compile(r"\[Errno -?\d+\] ([^(\"']+)"), re.compile(r"(Read timed out)"))  # fmt: skip
_TLS = ("certificate", "wrong_version_number", "wrong version number")


class _Api(docker.APIClient):
    """Trusts only the engine's own certificate authority: requests would otherwise prefer
    REQUESTS_CA_BUNDLE, which is meant for the web."""

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]
        ours = self.verify if verify is None else verify
        return super().merge_environment_settings(url, proxies, stream, ours, cert)


class _Client(docker.DockerClient):
    def __init__(self, host: str, timeout: int, tls: TLSConfig | bool) -> None:
        self.api = _Api(host, timeout=timeout, tls=tls)


class Connection:
    """Clients of one engine, created when first needed. `name` is the platform's name, for errors."""

    def __init__(self, name: str, options: DockerOptions) -> None:
        self._name = name
        self._options = options
        self._local = threading.local()

    def client(self, operation: str) -> docker.DockerClient:
        """This thread's client. Raises Transient, AccessDenied or InputError if it cannot connect."""
        client: docker.DockerClient | None = getattr(self._local, "client", None)
        if client is None:
            endpoint = self._endpoint()
            if endpoint.host.startswith("ssh://"):
                raise InputError(
                    f"platform {self._name!r}: engines over ssh are not supported yet ({endpoint.host}); "
                    "forward its socket (`ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`) and give "
                    "`host: unix:///tmp/docker.sock`"
                )
            if not _ADDRESS.fullmatch(endpoint.host):
                raise InputError(
                    f"platform {self._name!r}: {endpoint.host!r} is not the address of an engine; valid: "
                    "unix:///PATH, tcp://NAME:PORT"
                )
            tls = self._tls(endpoint.certificates)
            with self.told(operation):
                timeout = math.ceil(self._options.timeout_seconds)
                client = _Client(endpoint.host, timeout, tls)
            self._local.client = client
        return client

    @property
    def place(self) -> str:
        """The engine's address. Raises InputError for an unknown context."""
        return self._endpoint().host

    def _endpoint(self) -> Endpoint:
        options = self._options
        if options.host is not None:
            if options.tls is None:
                return Endpoint(options.host)
            ca, cert, key = map(expanded, (options.tls.ca, options.tls.cert, options.tls.key))
            return Endpoint(options.host, Certificates(ca, cert, key))
        try:
            return contexts.chosen(options.context)
        except InputError as error:
            raise InputError(f"platform {self._name!r}: {error}") from error

    def _tls(self, files: Certificates | None) -> TLSConfig | bool:
        if files is None:
            return False
        missing = [str(path) for path in (files.ca, files.cert, files.key) if not path.is_file()]
        if missing:
            raise InputError(f"platform {self._name!r}: TLS needs {', '.join(missing)}: no such file")
        pair = (str(files.cert), str(files.key))
        return TLSConfig(client_cert=pair, ca_cert=str(files.ca), verify=files.verify)

    @contextmanager
    def told(self, operation: str) -> Iterator[None]:
        """Turns the SDK's errors into ours."""
        try:
            yield
        except APIError as error:
            raise self._refused(error, operation) from error
        except (DockerException, requests.RequestException, tarfile.TarError, ConnectionError) as error:
            raise self._silent(error, operation) from error

    def _silent(self, error: Exception, operation: str) -> BackendError:
        text = str(error)
        reason = next((found[1].strip() for each in _REASONS if (found := each.search(text))), text)
        if "Permission denied" in text:
            return self._error(
                AccessDenied,
                operation,
                f"no permission to use {self.place}: add yourself to its group "
                "(`sudo usermod -aG docker $USER`), then log in again",
            )
        if _HTTPS in text.lower():  # the answer to the SDK's first request, wrapped by it
            return self._error(
                AccessDenied,
                operation,
                f"{self.place} accepts only TLS: set `tls` (ca, cert, key) in the config",
            )
        if any(sign in text.lower() for sign in _TLS):
            return self._error(
                AccessDenied,
                operation,
                f"TLS with {self.place} failed: {reason}; check that `ca`, `cert` and `key` belong to this "
                "engine and that the port is its TLS port",
            )
        return self._error(
            Transient, operation, f"the Docker engine at {self.place} does not answer: {reason}"
        )

    def _refused(self, error: APIError, operation: str) -> BackendError:
        text = str(error.explanation or error)
        low = text.lower()
        if isinstance(error, DockerNotFound):
            return self._absent(text, operation)
        if builder.no_room(text):
            return self._error(Transient, operation, builder.full(text))
        if any(sign in low for sign in NO_GPU):
            return self._error(
                Rejected, operation, f"the engine provides no GPU ({text}): see `orchestrator doctor`"
            )
        if _NO_BOUND in low:
            return self._error(
                Rejected,
                operation,
                f"the engine's storage cannot limit what a container writes ({text}): remove `image_disk_gb` "
                "from the platform's options, or keep the engine's data on XFS mounted with pquota",
            )
        if any(sign in low for sign in _NO_PROGRAM):
            return self._error(Rejected, operation, f"{no_python(self._options.python)} ({text})")
        if error.status_code in (401, 403):
            return self._error(AccessDenied, operation, text)
        if error.status_code is not None and 400 <= error.status_code < 500 and error.status_code != 409:
            return self._error(Rejected, operation, text)
        return self._error(Transient, operation, text)

    def _absent(self, text: str, operation: str) -> BackendError:
        """Something is gone. A missing container or volume is worth a retry: it can be made again."""
        if operation == "collect":
            return self._error(NotFound, operation, text)
        if "no such container" in text.lower() or "no such volume" in text.lower():
            return self._error(Transient, operation, f"it was removed meanwhile ({text})")
        return self._error(Rejected, operation, text)

    def _error(self, kind: type[BackendError], operation: str, text: str) -> BackendError:
        return kind(text, backend=self._name, operation=operation)
