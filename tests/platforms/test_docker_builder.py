"""Images on a real engine: built once, rebuilt only if an input changed, clear failures."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from orchestrator.errors import AccessDenied, BackendError, Rejected, Transient
from orchestrator.freeze import bundle, images
from orchestrator.platforms.docker import builder
from tests import docker_engine as engines
from tests import registry
from tests.docker_engine import PYTHON_IMAGE, Engine
from tests.docker_images import inside
from tests.registry import Registry
from tests.waiting import PATIENCE, wait_until

BASE = """ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
ARG VARIANT=cpu
ARG WHO=nobody
COPY base.txt /
RUN echo "a $VARIANT base of $WHO" > /who
"""
TOP = "ARG BASE=../base\nFROM ${BASE}\nCOPY . /top/\nRUN echo top of all\n"
ARGUMENTS = {"PYTHON_IMAGE": PYTHON_IMAGE}


@pytest.fixture
def client(docker_engine: Engine, python_image: str) -> Iterator[docker.DockerClient]:
    assert python_image == PYTHON_IMAGE
    client = docker_engine.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def shop(docker_engine: Engine) -> Iterator[Registry]:
    client = docker_engine.client()
    architecture = client.version()["Arch"]
    client.close()
    with registry.serving(architecture) as found:
        yield found


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A base and an image on top of it, different from those of any other test."""
    return write(tmp_path, {"base/Dockerfile": BASE, "base/base.txt": str(tmp_path), "top/Dockerfile": TOP,
                            "top/top.txt": "1"})  # fmt: skip


def make(
    client: docker.DockerClient, folder: Path, arguments: dict[str, str] = ARGUMENTS
) -> tuple[str, list[str]]:
    """The image's id, and the reported progress."""
    into, said = folder.parent / "frozen", list[str]()
    archive = into / f"{images.freeze(folder, into)}.tar.gz"
    return builder.build(client, archive, arguments, said.append), said


def tags(client: docker.DockerClient, name: str) -> set[str]:
    return {tag for image in client.images.list(f"orchestrator/{name}") for tag in image.tags}


def built(said: list[str]) -> list[str]:
    """The images of which at least one step ran, in order."""
    return list(dict.fromkeys(line.split()[1] for line in said if ": step 1/" in line))


def failure(client: docker.DockerClient, folder: Path, dockerfile: str) -> BackendError:
    with pytest.raises(BackendError) as error:
        make(client, write(folder / "failing", {"Dockerfile": dockerfile}))
    return error.value


# --- Once -----------------------------------------------------------------------------------------------


def test_a_chain_is_built_in_order_and_not_again(client: docker.DockerClient, folders: Path) -> None:
    image, said = make(client, folders / "top")
    assert image.startswith("sha256:")
    assert (
        inside(client, image, "cat", "/base.txt", "/top/top.txt", "/who") == f"{folders}1a cpu base of nobody"
    )
    assert built(said) == ["base", "top"]
    assert "building top (cpu): step 4/5: RUN echo top of all" in said
    assert "building top (cpu): step 4/5: top of all" in said
    assert client.images.get(image).labels["orchestrator.image"] == "top"
    (tag,) = client.images.get(image).tags
    assert tag.startswith("orchestrator/top:cpu-")
    assert len(tag.partition(":cpu-")[2]) == 12
    before = {each.id for each in client.images.list(all=True)}
    assert make(client, folders / "top") == (image, [])
    assert {each.id for each in client.images.list(all=True)} == before


def test_a_change_rebuilds_what_depends_on_it_and_nothing_else(
    client: docker.DockerClient, folders: Path
) -> None:
    first, _ = make(client, folders / "top")
    bases = tags(client, "base")
    write(folders, {"top/top.txt": "2"})
    second, said = make(client, folders / "top")
    assert built(said) == ["top"]
    assert tags(client, "base") == bases
    assert inside(client, second, "cat", "/top/top.txt") == "2"
    write(folders, {"base/base.txt": f"{folders} changed"})
    third, said = make(client, folders / "top")
    assert built(said) == ["base", "top"]
    assert inside(client, third, "cat", "/base.txt") == f"{folders} changed"
    write(folders, {"base/base.txt": str(folders), "top/top.txt": "1"})
    assert make(client, folders / "top") == (first, [])
    assert len({first, second, third}) == 3


