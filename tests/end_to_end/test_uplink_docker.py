"""Sessions in containers with an uplink, by real commands: an S3 home on a network of the engine's own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.agent.companion import NOT_INSTALLED
from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.platforms.docker import container as containers
from orchestrator.session.layout import OUTBOX, RESULT
from orchestrator.stores import catalog
from orchestrator.stores import checkpoints as stored
from tests.docker_engine import PYTHON_IMAGE, Engine
from tests.docker_images import load_store_image
from tests.end_to_end.docker_user import QUICK, DockerUser
from tests.end_to_end.user import QUICK as PROCESS
from tests.end_to_end.user import Role, fingerprints, living, train_in_one_piece, wait_until
from tests.stand_ins.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)
STEPS, HELD = 60, 30
NETWORK = "tests-uplink"
JOB = {
    "command": f"python train.py {{steps}} --save-every 10 --hold-at {HELD}",
    "work": {"total": STEPS, "global_batch": 8},
}


class ShippingUser(DockerUser):
    """A user whose home store is an S3 service that containers reach at the address of their network's
    gateway, through `proxy`."""

    def __init__(
        self, folder: Path, engine: Engine, image: str, proxy: FaultProxy, prefix: str, **options: object
    ) -> None:
        super().__init__(folder, engine)
        self.store = {
            "type": "s3", "preset": "seaweedfs", "endpoint": proxy.endpoint, "bucket": BUCKET,
            "prefix": prefix, "access_key": "file:access", "secret_key": "file:secret",
        }  # fmt: skip
        for name, text in (("access", ACCESS_KEY), ("secret", SECRET_KEY)):
            (self.home / name).write_text(text)
            (self.home / name).chmod(0o600)
        self.proxy = proxy
        box = {**QUICK, "host": engine.url, "image": image, "network": NETWORK, "uplink": True,
               "uplink_seconds": 1, "uplink_silence_seconds": 10, **options}  # fmt: skip
        self.platforms = {"box": box}
        self.configure({"platforms": self.platforms, "stores": {"home": self.store}})

    def train(self) -> str:
        """Submits a training whose first session stays at step HELD; returns the run once its agent is
        seen."""
        run = self.submit(**JOB, needs={"internet": True})
        self.wait_for(run, training, "its agent")
        return run

    def shipped(self, run: str) -> int:
        """The newest step in the home store."""
        given = {**self.store, "endpoint": f"http://127.0.0.1:{self.proxy.service}"}
        store = catalog.build("home", str(given.pop("type")), given, self.home)
        return max((ref.step for ref in stored.names(store, run)), default=-1)

    def wait_until_step(self, run: str, step: int) -> None:
        wait_until(lambda: self.answer("ps")["runs"][0]["step"] == step, f"step {step} of {run}")

    def vanish(self, run: str) -> None:
        """The machine of the run's session is gone at once, with its disk."""
        with closing(self.engine.client()) as client:
            [container] = client.containers.list(filters={"label": f"orchestrator.run={run}"})
            [volume] = [mount["Name"] for mount in container.attrs["Mounts"]]
            container.remove(force=True)
            client.volumes.get(volume).remove(force=True)

    def kill_when_saved(self, run: str) -> None:
        """Kills the container as soon as its agent has nothing more to do than ship."""
        with closing(self.engine.client()) as client:
            [container] = client.containers.list(filters={"label": f"orchestrator.run={run}"})
            result = f"{OUTBOX}/{RESULT}"
            wait_until(lambda: containers.read(client, str(container.id), result, 1 << 20), "the result")
            container.kill()

    def power_off(self) -> None:
        """The engine's machine is gone, with all that ran on it."""
        found = self.by_role()
        doomed = [each for role in (Role.CONTAINER, Role.AGENT, Role.GUARDIAN) for each in found[role]]
        self.engine.stop(signal.SIGKILL)
        for process in doomed:
            process.send(signal.SIGKILL)
        wait_until(lambda: not any(living(each.pid) == each for each in doomed), "the end of its processes")

    def resumed_at(self, run: str) -> list[int]:
        """The steps at which the run's sessions began."""
        history = (each.event for each in self.history(run))
        return [event.order.resume_step for event in history if isinstance(event, Assigned)]

    def check_as_in_one_piece(self, run: str) -> None:
        self.run("pull", run, "-o", str(self.folder / "final"))
        expected = train_in_one_piece(self.folder / "one-piece", "train.py", STEPS)
        assert fingerprints(self.folder / "final") == expected


