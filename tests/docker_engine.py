"""A private Docker engine for tests: a daemon with its own data root, socket and pid file, without a bridge.

Nothing is pulled: the image `python_image` is built from this machine's own Python. When the process that
started a daemon dies, the daemon shuts down and stops its containers. Also a pytest plugin: `docker_engine`
(one per test session) and `python_image`.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError

from tests.waiting import wait_until

INSTALL = "apt-get install -y --no-install-recommends docker.io"
MISSING = f"the Docker daemon is not installed, or this is not root: {INSTALL}"
PYTHON_IMAGE = "tests/python:host"
_PATIENCE_SECONDS = 300.0  # for one answer or start, on a machine that others use as well
# Two daemons on one machine would fight for docker0 and its firewall rules.
_FLAGS = ("--bridge=none", "--iptables=false", "--ip-masq=false")
_TOOLS = (
    "sh", "bash", "cat", "cp", "chmod", "chown", "env", "false", "find", "grep", "head", "id", "kill", "ln",
    "ls", "mkdir", "mv", "ps", "rm", "sed", "sleep", "stat", "tail", "tar", "timeout", "touch", "true",
    "useradd",
)  # fmt: skip
_LIBRARIES = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libgomp.so.1", "libstdc++.so.6",
              "libgcc_s.so.1")  # fmt: skip
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_LEFT_OUT = {"test", "tests", "idlelib", "turtledemo", "site-packages", "dist-packages"}


@dataclass
class Engine:
    """One daemon. `folder` is short because a socket's path must be short."""

    folder: Path
    flags: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.url, timeout=int(_PATIENCE_SECONDS))

    def start(self) -> None:
        """Starts or restarts the daemon. Waits first until the containerd of a killed daemon is gone:
        otherwise the new daemon waits for a socket that nobody answers."""
        self._wait_for_containerds_end()
        command = [
            "setpriv", "--pdeathsig", "TERM", "dockerd", "--data-root", f"{self.folder}/data",
            "--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/docker.pid",
            "--host", self.url, *_FLAGS, *self.flags,
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            environ = os.environ | self.environ
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environ)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self.answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            threading.Event().wait(0.05)

    def _wait_for_containerds_end(self) -> None:
        wait_until(lambda: not self.containerd_runs(), "containerd's end", _PATIENCE_SECONDS)

    def containerd_runs(self) -> bool:
        """Whether the process that its own file names is there; that file may vanish at any time."""
        try:
            pid = (self.folder / "exec" / "containerd" / "containerd.pid").read_text().strip()
        except FileNotFoundError:
            return False
        return Path("/proc", pid or "0").exists()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(_PATIENCE_SECONDS)

    def answers(self) -> bool:
        """Uses a plain socket: a client that fails during construction leaves its socket open."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(f"{self.folder}/docker.sock")
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(64)
            except OSError:
                return False

    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]

    def remove_containers(self) -> None:
        """And the volumes. Waits for what others are removing just now."""
        with closing(self.client()) as client:

            def empty() -> bool:
                containers = client.containers.list(all=True, ignore_removed=True)
                there: list[Any] = [*containers, *client.volumes.list()]
                for each in there:
                    with _being_removed():
                        each.remove(force=True)
                return not there

            wait_until(empty, "everything to be removed", _PATIENCE_SECONDS)


@contextmanager
def _being_removed() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            raise


def installed() -> bool:
    return shutil.which("dockerd") is not None and os.geteuid() == 0


@contextmanager
def running(*flags: str, environ: dict[str, str] | None = None) -> Iterator[Engine]:
    """A fresh daemon without images."""
    assert installed(), MISSING
    engine = Engine(Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp")), flags, environ or {})
    try:
        engine.start()
        try:
            yield engine
        finally:
            if engine.process is not None and engine.process.poll() is None:
                engine.remove_containers()
                engine.stop()
    finally:
        _unmount_below(engine.folder)
        shutil.rmtree(engine.folder, ignore_errors=True)


def _unmount_below(folder: Path) -> None:
    """Unmounts what a killed daemon left mounted."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((m for m in mounted if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


# --- An image without a registry --------------------------------------------------------------------------


def load_python_image(engine: Engine, packages: Sequence[Path] = ()) -> str:
    """Imports this machine's Python and a few tools as an image
    (docs/references/engines.md#an-image-without-a-registry). `packages` are folders and files that go into
    its site-packages."""
    client = engine.client()
    try:
        data = _python_archive(packages)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SSL_CERT_FILE": str(_CERTIFICATES),
                       "PIP_CERT": str(_CERTIFICATES), "LANG": "C.UTF-8"}  # fmt: skip
        changes = [f"ENV {name}={value}" for name, value in environment.items()]
        repository, tag = PYTHON_IMAGE.split(":")
        client.api.import_image_from_data(data, repository, tag, changes=changes)
        return PYTHON_IMAGE
    finally:
        client.close()


def _python_archive(packages: Sequence[Path]) -> bytes:
    standard, interpreter = Path(sysconfig.get_path("stdlib")), Path(sys.executable).resolve()
    tools = [Path(found) for name in _TOOLS if (found := shutil.which(name))]
    extensions = list((standard / "lib-dynload").glob("*.so"))
    files = {interpreter, *tools, *_needed([interpreter, *tools, *extensions])}
    files |= {_CERTIFICATES, *Path("/etc").glob("ld.so.conf*"), Path("/etc/nsswitch.conf")}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "lib", "lib64", "sbin"):
            _link(archive, name, f"usr/{name}")
        for name, mode in (("tmp", 0o1777), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755), ("run", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for path in sorted(files):
            if path.exists():
                archive.add(path.resolve(), _place(path))
        archive.add(standard, _place(standard), filter=_without_ballast)
        for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
            _link(archive, f"usr/local/bin/{name}", str(interpreter))
        sites = sysconfig.get_path("purelib", vars={"base": str(Path(sys.base_prefix))})
        for path in packages:
            archive.add(path, f"{sites.lstrip('/')}/{path.name}", filter=_without_ballast)
        _text(archive, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        _text(archive, "etc/group", "root:x:0:\n")
    return buffer.getvalue()


def _needed(binaries: Sequence[Path]) -> set[Path]:
    """The shared libraries that ldd names, and those that glibc and torch load themselves."""
    found: set[Path] = set()
    told = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        words = line.split()
        found |= {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}
    folders = {path.parent for path in found if path.name.startswith("libc.so")}
    return found | {folder / name for folder in folders for name in _LIBRARIES}


def _place(path: Path) -> str:
    """The file's place in the image. Top-level bin, lib … are links into /usr."""
    text = str(path)
    merged = text.startswith(("/bin/", "/lib/", "/lib64/", "/sbin/"))
    return f"usr{text}" if merged else text.lstrip("/")


def _without_ballast(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what nothing needs. Compiled modules stay, because each start of Python would compile all that
    it imports: that takes most of a short session."""
    name = Path(entry.name).name
    ballast = name in _LEFT_OUT or name.endswith(".a") or name.startswith("config-3") or ".opt-" in name
    return None if ballast else entry


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


def _text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    archive.addfile(entry, io.BytesIO(text.encode()))


# --- pytest -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    """One daemon for all tests of this process. Without Docker the test is skipped; the reason says how to
    install it."""
    if not installed():
        pytest.skip(MISSING)
    with running() as engine:
        yield engine


@pytest.fixture(scope="session")
def python_image(docker_engine: Engine) -> str:
    """The name of an image with this machine's Python, standard library only."""
    return load_python_image(docker_engine)
