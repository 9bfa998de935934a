"""A program that waits for its turn to control, and what a machine lacks to take over from another."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
import yaml
from sqlalchemy import text

from orchestrator import Client
from orchestrator.client import likeness, standing_by
from orchestrator.client.health import State
from orchestrator.client.wiring import Wired
from orchestrator.clock import SystemClock
from orchestrator.core.event import Started, Submitted
from orchestrator.core.job import Mode, Recurrence, RouteWish
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import Schedule
from orchestrator.errors import AccessDenied, HostUnknown
from orchestrator.ledger import Ledger
from orchestrator.ledger.journal import Stored
from orchestrator.stores import deposits
from orchestrator.stores.folder import FolderStore
from tests.core.runs import NOW, RUN, job
from tests.postgresql import Server, cluster
from tests.simulation.clock import VirtualClock
from tests.waiting import PATIENCE, wait_until


@dataclass
class Standing:
    """`Controller.run(standby=True)` in a thread."""

    said: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    again: bool | None = None

    def says(self, text: str) -> bool:
        return any(text in each for each in self.said)


@contextmanager
def standing(home: Path) -> Iterator[Standing]:
    made = Standing()

    def run() -> None:
        made.again = Client(home).controller.run(standby=True, stopped=made.over.is_set, say=made.said.append)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        thread.join(PATIENCE)


def cut(postgresql: Server) -> None:
    """Ends the connection of every controller."""
    with psycopg.connect(postgresql.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory'"
        )


def configured(home: Path, url: str, **more: object) -> Client:
    home.mkdir()
    (home / "config.yaml").write_text(yaml.safe_dump({"database": url, **more}))
    return Client(home)


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_schema(f"test_{uuid.uuid4().hex[:12]}")


def test_a_standby_takes_over_and_is_told_of(tmp_path: Path) -> None:
    """On one machine, with SQLite."""
    client = Client(tmp_path)
    with client.home.ledger() as ledger:
        takeover = ledger.take_over("another", now=client.clock.now())
        with standing(tmp_path) as waiting:
            wait_until(lambda: ledger.standbys(), "the standby")
            assert client.health().state is State.WAITS
            wait_until(lambda: waiting.says("a standby on another machine cannot use it"), "the doubt")
            wait_until(lambda: waiting.says("standing by for another"), "what it waits for")
            takeover.release()
            wait_until(lambda: client.health().state is State.TICKS, "its turn")
            wait_until(lambda: client.health().standbys == (), "its turn to be told")
        assert waiting.again is False


def test_a_standby_waits_for_a_server_that_is_down_when_it_starts(tmp_path: Path) -> None:
    with cluster() as server:
        client = configured(tmp_path / "home", Server(server.folder, 0).url)
        with standing(client.home.path) as waiting:
            wait_until(lambda: waiting.said, "what it waits for")
            assert [each.count("is the server running?") for each in waiting.said] == [1]
            assert waiting.says("standing by; the ledger does not answer, trying again")
            server.start()
            wait_until(lambda: waiting.says("has taken over"), lambda: str(waiting.said))
            assert sum("does not answer" in each for each in waiting.said) == 1
        assert waiting.again is False


def test_a_standby_that_waits_for_its_server_can_be_stopped_or_sent_elsewhere(tmp_path: Path) -> None:
    client = configured(tmp_path / "home", f"postgresql://me@/x?host={tmp_path}")
    with standing(client.home.path) as waiting:
        wait_until(lambda: waiting.said, "what it waits for")
    assert waiting.again is False
    with standing(client.home.path) as waiting:
        wait_until(lambda: waiting.said, "what it waits for")
        (client.home.path / "config.yaml").write_text("database: sqlite:///other.sqlite\n")
        wait_until(lambda: waiting.again is not None, "the change of the config")
        assert waiting.again is True, "a new process goes on with it"


def test_a_standby_does_not_wait_for_what_is_wrong(tmp_path: Path, url: str) -> None:
    """An unknown host cannot be told here, because a name server that does not answer is waited for."""
    client = configured(tmp_path / "home", url.replace("orchestrator@", "stranger@"))
    with pytest.raises(AccessDenied):
        client.controller.run(standby=True)

    def unknown() -> Ledger:
        raise HostUnknown("failed to resolve host", backend="ledger")

    with pytest.raises(HostUnknown):
        standing_by.opened(unknown, SystemClock(), lambda: False, lambda _text: None)


def test_a_controller_that_lost_control_stands_by(tmp_path: Path, url: str, postgresql: Server) -> None:
    client = configured(tmp_path / "home", url)
    with standing(client.home.path) as active, client.home.ledger() as ledger:
        wait_until(lambda: client.health().state is State.TICKS, lambda: str(active.said))
        cut(postgresql)
        wait_until(lambda: active.says("still in control"), lambda: str(active.said))
        wait_until(lambda: client.health().state is State.TICKS, lambda: str(active.said))
        with ledger._database.write() as connection:  # as if another one had taken over, and left
            connection.execute(text("UPDATE controller SET fence = fence + 1"))
        cut(postgresql)
        wait_until(lambda: active.again is not None, lambda: str(active.said))
        assert active.again is True, "a new process goes on, as a standby"
        assert active.says("starts again as a standby")


@pytest.mark.parametrize(("wrong_by", "said"), [(3 * 3600, "ahead of"), (-3 * 3600, "behind"), (5, None)])
def test_a_standby_whose_clock_is_wrong_says_so(
    tmp_path: Path, url: str, wrong_by: float, said: str | None
) -> None:
    client = configured(tmp_path / "home", url)
    clock = VirtualClock(SystemClock().now() + wrong_by)
    with client.home.ledger() as ledger:
        doubts = list(likeness.doubts(ledger, Wired.from_home(client.home.path, clock)))
    about = [each for each in doubts if "clock" in each]
    assert len(about) == (said is not None)
    assert said is None or f"the clock here is 3.0 h {said} that of the PostgreSQL server" in about[0]


def test_a_standby_says_what_its_machine_lacks(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = {"disk": {"type": "folder", "path": str(tmp_path / "disk")}}
    first = configured(tmp_path / "first", url, stores=stores, home_store="disk")
    second = configured(
        tmp_path / "second",
        url,
        stores={"disk": {"type": "folder", "path": str(tmp_path / "other")}},
        platforms={"box": {"type": "process"}},
    )
    monkeypatch.delenv("NEEDED", raising=False)
    with first.home.ledger() as ledger:
        ledger.submit(Submitted(RUN, job(secrets=("NEEDED",)), NOW, store="disk"))
        nightly = Recurrence("0 1 * * *", "UTC", Mode.FRESH)
        scheduled = job(secrets=("AT_NIGHT",), schedule=nightly, route=RouteWish(platforms=("process",)))
        ledger.schedules.add(Schedule("nightly", scheduled, "disk", NOW, NOW))
        here, there = (Wired.from_home(each.home.path, SystemClock()) for each in (first, second))
        with ledger.take_over("up", now=NOW) as takeover:
            mine = likeness.settle(ledger, here, print)
            likeness.tell(takeover, replace(mine, host="boxa"))
            doubts = list(likeness.doubts(ledger, there))
        assert [each for each in doubts if "platform process is in the config on boxa" in each]
        assert [each for each in doubts if "store disk has another type or other options on boxa" in each]
        assert [each for each in doubts if f"{RUN} needs the secret NEEDED" in each]
        assert [each for each in doubts if "the schedule nightly needs the secret AT_NIGHT" in each]
        assert [each for each in doubts if "the schedule nightly needs the platform 'process'" in each]
        monkeypatch.setenv("NEEDED", "1")
        monkeypatch.setenv("AT_NIGHT", "1")
        alike = [each for each in likeness.doubts(ledger, here) if "on this machine" not in each]
        assert alike == []


def test_homes_of_one_ledger_go_by_one_id(tmp_path: Path, url: str) -> None:
    """By which Kaggle tells the sessions of one home from another's."""
    platforms = {"engine": {"type": "docker"}}
    first, second = (configured(tmp_path / name, url, platforms=platforms) for name in ("first", "second"))
    own = second.home.folders.platform("engine") / "home-id"
    own.parent.mkdir(parents=True)
    own.write_text("of before")
    said: list[str] = []
    with first.home.ledger() as ledger, ledger.take_over("up", now=NOW) as takeover:
        mine = likeness.settle(ledger, Wired.from_home(first.home.path, SystemClock()), said.append)
        likeness.tell(takeover, mine)
        assert said == []
        likeness.settle(ledger, Wired.from_home(second.home.path, SystemClock()), said.append)
    assert own.read_text() == (first.home.folders.platform("engine") / "home-id").read_text()
    assert own.with_name("home-id.before").read_text() == "of before"
    assert "by its old id" in said[0]


