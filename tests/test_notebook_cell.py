"""The notebook's cell and its worker as real processes: what a person is told, and that the next try goes on.

The mailbox lies in a real store. A session's agent is a line of Python, because no training is needed here.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.client import Client, notebooks
from orchestrator.core import wire
from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.platforms.notebook.platform import NotebookPlatform
from orchestrator.session.mailbox import Post, Worker, launched, prepared
from orchestrator.session.staging import Content
from orchestrator.stores.opening import carried
from orchestrator.uplink.mailbox import Mailbox, Secret
from tests.conformance.age_keys import ME
from tests.end_to_end.user import living
from tests.notebooks import NOT_SWITCHED_ON, PATIENCE_SECONDS, Colab, Notebook, cell_of
from tests.package_index import wheel
from tests.stand_ins.fault_proxy import Fault, FaultProxy, Says, fault_proxy
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed
from tests.waiting import wait_until

SECRET = "ORCHESTRATOR_BOOK"
TRAINS = "print('trained')"
STUBBORN = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
while True:
    signal.pause()
"""
FOLDER: Mapping[str, object] = {"type": "folder", "path": "store"}
SEALED: Mapping[str, object] = {**FOLDER, "encrypt": {"recipients": [ME.public], "identity": "file:identity"}}


class Desk:
    """A user with the platform `book` and one store. No controller runs: a session is sent by hand."""

    def __init__(self, home: Path, store: Mapping[str, object] = FOLDER) -> None:
        book = {"type": "notebook", "accelerator": "cpu", "this_machine": True}
        (home / "store").mkdir(parents=True, exist_ok=True)
        (home / "config.yaml").write_text(
            yaml.safe_dump({"platforms": {"book": book}, "stores": {"home": store}})
        )
        for name, text in {"identity": ME.text, "access": ACCESS_KEY, "secret": SECRET_KEY}.items():
            (home / name).write_text(text)
        self.home = home
        self.wired = Client(home).wired()
        self.store = self.wired.store("")
        self.mailbox = Mailbox(lambda: self.store, "book")
        self.made = notebooks.write(self.wired, "book", str(home / "book.ipynb"))
        self.code = cell_of(self.made.path.read_bytes())
        [given] = self.wired.config.platforms
        bare = self.wired.bare(given)
        assert isinstance(bare, NotebookPlatform)
        self.platform = bare

    def sends(self, session: str, agent: str = TRAINS) -> None:
        home = wire.encode(carried(self.store))
        contents = [Content("agent.pyz", agent.encode())]
        keys = self.platform.keys()
        assert keys is not None
        sent = self.mailbox.send("r", session, contents, home, keys.identity)
        post = keys.signed(Post(session, "r", "cpu", "digest", sent), "book")
        self.mailbox.change(lambda box: prepared(box, post))
        self.mailbox.change(lambda box: launched(box, session, "digest"))

    def post(self, session: str) -> Post:
        found = self.mailbox.box().find(session)
        assert found is not None
        return found

    @property
    def worker(self) -> str:
        """Who attends to the mailbox; empty if it is free."""
        there = self.mailbox.worker()
        return "" if there is None else there.id

    def waits(self, session: str) -> bool:
        """Whether the session and the mailbox are as if nobody had ever come."""
        post = self.post(session)
        return not self.worker and post.is_open and not post.worker


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[Colab]:
    made = Colab(tmp_path / "colab")
    yield made
    made.close()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "home")


def goes_on(notebook: Notebook, desk: Desk, session: str) -> None:
    """The notebook has taken the session, and leaves when it is asked to."""
    notebook.says(f"Session {session} is over: its agent has finished.")
    assert desk.post(session).ended == "its agent has finished"
    notebook.interrupt()
    notebook.ends()
    assert "left its mailbox" in notebook.output
    assert desk.worker == ""


