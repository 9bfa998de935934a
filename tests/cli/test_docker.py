"""A user with a Docker engine: what init writes, what doctor finds, and what doctor --clean removes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from orchestrator import config
from orchestrator.clock import SystemClock
from orchestrator.config import PlatformConfig
from orchestrator.core.event import Cancelled
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog
from orchestrator.platforms.docker import container, discovery
from orchestrator.platforms.docker.discovery import FoundEngine
from orchestrator.platforms.docker.gpus import Gpu
from orchestrator.platforms.docker.images import Image
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.docker.platform import DockerPlatform
from orchestrator.session.staging import Materials
from tests.cli.calls import BINARIES, Caller
from tests.conformance.test_platforms import any_order
from tests.docker_engine import PYTHON_IMAGE, Engine
from tests.docker_gpus import RTX_3050, write_smi
from tests.rehearsal.test_rehearsing import job, written
from tests.waiting import wait_until
from tests.walks import NOW, submission

BOX = "platforms: {{box: {{type: docker, host: '{url}', image: '{image}'{more}}}}}\n"
DEAD = "unix:///tmp/no-engine.sock"


@pytest.fixture
def engine(docker_engine: Engine, python_image: str) -> Iterator[Engine]:  # noqa: ARG001 - the image is in it
    yield docker_engine
    docker_engine.remove_containers()


def boxed(user: Caller, engine: Engine, more: str = "") -> None:
    user.config(BOX.format(url=engine.url, image=PYTHON_IMAGE, more=more))


# --- init -------------------------------------------------------------------------------------------------


def test_init_writes_the_engine_that_it_finds(user: Caller, engine: Engine) -> None:
    answer = user("init", "--force", DOCKER_HOST=engine.url)
    assert f"at {engine.url}" in answer.out
    here, docker = config.load(user.home).platforms
    assert (here.name, here.type) == ("here", "process")
    assert (docker.name, docker.type) == ("docker", "docker")
    assert docker.options["host"] == engine.url, "a controller with another environment must also find it"
    assert docker.options["accelerator"] == "cpu"
    both = here.options["memory_gb"] + docker.options["memory_gb"]
    assert both <= 0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3 + 1
    assert "docker: engine" in user("doctor").out


def test_init_writes_the_gpus_that_the_engine_gives(user: Caller, two_t4: Engine) -> None:
    answer = user("init", "--force", DOCKER_HOST=two_t4.url)
    assert "2 × Tesla T4, 16.1 GB" in answer.out
    written = {each.name: dict(each.options) for each in config.load(user.home).platforms}
    assert written["docker"] == {"host": two_t4.url, "accelerator": "T4", "gpus": ["0", "1"]}
    assert written["docker-t4x2"] == {"host": two_t4.url, "accelerator": "T4x2", "gpus": ["0", "1"]}
    text = user("doctor").out
    assert "T4, 2 slots" in text
    assert "T4x2, 1 slot" in text
    assert "0 Tesla T4, 16.1 GB; 1 Tesla T4, 16.1 GB" in text


def test_init_says_how_to_have_the_gpus_of_this_machine(user: Caller, engine: Engine) -> None:
    path = os.pathsep.join((str(write_smi(user.folder / "bin", [RTX_3050])), os.environ["PATH"]))
    answer = user("init", "--force", DOCKER_HOST=engine.url, PATH=os.pathsep.join((str(BINARIES), path)))
    assert "NVIDIA GeForce RTX 3050 Laptop GPU, 4.3 GB" in answer.out
    assert "nvidia-ctk runtime configure" in answer.out
    written = {each.name: each.options["accelerator"] for each in config.load(user.home).platforms}
    assert written == {"here": "cpu", "here-gpu": "RTX3050Laptop", "docker": "cpu"}


def test_init_leaves_out_an_engine_that_does_not_answer(user: Caller) -> None:
    answer = user("init", "--force", DOCKER_HOST=DEAD)
    assert "left out" in answer.out
    assert [each.name for each in config.load(user.home).platforms] == ["here"]


def test_init_writes_the_context_that_is_in_use(user: Caller, engine: Engine) -> None:
    docker = user.folder / "docker"
    name = hashlib.sha256(b"box").hexdigest()
    meta = docker / "contexts" / "meta" / name
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(
        json.dumps({"Name": "box", "Endpoints": {"docker": {"Host": engine.url}}})
    )
    (docker / "config.json").write_text(json.dumps({"currentContext": "box"}))
    user("init", "--force", DOCKER_CONFIG=str(docker))
    assert config.load(user.home).platforms[1].options["context"] == "box"


MEMORY = {"NVIDIA GeForce RTX 3050 Laptop GPU": 4.3, "NVIDIA L4": 24.1, "NVIDIA GeForce GTX 1650": 4.3}


def found_engine(*names: str) -> FoundEngine:
    gpus = tuple(Gpu(str(n), f"GPU-{n}", name, MEMORY.get(name, 16.1)) for n, name in enumerate(names))
    return FoundEngine({}, "unix:///x", "28.3.0", here=True, memory_gb=32.0, gpus=gpus)


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ((), {"docker": "cpu"}),
        (("NVIDIA GeForce RTX 3050 Laptop GPU",), {"docker": "RTX3050Laptop 0"}),
        (("Tesla T4",), {"docker": "T4 0"}),
        (("Tesla T4", "Tesla T4"), {"docker": "T4 0 1", "docker-t4x2": "T4x2 0 1"}),
        (("Tesla T4", "NVIDIA L4"), {"docker": "T4 0", "docker-l4": "L4 1"}),
        (("NVIDIA GeForce GTX 1650", "NVIDIA L4"), {"docker": "GTX1650 0", "docker-l4": "L4 1"}),
        (("NVIDIA GeForce GT 1030", "NVIDIA L4"), {"docker": "L4 1"}),
        (("NVIDIA GeForce GT 1030",), {"docker": "cpu"}),
        (("Tesla T4",) * 8, {"docker": "T4 0 1 2 3 4 5 6 7", "docker-t4x8": "T4x8 0 1 2 3 4 5 6 7"}),
        (("Tesla K80",), {"docker": "cpu"}),
    ],
)
def test_which_platforms_gpus_become(names: tuple[str, ...], written: dict[str, str]) -> None:
    entries = discovery.entries(found_engine(*names), 12.0)
    shown = {
        name: " ".join((str(options["accelerator"]), *options.get("gpus", ())))  # type: ignore[misc]
        for name, options in entries.items()
    }
    assert shown == written
    for name, options in entries.items():
        assert catalog.build(name, "docker", options, folder=Path("x"), clock=SystemClock()).name == name


def test_init_writes_tls_as_the_environment_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://box:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", "/certificates")
    engine = replace(found_engine("Tesla T4", "Tesla T4"), options=discovery.way_in())
    platforms = [
        PlatformConfig(name, "docker", options) for name, options in discovery.entries(engine, 1).items()
    ]
    config.write_default(tmp_path, platforms)
    for each in config.load(tmp_path).platforms:
        tls = DockerOptions.model_validate(each.options).tls
        assert tls is not None
        assert (each.options["host"], tls.key) == ("tcp://box:2376", Path("/certificates/key.pem"))
    # TLS without checking the server: the config has no option for that.
    monkeypatch.delenv("DOCKER_TLS_VERIFY")
    assert discovery.way_in() == {}


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor_looks_at_the_engine(user: Caller, engine: Engine) -> None:
    boxed(user, engine)
    found = {each["what"]: each for each in user("doctor", "box", "--json").json["findings"]}
    assert {"platform box", "box: engine", "box: disk", "box: gpus"} <= set(found)
    assert engine.url in found["box: engine"]["text"]
    assert "nvidia-ctk" in found["box: gpus"]["advice"]
    assert {each["state"] for each in found.values()} == {"ok"}
    assert not (user.home / "platforms").exists(), "looking creates nothing"
    assert "to get box: gpus" in user("doctor").out


def test_a_gpu_platform_without_gpus_waits_for_a_human(user: Caller, engine: Engine) -> None:
    boxed(user, engine, ", accelerator: RTX3050, gpus: ['0']")
    found = user("doctor", "--json", code=3).json["findings"]
    [box] = [each for each in found if each["what"] == "platform box"]
    assert (box["state"], box["exit_code"]) == ("missing", 3)
    assert "nvidia-ctk runtime configure" in box["advice"]
    job = user.job(accelerator="RTX3050")
    plan = user("plan", job, "--json", code=3).json
    assert plan["verdict"] == "human"
    assert any("nvidia-ctk" in command for command in plan["commands"])
    text = user("plan", job, code=3).out
    assert "the engine has neither the nvidia runtime nor CDI" in text
    assert "to fix it" in text
    assert "nvidia-container-toolkit" in user("submit", job, code=3).err


def test_doctor_of_an_engine_that_is_not_there(user: Caller) -> None:
    user.config(f"platforms: {{box: {{type: docker, host: '{DEAD}'}}}}\n")
    answer = user("doctor", "--json", code=4).json["findings"]
    box = next(each for each in answer if each["what"] == "platform box")
    assert "does not answer" in box["text"]
    assert box["advice"] == "check that it is running, and that the config has its address"
    nothing = user("doctor", "--clean", "--json").json
    assert nothing["leftovers"] == [], "without any prepared session no engine is asked"
    (user.home / "platforms" / "box").mkdir(parents=True)
    (user.home / "platforms" / "box" / "home-id").write_text("0" * 32)
    clean = user("doctor", "--clean", "--json", code=4).json
    assert "does not answer" in clean["troubles"]["box"]
    assert "no answer" in user("doctor", "--clean", code=4).out


def test_two_runs_have_a_gpu_each_and_a_third_waits_for_one(user: Caller, two_t4: Engine) -> None:
    boxed(
        user, two_t4, ", accelerator: T4, gpus: ['0', '1'], poll_seconds: 0.2, setup_seconds: 1, threads: 1"
    )
    client = two_t4.client()
    try:
        with starts_and_deaths(two_t4) as events:
            long = [user.submitted(user.job(f"{n}.yaml", total=6000, accelerator="T4")) for n in range(2)]
            taken = wait_until(lambda: found if len(found := alive(client)) == 2 else {}, "two sessions")
            assert sorted(taken.values()) == [("0",), ("1",)]
            third = user.submitted(user.job("third.yaml", total=10, accelerator="T4"))
            wait_until(lambda: user("why", third, "--json").json["route_now"], "a first look at the third")
            [why] = user("why", third, "--json").json["route_now"]["rejections"]
            assert why["until"]["kind"] == "slot"
            user("cancel", long[0])
            user.wait_for_phase(third, "done")
            user("cancel", long[1])
            for run in long:
                user.wait_for_phase(run, "cancelled")
            wait_until(lambda: sum(each["Action"] == "start" for each in events) >= 3, "the engine's events")
            assert alone(events) == 3
    finally:
        client.close()
        two_t4.remove_containers()


def alive(client: docker.DockerClient) -> dict[str, tuple[str, ...]]:
    """The GPUs of every running session."""
    return {each.session: each.gpus for each in container.listed(client) if each.alive}


@contextmanager
def starts_and_deaths(engine: Engine) -> Iterator[list[dict[str, Any]]]:
    """The engine's own events for them, as they arrive: it keeps only a few past ones."""
    client = engine.client()
    seen: list[dict[str, Any]] = []
    wanted = {"event": ["start", "die"], "label": ["orchestrator.session"]}
    stream = client.api.events(decode=True, filters=wanted)
    listener = threading.Thread(target=lambda: seen.extend(stream))
    listener.start()
    try:
        yield seen
    finally:
        stream.close()
        listener.join()
        client.close()


