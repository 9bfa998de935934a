"""`submit` and `plan` lock a job's requirements, and say so if they cannot."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

from tests.cli.calls import UNLIMITED, Answer, Caller
from tests.package_index import package_index
from tests.waiting import wait_until

NOWHERE = "http://reader:t0ken@127.0.0.1:9/simple"


def job_that_needs(user: Caller, text: str) -> str:
    (user.folder / "requirements.txt").write_text(text)
    job = user.job(total=20_000)  # so that its first session still exists when the test looks
    with (user.folder / job).open("a") as stream:
        stream.write("requirements: requirements.txt\n")
    return job


def asking(user: Caller, address: str, *words: str) -> Answer:
    """The output of a command with that package index in its settings."""
    return user(
        *words, PIP_INDEX_URL=address, PIP_NO_INDEX="0", PIP_CONFIG_FILE=os.devnull, NO_PROXY="127.0.0.1"
    )


def test_a_sessions_order_names_the_lock_that_its_bundle_holds(user: Caller, tmp_path: Path) -> None:
    user.config(UNLIMITED)
    with package_index(tmp_path / "index") as index:
        answer = asking(user, index.address, "submit", job_that_needs(user, "greeting\n"))
    assert "not locked" not in answer.err
    first = user.home / "platforms" / "here" / f"{answer.out.split()[0]}-s01"
    wait_until(first.exists, "a session's order")  # all of it is there at once
    lock = json.loads((first / "order.json").read_bytes())["requirements_lock"]
    with tarfile.open(first / "bundle.tar.gz") as archive:
        stream = archive.extractfile(lock)
        assert stream is not None
        assert "greeting==1.0" in stream.read().decode()


def test_what_each_kind_of_accelerator_gets_is_locked_and_shown(user: Caller, tmp_path: Path) -> None:
    (user.folder / "tpu.txt").write_text("git+https://127.0.0.1:9/mine\n")
    job = job_that_needs(user, "greeting\n")
    path = user.folder / job
    path.write_text(
        path.read_text().replace(": requirements.txt", ": {default: requirements.txt, tpu: tpu.txt}")
    )
    with package_index(tmp_path / "index") as index:
        answer = asking(user, index.address, "submit", job, "--dry-run")
    assert "default: .orchestrator/requirements.txt, locked" in answer.out
    assert "tpu: .orchestrator/requirements-tpu.txt, not locked" in answer.out
    assert "requirements not locked: for tpu: tpu.txt:1 is not a released version" in answer.err


def test_an_index_out_of_reach_leaves_them_unlocked_and_is_said(user: Caller) -> None:
    """The user is warned and goes on. The message does not show the index's address."""
    answer = asking(user, NOWHERE, "plan", job_that_needs(user, "greeting\n"))
    assert "requirements not locked: " in answer.err
    assert "a hop may bring other versions" in answer.err
    assert "t0ken" not in answer.out + answer.err


def test_a_submit_that_records_nothing_asks_no_index(user: Caller) -> None:
    user.submitted(user.job(total=2000))
    job = job_that_needs(user, "greeting\n")
    answer = asking(user, NOWHERE, "submit", job, "--unless-running")
    assert "nothing was submitted" in answer.out
    assert answer.err == ""
    path = user.folder / job
    spec = path.read_text()
    for changed, code in ((spec + "secrets: [NOT_SET]\n", 3), (spec.replace("cpu:", "t4:"), 2)):
        path.write_text(changed)
        settings = {"PIP_INDEX_URL": NOWHERE, "PIP_NO_INDEX": "0", "PIP_CONFIG_FILE": os.devnull}
        assert "not locked" not in user("submit", job, code=code, **settings).err


def test_nothing_of_a_file_that_is_no_list_of_requirements_is_shown_kept_or_asked(user: Caller) -> None:
    """Neither by the message nor by JSON, also through -r; and no index is asked for its words."""
    (user.folder / "accounts").write_text("user1:x:1000:Private Words\nuser2:x:1001\n")
    job = job_that_needs(user, "greeting\n-r accounts\n")
    for words in (("submit", job), ("submit", job, "--json"), ("plan", job), ("rehearse", job)):
        settings = {"PIP_INDEX_URL": NOWHERE, "PIP_NO_INDEX": "0", "PIP_CONFIG_FILE": os.devnull}
        answer = user(*words, code=2, **settings)
        assert f"{user.folder / 'accounts'}:1 is neither a requirement" in answer.out + answer.err
        assert "user1" not in answer.out + answer.err
        assert "not locked" not in answer.err
    for path in user.home.rglob("*"):
        assert not path.is_file() or b"Private" not in path.read_bytes()


def test_a_list_from_powershell_is_locked(user: Caller, tmp_path: Path) -> None:
    job = job_that_needs(user, "")
    (user.folder / "requirements.txt").write_bytes("greeting==1.0\r\n".encode("utf-16"))
    with package_index(tmp_path / "index") as index:
        answer = asking(user, index.address, "plan", job)
    assert ".orchestrator/requirements.txt, locked" in answer.out
    assert answer.err == ""


def test_a_job_without_requirements_asks_no_index(user: Caller) -> None:
    assert asking(user, NOWHERE, "plan", user.job()).err == ""
