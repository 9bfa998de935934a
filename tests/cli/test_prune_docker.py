"""`prune` and the images that an engine built for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.event import Cancelled, Submitted
from orchestrator.core.job import FROZEN_IMAGE
from orchestrator.freeze import images
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog
from orchestrator.platforms.docker.platform import DockerPlatform
from orchestrator.session.staging import Materials
from tests.cli.calls import Caller
from tests.conformance.test_platforms import any_order
from tests.core import runs
from tests.docker_engine import PYTHON_IMAGE, Engine
from tests.walks import NOW

OURS = "orchestrator/pruning-"
AT_ONCE = ("--older-than", "0")
STRANGER = ("orchestrator/pruning-stranger", "cpu-0123456789ab")  # a name like ours, chosen by somebody else


class Built:
    """An engine with the images of a finished run and an unfinished one, both on the same base."""

    def __init__(self, user: Caller, engine: Engine) -> None:
        user.config(f"platforms: {{box: {{type: docker, host: '{engine.url}'}}}}\n")
        self.user = user
        self.client = engine.client()
        folder = user.home / "platforms" / "box"
        made = catalog.build("box", "docker", {"host": engine.url}, folder=folder, clock=SystemClock())
        assert isinstance(made, DockerPlatform)
        self.platform = made
        for name in ("agent.pyz", "bundle.tar.gz"):
            (user.folder / name).write_text("")
        self._write("ground", f"FROM {PYTHON_IMAGE}\nCOPY unlike.txt /\n")
        with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
            for run in ("live", "over"):
                self._write(run, "ARG BASE=../pruning-ground\nFROM ${BASE}\nCOPY unlike.txt /other.txt\n")
                self._build(ledger, run)
            ledger.append(ledger.record("over"), [Cancelled(NOW)], due_at=None)
        self.client.images.get(PYTHON_IMAGE).tag(*STRANGER)

    def _write(self, name: str, dockerfile: str) -> None:
        folder = self.user.folder / "images" / f"pruning-{name}"
        folder.mkdir(parents=True)
        (folder / "Dockerfile").write_text(dockerfile)
        (folder / "unlike.txt").write_text(f"{self.user.folder} {name}")

    def _build(self, ledger: Ledger, run: str) -> None:
        """Prepares the run's session, which builds its image."""
        here = self.user.home / "images"
        sha256 = images.freeze(self.user.folder / "images" / f"pruning-{run}", here)
        image = f"{FROZEN_IMAGE}{sha256}"
        ledger.submit(Submitted(run, runs.job(image=image), NOW), due_at=None)
        order = replace(any_order(f"{run}-s01", 10, 1, run=run, platform="box"), image=image)
        archive = here / f"{sha256}.tar.gz"
        here = self.user.folder
        materials = Materials(here / "bundle.tar.gz", here / "agent.pyz", image=archive)
        self.platform.prepare(order, materials)

    @property
    def tags(self) -> dict[str, str]:
        """The images that this test has on the engine: name → tag."""
        found = (tag for image in self.client.images.list() for tag in image.tags)
        mine = (tag for tag in found if tag.startswith(OURS))
        return {tag.removeprefix(OURS).partition(":")[0]: tag for tag in mine}


@pytest.fixture
def built(user: Caller, docker_engine: Engine, python_image: str) -> Iterator[Built]:
    assert python_image == PYTHON_IMAGE
    made = Built(user, docker_engine)
    yield made
    docker_engine.remove_containers()
    for tag in made.tags.values():
        made.client.api.remove_image(tag, force=True)
    made.client.close()


def test_images_of_finished_runs_go_and_what_others_need_stays(built: Built) -> None:
    user = built.user
    assert set(built.tags) == {"ground", "live", "over", "stranger"}
    answer = user("prune", *AT_ONCE, "--yes", "--json").json
    [image] = [place for place in answer["leftovers"] if ": image " in place]
    assert image.startswith(f"box: image {OURS}over:cpu-")
    assert set(built.tags) == {"ground", "live", "stranger"}
    assert user("prune", *AT_ONCE, "--json").json["leftovers"] == []
    with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
        ledger.append(ledger.record("live"), [Cancelled(NOW + 1)], due_at=None)
    user("prune", "--keep", "1", "--yes")
    assert "live" in built.tags, "a kept run keeps its image"
    # The user's own container stays, although its image is ours.
    built.client.api.create_container(built.tags["ground"], command=["true"], name="mine")
    user("prune", *AT_ONCE, "--yes", code=4)
    assert built.client.api.inspect_container("mine")
    assert set(built.tags) == {"ground", "stranger"}


def test_where_another_ledger_may_need_them_images_stay(built: Built) -> None:
    (built.user.home / "runs" / "strange-12345678").mkdir(parents=True)
    before = built.tags
    built.user("prune", *AT_ONCE, "--yes")
    assert built.tags == before
