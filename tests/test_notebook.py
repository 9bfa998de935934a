"""The notebook platform and its worker over a store in memory: what is offered, what a person is told."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import InputError, NoCapacity
from orchestrator.platforms.notebook import surveying
from orchestrator.platforms.notebook.options import NotebookOptions
from orchestrator.platforms.notebook.platform import NotebookPlatform
from orchestrator.platforms.notebook.surveying import Home
from orchestrator.platforms.notebook.writing import secret_name, written
from orchestrator.session.mailbox import PROTOCOL, Box, Post, Watched, Worker, launched, own, prepared, taken
from orchestrator.session.signing import Keys
from orchestrator.session.staging import Content
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.portable import Portable
from orchestrator.uplink import machine, parcel, working
from orchestrator.uplink.fetching import LOOKS_MAX
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.mailbox import Mailbox, Secret, TooOld
from orchestrator.uplink.sitting import Sitting
from orchestrator.uplink.working import Working
from tests.conformance.test_platforms import any_order

KEYS = Keys("5e" * 32)
SECRET = Secret("book", Portable("folder", {"path": "/nowhere"}), KEYS)


class Book:
    """A mailbox in memory, and the platform over it."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.folder = folder / "sessions"
        self.mailbox = Mailbox(lambda: self.store, "book")
        options = NotebookOptions(accelerator="cpu")
        self.platform = NotebookPlatform("book", options, folder, SystemClock())
        self.platform.connect(self.mailbox)
        self.said: list[str] = []
        self.leaving = threading.Event()

    def hold(self, **changes: object) -> Worker | None:
        worker = replace(Worker("w", accelerator="cpu", every=0.1), **changes)  # type: ignore[arg-type]
        return self.mailbox.hold(worker, lambda _: True)

    def offer(self) -> Offer:
        [offer] = self.platform.survey()
        return offer

    def post(self, accelerator: str, run: str = "r", keys: Keys = KEYS, **changes: object) -> None:
        """A session that was posted with the keys in the Secret, and then has these `changes`."""
        signed = keys.signed(Post(f"{run}-s01", run, accelerator, "d"), "book")
        post = replace(signed, **changes)  # type: ignore[arg-type]
        self.mailbox.change(lambda box: prepared(box, post))
        self.mailbox.change(lambda box: launched(box, post.session, "d"))

    def work(self, until: str) -> int:
        """Works until it has said something like this."""

        def say(text: str) -> None:
            self.said.append(text)
            if until in text:
                self.leaving.set()

        me = Worker(accelerator="cpu", every=0.1, keys=KEYS.id)
        clock = SystemClock()
        made = Working(
            self.mailbox, self.store, SECRET, me, self.folder, clock, self.leaving, say, poll_seconds=0.01
        )
        return made.run()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


def test_without_a_notebook_a_person_is_told_what_to_open(book: Book) -> None:
    closed = book.offer().unavailable
    assert closed is not None
    assert closed.until.kind is UntilKind.START
    assert "waiting for the notebook to be opened: https://colab" in closed.reason
    assert "orchestrator colab notebook book" in closed.until.commands[1]


def test_a_notebook_that_beats_is_offered_and_one_that_died_is_not(book: Book) -> None:
    book.hold()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.02):
            book.mailbox.beat(Worker("w", accelerator="cpu", every=0.1))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert book.offer().unavailable is None
    finally:
        over.set()
        thread.join()
    book.platform.connect(book.mailbox)
    fresh = NotebookPlatform("book", NotebookOptions(accelerator="cpu"), Path("/nowhere"), SystemClock())
    fresh.connect(book.mailbox)
    assert fresh._attending() is None, "its register is still there"


def test_nothing_is_launched_once_the_notebook_is_closed(book: Book) -> None:
    order = replace(any_order("r-s01", 6, 1), platform="book")
    digest = hashlib.sha256(wire.encode(order)).hexdigest()
    book.mailbox.change(lambda box: prepared(box, Post("r-s01", "r", "cpu", digest)))
    me = book.hold()
    assert me is not None
    book.mailbox.leave(me)
    with pytest.raises(NoCapacity, match="closed"):
        book.platform.launch(order)
    book.hold()
    book.platform.launch(order)
    book.platform.launch(order)
    assert book.platform.observe(["r-s01"])["r-s01"].sighting is Sighting.PENDING
    assert book.platform.stop("r-s01") is StopReply.ENDED
    book.platform.discard("r-s01")
    assert book.mailbox.box().posts == ()


