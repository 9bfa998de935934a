"""The orchestrator in its own container: a job finishes, health is reported, and a kill loses nothing."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import docker
import pytest

from scripts import lock, notices
from tests import docker_engine, postgresql
from tests.docker_engine import Engine
from tests.end_to_end import own_image
from tests.end_to_end.own_image import HOME, PROBE, Compose, Controller, config_file, job_files
from tests.end_to_end.user import QUICK, ROOT, fingerprints, train_in_one_piece

pytestmark = pytest.mark.timeout(900)
STOP_SECONDS = 60  # docker's own patience is 10, on a machine that nobody else uses
OWN_BYTES_MAX = 167e6
SLOW = "python train.py {steps} --pause 0.05"  # 100 steps in 5 s


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A daemon for this module only: it shares no images."""
    if not docker_engine.installed():
        pytest.skip(docker_engine.MISSING)
    with docker_engine.running() as running:
        yield running


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[docker.DockerClient]:
    client = engine.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def base(engine: Engine) -> str:
    return own_image.python_base(engine)


@pytest.fixture(scope="module")
def image(engine: Engine, base: str) -> str:
    return own_image.own_image(engine, base)


@pytest.fixture
def start(client: docker.DockerClient, image: str) -> Iterator[Callable[..., Controller]]:
    """Starts a controller in a container without a network. All of them are removed with their volumes."""
    made: list[Controller] = []

    def started(*, config: bytes = b"", files: dict[str, bytes] | None = None, **more: Any) -> Controller:
        settings = {"network_mode": "none", "healthcheck": PROBE, **more}
        made.append(Controller(client.containers.create(image, **settings)))
        if config:
            made[-1].put({"config.yaml": config}, HOME)
        made[-1].put({f"jobs/{name}": data for name, data in (files or {}).items()}, "/")
        made[-1].container.start()
        made[-1].wait_for_health("healthy")
        return made[-1]

    yield started
    for controller in made:
        controller.container.remove(force=True, v=True)


def submitted(controller: Controller, *words: str) -> str:
    return str(controller.answer("submit", "/jobs/job.yaml", *words)["run"])


def pulled(controller: Controller, run: str, folder: Path) -> dict[str, str]:
    """The fingerprints of its newest checkpoint."""
    controller.orchestrator("pull", run, "-o", f"{HOME}/result")
    controller.get(f"{HOME}/result", folder)
    return fingerprints(folder / "result")


# --- The image --------------------------------------------------------------------------------------------


def test_the_image_is_small_pinned_and_not_root(client: docker.DockerClient, image: str, base: str) -> None:
    found = client.images.get(image)
    config = found.attrs["Config"]
    assert config["User"] == "1000:1000"
    assert config["Volumes"] == {HOME: {}}
    assert (config["Entrypoint"], config["Cmd"]) == (["orchestrator"], ["up"])
    assert config["Healthcheck"]["Test"] == PROBE["test"]
    assert found.attrs["Size"] - client.images.get(base).attrs["Size"] < OWN_BYTES_MAX
    code = (
        "from importlib.metadata import distributions as d; print(*(f'{e.name}=={e.version}' for e in d()))"
    )
    entry = ["/opt/orchestrator/bin/python", "-c", code]
    said = client.containers.run(image, entrypoint=entry, network_mode="none", remove=True).decode()
    installed = {
        name.lower(): version for name, _, version in (word.partition("==") for word in said.split())
    }
    installed = {name.replace("_", "-"): version for name, version in installed.items()}
    assert installed.pop("accelerator-orchestrator") == metadata.version("accelerator-orchestrator")
    assert {"psycopg", "psycopg-binary", "sqlalchemy", "docker"} <= set(installed)
    assert not {"torch", "numpy", "pytest", "setuptools"} & set(installed)
    assert installed == lock.pinned([ROOT / "scripts" / "runtime.lock"])