def test_every_wrong_secret_is_explained_and_with_the_right_one_the_same_notebook_goes_on(
    colab: Colab, desk: Desk, tmp_path: Path
) -> None:
    desk.sends("r-s01")
    right, elsewhere = desk.made.secret, Desk(tmp_path / "other-home").made.secret
    keys = desk.platform.keys()
    assert keys is not None
    other = Secret("shelf", carried(desk.store), keys).text()
    again = "`orchestrator colab notebook book` prints"
    notebook = colab.open(desk.code)
    notebook.ends()
    assert f"There is no Secret {SECRET}: click the key on the left, add it" in notebook.output
    for text, said, remedy in (
        (NOT_SWITCHED_ON, f"may not read the Secret {SECRET}", "switch it on"),
        (" \n", f"The Secret {SECRET} is empty", again),
        (right.replace("secret-2", "secret-1"), "it is of an older version", again),
        ("hunter2hunter2", "this is not the Secret of a mailbox", again),
        (right[:-9], "the Secret did not arrive whole", again),
        (other, "it is for the mailbox 'shelf', and this notebook for 'book'", again),
        (elsewhere, "it is for another store than this notebook", again),
    ):
        colab.paste(SECRET, text)
        before = len(notebook.output)
        notebook.run()
        notebook.ends()
        assert said in notebook.output[before:]
        assert remedy in notebook.output[before:]
        assert text not in notebook.output
        assert desk.waits("r-s01")
    colab.paste(SECRET, f"{right[:70]}\n  {right[70:]}\n")  # as a mail programme breaks it
    notebook.run()
    goes_on(notebook, desk, "r-s01")