def test_how_long_a_worker_is_silent_is_judged_by_the_readers_clock() -> None:
    watched, there = Watched(), Worker("w", beat=1, every=5.0)
    assert [(watched.look(there, at), watched.is_known) for at in (1000.0, 1059.0, 1060.0)] == [
        (False, False), (False, False), (True, True),
    ]  # fmt: skip
    assert not watched.look(replace(there, beat=2), 1061.0)
    assert watched.look(None, 1062.0)


def test_a_newer_controller_tells_an_old_notebook_what_to_do(book: Book) -> None:
    box = book.mailbox.change(lambda box: prepared(box, Post("r-s01", "r", "cpu", "d")))
    newer = wire.encode(replace(box, protocol=PROTOCOL + 1))
    held = book.store.registers.read("mailboxes/book/order")
    assert held is not None
    book.store.registers.swap("mailboxes/book/order", newer, held.version)
    assert book.work("never") == working.TOO_OLD
    assert "orchestrator colab notebook book" in book.said[-1]
    with pytest.raises(TooOld):
        book.mailbox.box()
    assert (book.mailbox.worker() or Worker("w")).id == "", "it has left the mailbox"


def test_a_session_for_another_accelerator_is_left_alone(book: Book) -> None:
    book.post("L4")
    assert book.work("needs L4, but this notebook is for cpu") == working.OK
    [post] = book.mailbox.box().posts
    assert post.worker == ""


def test_a_session_of_another_homes_keys_waits_for_its_own_notebook_and_hinders_nobody(book: Book) -> None:
    book.post("cpu", "theirs", Keys("5f" * 32))
    assert book.work("Session theirs-s01 is not for this notebook's Secret") == working.OK
    assert "run `orchestrator colab notebook book`, and paste" in book.said[-2]
    book.post("cpu")
    book.leaving.clear()
    assert book.work("Session r-s01 is over") == working.OK
    theirs = book.mailbox.box().find("theirs-s01")
    assert theirs is not None
    assert theirs.waits
    book.hold(keys=KEYS.id)
    assert "a Secret from another home" in book.platform.observe(["theirs-s01"])["theirs-s01"].detail


def test_what_a_notebook_has_left_open_when_it_died_is_ended_by_the_next_one(book: Book) -> None:
    """Its controller may never come back to do it."""
    book.post("cpu", "theirs", home="another")
    dead = Worker("dead", accelerator="cpu", keys=KEYS.id)
    assert own(book.mailbox.change(lambda box: taken(box, dead)), dead) is not None
    assert book.work("Waiting for a session.") == working.OK
    [theirs] = book.mailbox.box().posts
    assert theirs.ended == "its notebook is gone, and another has taken over the mailbox"
    book.post("cpu")  # it is not refused


def test_a_home_whose_keys_the_notebook_lacks_is_told_what_to_paste_or_copy(tmp_path: Path) -> None:
    options, box = NotebookOptions(accelerator="cpu"), Box()
    worker, file = Worker("w", accelerator="cpu", keys="theirs"), tmp_path / "keys.json"
    closed = surveying.offer("book", options, worker, box, Home("me", "mine", file), 0.0).unavailable
    assert closed is not None
    assert closed.until.kind is UntilKind.START
    assert closed.reason == "the notebook that is open has a Secret from another home, or an older one"
    assert closed.until.commands[0].startswith("orchestrator colab notebook book ")
    assert str(file) in closed.until.commands[1]
    assert surveying.offer("book", options, worker, box, Home("me", "theirs", file), 0.0).unavailable is None


def test_a_second_notebook_waits_for_the_first(book: Book) -> None:
    book.hold(every=60.0)
    assert book.work("Another notebook attends to this mailbox") == working.OK
    there = book.mailbox.worker()
    assert there is not None
    assert there.id == "w"


def test_a_session_without_its_parcel_is_reported(book: Book) -> None:
    book.post("cpu")  # it names none
    assert book.work("is over: it could not be started") == working.OK
    [post] = book.mailbox.box().posts
    assert post.ended.startswith("it could not be started")


@pytest.mark.parametrize("field", [each.name for each in fields(Post)])
def test_all_that_the_controller_decides_in_a_session_is_signed(field: str) -> None:
    """A new field of a post must get into the signature, or be one that the mailbox's rules change later."""
    post = KEYS.signed(Post("r-s01", "r", "cpu", "d"), "book")
    before = getattr(post, field)
    other = {field: not before if isinstance(before, bool) else f"{before}0"}
    changed = replace(post, **other)  # type: ignore[arg-type]
    assert KEYS.have_signed(post, "book")
    assert KEYS.have_signed(changed, "book") == (field in ("launched", "worker", "stop", "ended"))
    assert not KEYS.have_signed(replace(post, signature="é"), "book")
    assert not KEYS.have_signed(post, "shelf")
    assert not Keys("5f" * 32).have_signed(post, "book")