def test_the_image_holds_the_licences_of_all_that_is_in_it(client: docker.DockerClient, image: str) -> None:
    """LICENSE and NOTICE are ours. The notices name each package that the image installs."""
    entry = [
        "sh",
        "-c",
        "cd /opt/orchestrator/share/licenses && cat LICENSE NOTICE && cat THIRD-PARTY-NOTICES",
    ]
    # Not `run`, which reads along and may miss the end of a long output.
    container = client.containers.create(image, entrypoint=entry, network_mode="none")
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        said = container.logs().decode()
    finally:
        container.remove(force=True)
    assert "Apache License" in said
    named = re.findall(rf"^{notices.RULE}\n([\w.-]+) (\S+)\nLicence: \S", said, re.MULTILINE)
    assert dict(named) == lock.pinned([ROOT / "scripts" / "runtime.lock"])


@pytest.mark.parametrize(("file", "image_of"), [("Dockerfile", "python"), ("compose.yaml", "postgres")])
def test_what_is_pulled_is_pinned_by_digest(file: str, image_of: str) -> None:
    """This also holds for the default of a build argument that is given but empty."""
    pinned = rf":-{image_of}:[0-9]+\.[0-9.]+-[a-z-]+@sha256:[0-9a-f]{{64}}\}}"
    assert len(re.findall(pinned, (ROOT / file).read_text())) == 1


def test_the_build_is_given_no_state_and_no_secret(client: docker.DockerClient, image: str) -> None:
    entry = ["find", "/opt/orchestrator", HOME, "-name", ".env", "-o", "-name", "test_own_image.py"]
    found = client.containers.run(image, entrypoint=entry, network_mode="none", remove=True)
    assert found == b""
    history = str(client.images.get(image).history())
    assert "PIP_" not in history, "build arguments may hold passwords"


# --- The controller in it ---------------------------------------------------------------------------------


def test_a_job_finishes_and_health_follows_the_controller(
    start: Callable[..., Controller], client: docker.DockerClient, image: str
) -> None:
    controller = start(config=config_file(), files=job_files())
    run = submitted(controller)
    controller.wait_for_run(run, lambda shown: shown["phase"] == "done", "the end")
    assert "100" in controller.orchestrator("checkpoints", run)
    controller.container.kill("SIGSTOP")
    controller.wait_for_health("unhealthy")
    assert "has not ticked" in controller.container.attrs["State"]["Health"]["Log"][-1]["Output"]
    controller.container.kill("SIGCONT")
    controller.wait_for_health("healthy")
    controller.container.kill("SIGKILL")
    with pytest.raises(docker.errors.ContainerError, match="no controller is running"):
        volumes = [str(controller.container.id)]
        client.containers.run(image, ["health"], network_mode="none", volumes_from=volumes, remove=True)


@pytest.mark.soak
def test_a_killed_container_goes_on_where_it_was(start: Callable[..., Controller], tmp_path: Path) -> None:
    held = "python train.py {steps} --save-every 10 --hold-at 50"
    controller = start(config=config_file(), files=job_files(command=held))
    run = submitted(controller)
    controller.wait_for_run(run, lambda shown: len(shown["checkpoints"]) > 0, "a checkpoint")
    controller.container.kill("SIGKILL")
    controller.container.start()
    controller.wait_for_health("healthy")
    shown = controller.wait_for_run(run, lambda shown: shown["phase"] == "done", "the end")
    assert {each["ref"]["generation"] for each in shown["checkpoints"]} != {1}
    whole = train_in_one_piece(tmp_path / "whole", "train.py", 100)
    assert pulled(controller, run, tmp_path) == whole


def test_docker_stop_ends_it_tidily_in_time(start: Callable[..., Controller]) -> None:
    controller = start(
        config=config_file(), files=job_files(command=SLOW, work={"total": 5000, "global_batch": 8})
    )
    run = submitted(controller)
    controller.wait_for_run(run, lambda shown: shown["phase"] == "running", "its start")
    controller.container.stop(timeout=STOP_SECONDS)
    assert controller.container.wait()["StatusCode"] == 0
    assert controller.container.logs().decode().rstrip().endswith("controller 1 leaves")


# --- compose.yaml -----------------------------------------------------------------------------------------