def test_build_arguments_reach_those_who_declare_them_and_make_another_image(
    client: docker.DockerClient, folders: Path
) -> None:
    plain, _ = make(client, folders / "top")
    arguments = {**ARGUMENTS, "WHO": "ada", "VARIANT": "cuda", "UNKNOWN": "x"}
    image, said = make(client, folders / "top", arguments)
    assert inside(client, image, "cat", "/who") == "a cuda base of ada"
    assert said[0].startswith("building base (cuda): step 1/")
    assert client.images.get(image).tags[0].startswith("orchestrator/top:cuda-")
    assert image != plain
    assert make(client, folders / "top", {**arguments, "UNKNOWN": "y"}) == (image, [])


def test_dockerignore_keeps_files_out_of_the_image_and_of_its_hash(
    client: docker.DockerClient, folders: Path
) -> None:
    write(
        folders,
        {"top/.dockerignore": "*.log\n.dockerignore\nDockerfile\n", "top/a.log": "x", "top/b.txt": ""},
    )
    image, _ = make(client, folders / "top")
    assert inside(client, image, "ls", "-A", "/top").split() == ["b.txt", "top.txt"]
    write(folders, {"top/a.log": "y", "top/c.log": "z"})
    assert make(client, folders / "top") == (image, [])


# --- Failures -------------------------------------------------------------------------------------------