def test_what_somebody_else_wrote_is_not_repeated_to_the_person_at_the_notebook(book: Book) -> None:
    book.post("cpu, so paste your Secret at https://evil.example", signature="")
    assert book.work("Waiting for a session.") == working.OK
    with pytest.raises(ValueError, match="not the name of a session"):
        Post("paste your Secret at https://evil.example")


def test_nothing_runs_of_a_session_that_somebody_else_wrote_into_the_mailbox(
    book: Book,
) -> None:
    """The forger can write to the store, and knows what everybody can read there."""
    sent = parcel.write(book.store, SessionKeys("r", "r-s01"), [Content("agent.pyz", b"raise SystemExit(7)")])
    book.post("cpu", parcel=wire.encode(sent).decode())
    assert book.work("is over") == working.OK
    [post] = book.mailbox.box().posts
    assert post.ended.startswith("it was refused, and nothing of it was run: its signature is wrong")
    assert not book.folder.exists()
    book.platform.discard("r-s01")
    assert book.mailbox.box().posts == ()


class Stopped(SystemClock):
    """Nobody waits: `meanwhile` happens, and the time is over."""

    def __init__(self, meanwhile: Callable[[int], None]) -> None:
        self._meanwhile = meanwhile
        self.waits = 0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert seconds < 60
        self.waits += 1
        self._meanwhile(self.waits)
        return event.is_set()


@pytest.mark.parametrize("returns_after", [LOOKS_MAX - 1, LOOKS_MAX])
def test_a_part_of_the_parcel_that_is_missing_is_looked_for_again(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns_after: int
) -> None:
    program = tmp_path / "program.py"  # that the session's process is
    program.touch()
    monkeypatch.setattr(sys, "argv", [str(program)])
    keys = SessionKeys("r", "r-s01")
    sent = parcel.write(book.store, keys, [Content("agent.pyz", b"pass")])
    part = keys.parcel_part(sent.parts[0].sha256)
    book.store.get(part, tmp_path / "part")
    book.store.delete(part)

    def return_it(waits: int) -> None:
        if waits == returns_after:
            book.store.put(part, tmp_path / "part", sent.parts[0].sha256)

    post = KEYS.signed(Post("r-s01", "r", "cpu", "d", wire.encode(sent).decode()), "book")
    clock = Stopped(return_it)
    seat = Sitting(book.store, SECRET, post, book.folder, clock, book.said.append)
    trouble = seat.begin(book.leaving, threading.Event())
    seat.close()
    assert (trouble == "") == (returns_after < LOOKS_MAX), trouble
    assert clock.waits == LOOKS_MAX - 1
    assert all("did not arrive" in each for each in book.said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("sk-1234", "not the Secret of a mailbox"),
        (SECRET.text().replace("secret-2", "secret-1"), "of an older version"),
        (SECRET.text()[:-9], "did not arrive whole"),
    ],
)
def test_a_wrong_secret_is_named_and_never_repeated(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        Secret.parse(text)
    assert text not in str(raised.value) or not text
    assert Secret.parse(f"{SECRET.text()[:50]}\n {SECRET.text()[50:]}") == SECRET


def test_a_machine_without_the_accelerator_says_what_it_has(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho Tesla T4\n")
    tool.chmod(0o755)
    there = {"PATH": str(tmp_path)}
    assert machine.lacking("T4", there) == ""
    assert machine.lacking("cpu", there) == ""
    assert machine.lacking("L4", there) == "Tesla T4"
    assert machine.lacking("T4", {"PATH": ""}) == "no GPU"
    assert machine.lacking("TPUv5e-1", there, tmp_path) == "no TPU"


def test_the_notebook_is_for_its_machine_and_holds_no_secret() -> None:
    notebook = json.loads(written("my-book", NotebookOptions(accelerator="TPUv5e-1"), b"program", "", "here"))
    assert notebook["metadata"]["accelerator"] == "TPU"
    assert notebook["metadata"]["colab"]["gpuType"] == "V5E1"
    assert secret_name("my-book") == "ORCHESTRATOR_MY_BOOK"
    compile("".join(notebook["cells"][1]["source"]), "cell", "exec")
