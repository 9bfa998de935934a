"""The orchestrator's own image on a private engine without a registry, and what its tests need.

The image's base is this machine's Python. PostgreSQL is this machine's own, in an image that accepts the
settings which compose.yaml gives to the official one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pip
import yaml
from docker.models.containers import Container

from tests import docker_engine, postgresql
from tests.docker_engine import Engine
from tests.end_to_end.user import PATIENCE, QUICK, ROOT, SOURCE, wait_until

HOME = "/var/lib/orchestrator"
PROBE = {  # the image's own health check, run more often
    "test": ["CMD", "orchestrator", "health"], "interval": 1_000_000_000, "timeout": 20_000_000_000,
    "retries": 2,
}  # fmt: skip
# pip's settings on this machine: those that also hold inside a build, and local paths, which compose would
# pass on.
_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
_PIP_NOT = ("PIP_FIND_LINKS", "PIP_CERT")
COMPOSE_INSTALL = "apt-get install -y --no-install-recommends docker-compose"
COMPOSE_MISSING = f"neither `docker compose` nor docker-compose is installed: {COMPOSE_INSTALL}"
_CLASSIC = {"COMPOSE_DOCKER_CLI_BUILD": "0", "DOCKER_BUILDKIT": "0"}  # the builder that every machine has
# Part of glibc: empty since 2.34, but still required by wheels that also serve older systems.
_GLIBC = ("librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1")
_POSTGRES_ENTRY = """#!/bin/sh
# Does of the official image's entry point what compose.yaml relies on.
set -e
if [ -z "$POSTGRES_PASSWORD" ] && [ "$POSTGRES_HOST_AUTH_METHOD" != trust ]; then
    echo "Error: Database is uninitialized and superuser password is not specified." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    chown postgres:postgres "$PGDATA" /var/run/postgresql
    chmod 700 "$PGDATA"
    chmod 3777 /var/run/postgresql
    exec setpriv --reuid=999 --regid=999 --clear-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --auth=trust --no-sync --locale=C --encoding=UTF8
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec "$@"
"""
_POSTGRES = """FROM {base}
ADD files.tar /
RUN echo 'postgres:x:999:999::/var/lib/postgresql:/bin/sh' >> /etc/passwd \\
    && echo 'postgres:x:999:' >> /etc/group
ENV PATH={binaries}:$PATH PGDATA=/var/lib/postgresql/data
RUN mkdir -p /var/lib/postgresql/data /var/run/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["/entry.sh"]
"""


# --- Images -----------------------------------------------------------------------------------------------


def python_base(engine: Engine) -> str:
    """An image with this machine's Python, pip, and what wheels and time zones need in addition."""
    host = docker_engine.load_python_image(engine, packages=[Path(pip.__file__).parent])
    [libc] = {path.parent for path in libraries([Path(sys.executable)]) if path.name == "libc.so.6"}
    more = [libc / name for name in _GLIBC]
    return _built(
        engine, "tests/own-base", f"FROM {host}\nADD files.tar /\n", [*more, Path("/usr/share/zoneinfo")]
    )


def own_image(engine: Engine, base: str) -> str:
    """The image of the Dockerfile, from this checkout."""
    client = engine.client()
    try:
        image, _log = client.images.build(
            path=str(ROOT), tag="orchestrator:tested", network_mode="host", rm=True, forcerm=True,
            buildargs=build_settings(base),
        )  # fmt: skip
        return str(image.tags[0])
    finally:
        client.close()


def build_settings(base: str) -> dict[str, str]:
    """All build arguments, so that compose finds every layer in the cache."""
    given = {name: os.environ.get(name, "") for name in _PIP}
    return {"PYTHON_IMAGE": base, **given, **dict.fromkeys(_PIP_NOT, "")}


def postgres_image(engine: Engine, base: str) -> str:
    """An image with this machine's PostgreSQL, with the features that compose.yaml needs."""
    binaries = postgresql.binaries()
    assert binaries is not None, postgresql.MISSING
    version = binaries.parent.name
    setpriv = Path(shutil.which("setpriv") or "/usr/bin/setpriv")
    programs = [setpriv, *(binaries / name for name in ("initdb", "postgres", "pg_isready"))]
    modules = sorted((binaries.parent / "lib").glob("*.so"))
    files = [*programs, *libraries(programs), *(path for path in modules if "llvm" not in path.name)]
    dockerfile = _POSTGRES.format(base=base, binaries=binaries)
    share = Path("/usr/share/postgresql") / version
    return _built(engine, "tests/own-postgres", dockerfile, [*files, share], {"entry.sh": _POSTGRES_ENTRY})


def libraries(programs: list[Path]) -> set[Path]:
    """The shared libraries that ldd names."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    words = [word for line in told.splitlines() for word in line.split()]
    return {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}


def _built(
    engine: Engine, tag: str, dockerfile: str, files: list[Path], texts: Mapping[str, str] | None = None
) -> str:
    """An image whose files.tar holds these files of this machine, if they exist, and program texts."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        for path in files:
            place = str(path).lstrip("/")
            merged = place.startswith(("bin/", "lib/", "lib64/", "sbin/"))  # links in the image
            archive.add(path.resolve(), f"usr/{place}" if merged else place)
        for name, text in (texts or {}).items():
            _add(archive, name, text.encode(), 0o755)
    outer = io.BytesIO()
    with tarfile.open(fileobj=outer, mode="w") as context:
        _add(context, "Dockerfile", dockerfile.encode())
        _add(context, "files.tar", inner.getvalue())
    outer.seek(0)
    client = engine.client()
    try:
        client.images.build(fileobj=outer, custom_context=True, tag=tag, rm=True, forcerm=True)
    finally:
        client.close()
    return tag


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


