"""What one process does while it controls a ledger: waits for its turn, then decides until it is stopped.

Connects the engine with what goes on beside it: deposits, notifications, forecasts, metrics. Decides nothing
about runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec

from orchestrator.client import (
    foreseen,
    health,
    likeness,
    live,
    lost,
    metrics,
    notifying,
    standing_by,
    taking_over,
)
from orchestrator.client.client import Client
from orchestrator.client.config_changes import ConfigChanges
from orchestrator.client.home import Home
from orchestrator.client.likeness import Likeness
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import controller, depositing, sweeping, tidying
from orchestrator.engine.depositing import Depositor
from orchestrator.engine.engine import Watchers
from orchestrator.engine.foreseeing import Foreseer
from orchestrator.engine.keeping import Keeper
from orchestrator.engine.ownership import InCharge
from orchestrator.engine.perform import Backends
from orchestrator.errors import Fenced, OrchestratorError, Transient
from orchestrator.ledger import Ledger, Takeover
from orchestrator.platforms import catalog
from orchestrator.unforeseen import Reporter, Unforeseen

TIDIED_RUNS_MAX = 200  # so that a start does not take longer with every run there ever was

Given = ParamSpec("Given")


@dataclass(frozen=True)
class InControl:
    """One process's control of one ledger, with one reading of the config. `told`, `say` and `warn` as in
    `Controller.run`."""

    home: Home
    clock: Clock
    wired: Wired
    ledger: Ledger
    changes: ConfigChanges
    stopped: Callable[[], bool]
    told: Callable[[RunRecord, Event], None]
    say: Callable[[str], None]
    warn: Callable[[str], None]

    def run(self, *, until_idle: bool, standby: bool) -> bool:
        """Returns whether a new process should continue."""
        unforeseen = Reporter(self.warn)
        if standby:  # in a thread, because the home store may not answer
            threading.Thread(target=self._tell_doubts, args=(unforeseen,), name="doubts", daemon=True).start()
        if not self.ledger.is_shared:
            return self._run(until_idle, standby)
        if self._settled(standby) is None:
            return not self.stopped()
        bound = {each.name: self.wired.platform(each) for each in self.wired.config.platforms
                 if each.type in catalog.BOUND}  # fmt: skip
        with tidying.ending_closed(bound, self.ledger, self.clock, self.say, unforeseen):
            return self._run(until_idle, standby)

    def _settled(self, standby: bool) -> Likeness | None:
        """None, for a standby only: it was stopped, or the config changed."""
        settle = partial(likeness.settle, self.ledger, self.wired, self.say)
        return settle() if not standby else standing_by.answered(settle, self.clock, self._ends, self.say)

    def _ends(self) -> bool:
        return self.stopped() or self.changes()

    def _tell_doubts(self, unforeseen: Unforeseen) -> None:
        try:
            for doubt in likeness.doubts(self.ledger, self.wired):
                self.warn(f"before this machine can take over: {doubt}" if self.ledger.is_shared else doubt)
        except (OrchestratorError, OSError) as error:
            self.warn(f"whether this machine can take over is unknown: {error}")
        except Exception as error:  # noqa: BLE001 the barrier: told, and it stands by all the same
            unforeseen("looking at what this machine lacks", error)

    def _run(self, until_idle: bool, standby: bool) -> bool:
        outdated = controlled = False
        while not self.stopped():
            takeover = self._turn("submit" if until_idle else "up", standby)
            if takeover is None:
                outdated = not self.stopped()
                break
            controlled = True
            try:
                with takeover:
                    outdated, faulted = self._controlled(takeover, until_idle)
            except Fenced as error:
                if not standby:
                    raise Fenced(f"{error}; `orchestrator up --standby` waits for its turn") from error
                self.warn(f"{error}; this process starts again as a standby")
                return not self.stopped()
            except Transient as error:
                if not standby:
                    raise
                self.warn(f"the ledger does not answer; standing by again: {error}")
                self.clock.wait(threading.Event(), standing_by.RETRY_SECONDS)
                continue
            # A submit or wish in the meantime saw this controller alive and started none. After a change of
            # the config, a run that was held may be able to go on.
            if outdated or not until_idle or not self._anything_left(faulted):
                break
        who = "standby" if standby and not controlled else "controller"
        self.say(f"{who} {os.getpid()} {'restarts' if outdated else 'leaves'}")
        return outdated

    def _anything_left(self, faulted: frozenset[str]) -> bool:
        """Schedules that cannot be read never fire, and nobody stays for them."""
        if self.changes.unread or self.ledger.anything_left(besides=faulted):
            return True
        schedules = self.ledger.schedules
        return schedules.next_at(besides=schedules.unreadable()) is not None

    def _turn(self, name: str, standby: bool) -> Takeover | None:
        """Control of the ledger. None, for a standby only: it was stopped, or the config changed."""
        store = self.wired.config.home_store
        if not standby:
            return self.ledger.take_over(name, now=self.clock.now(), home_store=store)
        return standing_by.turn(self.ledger, self.clock, store, self._ends, self.say)

    def _controlled(self, takeover: Takeover, until_idle: bool) -> tuple[bool, frozenset[str]]:
        """Decides until it is stopped. Returns whether a new process should continue, and the runs that are
        held with something on a platform."""
        self.say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
        wake = threading.Event()
        keeper = Keeper(takeover, self.clock, self.say, wake)
        with keeper.at_work():
            self._tell_lost(takeover)
            return self._decided(takeover, keeper, wake, until_idle)

    def _tell_lost(self, takeover: Takeover) -> None:
        ledger, config = self.ledger, self.wired.config
        if ledger.is_shared:
            likeness.tell(takeover, likeness.settle(ledger, self.wired, self.say))
        for what, runs in lost.lost(ledger, config).items():
            self.warn(lost.sentence(what, runs))
        for schedule, what in lost.schedules(ledger, config).items():
            self.warn(lost.schedule_sentence(schedule, what))

    def _decided(
        self, takeover: Takeover, keeper: Keeper, wake: threading.Event, until_idle: bool
    ) -> tuple[bool, frozenset[str]]:
        clock, wired, ledger, say, warn = self.clock, self.wired, self.ledger, self.say, self.warn
        unforeseen = Reporter(warn)
        writer = live.Writer(wired.folders)
        backends = replace(wired.backends(unforeseen), confirm=takeover.confirm, shared=ledger.is_shared)
        place = taking_over.here(self.home, ledger)
        charge = InCharge(ledger, backends.stores, place, clock, warn)
        backends = replace(backends, ownership=charge)
        depositor = Depositor(backends, clock, warn)
        notifier = notifying.notifier(wired, ledger, say, unforeseen)
        foreseer = Foreseer(clock, ledger.measurements, foreseen.Writer(wired.folders), unforeseen)
        measured = metrics.of(wired.config, ledger, clock, warn, lambda: unforeseen.total)
        watchers = Watchers(
            event=_all(depositor.told, foreseer.told, measured.told, self.told),
            reading=_all(writer.reading, foreseer.reading),
            silence=writer.silence,
            unreadable=lambda run, reason: warn(f"{run} is left alone: {reason}"),
            surveyed=notifier.surveyed,
            schedule=say,
        )
        note = health.notes(self.home, clock, takeover.owner.since)
        with ExitStack() as beside:
            beside.enter_context(charge.at_work(self._used(), partial(self._catch_up, unforeseen)))
            engine = wired.engine(ledger, takeover.fence, backends, wake, watchers)
            _tidy(backends, ledger, clock, say)
            for at_work in (
                depositor.at_work(depositing.untold(ledger, wired.folders)),
                sweeping.at_work(backends, clock, say),
                notifier.at_work(),
                foreseer.at_work(),
                measured.at_work(),
            ):
                beside.enter_context(at_work)
            after_tick = _all(
                keeper.ticked, note, partial(foreseer.after_tick, engine.scene, lambda: engine.schedules)
            )
            outdated = controller.run(
                engine,
                clock,
                wake,
                self.stopped,
                leave_when_idle=until_idle,
                outdated=partial(_after, after_tick, lambda: charge.taken_over() or self.changes()),
                awaits=lambda: charge.catches_up or notifier.pending(),
                say=say,
                warn=warn,
                ticked=partial(measured.ticked, engine),
                unforeseen=unforeseen,
            )
        return outdated, engine.faulted

    def _used(self) -> frozenset[str]:
        """The stores of the runs that are under way."""
        home_store = self.wired.config.home_store
        return frozenset(e.store or home_store for e in self.ledger.summaries() if not e.phase.final)

    def _catch_up(self, unforeseen: Unforeseen, store: str) -> bool:
        """Takes from the store what this ledger lacks, because an older copy of this home was put back."""
        why = f"caught up with the store {store}: an older copy of this home was put back"
        try:
            client = Client(self.home, clock=self.clock)
            for each in taking_over.take(client, self.ledger, {store}, why=why):
                at = "the beginning" if each.step is None else f"step {each.step:,}"
                self.say(f"{each.run} {why}; it is {each.phase} at {at}")
                for note in each.notes:
                    self.say(f"{each.run}: {note}")
        except (OrchestratorError, OSError) as error:
            self.warn(f"the store {store} does not give what this ledger lacks, trying again: {error}")
        except Exception as error:  # noqa: BLE001 the barrier: told, and the runs of the store stay held
            unforeseen(f"catching up with the store {store}", error)
        else:
            return True
        return False


def _all(*told: Callable[Given, None]) -> Callable[Given, None]:
    """Calls all of them, in this order."""

    def tell(*args: Given.args, **kwargs: Given.kwargs) -> None:
        for each in told:
            each(*args, **kwargs)

    return tell


def _tidy(backends: Backends, ledger: Ledger, clock: Clock, say: Callable[[str], None]) -> None:
    """Ends and removes what a crash left of the runs on platforms, and of the runs that ended last."""
    runs = ledger.summaries()
    live = ledger.live()
    there = {record.run for record in live}
    over = [each.run for each in runs if each.phase.final and each.run not in there][:TIDIED_RUNS_MAX]
    records = (*live, *ledger.records(over))
    known = (each.run for each in runs if each.run not in ledger.unreadable)  # others are left alone
    tidying.begin(backends, records, known, clock, say)


def _after(tick: Callable[[], None], outdated: Callable[[], bool]) -> bool:
    tick()
    return outdated()