def alone(events: Sequence[Mapping[str, Any]]) -> int:
    """Checks that no two sessions had the same GPU at once; returns how many had one."""
    holders: dict[str, str] = {}
    starts = 0
    for event in events:
        labels = event["Actor"]["Attributes"]
        gpu, session = labels["orchestrator.gpus"], labels["orchestrator.session"]
        if event["Action"] == "die":
            assert holders.pop(gpu) == session
        else:
            assert gpu not in holders, f"{session} and {holders[gpu]} on GPU {gpu}"
            holders[gpu] = session
            starts += 1
    return starts


# --- doctor --clean ---------------------------------------------------------------------------------------

AGENT = "import threading; threading.Event().wait(3600)"


class Littered:
    """An engine with objects of a live run, a finished run, an unknown run, and another home."""

    def __init__(self, user: Caller, engine: Engine) -> None:
        boxed(user, engine)
        self.user = user
        self.client = engine.client()
        for name, text in (("agent.pyz", AGENT), ("bundle.tar.gz", "")):
            (user.folder / name).write_text(text)
        self.materials = Materials(user.folder / "bundle.tar.gz", user.folder / "agent.pyz")
        self.mine = self.platform(user.home, engine)
        with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
            ledger.submit(submission("live"), due_at=None)
            over = ledger.submit(submission("over"), due_at=None)
            ledger.append(over, [Cancelled(NOW)], due_at=None)
        self.prepare(self.mine, "live", "live-s01")
        self.prepare(self.mine, "over", "over-s01")
        self.prepare(self.platform(user.folder / "elsewhere", engine), "over", "other-s01")
        self.mine.stop("over-s02")  # leaves a note for a launch that may still come

    def platform(self, home: Path, engine: Engine) -> DockerPlatform:
        options = {"host": engine.url, "image": PYTHON_IMAGE}
        folder = home / "platforms" / "box"
        made = catalog.build("box", "docker", options, folder=folder, clock=SystemClock())
        assert isinstance(made, DockerPlatform)
        return made

    def prepare(self, platform: DockerPlatform, run: str, session: str, *, launch: bool = False) -> None:
        order = any_order(session, 10, 1, run=run, platform="box")
        platform.prepare(order, self.materials)
        if launch:
            platform.launch(order)

    def under_way(self, run: str, session: str) -> None:
        """A container in the state that it has while its preparer fills it."""
        home = (self.user.home / "platforms" / "box" / "home-id").read_text()
        order = any_order(session, 10, 1, run=run, platform="box")
        plan = container.Plan(order, Image(PYTHON_IMAGE), DockerOptions(), home)
        name = f"{session}.preparing-12345678"
        self.client.api.create_container(PYTHON_IMAGE, command=["true"], name=name, labels=plan.labels)

    @property
    def names(self) -> set[str]:
        return {each.name for each in container.listed(self.client)}

    @property
    def volumes(self) -> set[str]:
        return {each["Name"].partition(".")[0] for each in self.client.api.volumes()["Volumes"] or ()}