def a_job(folder: Path, **more: object) -> Path:
    """A job's file, with a source and an input."""
    source, data, path = folder / "source", folder / "data", folder / "job.yaml"
    source.mkdir()
    (source / "train.py").write_text("pass\n")
    data.write_text("42")
    spec = {
        "name": "tiny", "source": "source", "command": "python train.py",
        "work": {"total": 10, "global_batch": 8},
        "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
        "inputs": [{"name": "data", "from": str(data)}],
        **more,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(spec))
    return path


def test_what_a_run_needs_is_in_the_store_before_the_run_is_known(tmp_path: Path, url: str) -> None:
    """The controller that starts it may be on another machine."""
    client = configured(tmp_path / "home", url)
    with client.home.ledger() as ledger, ledger.take_over("another", now=NOW):
        submission = client.submit(a_job(tmp_path))
        assert submission.warnings == ()
        record: RunRecord = ledger.record(submission.run.name)
    in_store = {each.name for each in (tmp_path / "home" / "store").rglob("*") if each.is_file()}
    assert record.job.bundle in in_store
    assert record.job.inputs[0].sha256 in in_store


def test_a_schedule_fires_on_a_machine_that_has_nothing_of_its_job(tmp_path: Path, url: str) -> None:
    shared: dict[str, object] = {
        "stores": {"disk": {"type": "folder", "path": str(tmp_path / "disk")}}, "home_store": "disk",
    }  # fmt: skip
    first, second = (configured(tmp_path / name, url, **shared) for name in ("first", "second"))
    mine = tmp_path / "mine"
    mine.mkdir()
    path = a_job(mine, schedule={"cron": "0 1 1 1 *", "timezone": "UTC", "mode": "fresh"})
    with first.home.ledger() as ledger:
        with ledger.take_over("another", now=NOW):
            assert first.schedules.register(path).warnings == ()
            mine.rename(tmp_path / "on another machine")
            (tmp_path / "first" / "bundles").rename(tmp_path / "also there")
            fire = second.schedules.run("tiny").fire
            assert fire is not None
            run = fire.run
        with standing(second.home.path) as controller:
            wait_until(lambda: started(ledger.history(run)), lambda: str(controller.said))
            second.run(run).cancel(discard=True)
            wait_until(lambda: ledger.record(run).phase.final, lambda: str(controller.said))
            wait_until(lambda: ledger.record(run).session is None, lambda: str(controller.said))
        job = ledger.record(run).job
        own = deposits.material(FolderStore(tmp_path / "disk"), run)
        assert [each.key.rpartition("/")[2] for each in own] == [job.bundle]
        first.schedules.remove("tiny")
    assert not list((tmp_path / "disk").rglob("*schedule.tiny/*/*"))


def started(history: Iterable[Stored]) -> bool:
    return any(isinstance(each.event, Started) for each in history)
