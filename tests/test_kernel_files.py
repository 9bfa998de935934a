"""Files that the kernel makes up, such as /proc/self/environ, are no part of a job, wherever they lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import spec
from orchestrator.core.job import Input
from orchestrator.errors import InputError, Mistake, SpecError
from orchestrator.files import kernel_way, read_own
from orchestrator.freeze import bundle, images, inputs, leaving
from orchestrator.references import resolve
from tests.cli.calls import Caller, caller
from tests.specs import with_

ROOT = Path(__file__).resolve().parent.parent
OTHERS = "PASSPHRASE_OF_ANOTHER_PROCESS=correct-horse"


@pytest.fixture
def other() -> Iterator[int]:
    """Another process of this user, with a secret in its environment."""
    name, _, value = OTHERS.partition("=")
    with subprocess.Popen(["sleep", "600"], env={**os.environ, name: value}) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, text in (("code/train.py", ""), ("data/a", "1"), ("context/Dockerfile", "FROM scratch\n")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def mistakes(job: Path, **keys: str) -> dict[str, Mistake]:
    (job / "job.yaml").write_text(with_(**keys))
    try:
        spec.load(job / "job.yaml")
    except SpecError as error:
        return {each.path: each for each in error.mistakes}
    return {}


@pytest.mark.parametrize(
    "origin",
    ["/proc/{pid}/environ", "/proc/{pid}/cmdline", "/proc/self/environ", "/proc/cpuinfo", "/sys/kernel",
     "/sys/kernel/mm", "/proc/self/root{tmp}/data/a", "/dev/fd/{fd}", "/proc/thread-self/cwd",
     "link", "far/x"],
)  # fmt: skip
def test_each_key_refuses_a_path_of_the_kernel_with_its_line(job: Path, other: int, origin: str) -> None:
    """Also if it only leads through there: `/dev/fd/3` is another file in each process."""
    (job / "link").symlink_to(f"/proc/{other}/environ")
    (job / "far").symlink_to("/proc/self/root/usr")
    fd = os.open(job / "data" / "a", os.O_RDONLY)
    given = str(job / origin.format(pid=other, tmp=job, fd=fd))
    found = mistakes(
        job, inputs=f"[{{name: x, from: {given}}}]", requirements=given, image=given, source=given
    )
    os.close(fd)
    assert set(found) == {"inputs[0].from", "requirements", "image", "source"}
    for each in found.values():
        assert each.line is not None
        assert ", which leads into /" in each.message
        assert "whose files the kernel makes up; valid: " in each.message


def test_what_people_have_elsewhere_is_taken(job: Path) -> None:
    """Memory, a folder behind a link, and what is only called proc."""
    shared = Path("/dev/shm", f"orchestrator-test-{os.getpid()}")
    shared.write_text("1")
    (job / "proc").mkdir()
    (job / "proc" / "version").write_text("mine")
    (job / "far").symlink_to(job / "data")
    try:
        for origin in (str(shared), "proc/version", "proc", "far", "far/a", "code/../data"):
            assert mistakes(job, inputs=f"[{{name: x, from: {origin}}}]") == {}, origin
            [pinned] = inputs.pin((Input("x", str(job / origin)),))
            assert pinned.sha256
    finally:
        shared.unlink()


def test_a_link_to_nothing_or_in_a_circle_is_told_as_such(job: Path) -> None:
    (job / "round").symlink_to("round")
    (job / "gone").symlink_to("nowhere")
    for name in ("round", "gone"):
        for each in mistakes(job, requirements=name, source=name).values():
            assert f"given '{name}', which is a link to nothing; valid: " in each.message


def refused(act: object, *given: object, **more: object) -> str:
    with pytest.raises(InputError) as found:
        act(*given, **more)  # type: ignore[operator]
    return str(found.value)


@pytest.mark.parametrize("target", ["/proc/self/environ", "/proc/self/cwd", "/sys/kernel/mm", "/dev/fd"])
def test_a_link_in_the_midst_of_a_folder_is_named(job: Path, target: str) -> None:
    for folder in ("code", "data", "context"):
        (job / folder / "link").symlink_to(target)
    told = refused(leaving.check_inputs, [Input("x", str(job / "data"))], [["."]])
    assert f"input 'x': {job}/data/link: a link into /" in told
    told = refused(bundle.freeze, job / "code", job / "out")
    assert "link: a link into /" in told
    told = refused(images.freeze, job / "context", job / "out")
    assert "context/link: " in told
    assert not (job / "out").exists() or not any((job / "out").iterdir())


@pytest.mark.parametrize("name", [".gitignore", ".orchestratorignore"])
def test_a_file_of_patterns_is_not_the_kernels(job: Path, name: str) -> None:
    (job / "code" / name).symlink_to("/proc/self/environ")
    assert f"{name} is a link to a file that the kernel makes up (proc)" in refused(
        bundle.freeze, job / "code", job / "out"
    )


def test_a_secret_is_not_read_from_there(job: Path, other: int) -> None:
    told = refused(resolve, f"file:/proc/{other}/environ", job)
    assert told == f"/proc/{other}/environ is a file that the kernel makes up (proc), not a file on a disk"


def test_a_file_without_content_is_a_file(job: Path) -> None:
    """Like the kernel's, it has no blocks."""
    (job / "empty").touch()
    assert read_own(job / "empty", 10) == b""
    assert kernel_way(job / "empty") == ""