@pytest.fixture
def littered(user: Caller, engine: Engine) -> Iterator[Littered]:
    litter = Littered(user, engine)
    yield litter
    litter.client.close()


def test_without_a_terminal_and_without_yes_it_only_lists(user: Caller, littered: Littered) -> None:
    before = littered.names
    answer = user("doctor", "--clean", "--json").json
    assert {each["session"] for each in answer["leftovers"]} == {"over-s01", "over-s02"}
    assert answer["removed"] == []
    text = user("doctor", "--clean").out
    assert "over-s01" in text
    assert "--yes" in text
    assert littered.names == before
    assert "doctor --clean" in user("doctor").out


def test_only_what_no_live_run_of_this_home_needs_is_removed(user: Caller, littered: Littered) -> None:
    littered.under_way("live", "live-s02")
    littered.under_way("over", "over-s03")
    removed = user("doctor", "--clean", "--yes", "--json").json["removed"]
    assert "box: container over-s01" in removed
    assert "box: container over-s03.preparing-12345678" in removed
    assert littered.names == {"live-s01", "live-s02.preparing-12345678", "other-s01"}
    assert {"live-s01", "other-s01"} <= littered.volumes
    assert "over-s01" not in littered.volumes
    assert user("doctor", "--clean", "--yes", "--json").json["leftovers"] == []
    assert "Nothing is left over" in user("doctor", "--clean", "--yes").out


