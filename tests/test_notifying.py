"""The sender against real receivers: each notification arrives, duplicates carry the same id, and nobody
waits for a receiver that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import sending
from orchestrator.clock import SystemClock
from orchestrator.core.delivery import BURST, Answer, Delivery, State
from orchestrator.core.event import Held, Released, Submitted
from orchestrator.core.job import NoticeKind, Notify, Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.message import Message
from orchestrator.core.notice import Notice, Outgoing, Target
from orchestrator.core.offer import Offer, Quota
from orchestrator.engine import notifying
from orchestrator.engine.engine import Engine, Watchers
from orchestrator.engine.notifying import LOOK_SECONDS, Notifier
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger, Proposal
from orchestrator.platforms.simulated.scenario import QuotaWindow
from orchestrator.sending import webhook as sending_webhook
from tests.core.runs import NOW, RUN, TRAITS, job
from tests.hurried import HurriedClock
from tests.leaks import Leaks
from tests.receivers import HANG, LOSE, mail_server, webhook
from tests.test_engine import Small, scenario
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # by apprise
EVERY = frozenset(NoticeKind)
SPEED = 100.0


class Home:
    """A ledger, and a sender for it to start. `said` is what the controller's log gets."""

    def __init__(self, folder: Path, addresses: dict[str, str]) -> None:
        self.url = f"sqlite:///{folder / 'ledger.sqlite'}"
        self.ledger = Ledger.open(self.url)
        self.said: list[str] = []
        self.addresses = addresses
        self.clock = HurriedClock(SPEED)
        self.notifier = self.new_notifier()

    def new_notifier(self) -> Notifier:
        targets = [Target(name, EVERY) for name in self.addresses if ":" not in name]
        notifier = Notifier(
            self.ledger.notifications, targets, self.address, sending.send, self.clock, self.said.append
        )
        self.ledger.notices = notifier.notices
        return notifier

    def address(self, target: str) -> str:
        if target not in self.addresses:
            raise InputError(f"the config has no target {target!r} any more")
        return self.addresses[target]

    def held(self, count: int = 1, first: int = 0) -> None:
        """So many runs are held in one tick."""
        names = [f"run{first + number}-abcdefgh" for number in range(count)]
        records = [self.ledger.submit(Submitted(run, job(), self.clock.now())) for run in names]
        proposals = [Proposal(record, [Held(self.clock.now(), "because")], None) for record in records]
        self.ledger.append_many(proposals)

    def rows(self, *states: State) -> list[str]:
        return sorted(row.id for row in self.ledger.notifications.rows(states or tuple(State)))

    def wait_for(self, count: int, *states: State) -> list[str]:
        what = lambda: f"{count} rows to be {states}: {self.ledger.notifications.counts()} {self.said}"  # noqa: E731
        return wait_until(lambda: rows if len(rows := self.rows(*states)) >= count else None, what)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Home]]:
    made: list[Home] = []

    def home(addresses: dict[str, str]) -> Home:
        made.append(Home(tmp_path, addresses))
        return made[-1]

    yield home
    for each in made:
        each.ledger.close()


Make = Callable[[dict[str, str]], Home]


def test_what_fails_at_first_arrives_later_under_the_same_id(make: Make) -> None:
    with webhook(500, LOSE, 429) as server:
        home = make({"phone": server.url})
        home.held()
        with home.notifier.at_work():
            [identity] = home.wait_for(1, State.SENT)
            wait_until(lambda: len(home.said) == 2, "the end of the outage to be told")
    assert server.ids == [identity] * 4
    assert {each.fields["run"] for each in server.got} == {"run0-abcdefgh"}
    assert "phone is not delivered, trying again: answered 500" in home.said[0]
    assert home.said[-1] == "notifications to phone can be sent again"
    assert len(home.said) == 2, "an outage is told once"


def test_what_is_sent_as_the_controller_leaves_is_not_said_to_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "LEAVE_SECONDS", PATIENCE)
    leaving = threading.Event()
    with webhook(leaving) as server:
        home = make({"phone": server.url})
        home.clock.hurry(1.0)
        home.held()
        with home.notifier.at_work():
            wait_until(lambda: server.got, "the attempt to begin")
            threading.Timer(0.2, leaving.set).start()
        assert len(home.rows(State.SENT)) == 1
    assert home.said == []


