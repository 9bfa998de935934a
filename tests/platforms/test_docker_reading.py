"""Files are read from a container while it writes them: each arrives intact or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from orchestrator.core import bounds
from orchestrator.core.session import Sighting
from orchestrator.files import Odd
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.connection import Connection
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.docker.outbox import ContainerOutbox
from orchestrator.session.outbox import Collected, collect
from tests.conformance.test_platforms import agent
from tests.docker_engine import Engine
from tests.platforms.docker_box import LONG, Box, box
from tests.seen import collected, observed
from tests.waiting import wait_until

__all__ = ["agent", "box"]

# Replaces a file as the agent does, sometimes longer and sometimes shorter, as fast as it can.
RESTLESS = """
import pathlib, sys
outbox = pathlib.Path(sys.argv[1], "outbox")
outbox.mkdir(parents=True)
while True:
    for size in (200_000, 10):
        (outbox / "next").write_bytes(b"x" * size)
        (outbox / "next").rename(outbox / "status.json")
"""

# A training that writes where only the agent should: sparse files, which need no space.
GREEDY = """
import pathlib, sys, time
outbox = pathlib.Path(sys.argv[1], "outbox")
(outbox / "checkpoints" / "0").mkdir(parents=True)
(outbox / "checkpoints" / "0" / "manifest.json").write_text("{}")
for name in ("checkpoints/1", "progress.jsonl", "result.json"):
    with (outbox / name).open("wb") as file:
        file.truncate(1 << 42)
(outbox / "status.json").write_text("ready")
time.sleep(600)
"""

# Log segments as an agent leaves them when the log was longer than it keeps.
WORDY = """
import pathlib, sys
log = pathlib.Path(sys.argv[1], "outbox", "log")
log.mkdir(parents=True)
for number in (*range(1, 11), *range(14, 21)):
    (log / f"{number:06d}.log").write_bytes(b"x" * 1000)
"""

BLOATED = """
import pathlib, sys
log = pathlib.Path(sys.argv[1], "outbox", "log")
log.mkdir(parents=True)
(log / "000001.log").write_text("begin")
with (log / "000002.log").open("wb") as file:
    file.truncate(1 << 42)
(log / "000003.log").write_text("Traceback")
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
    wait_until(
        lambda: containers.read(client, identity, "outbox/status.json", 1 << 20),
        lambda: str(container.logs()),
    )
    sizes = set()
    for _ in range(60):
        found = containers.read(client, identity, "outbox/status.json", 1 << 20)
        sizes.add(None if found is None else len(found))
        containers.bring(client, identity, "outbox", tmp_path, 1 << 20)
    assert sizes <= {None, 10, 200_000}
    assert sizes - {None}
    assert containers.read(client, identity, "outbox/never", 1 << 20) is None


def test_a_file_of_terabytes_is_left_where_it_is(
    docker_engine: Engine, python_image: str, tmp_path: Path
) -> None:
    client = docker_engine.client()
    command = ["python3", "-c", GREEDY, containers.FOLDER]
    container = client.containers.run(python_image, command, detach=True, network_mode="none")
    identity = str(container.id)
    try:
        wait_until(
            lambda: containers.read(client, identity, "outbox/status.json", 10) == b"ready", "all its files"
        )
        outbox = opened(docker_engine, identity, alive=False)
        assert list(outbox.checkpoints()) == ["0"]
        collect(outbox, tmp_path)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["status.json"]
        with pytest.raises(Odd, match="larger"):
            outbox.small("result.json")
    finally:
        container.remove(force=True)
        client.close()


def opened(engine: Engine, container: str, *, alive: bool) -> ContainerOutbox:
    return ContainerOutbox(
        Connection("box", DockerOptions(host=engine.url)), container, alive=alive, incarnations={}
    )