@pytest.fixture
def compose(engine: Engine, image: str, tmp_path: Path) -> Iterator[Callable[..., Compose]]:
    """A project of compose.yaml. Everything it made is removed, volumes included."""
    if own_image.compose_command() is None:
        pytest.skip(own_image.COMPOSE_MISSING)
    made: list[Compose] = []

    def project(*files: str, **settings: str) -> Compose:
        (tmp_path / "jobs").mkdir()
        for name, data in job_files().items():
            path = tmp_path / "jobs" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        given = {"ORCHESTRATOR_IMAGE": image, "ORCHESTRATOR_CONTAINER": "own-tested",
                 "ORCHESTRATOR_JOBS": str(tmp_path / "jobs"), **settings}  # fmt: skip
        made.append(Compose(engine, tmp_path, "own", given, ("compose.yaml", *files)))
        return made[-1]

    yield project
    for each in made:
        each("--profile", "sqlite", "--profile", "postgres", "down", "--volumes", "--timeout", "5")


def services(client: docker.DockerClient) -> set[str]:
    return {each.labels["com.docker.compose.service"] for each in client.containers.list()}


def test_compose_builds_it_and_starts_it_with_a_database_in_a_file(
    compose: Callable[..., Compose], client: docker.DockerClient, base: str
) -> None:
    project = compose(ORCHESTRATOR_IMAGE="orchestrator:composed", **own_image.build_settings(base))
    project("up", "-d", "--build")
    controller = project.controller(client)
    controller.wait_for_health("healthy")
    assert services(client) == {"orchestrator"}
    run = submitted(controller)
    controller.wait_for_run(run, lambda shown: shown["phase"] == "done", "the end")
    project("up", "-d", "--no-build", "--force-recreate")
    assert project.controller(client).answer("show", run)["phase"] == "done"


@pytest.mark.soak
def test_compose_starts_it_with_postgresql_by_a_profile(
    compose: Callable[..., Compose], engine: Engine, client: docker.DockerClient, base: str
) -> None:
    if postgresql.binaries() is None:
        pytest.skip(postgresql.MISSING)
    project = compose(POSTGRES_IMAGE=own_image.postgres_image(engine, base))
    project("--profile", "postgres", "up", "-d", "--no-build")
    controller = project.controller(client)
    controller.wait_for_health("healthy")
    assert services(client) == {"orchestrator-postgres", "postgres"}
    run = submitted(controller)
    controller.wait_for_run(run, lambda shown: shown["phase"] == "done", "the end")
    found = controller.container.exec_run(["find", HOME, "-name", "ledger.sqlite"])
    assert found.output == b"", "the runs are recorded in PostgreSQL"
    [database] = [each for each in client.containers.list() if "_postgres" in str(each.name)]
    assert list(database.attrs["NetworkSettings"]["Networks"]) == ["none"]
    project("--profile", "postgres", "up", "-d", "--no-build", "--force-recreate")
    controller = project.controller(client)
    controller.wait_for_health("healthy")
    assert controller.answer("show", run)["phase"] == "done"


# --- A neighbour of its own sessions ----------------------------------------------------------------------


def test_it_drives_sibling_containers_through_a_mounted_socket(
    compose: Callable[..., Compose], engine: Engine, client: docker.DockerClient, base: str, tmp_path: Path
) -> None:
    socket = Path(engine.url.removeprefix("unix://"))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o660, "otherwise the group would prove nothing"
    project = compose(
        "compose.engine.yaml", ENGINE_SOCKET=str(socket), ENGINE_GROUP=str(socket.stat().st_gid)
    )
    project("up", "--no-start", "--no-build")
    controller = project.controller(client)
    options = {key: QUICK[key] for key in ("poll_seconds", "slack_seconds", "grace_seconds", "setup_seconds")}
    controller.put({"config.yaml": config_file({"type": "docker", "image": base, **options})}, HOME)
    project("up", "-d", "--no-build")
    controller.wait_for_health("healthy")
    run = submitted(controller)
    shown = controller.wait_for_run(run, lambda shown: shown["phase"] == "done", "the end")
    assert shown["checkpoints"], "the checkpoints come from the sibling container"
    assert pulled(controller, run, tmp_path) == train_in_one_piece(tmp_path / "whole", "train.py", 100)


def test_without_the_socket_the_group_is_asked_for(compose: Callable[..., Compose]) -> None:
    project = compose("compose.engine.yaml")
    assert "the group of the engine's socket" in project("config", expect=1)
    project.files = ("compose.yaml",)  # to be removed
