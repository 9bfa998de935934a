"""A home's objects on an engine: all its readers use one mark, and a removal spares what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from orchestrator.errors import Transient
from orchestrator.platforms.docker import leftovers
from orchestrator.platforms.docker.container import LABEL
from orchestrator.platforms.platform import Leftover
from tests.docker_engine import Engine

HOME = "0" * 32
LABELS = {f"{LABEL}.home": HOME, f"{LABEL}.session": "a-s01", f"{LABEL}.run": "a"}
PROBE = "orchestrator-probe-0123abcd"
IDLE = ["python", "-c", "import threading; threading.Event().wait(3600)"]


@pytest.fixture
def client(docker_engine: Engine, python_image: str) -> Iterator[docker.DockerClient]:  # noqa: ARG001
    client = docker_engine.client()
    yield client
    client.close()
    docker_engine.remove_containers()


def test_all_who_draw_the_mark_of_a_home_at_once_draw_the_same(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        assert leftovers.known_home(folder) is None
        with ThreadPoolExecutor(8) as pool:
            drawn = set(pool.map(leftovers.home, [folder] * 8))
        assert drawn == {leftovers.known_home(folder)}
        assert [each.name for each in folder.iterdir()] == ["home-id"]


def test_only_what_bears_the_mark_is_named(client: docker.DockerClient, python_image: str) -> None:
    client.api.create_container(python_image, ["true"], name="a-s01", labels=LABELS)
    client.api.create_container(python_image, ["true"], name=PROBE, labels={f"{LABEL}.home": HOME})
    client.api.create_container(python_image, ["true"], name="theirs", labels={f"{LABEL}.home": "1" * 32})
    client.api.create_container(python_image, ["true"], name="strange")
    client.api.create_volume("a-s01.stopped", labels=LABELS)
    client.api.create_volume("strange")
    found = {each.name: each for each in leftovers.found(client, HOME)}
    assert set(found) == {"a-s01", PROBE, "a-s01.stopped"}
    assert (found["a-s01"].session, found["a-s01"].run, found["a-s01"].alive) == ("a-s01", "a", False)
    assert (found[PROBE].session, found[PROBE].run) == ("", "")
    for each in found.values():
        leftovers.remove(client, HOME, each)
        leftovers.remove(client, HOME, each)
    assert leftovers.found(client, HOME) == ()
    assert {each.name for each in client.containers.list(all=True)} == {"theirs", "strange"}
    assert [each.name for each in client.volumes.list()] == ["strange"]


def test_what_has_come_alive_since_is_left_alone(client: docker.DockerClient, python_image: str) -> None:
    client.api.create_container(python_image, IDLE, name="a-s01", labels=LABELS)
    [found] = leftovers.found(client, HOME)
    client.api.start("a-s01")
    with pytest.raises(Transient, match="running now"):
        leftovers.remove(client, HOME, found)
    [found] = leftovers.found(client, HOME)
    assert found.alive
    leftovers.remove(client, HOME, found)
    assert client.containers.list(all=True) == []


def test_a_volume_that_is_used_is_left_alone(client: docker.DockerClient, python_image: str) -> None:
    client.api.create_volume("a-s01.0123abcd", labels=LABELS)
    [found] = leftovers.found(client, HOME)
    host = client.api.create_host_config(mounts=[docker.types.Mount("/x", "a-s01.0123abcd")])
    client.api.create_container(python_image, ["true"], name="late", host_config=host)
    with pytest.raises(Transient, match="in use"):
        leftovers.remove(client, HOME, found)


def test_another_home_s_container_is_never_removed(client: docker.DockerClient, python_image: str) -> None:
    client.api.create_container(python_image, ["true"], name="a-s01", labels=LABELS)
    [found] = leftovers.found(client, HOME)
    assert isinstance(found, Leftover)
    leftovers.remove(client, "1" * 32, replace(found, alive=True))
    assert [each.name for each in client.containers.list(all=True)] == ["a-s01"]