def paged(outbox: ContainerOutbox, into: Path) -> list[Collected]:
    """One collect after another, until nothing more comes."""
    pages: list[Collected] = []
    while not pages or pages[-1].more:
        assert len(pages) < 20
        pages.append(collect(outbox, into))
    return pages


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
def test_of_a_log_beyond_one_collect_the_end_comes_too(
    docker_engine: Engine,
    python_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
) -> None:
    monkeypatch.setattr(bounds, "COLLECT_LOG_BYTES_MAX", 4000)
    client = docker_engine.client()
    command = ["python3", "-c", WORDY, containers.FOLDER]
    container = client.containers.run(python_image, command, detach=True, network_mode="none")
    try:
        assert container.wait()["StatusCode"] == 0
        log = tmp_path / "log"
        pages = paged(opened(docker_engine, str(container.id), alive=not ended), tmp_path)
        assert len(pages) > 2
        assert not any(page.notes for page in pages)
        last = 20 if ended else 10  # behind the gap, which is read only at the end
        assert max(path.name for path in log.iterdir()) == f"{last:06d}.log"
        assert sum(path.stat().st_size for path in log.iterdir()) == (last - (3 if ended else 0)) * 1000
    finally:
        container.remove(force=True)
        client.close()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
def test_a_segment_that_is_too_large_hides_none_behind_it(
    docker_engine: Engine, python_image: str, tmp_path: Path, ended: bool
) -> None:
    client = docker_engine.client()
    command = ["python3", "-c", BLOATED, containers.FOLDER]
    container = client.containers.run(python_image, command, detach=True, network_mode="none")
    try:
        assert container.wait()["StatusCode"] == 0
        pages = paged(opened(docker_engine, str(container.id), alive=not ended), tmp_path)
        assert (tmp_path / "log" / "000003.log").read_text() == "Traceback"
        assert "a log segment was not copied: larger than 16 MB, or not a regular file" in pages[0].notes
    finally:
        container.remove(force=True)
        client.close()


def test_a_session_that_is_being_read_hides_no_other(box: Box) -> None:
    box.use(slots=2)
    box.run()
    box.start(box.order("b-s01", run="b", command=LONG))
    box.until(lambda: box.see("b-s01").status is not None)
    box.inside("python3", "-c", f"open('{containers.FOLDER}/outbox/large', 'wb').truncate(1 << 40)")
    stream, _ = box.client.api.get_archive("a-s01", f"{containers.FOLDER}/outbox/large")
    assert next(stream)
    box.use(timeout_seconds=5)
    seen = observed(box.platform, ["a-s01", "b-s01", "c-s01"])
    assert {name: each.sighting for name, each in seen.items()} == {
        "a-s01": Sighting.RUNNING,
        "b-s01": Sighting.RUNNING,
        "c-s01": Sighting.ABSENT,
    }
    assert "cannot be read" in seen["a-s01"].detail
    assert seen["b-s01"].status is not None
    stream.close()
    box.use(timeout_seconds=60)
    box.until(lambda: box.see("a-s01").status is not None)


# A training that replaces each file of its agent with something else, and floods.
SPOILER = """
import os, pathlib, sys, time
outbox = pathlib.Path(sys.argv[1], "outbox")
(outbox / "log").mkdir(parents=True)
(outbox / "status.json").write_text(" " * (14 << 20))
os.mkfifo(outbox / "result.json")
(outbox / "progress.jsonl").symlink_to("/etc/passwd")
(outbox / "log" / "000001.log").write_text("a line\\n")
(outbox / "log" / "000002.log").mkdir()
for step in range(1, 80):
    folder = outbox / "checkpoints" / f"{step:010d}-g01-abc"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
(outbox / "incarnation").write_text("abc")
time.sleep(600)
"""


def test_odd_files_in_a_container_cost_themselves(box: Box, tmp_path: Path) -> None:
    agent = tmp_path / "spoiler.py"
    agent.write_text(SPOILER)
    box.run(agent=str(agent.read_text()))
    box.until(lambda: bool(box.see("a-s01").incarnations))
    seen = box.see("a-s01")
    assert (seen.sighting, seen.incarnations, seen.status) == (Sighting.RUNNING, ("abc",), None)
    assert "outbox/status.json is larger than 64 kB: it was not read" in seen.notes
    into = tmp_path / "into"
    brought = collected(box.platform, "a-s01", into)
    assert (len(brought.corrupt), brought.more) == (64, True)
    assert (into / "log" / "000001.log").read_text() == "a line\n"
    assert not (into / "progress.jsonl").exists()
    assert not (into / "status.json").exists()
    found = box.client.api.inspect_container("a-s01")
    assert found["HostConfig"]["LogConfig"] == {
        "Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}
    }  # fmt: skip
    assert '"disk_bytes": 50000000000' in " ".join(found["Args"])