# --- Containers -------------------------------------------------------------------------------------------


@dataclass
class Controller:
    """A container with a controller in it."""

    container: Container

    def orchestrator(self, *words: str, expect: int = 0) -> str:
        """The output of the command inside the container, including its errors."""
        code, output = self.container.exec_run(["orchestrator", *words])
        assert isinstance(output, bytes)
        said = output.decode()
        assert code == expect, f"`orchestrator {' '.join(words)}` exited with {code}:\n{said}\n{self.story()}"
        return said

    def answer(self, *words: str) -> Any:
        return json.loads(self.orchestrator(*words, "--json"))

    @property
    def health(self) -> str:
        """As Docker sees it: starting, healthy, unhealthy."""
        self.container.reload()
        return str(self.container.attrs["State"]["Health"]["Status"])

    def wait_for_health(self, health: str) -> None:
        wait_until(lambda: self.health == health, lambda: f"{health}, it is {self.health}\n{self.story()}")

    def wait_for_run(self, run: str, condition: Callable[[Any], object], what: str) -> Any:
        """Waits until the answer of `show` fulfils the condition."""

        def look() -> Any:
            shown = self.answer("show", run)
            if condition(shown):
                return shown
            assert shown["phase"] not in ("failed", "cancelled"), f"{shown['reason']}\n{self.story()}"
            return None

        return wait_until(look, lambda: f"{what}\n{self.orchestrator('why', run)}\n{self.story()}")

    def put(self, files: Mapping[str, bytes], into: str) -> None:
        """Writes files below an existing folder."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, content in files.items():
                _add(archive, name, content)
        assert self.container.put_archive(into, data.getvalue())

    def get(self, path: str, into: Path) -> None:
        """Copies a folder out of the container to `<into>/<its name>`."""
        chunks, _ = self.container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(into, filter="data")

    def story(self) -> str:
        """Everything that helps to understand a failed test."""
        self.container.reload()
        state = self.container.attrs["State"]
        return f"{json.dumps(state, indent=1)}\n{self.container.logs(tail=60).decode(errors='replace')}"


def job_files(**changes: object) -> dict[str, bytes]:
    """A job and its source, as files of one folder; `changes` are keys of the job."""
    spec: dict[str, object] = {
        "name": "proof",
        "source": "source",
        "command": "python train.py {steps}",
        "work": {"total": 100, "global_batch": 8},
        "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
        "checkpoint": {"interval": "1s", "keep": {"last": 3}},
        **changes,
    }
    sources = {f"source/{path.name}": path.read_bytes() for path in SOURCE.glob("*.py")}
    return {"job.yaml": yaml.safe_dump(spec).encode(), **sources}


def config_file(platform: Mapping[str, Any] = QUICK) -> bytes:
    """A config with one platform, `here`."""
    return yaml.safe_dump({"platforms": {"here": dict(platform)}}).encode()


# --- Compose ----------------------------------------------------------------------------------------------


def compose_command() -> list[str] | None:
    """The plugin if it is installed, otherwise the older program; None without either."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is not None:
            said = subprocess.run([*command, "version"], capture_output=True, check=False)
            if said.returncode == 0:
                return command
    return None


@dataclass
class Compose:
    """One project of compose.yaml on the engine, with these settings in its environment."""

    engine: Engine
    folder: Path
    name: str
    settings: Mapping[str, str]
    files: tuple[str, ...] = ("compose.yaml",)

    def __call__(self, *words: str, expect: int = 0) -> str:
        """Compose's own output; it must exit with this code."""
        command = compose_command()
        assert command is not None, COMPOSE_MISSING
        files = [word for name in (*self.files, str(self._override())) for word in ("-f", name)]
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("COMPOSE_", "DOCKER_"))
        }
        done = subprocess.run(
            [*command, "-p", self.name, *files, *words],
            cwd=ROOT, capture_output=True, text=True, check=False,
            env={**kept, **_CLASSIC, "DOCKER_HOST": self.engine.url, **self.settings}, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == expect, (
            f"{words} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout + done.stderr

    def _override(self) -> Path:
        """Removes compose's networks, because the engine has no bridge, and checks the health more often."""
        probe = {"test": PROBE["test"], "interval": "1s", "timeout": "20s", "retries": 2}
        build = {"context": str(ROOT), "network": "host"}
        changed = {"network_mode": "none", "healthcheck": probe, "build": build}
        path = self.folder / "override.yaml"
        services = dict.fromkeys(("orchestrator", "orchestrator-postgres"), changed)
        path.write_text(yaml.safe_dump({"services": services}))
        return path

    def controller(self, client: docker.DockerClient) -> Controller:
        """The one container with the name that compose.yaml gives it."""
        return Controller(client.containers.get(self.settings["ORCHESTRATOR_CONTAINER"]))