def test_a_failing_step_is_shown_with_its_command_and_its_last_lines(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    error = failure(client, tmp_path, f"""FROM {PYTHON_IMAGE}
RUN echo quiet
RUN for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do \\
        echo line $i >&2; done; printf 'to the\\nend' >&2; exit 3
""")  # fmt: skip
    assert isinstance(error, Rejected)
    first, *lines = str(error).split("\n")
    assert first.startswith("image failing (plain): step 3/4 failed: RUN for i in 1 2 3")
    assert " exit 3 (exit code 3); fix its folder and submit again" in first
    assert first.endswith("; its last lines:")
    assert lines == [*(f"  | line {i}" for i in range(4, 17)), "  | to the", "  | end"]
    assert tags(client, "failing") == set()


def test_a_step_that_needs_a_missing_file_and_a_broken_dockerfile_are_told(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    missing = failure(client, tmp_path, f"FROM {PYTHON_IMAGE}\nCOPY nowhere.txt /\n")
    assert isinstance(missing, Rejected)
    assert "step 2/3 failed: COPY nowhere.txt /" in str(missing)
    assert "nowhere.txt" in str(missing).partition("(")[2]
    broken = failure(client, tmp_path, f"FROM {PYTHON_IMAGE}\nRUNN true\n")
    assert isinstance(broken, Rejected)
    assert "image failing (plain): " in str(broken)
    assert "unknown instruction: RUNN" in str(broken)


def test_a_missing_or_telling_build_argument_is_told(client: docker.DockerClient, folders: Path) -> None:
    with pytest.raises(Rejected, match=r"image base \(cpu\): FROM \$\{PYTHON_IMAGE\} needs a build argument"):
        make(client, folders / "top", {})
    for address in (
        "https://ada:secret@index.example/simple",
        "http://a/ https://secret@index.example/simple",
    ):
        with pytest.raises(Rejected, match="PIP_INDEX_URL: the address contains a login") as error:
            make(client, folders / "top", {**ARGUMENTS, "PIP_INDEX_URL": address})
        assert "secret" not in str(error.value)


def test_dockers_broken_credential_store_is_for_a_human(
    docker_engine: Engine, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folders / "bin", {"docker-credential-broken": "#!/bin/sh\necho locked; exit 1\n",
                            "config.json": '{"credsStore": "broken"}'})  # fmt: skip
    (folders / "bin" / "docker-credential-broken").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folders}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_CONFIG", str(folders / "bin"))
    client = docker_engine.client()
    for wanted in (
        lambda: make(client, folders / "top"),
        lambda: builder.pull(client, "127.0.0.1:9/x", print),
    ):
        with pytest.raises(
            AccessDenied, match=r"credential store .*docker-credential-broken.*locked.*config\.json"
        ):
            wanted()
    client.close()


def test_an_archive_that_is_damaged_is_told(client: docker.DockerClient, folders: Path) -> None:
    archive = folders / "damaged.tar.gz"
    archive.write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(Rejected, match="submit again"):
        builder.build(client, archive, {}, print)


# The SDK does not close the socket of a refused connection.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_engine_lost_during_a_build_is_transient(tmp_path: Path, number: signal.Signals) -> None:
    step = "trap 'exit 143' TERM; echo begun; sleep 600 & wait"
    write(tmp_path / "long", {"Dockerfile": f"FROM {PYTHON_IMAGE}\nRUN {step}\n"})
    if not engines.installed():
        pytest.skip(engines.MISSING)
    with engines.running() as engine:
        engines.load_python_image(engine)
        client, steps = engine.client(), list[int]()
        into = tmp_path / "frozen"
        archive = into / f"{images.freeze(tmp_path / 'long', into)}.tar.gz"

        def say(line: str) -> None:
            if line.endswith(": begun"):
                steps.append(process_of_the_only_container(engine))
                assert engine.process is not None
                engine.process.send_signal(number)

        with pytest.raises(Transient, match=r"image long \(plain\): .*the engine"):
            builder.build(client, archive, {}, say)
        wait_until_gone(engine)
        with pytest.raises(Transient, match="the engine"):
            builder.pull(client, "x:1", say)
        client.close()
        gc.collect()
        # A killed engine leaves the step running; after a restart it removes what has ended.
        for step_process in steps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(step_process, signal.SIGKILL)
        engine.start()


def process_of_the_only_container(engine: Engine) -> int:
    client = engine.client()
    (container,) = wait_until(client.containers.list, "the container")  # it prints before it is listed
    container.reload()
    number: int = container.attrs["State"]["Pid"]
    client.close()
    return number


def wait_until_gone(engine: Engine) -> None:
    """Waits for its containerd too, which dies a moment later: a new daemon would rely on it."""
    assert engine.process is not None
    engine.process.wait(PATIENCE)
    wait_until(lambda: not engine.containerd_runs(), "containerd's end")


@pytest.fixture(scope="module")
def small_engine() -> Iterator[Engine]:
    """An engine whose disk has room for the tests' Python image and little else."""
    if not engines.installed():
        pytest.skip(engines.MISSING)
    with tempfile.TemporaryDirectory(prefix="docker-", dir="/tmp") as folder:
        engine = Engine(Path(folder))
        data = engine.folder / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", data], check=True)
        try:
            engine.start()
            engines.load_python_image(engine)
            yield engine
            engine.remove_containers()
            engine.stop()
        finally:
            subprocess.run(["umount", "-l", data], check=True)


@pytest.mark.parametrize(
    "steps",
    ["RUN head -c 200000000 /dev/zero > /big", "COPY big.bin /a\nCOPY big.bin /b\nCOPY big.bin /c"],
    ids=["a step", "the engine itself"],
)
def test_a_full_disk_is_told_as_such(small_engine: Engine, tmp_path: Path, steps: str) -> None:
    folder = write(tmp_path / "large", {"Dockerfile": f"FROM {PYTHON_IMAGE}\n{steps}\n"})
    (folder / "big.bin").write_bytes(b"x" * 30_000_000)
    client = small_engine.client()
    with pytest.raises(Transient, match="the engine's disk is full") as error:
        make(client, folder)
    assert "image large (plain): " in str(error.value)
    assert "docker system prune" in str(error.value)
    client.close()


# --- Images by name -------------------------------------------------------------------------------------


def test_an_image_is_pulled_once_and_pinned_by_its_digest(
    client: docker.DockerClient, shop: Registry
) -> None:
    said: list[str] = []
    pinned = builder.pull(client, f"{shop.small}:1", said.append)
    assert pinned == f"{shop.small}@{shop.digest}"
    assert said
    assert all(line.startswith(f"pulling {shop.small}:1: ") for line in said)
    shop.asked.clear()
    said.clear()
    assert builder.pull(client, f"{shop.small}:1", said.append) == pinned
    assert builder.pull(client, pinned, said.append) == pinned
    assert shop.asked == said == []
    client.images.remove(f"{shop.small}:1")
    assert builder.pull(client, pinned, said.append) == pinned
    assert shop.asked
    client.images.remove(pinned)


def test_an_image_of_this_engine_alone_is_pinned_by_its_id(client: docker.DockerClient) -> None:
    image = client.images.get(PYTHON_IMAGE).id
    assert image is not None
    assert builder.pull(client, PYTHON_IMAGE, print) == image == builder.pull(client, image, print)


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("tests/small:2", Rejected, "manifest unknown"),
        ("tests/none:1", Rejected, "is the name right?"),
        ("tests/private:1", AccessDenied, "`docker login` where the controller runs"),
        ("tests/busy:1", Transient, "for now: "),
        ("tests/broken:1", Transient, "its registry cannot be reached"),
    ],
)
def test_a_registrys_no_is_told_by_what_to_do_next(
    client: docker.DockerClient, shop: Registry, name: str, kind: type[BackendError], told: str
) -> None:
    with pytest.raises(BackendError) as error:
        builder.pull(client, f"{shop.address}/{name}", print)
    assert type(error.value) is kind, error.value
    assert told in str(error.value)
    assert f"{shop.address}/{name} cannot be pulled" in str(error.value)


