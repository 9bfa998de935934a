"""Sessions on a real engine, for tests of the docker platform's faults.

A rig with any options, one-line trainings, and private engines. The only assertions here are that awaited
conditions come true.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.order import Order
from orchestrator.core.session import Observation
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Platform
from orchestrator.session.staging import Materials
from tests.conformance.test_platforms import DockerRig
from tests.docker_engine import Engine, load_python_image

LONG = ("python", "train.py", "1000000", "0.01", "3")
# An agent that has gone wrong: it claims its session and then reacts to nothing.
DEAF = """
import pathlib, signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
outbox = pathlib.Path(sys.argv[1]) / "outbox"
outbox.mkdir()
(outbox / "incarnation").write_text("deaf")
threading.Event().wait(3600)
"""


class Box(DockerRig):
    """A rig whose sessions take a command and options that the test chooses."""

    def platform_with(self, name: str = "here", home: str = "sessions", **options: object) -> Platform:
        given = {**self.options, **options}
        return catalog.build(name, "docker", given, folder=self.folder / home, clock=SystemClock())

    def use(self, **options: object) -> Platform:
        """Adds these options to the platform's from now on."""
        self.options |= options
        self.platform = self.another_controller()
        return self.platform

    def training(self, code: str) -> tuple[str, ...]:
        return ("python", "-c", code)

    def materials_of(self, agent: str | None = None, **changes: object) -> Materials:
        materials = self.materials()
        if agent is not None:
            path = self.folder / "other-agent.pyz"
            path.write_text(agent)
            materials = replace(materials, agent=path)
        return replace(materials, **changes)  # type: ignore[arg-type]

    def run(self, *, agent: str | None = None, **changes: object) -> Order:
        """Starts a session a-s01. With the real agent, it waits until the session is seen to run."""
        order = replace(self.order("a-s01", command=LONG), **changes)  # type: ignore[arg-type]
        self.platform.prepare(order, self.materials_of(agent))
        self.platform.launch(order)
        if agent is None:
            self.until(lambda: self.see("a-s01").status is not None)
        return order

    def run_deaf(self) -> None:
        self.run(agent=DEAF)
        self.until(lambda: self.inside("cat", "/orchestrator/session/outbox/incarnation") == "deaf")

    def saved(self) -> Observation:
        self.until_saved("a-s01")
        return self.see("a-s01")

    def inside(self, *command: str, session: str = "a-s01") -> str:
        """The output of a command in the session's container."""
        made = self.client.api.exec_create(session, list(command))["Id"]
        return str(self.client.api.exec_start(made).decode(errors="replace")).strip()

    def docker(self, *words: str) -> str:
        """Runs docker's own command line on this engine, as the table in docs/docker.md shows it."""
        done = subprocess.run(
            ["docker", "--host", self.engine.url, *words], capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).strip()

    def left(self) -> tuple[list[str], list[str]]:
        """The names of all containers and volumes on the engine."""
        # Lists only: a container that is being filled is locked and cannot be inspected.
        rows = self.client.api.containers(all=True)
        return [row["Names"][0].lstrip("/") for row in rows], [v.name for v in self.client.volumes.list()]


@pytest.fixture
def box(tmp_path: Path, agent: Path, docker_engine: Engine, python_image: str) -> Iterator[Box]:
    box = Box(tmp_path, agent, docker_engine, python_image)
    yield box
    box.close()
    gc.collect()  # while a filter of the test is still active


@contextmanager
def small_engine(megabytes: int) -> Iterator[Engine]:
    """A daemon whose whole disk has this size."""
    folder = Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp"))
    (folder / "data").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder / "data")]
    subprocess.run(mount, check=True)
    engine = Engine(folder)
    try:
        engine.start()
        load_python_image(engine)
        yield engine
    finally:
        if engine.process is not None and engine.process.poll() is None:
            engine.remove_containers()
            engine.stop()
        subprocess.run(["umount", str(folder / "data")], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def rows(text: str) -> list[list[str]]:
    """The cells of a page's first table, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
