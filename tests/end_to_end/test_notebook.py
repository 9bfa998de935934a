"""A run in notebooks that a person opens: the generated cell as real processes, over a real S3 service."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.session.signing import Keys
from orchestrator.stores import checkpoints as stored
from tests.conformance.age_keys import ME
from tests.end_to_end.test_uplink import Home
from tests.end_to_end.user import User, fingerprints, gated, opens, train_in_one_piece, wait_until
from tests.leaks import Leaks
from tests.notebooks import Colab, Notebook, cell_of
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)
STEPS, GATE = 60, 40
BOOK = {
    "type": "notebook", "accelerator": "cpu", "this_machine": True, "threads": 1, "poll_seconds": 0.5,
    "uplink_seconds": 1, "uplink_silence_seconds": 5, "setup_seconds": 12, "slack_seconds": 5,
    "send_secrets": True, "link": "https://colab.research.google.com/drive/1-of-a-test",
}  # fmt: skip
SECRET = "ORCHESTRATOR_BOOK"
JOB_SECRET = ("THE_JOBS_SECRET", "a-secret-of-the-job-that-trains")
KEYS = {"access": ACCESS_KEY, "secret": SECRET_KEY}
MAILBOX_KEYS = "platforms/book/keys.json"  # in the home


class Opener:
    """A user who opens their notebook in Colab. Their home store is a bucket."""

    def __init__(self, user: User, colab: Colab, seaweedfs: Seaweed) -> None:
        self.user = user
        self.colab = colab
        self._bucket = {
            "type": "s3", "preset": "seaweedfs", "endpoint": seaweedfs.endpoint, "bucket": BUCKET,
            "prefix": seaweedfs.prefix(), "access_key": "file:access", "secret_key": "file:secret",
        }  # fmt: skip
        self.secret = colab.secrets / SECRET
        self.file = user.folder / "book.ipynb"

    def set_up(self, *, encrypts: bool = False) -> None:
        """Writes the config, the notebook and its Secret."""
        encrypt = {"recipients": [ME.public], "identity": "file:identity"}
        options = self._bucket | ({"encrypt": encrypt} if encrypts else {})
        self.home = Home(options, {**KEYS, **({"identity": ME.text} if encrypts else {})})
        self.user.configure({"platforms": {"book": BOOK}, "stores": {"home": options}})
        for name, text in self.home.files.items():
            (self.user.home / name).write_text(text)
        self.user.run("colab", "notebook", "book", "--secret-file", str(self.secret))

    @property
    def keys(self) -> Keys:
        """Those that the notebook's Secret has."""
        return wire.decode(Keys, (self.user.home / MAILBOX_KEYS).read_bytes())

    def opens(self) -> Notebook:
        return self.colab.open(cell_of(self.file.read_bytes()))

    def submits(self, **changes: object) -> str:
        """A job that stays at GATE until it `opens`."""
        work = {"total": STEPS, "global_batch": 8}
        return self.user.submit(command=gated(self.user, GATE, pause=0.25), work=work, **changes)

    def check_leaks(self, secrets: Mapping[str, str], files: set[str]) -> None:
        """Once its sessions are over, secrets are in these files of the home, in the Secret, and nowhere
        else."""
        leaks, user = Leaks(secrets), self.user
        assert {leak.where for leak in leaks.in_folder(user.home)} == files
        assert leaks.in_folder(user.folder / "source") == []
        assert leaks.in_data("notebook", self.file.read_bytes()) == []
        assert leaks.in_store(self.home.store(user)) == []
        for notebook in self.colab.opened:
            assert leaks.in_folder(notebook.folder) == []
            assert leaks.in_processes(notebook.folder) == []
        assert leaks.in_data("secret", self.secret.read_bytes()) != [], "the scanner looks there"
        assert self.secret.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def opener(new_user: Callable[..., User], seaweedfs: Seaweed, tmp_path: Path) -> Iterator[Opener]:
    colab = Colab(tmp_path / "colab")
    yield Opener(new_user(), colab, seaweedfs)
    colab.close()


def trains(record: RunRecord) -> bool:
    return bool(record.accepted) and record.phase is Phase.RUNNING


@pytest.mark.soak
def test_of_two_notebooks_one_trains_and_when_it_dies_the_other_goes_on(opener: Opener) -> None:
    user = opener.user
    opener.set_up()
    run = opener.submits()  # before any notebook is opened
    waiting = user.wait_for(run, lambda r: r.deferred, "what it waits for")
    assert waiting.phase is Phase.QUEUED
    for words in (("ps",), ("show", run), ("why", run)):
        assert f"waiting for the notebook to be opened: {BOOK['link']}" in user.run(*words)
    both = [opener.opens() for _ in range(2)]
    user.wait_for(run, trains, "a checkpoint")
    [winner] = [each for each in both if "begins" in each.output]
    [other] = [each for each in both if each is not winner]
    other.says("Another notebook attends to this mailbox")
    assert Leaks(KEYS).in_folder(winner.folder) == []
    published = stored.names(opener.home.store(user), run)
    assert len({(ref.generation, ref.incarnation) for ref in published}) == 1
    os.kill(winner.worker, signal.SIGKILL)
    opens(user, GATE)
    wait_until(
        lambda: "begins" in other.output, lambda: f"the other to go on: {other.output}\n{user.story(run)}"
    )
    winner.ends()
    assert "The worker was killed by signal 9: run this cell again." in winner.output
    user.wait_for_end(run)
    history = [each.event for each in user.history(run)]
    first, *later = [e.order for e in history if isinstance(e, Assigned)]
    assert first.resume is None
    assert later[-1].resume_step > 0
    assert len(re.findall("begins", winner.output)) == 1
    user.run("pull", run, "-o", str(user.folder / "final"))
    expected = train_in_one_piece(user.folder / "one-piece", "train.py", STEPS)
    assert fingerprints(user.folder / "final") == expected
    other.interrupt()
    other.ends()
    assert "left its mailbox" in other.output
    opener.check_leaks({**KEYS, "signing": opener.keys.signing}, {"access", "secret", MAILBOX_KEYS})


def test_an_interrupted_notebook_saves_and_opened_again_goes_on(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an encrypted store, with a job that has a secret."""
    monkeypatch.setenv(*JOB_SECRET)
    user = opener.user
    opener.set_up(encrypts=True)
    first = opener.opens()  # before there is a run
    first.says("Waiting for a session.")
    run = opener.submits(secrets=[JOB_SECRET[0]])
    user.wait_for(run, trains, "a checkpoint")
    first.interrupt()
    first.ends()
    assert "saves and leaves" in first.output
    user.wait_for(run, lambda r: r.phase is Phase.QUEUED and bool(r.start), "the person to be asked")
    saved = user.record(run).accepted[-1].ref.step
    opens(user, GATE)
    opener.opens()
    user.wait_for_end(run)
    orders = [each.event.order for each in user.history(run) if isinstance(each.event, Assigned)]
    begun = {order.session: order.resume_step for order in orders}  # one may be turned away, and come again
    assert list(begun.values()) == [0, saved]
    secrets = {
        **KEYS, "identity": str(ME.identity), "job": JOB_SECRET[1],
        "signing": opener.keys.signing, "mailbox": opener.keys.identity,
    }  # fmt: skip
    opener.check_leaks(secrets, {"access", "secret", "identity", MAILBOX_KEYS})
    for words in (("logs", run), ("why", run), ("show", run, "--json")):
        assert Leaks(secrets).in_text(words[0], user.run(*words)) == []