def test_what_might_still_be_wanted_goes_with_discard_only(user: Caller, littered: Littered) -> None:
    littered.prepare(littered.mine, "over", "over-s04", launch=True)
    littered.prepare(littered.mine, "gone", "gone-s01")
    wait_until(
        lambda: "over-s04" in {f.name for f in container.listed(littered.client) if f.alive}, "a start"
    )
    answer = user("doctor", "--clean", "--yes", "--json").json
    assert "still running" in answer["kept"]["box: container over-s04"]
    assert "does not know its run" in answer["kept"]["box: container gone-s01"]
    assert {"over-s04", "gone-s01"} <= littered.names
    assert len(user("doctor", "--clean", "--yes", "--discard", "--json").json["removed"]) == 2
    assert littered.names == {"live-s01", "other-s01"}


@pytest.mark.parametrize(("word", "left"), [("n", True), ("", True), ("y", False), ("yes", False)])
def test_a_terminal_is_asked(user: Caller, littered: Littered, word: str, left: bool) -> None:
    said = user.on_a_terminal("doctor", "--clean", answer=word)
    assert "Remove 2 things?" in said
    assert ("over-s01" in littered.names) == left
    assert ("removed" in said) != left


def test_words_about_cleaning_without_clean_are_refused(user: Caller) -> None:
    assert "--clean" in user("doctor", "--yes", code=2).err
    assert "--clean" in user("doctor", "--discard", code=2).err


# --- rehearse ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_job_is_rehearsed_in_a_container(user: Caller, engine: Engine) -> None:
    boxed(user, engine)
    path = written(user.folder / "job", job("nothing"))
    told = user("rehearse", str(path), "--steps", "30", "--platform", "docker", "--json").json
    assert (told["grade"], told["compared_at"]) == ("bitwise", 30)
    client = engine.client()
    try:
        assert client.containers.list(all=True) == []
        assert client.volumes.list() == []
    finally:
        client.close()