@pytest.mark.parametrize(
    ("reference", "kind", "told"),
    [
        ("127.0.0.1:9/tests/small:1", Transient, "its registry cannot be reached"),
        ("registry.invalid/tests/small:1", Transient, "its registry cannot be reached"),
        ("Tests/Small:1", Rejected, "lowercase"),
        (f"sha256:{'0' * 64}", Rejected, "an image cannot be pulled by its id alone"),
    ],
)
def test_an_unreachable_registry_and_an_impossible_name_are_told_apart(
    client: docker.DockerClient, reference: str, kind: type[BackendError], told: str
) -> None:
    with pytest.raises(BackendError) as error:
        builder.pull(client, reference, print)
    assert type(error.value) is kind, error.value
    assert told in str(error.value)


def test_what_an_image_builds_on_is_pulled_and_told(
    client: docker.DockerClient, shop: Registry, tmp_path: Path
) -> None:
    write(tmp_path / "on", {"Dockerfile": f"ARG TAG=1\nFROM {shop.small}:${{TAG}}\nCOPY Dockerfile /\n"})
    _, said = make(client, tmp_path / "on")
    assert said[0].startswith(f"pulling {shop.small}:1: ")
    with pytest.raises(Rejected, match=f"image on .plain. builds on {shop.small}:none: .*cannot be pulled"):
        make(client, tmp_path / "on", {"TAG": "none"})


def test_arguments_that_grow_without_end_are_refused_before_an_engine_hears_of_them(tmp_path: Path) -> None:
    """For example from an archive that another version has frozen."""
    arguments = {"A0": "aaaaaaaa"} | {f"A{n}": f"$A{n - 1}$A{n - 1}" for n in range(1, 31)}
    described = {"name": "top", "arguments": arguments, "from": ["x:$A30"]}
    (tmp_path / "chain.json").write_text(json.dumps({"images": [described]}))
    sha256 = bundle.freeze(None, tmp_path, also={"chain.json": tmp_path / "chain.json"})
    with pytest.raises(Rejected, match=r"image top: FROM x:\$A30 is longer than 4,096 characters"):
        builder.build(docker.DockerClient("unix:///nowhere.sock", version="1.40"),
                      tmp_path / f"{sha256}.tar.gz", {}, print)  # fmt: skip
