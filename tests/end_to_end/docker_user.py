"""A user whose sessions are containers of a private engine, and who can kill processes in them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from docker.errors import DockerException
from requests import RequestException

from tests.docker_engine import Engine
from tests.end_to_end.torture import STEPS, Arena
from tests.end_to_end.user import PATIENCE, SOURCE, Process, Role, User, fingerprints, living, wait_until

QUICK: dict[str, object] = {
    "type": "docker", "poll_seconds": 0.5, "visibility_seconds": 2.0, "slack_seconds": 20.0,
    "grace_seconds": 60.0, "setup_seconds": 1.0, "threads": 1, "build_network": "host",
}  # fmt: skip
VICTIMS = (
    Role.CONTROLLER, Role.AGENT, Role.LEADER, Role.WORKER, Role.GUARDIAN, Role.CONTAINER, Role.ENGINE
)  # fmt: skip
_AGENT = "/orchestrator/session/agent.pyz"


class DockerUser(User):
    """`options` are those of the one platform, `box`; they override QUICK."""

    def __init__(self, folder: Path, engine: Engine, **options: object) -> None:
        super().__init__(folder)
        self.engine = engine
        self.configure({"platforms": {"box": {**QUICK, "host": engine.url, **options}}})

    def by_role(self) -> dict[Role, list[Process]]:
        """The home's processes, and those in its containers with their numbers on this machine."""
        found = super().by_role()
        assert self.engine.process is not None
        daemon = living(self.engine.process.pid)
        found[Role.ENGINE] = [daemon] if daemon is not None else []
        for process in self._contained():
            found[self._contained_role(process, found)].append(process)
        return found

    def _contained(self) -> list[Process]:
        """The first process of a session comes first. Empty if the engine does not answer."""
        try:
            with closing(self.engine.client()) as client:
                tops = [client.api.top(each["Id"], "-eo pid,ppid") for each in client.api.containers()]
        except (DockerException, RequestException):
            return []
        found = (living(int(row[0])) for top in tops for row in top["Processes"] or ())
        return [each for each in found if each is not None and each.command]  # otherwise it is just starting

    def _contained_role(self, process: Process, found: dict[Role, list[Process]]) -> Role:
        parents = {role: {each.pid for each in found[role]} for role in found}
        if process.command[0].endswith("docker-init"):
            return Role.CONTAINER
        if "--exec" in process.command:
            return Role.OTHER
        if _AGENT in process.command:
            return Role.AGENT if process.parent in parents[Role.CONTAINER] else Role.GUARDIAN
        if process.parent in parents[Role.AGENT]:
            return Role.LEADER
        return Role.WORKER if process.parent in parents[Role.LEADER] else Role.OTHER

    def wait_for_silence(self) -> None:
        super().wait_for_silence()
        with closing(self.engine.client()) as client:
            wait_until(lambda: not client.containers.list(all=True), "the end of all containers")
            wait_until(lambda: not client.volumes.list(), "the end of all volumes")

    def close(self) -> None:
        super().close()
        self.engine.remove_containers()


def on_containers(
    engine: Engine, image: str, folder: Path, seconds: float, script: str, step_seconds: float
) -> Arena:
    """Sessions of this many seconds, in containers of an engine that is also killed and restarted."""

    def revive(_user: User, role: Role) -> None:
        if role is Role.ENGINE:
            assert engine.process is not None
            engine.process.wait(PATIENCE)
            engine.start()

    return Arena(
        lambda place: DockerUser(place, engine, image=image, session_seconds=seconds),
        VICTIMS,
        train_in_one_container(engine, image, folder / "uninterrupted", script, STEPS, "0"),
        revive,
        script,
        step_seconds,
    )


def train_in_one_container(
    engine: Engine, image: str, folder: Path, script: str, steps: int, *flags: str
) -> dict[str, str]:
    """Runs a script of SOURCE in one container without interruption; returns its final checkpoint's
    fingerprints."""
    return run_in_one_container(
        engine, image, folder, ["python", f"/source/{script}", str(steps), *flags], steps, SOURCE
    )


def run_in_one_container(
    engine: Engine, image: str, folder: Path, command: list[str], steps: int, source: Path
) -> dict[str, str]:
    folder.mkdir(parents=True)
    package = Path(__file__).resolve().parents[2] / "orchestrator"
    volumes = {str(source): "/source", str(package): "/package/orchestrator", str(folder): "/work"}
    environment = {"PYTHONPATH": "/package:/source", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {name: str(QUICK["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with closing(engine.client()) as client:
        client.containers.run(
            image, command, user="0:0", working_dir="/work", environment=environment, remove=True,
            network_mode="none", shm_size="1g",
            volumes=[f"{here}:{there}{':ro' if there != '/work' else ''}" for here, there in volumes.items()],
        )  # fmt: skip
    return fingerprints(folder / "checkpoints" / f"step-{steps}")
