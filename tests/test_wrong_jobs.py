"""What a person is told of a job file that is wrong: where, what, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator import Client
from orchestrator.cli.call import Exit, exit_code
from orchestrator.errors import SpecError
from tests import wrong_jobs
from tests.cli.calls import Answer, Caller, caller
from tests.wrong_jobs import Wrong

KINDS = (wrong_jobs.YAML, wrong_jobs.KEYS, wrong_jobs.VALUES, wrong_jobs.COMMANDS, wrong_jobs.FILES)
ALL = [wrong for kind in KINDS for wrong in kind]
CONFIG = "platforms:\n  here: {type: process, accelerator: cpu}\n"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A user with the files that the jobs name, right or wrong. Tests write only job.yaml."""
    folder = tmp_path_factory.mktemp("wrong")
    with caller(folder) as found:
        found.config(CONFIG)
        found.home.chmod(0o700)
        for path, text in {
            "code/train.py": "print(1)\n", "code/prepare.py": "print(0)\n", "code/train.ipynb": "{}\n",
            "code/Dockerfile": "FROM scratch\n", "code/checkpoints/ckpt_100.pt": "weights\n",
            "requirements.txt": "numpy\n", "environment.yml": "dependencies: [torch]\n",
            "big/train.py": "print(1)\n", "leaky/train.py": "print(1)\n", "leaky/.env": "MODE=test\n",
            "job.yaml": "",
        }.items():  # fmt: skip
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        with (folder / "big" / "data.bin").open("wb") as data:
            data.truncate(3_000_000_000)
        yield found


def refusal(user: Caller, job: str | bytes) -> SpecError:
    """What `submit --dry-run` prints of this job. Looking at it must leave no file behind."""
    path = user.folder / "job.yaml"
    path.write_bytes(job.encode() if isinstance(job, str) else job)
    before = sorted(user.folder.rglob("*"))
    with Client(user.home) as client, pytest.raises(SpecError) as caught:
        client.outlook(path)
    assert sorted(user.folder.rglob("*")) == before
    assert exit_code(caught.value) is Exit.INPUT
    return caught.value


def answer(user: Caller, job: str | bytes, *words: str, code: int) -> Answer:
    """What the command says of this job. It must leave no file behind."""
    (user.folder / "job.yaml").write_bytes(job.encode() if isinstance(job, str) else job)
    before = sorted(user.folder.rglob("*"))
    said = user("submit", "job.yaml", *words, code=code)
    assert sorted(user.folder.rglob("*")) == before
    return said


@pytest.mark.parametrize("wrong", ALL, ids=lambda wrong: wrong.what)
def test_a_message_names_the_place_the_fault_and_the_remedy(
    user: Caller, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(user.folder))
    place = f"{user.folder / 'job.yaml'}{wrong.place}: "
    told = str(refusal(user, wrong.job))
    assert any(
        line.startswith(place) and wrong.fault in line and wrong.remedy in line for line in told.splitlines()
    ), told


def test_the_table_has_several_of_each_kind() -> None:
    assert len(ALL) >= 50
    assert min(map(len, KINDS)) >= 10
    assert len({wrong.what for wrong in ALL}) == len(ALL)
    assert len({wrong.job for wrong in ALL}) == len(ALL)


@pytest.mark.parametrize("kind", KINDS, ids=("yaml", "keys", "values", "commands", "files"))
@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=("submit", "dry run"))
def test_the_command_says_so_and_leaves_nothing(
    user: Caller, kind: list[Wrong], words: tuple[str, ...]
) -> None:
    said = answer(user, kind[-1].job, *words, code=2)
    assert said.out == ""
    assert said.err.startswith(f"job.yaml{kind[-1].place}: ")
    assert kind[-1].remedy in said.err


@pytest.mark.parametrize("what", ["a secret in env", "secrets with =", "an API key", "wandb login"])
def test_no_message_repeats_a_secret(user: Caller, what: str) -> None:
    [wrong] = (each for each in ALL if each.what == what)
    told = str(refusal(user, wrong.job))
    for secret in ("hf_abc", "9f8e7d6c", "0123456789abcdef"):
        assert secret not in told


@pytest.mark.parametrize(("what", "job", "said"), wrong_jobs.TOLD, ids=lambda given: str(given)[:40])
def test_what_is_probably_not_meant_is_told_and_allowed(user: Caller, what: str, job: str, said: str) -> None:
    assert said in answer(user, job, "--dry-run", code=0).err, what


@pytest.mark.parametrize("script", ["code/train.py", "code/train.ipynb"])
def test_a_script_given_as_the_job_is_told_what_writes_a_job_for_it(user: Caller, script: str) -> None:
    said = user("submit", script, "--dry-run", code=2).err
    assert (
        f"{script} is a script, not a job file; `orchestrator new {script}` writes a job file for it" in said
    )