def test_a_receiver_that_hangs_holds_up_nobody_else(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does leaving wait for it; what it has not confirmed is sent again."""
    monkeypatch.setattr(sending_webhook, "SILENCE_SECONDS", PATIENCE)
    monkeypatch.setattr(sending_webhook, "WHOLE_SECONDS", PATIENCE)
    with webhook(HANG) as slow, webhook() as quick:
        home = make({"slow": slow.url, "quick": quick.url})
        home.held(3)
        with home.notifier.at_work():
            wait_until(lambda: slow.got and len(quick.got) >= 3, "the quick one to get all")
            home.wait_for(3, State.SENT)
        assert len(home.rows(State.WAITING)) == 3
        assert home.said == ["notifications wait to be sent; the next controller sends them"]
        home.notifier = home.new_notifier()
        with home.notifier.at_work():
            home.wait_for(6, State.SENT)
    assert slow.ids[0] in slow.ids[1:]
    assert sorted(set(slow.ids) | set(quick.ids)) == home.rows(State.SENT)
    assert len(quick.ids) == 3


def test_what_was_sent_and_not_recorded_when_the_controller_was_killed_comes_again(make: Make) -> None:
    with webhook() as server:
        home = make({"phone": server.url})
        child: list[subprocess.Popen[bytes]] = []
        server.plan.append(lambda: os.kill(child[0].pid, signal.SIGKILL))
        home.held()
        command = [sys.executable, "-m", "tests.notifying_controller", home.url, server.url, "60"]
        child.append(subprocess.Popen(command))
        assert child[0].wait(240.0) == -signal.SIGKILL
        assert len(server.got) == 1
        assert home.rows(State.WAITING) == server.ids
        with home.notifier.at_work():
            [identity] = home.wait_for(1, State.SENT)
    assert server.ids == [identity, identity]


def test_a_flood_is_one_message(make: Make) -> None:
    with webhook(500) as server:
        home = make({"phone": server.url})
        rows = [
            Outgoing(f"{n:032x}", "phone", Notice(NoticeKind.HELD, NOW, f"run{n} is held"))
            for n in range(1000)
        ]
        home.ledger.notifications.post(rows)
        with home.notifier.at_work():
            [digest] = home.wait_for(1, State.SENT)
    assert server.ids == [digest, digest]
    assert server.got[0].fields["title"] == "1,000 notifications: 1,000 held"
    assert len(home.rows(State.GATHERED)) == 1000
    assert len(str(server.got[0].fields)) < 50_000


def test_a_steady_flood_is_gathered_too(make: Make) -> None:
    """After ten messages in ten minutes, what comes next is one message."""
    with webhook() as server:
        home = make({"phone": server.url})
        home.clock.hurry(1.0)  # a busy machine may need seconds for ten messages
        with home.notifier.at_work():
            for number in range(BURST):
                home.held(first=number)
                home.wait_for(number + 1, State.SENT)
            home.held(4, first=100)
            home.clock.hurry(SPEED)
            home.wait_for(4, State.GATHERED)
            home.wait_for(BURST + 1, State.SENT)
    assert [each.fields["kind"] for each in server.got] == ["held"] * BURST + ["digest"]
    assert server.got[-1].fields["counts"] == {"held": 4}


def test_what_a_receiver_refuses_is_given_up_and_the_next_is_tried(make: Make) -> None:
    with webhook(410, 200) as server:
        home = make({"phone": server.url})
        home.held(2)
        with home.notifier.at_work():
            home.wait_for(1, State.DEAD)
            home.wait_for(1, State.SENT)
    [dead] = home.ledger.notifications.rows([State.DEAD])
    assert dead.error == "answered 410 Gone; check the address"
    assert home.said == ["a notification to phone is given up: answered 410 Gone; check the address"]


def test_a_target_that_is_gone_or_has_no_address_waits(make: Make) -> None:
    with webhook() as server:
        home = make({"phone": "", "gone": server.url})
        home.held()
        addresses, home.addresses = home.addresses, {"phone": "nonsense"}
        with home.notifier.at_work():
            wait_until(lambda: len(home.said) >= 2, "both to fail")
            assert home.rows(State.SENT) == []
            home.addresses = addresses | {"phone": server.url}
            home.wait_for(2, State.SENT)
    assert any("no target 'gone'" in each for each in home.said)
    assert any("its address is not valid" in each for each in home.said)


def test_mail_is_sent_through_apprise_and_again_if_the_reply_is_lost(make: Make) -> None:
    with mail_server(LOSE) as server:
        home = make({"mail": server.url})
        home.held()
        with home.notifier.at_work():
            [identity] = home.wait_for(1, State.SENT)
    assert [mail["X-Delivery-Id"] for mail in server.got] == [identity, identity]
    assert "run0-abcdefgh is held" in str(server.got[1]["Subject"])


def test_a_low_quota_is_told_once_in_its_window_also_after_a_restart(make: Make) -> None:
    refresh = NOW + 5 * 86400.0

    def offers(left: float, refresh_at: float) -> Sequence[Offer]:
        return [Offer("kaggle", "T4x2", TRAITS, quota=Quota(left, refresh_at, 7 * 86400.0, 108_000.0, "gpu"))]

    with webhook() as server:
        home = make({"phone": server.url})
        for _ in range(2):
            with home.notifier.at_work():
                for left in (50_000.0, 5000.0, 4000.0, 0.0):
                    home.notifier.surveyed(offers(left, refresh), NOW)
                home.wait_for(1, State.SENT)
            home.notifier = home.new_notifier()
        with home.notifier.at_work():
            home.notifier.surveyed(offers(3000.0, refresh + 7 * 86400.0), refresh + 60.0)
            home.wait_for(2, State.SENT)
    assert ["83 min left of 30.0 h" in each.fields["text"] for each in server.got] == [True, False]


def test_a_missed_schedule_is_told_once_and_to_its_job(make: Make) -> None:
    with webhook() as server:
        home = make({"phone": server.url, "env:MINE": server.url})
        mine = job(notify=Notify((NoticeKind.SCHEDULE_MISSED,), "env:MINE"))
        for now in (NOW, NOW + 60.0):
            home.ledger.notifications.post(
                home.notifier.missed("nightly", mine, NOW - 3600.0, now, "was down")
            )
        with home.notifier.at_work():
            home.wait_for(2, State.SENT)
    assert len(set(server.ids)) == 2
    assert (
        "the schedule nightly missed its start of 2026-09-21 13:13Z: was down" in server.got[0].fields["text"]
    )


def test_a_controller_that_leaves_when_idle_waits_for_what_is_new(make: Make) -> None:
    answers = threading.Event()
    with webhook(500, answers) as server:
        home = make({"phone": server.url})
        with home.notifier.at_work():
            wait_until(lambda: not home.notifier.pending(), "the first look")
            home.clock.hurry(1.0)
            home.held()
            assert home.notifier.pending()
            home.clock.hurry(SPEED)
            answers.set()
            home.wait_for(1, State.SENT)
            wait_until(lambda: not home.notifier.pending(), "nothing to wait")


def test_a_retry_does_not_wait_for_the_pause_of_its_target(make: Make) -> None:
    with webhook((429, {"Retry-After": "3600"})) as server:
        home = make({"phone": server.url})
        home.clock.hurry(1.0)  # the pause is longer than anybody waits here
        home.held()
        with home.notifier.at_work():
            wait_until(lambda: home.said, "the first attempt")
            [identity] = home.rows(State.WAITING)
            home.ledger.notifications.retry([identity], home.clock.now())
            home.wait_for(1, State.SENT)
    assert server.ids == [identity] * 2


def test_a_retry_of_a_target_that_is_still_away_ends_its_pause_once(make: Make) -> None:
    away = (503, {"Retry-After": "3600"})
    with webhook(*[away] * 9) as server:
        home = make({"phone": server.url})
        home.clock.hurry(10.0)
        home.held(3)
        with home.notifier.at_work():
            wait_until(lambda: home.said, "the first attempt")
            home.ledger.notifications.retry(home.rows(State.WAITING), home.clock.now())
            wait_until(lambda: len(server.got) == 2, "the second attempt")
            looked = home.clock.monotonic()
            wait_until(lambda: home.clock.monotonic() > looked + 5 * LOOK_SECONDS, "some more looks")
    assert len(server.got) == 2


def test_many_retried_at_once_keep_their_ids(make: Make) -> None:
    """They may have arrived: a message of all would be another one, which nobody can recognise."""
    with webhook(*[410] * 8) as server:
        home = make({"phone": server.url})
        with home.notifier.at_work():
            for first in (0, 4):
                home.held(4, first)
                home.wait_for(first + 4, State.DEAD)
            home.ledger.notifications.retry(home.rows(State.DEAD), home.clock.now())
            home.wait_for(8, State.SENT)
    assert Counter(server.ids) == dict.fromkeys(home.rows(State.SENT), 2)


def test_but_not_for_ever(make: Make) -> None:
    home = make({"phone": "http://127.0.0.1:1/"})
    old = Notice(NoticeKind.HELD, home.clock.now() - 3600.0, "held")
    home.ledger.notifications.post([Outgoing("ab" * 16, "phone", old)])
    with home.notifier.at_work():
        wait_until(lambda: home.said, "the first attempt")
        wait_until(lambda: not home.notifier.pending(), "the controller to be free")


def test_a_message_that_cannot_be_worded_costs_no_other(make: Make) -> None:
    with webhook() as server:
        home = make({"phone": server.url})
        home.held(2)
        with home.ledger._database.write() as connection:
            connection.exec_driver_sql("UPDATE notifications SET body = '[]' WHERE run = 'run0-abcdefgh'")
        with home.notifier.at_work():
            home.wait_for(1, State.SENT)
            home.wait_for(1, State.DEAD)
    assert [each.fields["run"] for each in server.got] == ["run1-abcdefgh"]


def test_a_bug_in_the_words_of_a_notification_holds_no_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    home = make({"phone": "http://127.0.0.1:1/"})
    met: list[str] = []
    home.notifier._unforeseen = lambda doing, _error: met.append(doing)
    monkeypatch.setattr("orchestrator.engine.notifying.outgoing", broken)
    home.held()
    assert home.ledger.record("run0-abcdefgh").reason == "because"
    assert met == ["wording a notification of run0-abcdefgh"]


def test_the_address_is_in_no_file_and_no_word(make: Make, tmp_path: Path) -> None:
    secret = "T0KEN-9f8e7d6c5b4a"
    with webhook(500, 404) as server:
        addresses = {
            "hook": f"http://me:{secret}@127.0.0.1:{server.port}/{secret}",
            "json": f"json://127.0.0.1:1/{secret}?cto=1&rto=1",
            "none": f"https://127.0.0.1:1/{secret}",
            "odd": secret,
        }
        home = make(addresses)
        home.held()
        with home.notifier.at_work():
            home.wait_for(1, State.DEAD)
            wait_until(lambda: len(home.said) >= 5, lambda: f"all to be said: {home.said}")
    leaks = Leaks({"address": secret})
    assert leaks.in_folder(tmp_path) == []
    assert leaks.in_text("said", "\n".join(home.said)) == []
    assert leaks.in_text("sent", server.got[0].path) != [], "it is where it belongs"


def test_released_and_held_again_is_told_again(make: Make) -> None:
    with webhook() as server:
        home = make({"phone": server.url})
        record = home.ledger.submit(Submitted(RUN, job(), home.clock.now()))
        for _ in range(2):
            record = home.ledger.append(record, [Held(home.clock.now(), "x")], due_at=None)
            record = home.ledger.append(record, [Released(home.clock.now())], due_at=None)
        with home.notifier.at_work():
            home.wait_for(2, State.SENT)
    assert len(set(server.ids)) == 2


class ToldWorld(Small):
    """A whole engine that tells one target everything, over a receiver of ours."""

    def up(self, names: tuple[str, ...], home_store: str = "") -> Engine:
        self.sent: list[Message] = []
        self.notifier = Notifier(
            self.ledger.notifications, [Target("phone", EVERY)], lambda target: target, self.send,
            SystemClock(), lambda _said: None,
        )  # fmt: skip
        self.ledger.notices = self.notifier.notices
        self.watchers = Watchers(surveyed=self.notifier.surveyed)
        return super().up(names, home_store)

    def send(self, _address: str, told: Message) -> Delivery:
        self.sent.append(told)
        return Delivery(Answer.SENT, "taken")


def test_an_engine_tells_of_runs_and_quotas(tmp_path: Path) -> None:
    """A run goes on elsewhere once the quota of its platform is used up."""
    week = QuotaWindow(200.0, 7 * 86400.0)
    world = ToldWorld(tmp_path, box=replace(scenario(), quota=week), spare=scenario())
    world.restart("box")
    world.submit("first", work=Work(total=1000, global_batch=16))
    assert world.until(lambda: world.record("first").deferred), "until the quota is back"
    world.restart("box", "spare")
    assert world.until(world.phase("first", Phase.DONE))
    with world.notifier.at_work():
        wait_until(lambda: len(world.sent) >= 3, lambda: f"all to be sent: {world.sent}")
    assert Counter(each.kind for each in world.sent) == {"moved": 1, "done": 1, "quota_low": 1}
    assert "the quota of box is low" in " ".join(each.title for each in world.sent)
    world.ledger.close()
