"""Files are read from a container while it writes them: what comes out is whole, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from orchestrator.platforms.docker import container as containers
from tests.docker_engine import Engine

# Replaces a file as the agent does, now longer and now shorter, as fast as it can.
RESTLESS = """
import pathlib, sys
outbox = pathlib.Path(sys.argv[1], "outbox")
outbox.mkdir(parents=True)
while True:
    for size in (200_000, 10):
        (outbox / "next").write_bytes(b"x" * size)
        (outbox / "next").rename(outbox / "status.json")
"""


@pytest.fixture
def restless(docker_engine: Engine, python_image: str) -> Iterator[tuple[docker.DockerClient, Container]]:
    client = docker_engine.client()
    command = ["python3", "-c", RESTLESS, containers.FOLDER]
    container = client.containers.run(python_image, command, detach=True, network_mode="none")
    yield client, container
    container.remove(force=True)
    client.close()


def test_a_file_that_is_replaced_meanwhile_is_read_whole(
    restless: tuple[docker.DockerClient, Container], tmp_path: Path
) -> None:
    client, container = restless
    identity = str(container.id)
    sizes = set()
    for _ in range(60):
        found = containers.read(client, identity, "outbox/status.json", 1 << 20)
        sizes.add(None if found is None else len(found))
        containers.bring(client, identity, "outbox", tmp_path)
    assert sizes <= {None, 10, 200_000}
    assert sizes - {None}
    assert containers.read(client, identity, "outbox/never", 1 << 20) is None
