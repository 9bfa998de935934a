"""Sessions in containers, end to end: session limits, the demo's job, and kill -9 of every process.

Also what GraphMER's image contains, because it takes a minute to build. In CI only the tests of that image
use torch.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.core.lifecycle import Phase
from orchestrator.freeze import images
from orchestrator.platforms.docker import builder
from scripts.lock import pinned
from tests.docker_engine import PYTHON_IMAGE, Engine
from tests.docker_images import PIP_IMAGE, inside
from tests.end_to_end.docker_user import (
    VICTIMS,
    DockerUser,
    on_containers,
    run_in_one_container,
    train_in_one_container,
)
from tests.end_to_end.torture import PLAIN, SCRIPT, STEP_SECONDS, torture
from tests.end_to_end.user import ROOT, fingerprints, paced_demo, wait_until

SESSION_SECONDS = 35.0  # with torch
PLAIN_SECONDS, PLAIN_STEPS = 15.0, 150  # without


def check_finishes(user: DockerUser, job: Path, final: Path, sessions_min: int) -> None:
    """Runs the job to its end in containers, and pulls its checkpoint."""
    said = user.run("submit", str(job), "--follow", "--platform", "box")
    run = str(user.answer("ps", "--all")["runs"][0]["run"])
    shown = user.answer("show", run)
    user.wait_for_silence()
    user.run("pull", run, "-o", str(final))
    assert shown["phase"] == "done", said
    assert len(shown["sessions"]) >= sessions_min, said


@pytest.mark.timeout(1800)
def test_walls_in_containers_change_no_bit(tmp_path: Path, docker_engine: Engine, python_image: str) -> None:
    user = DockerUser(tmp_path / "user", docker_engine, session_seconds=PLAIN_SECONDS, image=python_image)
    try:
        work = {"total": PLAIN_STEPS, "global_batch": 8}
        job = user.write_job(command="python train.py {steps} --pause 0.2", work=work)
        check_finishes(user, job, tmp_path / "final", sessions_min=3)  # two session limits
    finally:
        user.close()
    whole = train_in_one_container(docker_engine, python_image, tmp_path / "whole", "train.py", PLAIN_STEPS)
    assert fingerprints(tmp_path / "final") == whole


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("steps", "sessions_min"),
    [(6, 1), pytest.param(60, 3, marks=pytest.mark.soak)],  # CI crosses walls above, without torch
)
def test_the_demo_in_containers_of_its_image_trains_as_it_does_alone(
    tmp_path: Path, docker_engine: Engine, graphmer_image: str, image_arguments: dict[str, str],
    steps: int, sessions_min: int,
) -> None:  # fmt: skip
    limits = {"session_seconds": SESSION_SECONDS} if sessions_min > 1 else {}
    user = DockerUser(tmp_path / "user", docker_engine, build_args=image_arguments, **limits)
    try:
        check_finishes(user, paced_demo(tmp_path, steps), tmp_path / "final", sessions_min)
    finally:
        user.close()
    flags = f"--steps {steps} --micro-batch 32 --accumulate 1 --precision fp32 --seed 1337".split()
    whole = run_in_one_container(
        docker_engine, graphmer_image, tmp_path / "whole",
        ["python", "-m", "graphmer.train", "--config", "/source/train_demo.yaml", *flags],
        steps, tmp_path / "graphmer",
    )  # fmt: skip
    weights = {name for name in whole if name.endswith(".safetensors")}
    found = fingerprints(tmp_path / "final")
    assert weights
    assert {name: found[name] for name in weights} == {name: whole[name] for name in weights}


# --- GraphMER's image -----------------------------------------------------------------------------------


@pytest.fixture
def client(docker_engine: Engine) -> Iterator[docker.DockerClient]:
    client = docker_engine.client()
    yield client
    client.close()


@pytest.mark.timeout(1800)
def test_graphmers_image_holds_what_it_pins_and_starts_as_a_user(
    client: docker.DockerClient, graphmer_image: str
) -> None:
    script = (
        "import json, os, pwd, warnings, importlib.metadata as m; warnings.simplefilter('error');"
        "import torch, numpy, safetensors, yaml; me = pwd.getpwuid(os.getuid());"
        "open(os.path.expanduser('~/written'), 'w').close();"
        "print(json.dumps([me.pw_name, os.getuid(), os.getcwd() == me.pw_dir,"
        "torch.ones(3).numpy().sum().item(),"
        "{d.name.lower().replace('_', '-'): d.version for d in m.distributions()}]))"
    )
    name, uid, at_home, total, installed = json.loads(inside(client, graphmer_image, "python3", "-c", script))
    assert (name, uid, at_home, total) == ("job", 1000, True, 3.0)
    installed.pop("pip", None)
    assert installed.pop("torch").partition("+")[2] == "cpu"
    locks = ("base/torch-cpu.txt", "graphmer/requirements.lock")
    of_image = pinned(ROOT / "images" / path for path in locks)
    of_image.pop("torch")
    assert installed == of_image
    assert inside(client, graphmer_image, "sh", "-c", "ls -A ~ && ls -A /tmp") == ""


@pytest.mark.timeout(1800)
def test_graphmers_image_is_not_built_again(
    client: docker.DockerClient, graphmer_image: str, image_arguments: dict[str, str], tmp_path: Path
) -> None:
    requirements = ROOT / "jobs" / "graphmer" / "requirements.txt"
    sha256 = images.freeze(ROOT / "images" / "graphmer", tmp_path, requirements=requirements)
    said: list[str] = []
    assert image_arguments["PYTHON_IMAGE"] == PIP_IMAGE
    archive = tmp_path / f"{sha256}.tar.gz"
    assert builder.build(client, archive, image_arguments, said.append, network="host") == graphmer_image
    assert said == []


# --- A job's own image ------------------------------------------------------------------------------------


def image_folder(user: DockerUser, run: str) -> Path:
    """A folder to build an image from: the tests' Python, and one step on top of it."""
    folder = user.folder / "tiny"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {PYTHON_IMAGE}\nRUN {run}\n")
    return folder