def training(record: RunRecord) -> bool:
    return record.session is not None and record.session.incarnation is not None


@pytest.fixture(scope="module")
def gateway(docker_engine: Engine) -> Iterator[str]:
    """The address at which containers of NETWORK reach this machine."""
    with closing(docker_engine.client()) as client:
        network = client.networks.create(NETWORK, driver="bridge")
        network.reload()
        yield network.attrs["IPAM"]["Config"][0]["Gateway"]
        network.remove()


@pytest.fixture(scope="module")
def store_image(docker_engine: Engine, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    assert python_image
    return load_store_image(docker_engine, tmp_path_factory.mktemp("store-image"))


@pytest.fixture
def new_user(
    tmp_path: Path, docker_engine: Engine, store_image: str, seaweedfs: Seaweed, gateway: str
) -> Iterator[Callable[..., ShippingUser]]:
    made: list[ShippingUser] = []
    with fault_proxy(seaweedfs.port, address=gateway) as proxy:

        def make(image: str = store_image, **options: object) -> ShippingUser:
            place = tmp_path / f"user{len(made)}"
            made.append(ShippingUser(place, docker_engine, image, proxy, seaweedfs.prefix(), **options))
            return made[-1]

        yield make
        for user in made:
            user.close()


@pytest.mark.soak
def test_a_container_that_vanishes_takes_only_the_last_seconds(new_user: Callable[..., ShippingUser]) -> None:
    """No controller runs while it ships, and nothing is left of the container. So all that can be resumed is
    what the uplink shipped."""
    user = new_user()
    run = user.train()
    user.run("down")
    wait_until(lambda: user.shipped(run) == HELD, "the newest checkpoint in the store")
    user.vanish(run)
    user.run("up", "--detach")
    user.wait_for_end(run)
    assert user.resumed_at(run) == [0, HELD]
    user.check_as_in_one_piece(run)


@pytest.mark.soak
def test_a_machine_that_does_not_answer_any_more_is_done_without(
    new_user: Callable[..., ShippingUser],
) -> None:
    """The run goes on elsewhere while its engine is away."""
    user = new_user()
    run = user.train()
    wait_until(lambda: user.shipped(run) == HELD, "the newest checkpoint in the store")
    user.run("down")
    here = {**PROCESS, "uplink": True}
    user.configure({"platforms": {**user.platforms, "here": here}, "stores": {"home": user.store}})
    user.power_off()
    try:
        user.run("up", "--detach")
        user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end elsewhere")
    finally:
        user.engine.start()
    assert user.resumed_at(run) == [0, HELD]
    user.check_as_in_one_piece(run)


def test_a_hold_during_an_upload_that_hangs_loses_nothing(new_user: Callable[..., ShippingUser]) -> None:
    """The first upload hangs until the container is killed. What it has not shipped is read from it."""
    user = new_user(uplink_silence_seconds=600)  # or the controller would bring what hangs
    user.proxy.once(Fault.HANG, "PUT", lambda request: "/blobs/" in request.path)
    run = user.train()
    wait_until(lambda: user.proxy.struck, "the upload")
    user.wait_until_step(run, HELD)
    assert user.shipped(run) == -1
    user.run("hold", run)
    user.kill_when_saved(run)
    record = user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold")
    assert [each.ref.step for each in record.accepted][-1] == HELD
    user.run("release", run)
    user.wait_for_end(run)
    assert user.resumed_at(run) == [0, HELD]


def test_a_session_that_cannot_ship_trains_and_says_so(new_user: Callable[..., ShippingUser]) -> None:
    """Its image lacks the package and has no pip. The controller brings its checkpoints while it runs, as
    without an uplink, and it ends without waiting for a store that it cannot open."""
    user = new_user(image=PYTHON_IMAGE)
    run = user.train()
    user.wait_for(run, lambda record: [each.ref.step for each in record.accepted][-1:] == [HELD], "its work")
    assert NOT_INSTALLED in user.run("show", run)
    assert "pip failed" in user.run("logs", run)
    user.run("hold", run)
    user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold")
    user.run("release", run)
    user.wait_for_end(run)
    assert user.resumed_at(run) == [0, HELD]


def test_a_job_without_internet_cannot_ship_and_is_told_so(new_user: Callable[..., ShippingUser]) -> None:
    user = new_user()
    said = user.run("submit", str(user.write_job(**JOB)), "--follow", expect=3)
    assert "set the job's needs.internet, or `uplink: false` for box" in said