# What a person mounts by mistake, or another for them. Its mounts end with the process.
_CONFINED = """
import json, subprocess, sys
from pathlib import Path
from orchestrator.core.job import Input
from orchestrator.errors import InputError
from orchestrator.files import kernel_way
from orchestrator.freeze import bundle, images, inputs, leaving
job = Path(sys.argv[1])
for folder in ("code", "data", "context"):
    (job / folder / "inner").mkdir()
    (job / folder / "file").touch()
    subprocess.run(["mount", "--bind", "/sys/kernel/mm", job / folder / "inner"], check=True)
    subprocess.run(["mount", "--bind", "/proc/version", job / folder / "file"], check=True)
given = Input("x", str(job / "data"))
told = {}
for name, act in {
    "leaves": lambda: leaving.check_inputs([given], [["."]]),
    "pinned": lambda: inputs.pin((given,)),
    "bundled": lambda: bundle.freeze(job / "code", job / "out"),
    "built": lambda: images.freeze(job / "context", job / "out"),
}.items():
    try:
        act()
    except InputError as error:
        told[name] = str(error)
told["way"] = kernel_way(job / "data" / "inner" / "transparent_hugepage")
print(json.dumps(told))
"""


def test_what_is_mounted_in_the_midst_is_told_by_its_kind_and_not_by_its_path(job: Path) -> None:
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*alone, sys.executable, "-c", _CONFINED, str(job)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert f"input 'x': {job}/data/inner: lies on sysfs, whose files the kernel makes up" in told["leaves"]
    assert f"input 'x': {job}/data/file: lies on proc" in told["leaves"]
    assert "input 'x': " in told["pinned"]
    assert "the kernel makes up" in told["pinned"]
    assert "inner: lies on sysfs" in told["bundled"]
    assert "file: lies on proc" in told["bundled"]
    assert "the kernel makes up" in told["built"]
    assert told["way"] == f"{job}/data/inner (sysfs)"
    assert list((job / "data" / "inner").iterdir()) == [], "its mounts have ended"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config()
        yield found


def test_nothing_of_another_process_comes_into_the_home(user: Caller, other: int) -> None:
    (user.folder / "data").mkdir()
    (user.folder / "data" / "link").symlink_to(f"/proc/{other}/environ")
    for origin in (f"/proc/{other}/environ", "data"):
        path = user.folder / user.job()
        path.write_text(path.read_text() + f"inputs: [{{name: x, from: {origin}, allow: [.]}}]\n")
        answer = user("submit", str(path), code=2)
        assert "the kernel makes up" in answer.err
        assert "job.yaml:" in answer.err
    for path in user.home.rglob("*"):
        assert not path.is_file() or b"correct-horse" not in path.read_bytes()