@pytest.fixture
def docker_user(tmp_path: Path, docker_engine: Engine, python_image: str) -> Iterator[DockerUser]:
    assert python_image == PYTHON_IMAGE
    user = DockerUser(tmp_path / "user", docker_engine)
    yield user
    user.close()


@pytest.mark.timeout(1800)
def test_a_jobs_image_is_built_before_everyones_eyes_and_once(docker_user: DockerUser) -> None:
    image = image_folder(docker_user, "sleep 15 && echo made >/made")
    job = docker_user.write_job(image=str(image), command="python train.py {steps}")
    said = docker_user.run("submit", str(job), "--follow")
    assert re.search(r"building tiny \(cpu\): step 2/4: RUN sleep 15", said), said
    assert " done in " in said
    assert "building" not in docker_user.run("submit", str(job), "--follow")
    docker_user.wait_for_silence()


@pytest.mark.timeout(1800)
def test_a_build_that_fails_shows_its_step_and_what_to_do(docker_user: DockerUser) -> None:
    image = image_folder(docker_user, "echo looking for it && cat /nowhere/at/all")
    job = docker_user.write_job(image=str(image), command="python train.py {steps}")
    said = docker_user.run("submit", str(job), "--follow", expect=3)
    for words in ("RUN echo looking for it", "/nowhere/at/all: No such file", "step 2/4"):
        assert words in said, said
    docker_user.wait_for_silence()


@pytest.mark.timeout(1800)
def test_an_engine_that_does_not_answer_is_said_by_whoever_is_asked(docker_user: DockerUser) -> None:
    held = "python train.py {steps} --pause 0.2 --save-every 30 --hold-at 90"
    run = docker_user.submit(command=held, image=PYTHON_IMAGE)
    docker_user.wait_for(run, lambda record: record.phase is Phase.RUNNING, "its start")
    wait_until(lambda: docker_user.answer("ps")["runs"][0]["steps_per_second"], "a rate")
    docker_user.engine.stop(signal.SIGKILL)
    try:
        wait_until(lambda: "no answer" in docker_user.run("ps"), "the silence to be said")
        assert "does not answer" in docker_user.run("show", run)
    finally:
        docker_user.engine.start()
    wait_until(lambda: "does not answer" not in docker_user.run("show", run), "an answer")
    docker_user.run("hold", run)
    docker_user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold")
    docker_user.run("release", run)
    docker_user.wait_for_end(run)
    docker_user.wait_for_silence()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_9_in_containers_and_of_their_engine_changes_no_bit(
    tmp_path: Path, docker_engine: Engine, python_image: str
) -> None:
    """Without torch. On the platform `process` CI does the same with it: test_torture.py."""
    arena = on_containers(docker_engine, python_image, tmp_path, PLAIN_SECONDS, PLAIN, 0.15)
    killed = torture(1, seed=24, folder=tmp_path, arena=arena)  # of its container and the engine among others
    assert sum(killed.values()) >= 3


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thirty_rounds_in_containers(tmp_path: Path, docker_engine: Engine, graphmer_image: str) -> None:
    arena = on_containers(docker_engine, graphmer_image, tmp_path, SESSION_SECONDS, SCRIPT, STEP_SECONDS)
    killed = torture(30, seed=4, folder=tmp_path, arena=arena)
    assert all(killed[role] for role in VICTIMS)
