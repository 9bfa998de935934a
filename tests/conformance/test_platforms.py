"""The platform suites for every platform of the catalogue."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from docker.errors import NotFound

from orchestrator.agent import archive
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.job import Keep, Precision
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order
from orchestrator.core.session import Sighting, StopReply
from orchestrator.platforms import catalog
from orchestrator.platforms.colab import boot
from orchestrator.platforms.docker import archives, container
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.platforms.simulated import Scenario, SimulatedOffer, SimulatedPlatform, expected_state
from orchestrator.platforms.simulated.uplink import Uplinks
from orchestrator.session.layout import SESSION
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from orchestrator.uplink import outbox
from orchestrator.uplink.outbox import StoreOutbox
from orchestrator.uplink.registers import raise_fence
from orchestrator.uplink.shipping import Uplink as Shipper
from tests.conformance import train
from tests.conformance.platform_suite import PlatformSuite, Rig, SurvivingRig, SurvivingSuite
from tests.docker_engine import Engine
from tests.simulation.clock import VirtualClock
from tests.stand_ins.colab import LocalColab, local_colab
from tests.stand_ins.kaggle import LocalKaggle, Settings, local_kaggle
from tests.waiting import wait_until

PATIENCE_SECONDS = 240.0  # on a machine that others use as well
LAUNCH = Path(__file__).with_name("launch.py")
REPOSITORY = Path(__file__).parents[2]


def any_order(session: str, total: int, generation: int, **changes: object) -> Order:
    values: dict[str, object] = {
        "run": "a",
        "session": session,
        "generation": generation,
        "platform": "here",
        "accelerator": "cpu",
        "devices": 1,
        "command": ("true",),
        "bundle": "0" * 64,
        "global_batch": 8,
        "micro_batch": 8,
        "precision": Precision.FP32,
        "steps_total": total,
        "seed": 7,
        "keep": Keep(last=50),
    }
    return Order(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    archive.build(path)
    return path


def launch_command(
    type_: str, options: Mapping[str, object], folder: Path, order: Order, die_at_line: int
) -> Sequence[str]:
    file = folder / f"{order.session}.order"
    file.write_bytes(wire.encode(order))
    code = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}]; import runpy; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    words = (type_, json.dumps(options), str(folder / "sessions"), str(file), str(die_at_line))
    return [sys.executable, "-c", code, str(LAUNCH), *words]


def pack(folder: Path) -> Path:
    """The bundle of the suite's training."""
    bundle = folder / "bundle.tar.gz"
    with tarfile.open(bundle, "w:gz") as file:
        file.add(train.__file__, "train.py")
    return bundle


class RealRig(SurvivingRig):
    """A platform on which the real agent runs a real training, configured through the config's options."""

    type: str
    options: dict[str, object]

    def __init__(self, folder: Path, agent: Path) -> None:
        self.folder = folder
        self.agent = agent
        self.bundle = pack(folder)
        self.platform = self.another_controller()

    def another_controller(self) -> Platform:
        folder = self.folder / "sessions"
        return catalog.build("here", self.type, self.options, folder=folder, clock=SystemClock())

    def order(self, session: str, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        given: dict[str, object] = {
            "command": ("python", "train.py", str(total), "0.01", "3"),
            "bundle": hashlib.sha256(self.bundle.read_bytes()).hexdigest(),
            "env": (("TRACE", self.trace(session)),),
            "threads": 1,
        }
        return any_order(session, total, generation, **(given | changes))

    @abstractmethod
    def trace(self, session: str) -> str:
        """The file to which a training adds a line when it starts."""

    def materials(self, resume: Path | None = None) -> Materials:
        return Materials(self.bundle, self.agent, resume=resume)

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, "the session", PATIENCE_SECONDS)

    def expected(self, order: Order, step: int) -> bytes:  # noqa: ARG002
        return train.uninterrupted(step)

    def state_blob(self, checkpoint: str) -> str:
        """The blob with a checkpoint's state in an outbox."""
        state = train.uninterrupted(int(checkpoint.split("-")[0]))
        return f"blobs/{hashlib.sha256(state).hexdigest()}"

    def launcher(self, order: Order, *, die_at_line: int = 0) -> Sequence[str]:
        return launch_command(self.type, self.options, self.folder, order, die_at_line)


