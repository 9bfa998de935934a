"""The job images of this repository, built for real on the tests' engine, once per test session.

A pytest plugin: `image_arguments` are the build arguments with which images build without a registry, and
`graphmer_image` is the id of images/graphmer for the CPU. Packages come from this machine's package index.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import obstore
import pip
import pytest
import typing_extensions

from orchestrator.freeze import images
from orchestrator.platforms.docker import builder
from scripts import setup
from tests.docker_engine import PYTHON_IMAGE, Engine

ROOT = Path(__file__).resolve().parent.parent
PIP_IMAGE = "tests/python:pip"
STORE_IMAGE = "tests/python:store"
# Kept by glibc for programs linked long ago; torch opens libpthread by its name.
_LIBRARIES = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6")
_SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


def load_pip_image(engine: Engine, folder: Path) -> str:
    """An image based on `tests.docker_engine.PYTHON_IMAGE` that also has pip; `folder` must be empty."""
    return _load(engine, folder, PIP_IMAGE, [Path(pip.__file__).parent])


def load_store_image(engine: Engine, folder: Path) -> str:
    """Likewise with what a session needs to open an S3 store."""
    packages = [Path(obstore.__file__).parent, Path(typing_extensions.__file__)]
    return _load(engine, folder, STORE_IMAGE, packages)


def _load(engine: Engine, folder: Path, tag: str, packages: Sequence[Path]) -> str:
    """`packages` are folders and files that go into the image's site-packages."""
    client = engine.client()
    try:
        asked = client.containers.run(PYTHON_IMAGE, ["python3", "-c", _SITE_PACKAGES], remove=True)
        (folder / "packages").mkdir()
        for package in packages:
            copy = folder / "packages" / package.name
            if package.is_dir():
                shutil.copytree(package, copy, ignore=shutil.ignore_patterns("*.pyc"))
            else:
                shutil.copy(package, copy)
        lines = [f"FROM {PYTHON_IMAGE}", f"COPY packages {asked.decode().strip()}"]
        for library in _libraries():
            shutil.copy(library, folder / library.name)
            lines.append(f"COPY {library.name} {library.parent}/")
        (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
        client.images.build(path=str(folder), tag=tag, rm=True)
    finally:
        client.close()
    return tag


def _libraries() -> list[Path]:
    told = subprocess.run(["ldd", sys.executable], capture_output=True, text=True, check=True).stdout
    libc = next(Path(word) for word in told.split() if word.startswith("/") and "/libc.so" in word)
    return [path for name in _LIBRARIES if (path := libc.parent / name).exists()]


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves the files of a folder over HTTP at the given address."""
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _torch_wheel(folder: Path) -> bool:
    """The wheel of the torch of images/base, if this machine's pip finds one with its own settings."""
    wanted = setup.pinned(ROOT / setup.TORCH_CPU, "torch")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wanted]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def image_arguments(
    docker_engine: Engine, python_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Build arguments for images/…, for the whole session; builds need the network `host`. If this machine's
    pip finds a torch for the CPU, builds get it from here, otherwise from torch's own index."""
    assert python_image == PYTHON_IMAGE
    image = load_pip_image(docker_engine, tmp_path_factory.mktemp("pip-image"))
    wheels = tmp_path_factory.mktemp("wheels")
    if not _torch_wheel(wheels):
        yield {"PYTHON_IMAGE": image}
        return
    with serving(wheels) as address:
        yield {"PYTHON_IMAGE": image, "TORCH_INDEX": "", "PIP_FIND_LINKS": address}


@pytest.fixture(scope="session")
def graphmer_image(
    docker_engine: Engine, image_arguments: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The id of images/graphmer for the CPU. Takes about a minute, once per test session."""
    into = tmp_path_factory.mktemp("frozen-images")
    requirements = ROOT / "jobs" / "graphmer" / "requirements.txt"
    sha256 = images.freeze(ROOT / "images" / "graphmer", into, requirements=requirements)
    client = docker_engine.client()
    try:
        archive = into / f"{sha256}.tar.gz"
        return builder.build(client, archive, image_arguments, lambda _: None, network="host")
    finally:
        client.close()


def inside(client: docker.DockerClient, image: str, *command: str) -> str:
    """The output of the command in a container of this image. It must succeed."""
    container = client.containers.create(image, list(command), network_mode="none")
    try:
        container.start()
        status = container.wait()["StatusCode"]
        output: bytes = container.logs()
        assert status == 0, output
        return output.decode().strip()
    finally:
        container.remove(force=True)