def test_a_store_that_does_not_answer_is_waited_for_and_one_that_refuses_the_keys_is_not(
    colab: Colab, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    with fault_proxy(seaweedfs.port) as proxy:
        desk = Desk(tmp_path / "home", bucket(proxy, seaweedfs.prefix()))
        desk.sends("r-s01")
        colab.paste(SECRET, desk.made.secret)
        proxy.each(Says(403, "InvalidAccessKeyId", "no such key"))
        notebook = colab.open(desk.code)
        notebook.ends()
        assert "This Secret cannot be used" in notebook.output
        assert "prints the right one: paste that, and run this cell again" in notebook.output
        proxy.calm()
        proxy.each(Fault.DROP_BEFORE)
        notebook.run()
        notebook.says("The store does not answer")
        notebook.interrupt()
        notebook.ends()
        notebook.run()
        notebook.says("The store does not answer", times=2)
        proxy.calm()
        assert desk.waits("r-s01")
        goes_on(notebook, desk, "r-s01")


def test_an_encrypted_store_gets_the_session_sealed_and_needs_a_secret_made_since(
    colab: Colab, tmp_path: Path
) -> None:
    old = Desk(tmp_path / "home").made.secret
    desk = Desk(tmp_path / "home", SEALED)
    desk.sends("r-s01")
    assert all(TRAINS.encode() not in path.read_bytes() for path in files(desk.home / "store"))
    colab.paste(SECRET, old)
    notebook = colab.open(desk.code)
    notebook.ends()
    assert "from before it was encrypted" in notebook.output
    assert desk.waits("r-s01")
    colab.paste(SECRET, desk.made.secret)
    notebook.run()
    goes_on(notebook, desk, "r-s01")
    [log] = (path for path in files(notebook.folder) if path.name == "agent.out")
    assert log.read_text() == "trained\n"


def files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return found


def test_a_cell_that_is_run_twice_attends_again_after_the_first_has_left(colab: Colab, desk: Desk) -> None:
    colab.paste(SECRET, desk.made.secret)
    notebook = colab.open(desk.code)
    notebook.run()
    notebook.says("Waiting for a session.")
    notebook.interrupt()
    notebook.says("Waiting for a session.", times=2)
    assert "Another notebook" not in notebook.output
    desk.sends("r-s01")
    goes_on(notebook, desk, "r-s01")


def test_a_second_interrupt_kills_the_session_and_the_next_one_runs_in_the_same_notebook(
    colab: Colab, desk: Desk
) -> None:
    desk.sends("r-s01", STUBBORN)
    colab.paste(SECRET, desk.made.secret)
    notebook = colab.open(desk.code)
    told = notebook.folder / ".orchestrator-book/sessions/r-s01/pid"
    wait_until(lambda: told.exists() and told.read_text() != "", "the agent", PATIENCE_SECONDS)
    agent = int(told.read_text())
    notebook.interrupt()
    notebook.says("Session r-s01 saves and leaves")
    assert "interrupt again to kill it at once" in notebook.output
    notebook.interrupt()
    notebook.ends()
    assert "Killed. What was not shipped yet is lost." in notebook.output
    wait_until(lambda: living(agent) is None, "the agent's end", PATIENCE_SECONDS)
    assert desk.post("r-s01").worker == desk.worker != ""

    notebook.run()
    notebook.says("waits until that one is closed, or silent for a minute")
    falls_silent(desk)
    notebook.says("Waiting for a session.")
    sight = desk.platform.observe(["r-s01"])["r-s01"]
    assert (sight.sighting, sight.ending) == (Sighting.ENDED, Outcome.LOST)
    assert desk.platform.stop("r-s01") is StopReply.ENDED
    desk.platform.discard("r-s01")
    desk.sends("r-s02")
    goes_on(notebook, desk, "r-s02")


def falls_silent(desk: Desk) -> None:
    """As if the minute were over: its worker seems to have promised beats at shorter intervals."""
    assert desk.store.registers is not None
    held = desk.store.registers.read("mailboxes/book/worker")
    assert held is not None
    hasty = replace(wire.decode(Worker, held.value), every=0.05)
    desk.store.registers.swap("mailboxes/book/worker", wire.encode(hasty), held.version)


def test_a_worker_that_is_killed_is_told(colab: Colab, desk: Desk) -> None:
    colab.paste(SECRET, desk.made.secret)
    notebook = colab.open(desk.code)
    notebook.says("Waiting for a session.")
    os.kill(notebook.worker, signal.SIGKILL)
    notebook.ends()
    assert "The worker was killed by signal 9" in notebook.output
    assert "run this cell again" in notebook.output


def test_a_pip_that_fails_is_told_and_run_again_the_cell_goes_on(
    colab: Colab, desk: Desk, tmp_path: Path
) -> None:
    """The packages are a wheel that the worker does not need, from a folder instead of an index."""
    desk.sends("r-s01")
    colab.paste(SECRET, desk.made.secret)
    shelf, good = tmp_path / "wheels", wheel("greeting", "1.0")
    shelf.mkdir()
    listed = f"greeting==1.0 --hash=sha256:{hashlib.sha256(good).hexdigest()}\n"
    assert desk.code.count("PACKAGES = ''\n") == 1
    code = desk.code.replace("PACKAGES = ''\n", f"PACKAGES = {listed!r}\n")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_CONFIG_FILE": os.devnull}
    notebook = colab.open(code, pip=pip)
    notebook.ends()
    assert "pip could not install them: ERROR: " in notebook.output
    assert "Run this cell again" in notebook.output
    (shelf / "greeting-1.0-py3-none-any.whl").write_bytes(wheel("greeting", "1.0", "words"))
    notebook.run()
    notebook.ends()
    assert "DO NOT MATCH THE HASHES" in notebook.output
    assert desk.waits("r-s01")
    (shelf / "greeting-1.0-py3-none-any.whl").write_bytes(good)
    notebook.run()
    goes_on(notebook, desk, "r-s01")
    site = notebook.folder / ".orchestrator-book"
    assert [path.name for path in site.glob("*draft*")] == []
    assert (site / f"site-{hashlib.sha256(listed.encode()).hexdigest()[:16]}" / "greeting.py").exists()


def bucket(proxy: FaultProxy, prefix: str) -> Mapping[str, object]:
    return {
        "type": "s3", "preset": "seaweedfs", "endpoint": proxy.endpoint, "bucket": BUCKET, "prefix": prefix,
        "access_key": "file:access", "secret_key": "file:secret",
    }  # fmt: skip