class ProcessRig(RealRig):
    type = "process"
    budget_seconds = 5.0
    launch_lines = 56

    def __init__(self, folder: Path, agent: Path) -> None:
        self.options = {"accelerator": "cpu", "setup_seconds": 1.0}
        super().__init__(folder, agent)
        self.launched: list[str] = []

    def order(self, session: str, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        self.launched.append(session)
        return super().order(session, total=total, generation=generation, **changes)

    def trace(self, session: str) -> str:
        return str(self.folder / f"{session}.trace")

    def corrupt(self, session: str) -> str:
        outbox = self.folder / "sessions" / session / "outbox"
        newest = max(entry.name for entry in (outbox / "checkpoints").iterdir())
        blob = outbox / self.state_blob(newest)
        blob.chmod(0o644)
        blob.write_bytes(b"altered")
        return newest

    def trainings(self, session: str) -> int:
        trace = Path(self.trace(session))
        return len(trace.read_text().splitlines()) if trace.exists() else 0

    def close(self) -> None:
        """Ends everything that a test left running."""
        for session in self.launched:
            if self.see(session).sighting in (Sighting.RUNNING, Sighting.PENDING):
                self.until(lambda session=session: self.platform.stop(session) is StopReply.ENDED)  # type: ignore[misc]


class DockerRig(RealRig):
    type = "docker"
    budget_seconds = 12.0
    launch_lines = 31

    def __init__(self, folder: Path, agent: Path, engine: Engine, image: str) -> None:
        self.options = {
            "host": engine.url, "image": image, "setup_seconds": 1.0, "poll_seconds": 0.2, "slots": 4,
        }  # fmt: skip
        self.engine = engine
        self.client = engine.client()
        super().__init__(folder, agent)

    def trace(self, session: str) -> str:  # noqa: ARG002
        return f"{container.FOLDER}/work/trace"

    def corrupt(self, session: str) -> str:
        into = self.folder / "listed"
        container.bring(self.client, session, "outbox/checkpoints", into, 1 << 20)
        newest = max(entry.name for entry in into.iterdir())
        altered = archives.Entry(f"outbox/{self.state_blob(newest)}", b"altered")
        container.put(self.client, session, DockerOptions(), altered)
        return newest

    def trainings(self, session: str) -> int:
        try:
            trace = container.read(self.client, session, "work/trace", 1 << 20)
        except NotFound:
            return 0
        return len(trace.splitlines()) if trace else 0

    def close(self) -> None:
        self.client.close()
        self.engine.remove_containers()


class KaggleRig(RealRig):
    type = "kaggle"
    budget_seconds = 12.0
    launch_lines = 159

    def __init__(self, folder: Path, agent: Path, kaggle: LocalKaggle) -> None:
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        self.options = {
            "username": kaggle.settings.username, "key_file": str(key), "endpoint": kaggle.url,
            "accelerators": ["cpu"], "threads": 1, "session_seconds": 600.0, "wall_margin_seconds": 2.0,
            "poll_seconds": 0.2, "visibility_seconds": 1.0, "absence_seconds": 1.0, "report_seconds": 0.2,
            "listed_seconds": 1.0, "mount_seconds": 1.0, "publish_seconds": 2.0, "hand_over_bytes": 0,
        }  # fmt: skip
        self.kaggle = kaggle
        super().__init__(folder, agent)

    def trace(self, session: str) -> str:
        return str(self.folder / f"{session}.trace")

    def corrupt(self, session: str) -> str:
        outbox = self.kaggle.kernel(session).folder / "working" / "outbox"
        newest = max(entry.name for entry in (outbox / "checkpoints").iterdir())
        (outbox / self.state_blob(newest)).unlink()
        (outbox / self.state_blob(newest)).write_bytes(b"altered")
        return newest

    def trainings(self, session: str) -> int:
        trace = Path(self.trace(session))
        return len(trace.read_text().splitlines()) if trace.exists() else 0


class ColabRig(RealRig):
    type = "colab"
    budget_seconds = 25.0  # from the allocation of its machine
    launch_lines = 235
    slack_lines = 1

    def __init__(self, folder: Path, agent: Path, colab: LocalColab) -> None:
        self.options = {
            "proxy": colab.url, "ca_file": str(colab.ca), "accelerators": ["cpu"], "threads": 1, "slots": 3,
            "session_seconds": 120.0, "wall_margin_seconds": 2.0, "poll_seconds": 0.2, "start_seconds": 60.0,
            "visibility_seconds": 1.0, "absence_seconds": 1.0, "uplink_silence_seconds": 5.0,
        }  # fmt: skip
        self.colab = colab
        token = folder / "sessions" / "cli" / "home" / ".config" / "colab-cli" / "token.json"
        token.parent.mkdir(parents=True)
        token.write_text(colab.login())
        super().__init__(folder, agent)

    def trace(self, session: str) -> str:
        return str(self.folder / f"{session}.trace")

    def order(self, session: str, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        """It saves so rarely that a checkpoint can be read before it is superseded."""
        given = {"command": ("python", "train.py", str(total), "0.05", "20")}
        return super().order(session, total=total, generation=generation, **(given | changes))

    def root(self, session: str) -> Path:
        """The session's folder on its machine."""
        found = [each.content / boot.FOLDER / session for each in self.colab.account.machines.values()]
        return next(each for each in found if each.exists())

    def corrupt(self, session: str) -> str:
        outbox = self.root(session) / "outbox"
        newest = max(entry.name for entry in (outbox / "checkpoints").iterdir())
        (outbox / self.state_blob(newest)).unlink()
        (outbox / self.state_blob(newest)).write_bytes(b"altered")
        return newest

    def trainings(self, session: str) -> int:
        trace = Path(self.trace(session))
        return len(trace.read_text().splitlines()) if trace.exists() else 0


class SimulatedRig(Rig):
    budget_seconds = 30.0

    platform: Platform

    def __init__(self, folder: Path, scenario: Scenario, uplinks: Uplinks | None = None) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.simulated = SimulatedPlatform("here", scenario, self.clock, uplinks)
        self.platform = self.simulated

    def order(self, session: str, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        return any_order(session, total, generation, **({"interval_seconds": 5.0} | changes))

    def materials(self, resume: Path | None = None) -> Materials:
        return Materials(self.folder / "bundle.tar.gz", self.folder / "agent.pyz", resume=resume)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(3600):
            if condition():
                return
            self.clock.advance(1.0)
        pytest.fail("waited for an hour")

    def corrupt(self, session: str) -> str:
        return self.simulated.corrupt(session)

    def until_saved(self, session: str) -> None:
        lives = self.simulated.history.lifetimes
        self.until(lambda: bool(self.see(session) and any(x.written for x in lives if x.session == session)))

    def trainings(self, session: str) -> int:
        return sum(life.session == session for life in self.simulated.history.lifetimes)

    def expected(self, order: Order, step: int) -> bytes:
        return expected_state(order, step)


class ShippedPlatform:
    """A platform whose sessions ship their outbox. As in the engine, the store takes part in each verb."""

    def __init__(self, inner: Platform, store: Store) -> None:
        self._inner = inner
        self._store = store
        self.name = inner.name
        self.survey = inner.survey
        self.launch = inner.launch
        self.stop = inner.stop

    def prepare(self, order: Order, materials: Materials) -> None:
        raise_fence(self._store, order.run, order.generation)
        self._inner.prepare(order, materials)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        sights = self._inner.observe(names)
        return {name: self._shown(name, sight) for name, sight in sights.items()}

    def _shown(self, name: str, sight: Sight) -> Sight:
        shown = StoreOutbox(self._store, "a", name, self._generation(name))
        return replace(sight, outbox=shown) if SESSION.fullmatch(name) else sight

    def _generation(self, name: str) -> int:
        number = name.rpartition("-s")[2]
        return int(number) if number.isdecimal() else 0

    def open(self, name: str) -> Outbox:
        return outbox.opened(self._store, "a", name, self._generation(name))

    def discard(self, name: str) -> None:
        self._inner.discard(name)
        outbox.remove(self._store, "a", name)


def corrupted(store: Store, altered: Path) -> str:
    """Alters a blob of the newest checkpoint in the store, by way of a file. Returns its name."""
    newest = max(stored.names(store, "a"), key=lambda ref: ref.step)
    part = stored.read(store, "a", newest.name).files[0].parts[0]
    [key] = [stat.key for stat in store.list("runs/a/blobs/") if stat.key.endswith(part.sha256)]
    store.delete(key)
    altered.write_bytes(b"altered")
    store.put(key, altered, hashlib.sha256(b"altered").hexdigest())
    return newest.name


class ShippedRig(SimulatedRig):
    """A simulated platform whose sessions keep their outboxes in a store."""

    budget_seconds = 90.0

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        super().__init__(folder, scenario, self._uplink)
        self.store = MemoryStore()
        self.platform = ShippedPlatform(self.simulated, self.store)

    def _uplink(self, order: Order, incarnation: str, local: Outbox) -> Shipper:
        return Shipper(self.store, order, incarnation, local, self.folder / "uplinks" / incarnation)

    def corrupt(self, session: str) -> str:
        return corrupted(self.store, self.folder / f"{session}.altered")

    def until_saved(self, session: str) -> None:
        Rig.until_saved(self, session)


class TestProcess(PlatformSuite, SurvivingSuite):
    @pytest.fixture
    def rig(self, tmp_path: Path, agent: Path) -> Iterator[ProcessRig]:
        rig = ProcessRig(tmp_path, agent)
        yield rig
        rig.close()


class TestDocker(PlatformSuite, SurvivingSuite):
    @pytest.fixture
    def rig(
        self, tmp_path: Path, agent: Path, docker_engine: Engine, python_image: str
    ) -> Iterator[DockerRig]:
        rig = DockerRig(tmp_path, agent, docker_engine, python_image)
        yield rig
        rig.close()


class TestKaggle(PlatformSuite, SurvivingSuite):
    @pytest.fixture
    def rig(self, tmp_path: Path, agent: Path) -> Iterator[KaggleRig]:
        with local_kaggle(tmp_path / "kaggle", Settings(wall_seconds=600.0)) as kaggle:
            yield KaggleRig(tmp_path, agent, kaggle)


class TestColab(PlatformSuite, SurvivingSuite):
    @pytest.fixture
    def rig(self, tmp_path: Path, agent: Path, colab_python: None) -> Iterator[ColabRig]:  # noqa: ARG002
        with local_colab(tmp_path / "colab") as colab:
            yield ColabRig(tmp_path, agent, colab)


class TestSimulated(PlatformSuite):
    @pytest.fixture(params=Uplink)
    def rig(self, request: pytest.FixtureRequest, tmp_path: Path) -> SimulatedRig:
        offers = (SimulatedOffer("cpu", slots=3),)
        scenario = Scenario(seed=5, offers=offers, uplink=request.param, save_seconds=1.0)
        return (ShippedRig if request.param is Uplink.STORE else SimulatedRig)(tmp_path, scenario)
