"""What was observed while a world ran, as far as its ledger and its platforms' history do not show it.

Watches the engine as a viewer does, and the home store as its disk would. It judges immediately what cannot
be judged later: why a session was given up, and which session a deleted checkpoint served.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.checkpoint import CheckpointRef, newest
from orchestrator.core.event import CheckpointAccepted, Ended, Event, StopRequested
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Observation, Session, Sighting
from orchestrator.engine.engine import Watchers
from orchestrator.platforms.simulated import SimulatedPlatform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryRegisters, MemoryStore
from tests.simulation.clock import VirtualClock
from tests.simulation.ledger import SimulatedLedger

READINGS_MIN = 3  # one or two odd answers fence nobody
SILENT_SECONDS_MIN, SILENT_POLLS = 30.0, 5
UNSHIPPED_SECONDS_MAX = 3600.0  # of work that may be lost without consent


def patience(traits: Traits) -> float:
    """How long a heartbeat may stand still."""
    least = traits.silence_seconds if traits.uplink is Uplink.STORE else SILENT_SECONDS_MIN
    return max(least, SILENT_POLLS * traits.poll_seconds)


@dataclass(frozen=True)
class Reading:
    at: float  # by the monotonic clock of this controller
    seen: Observation


@dataclass(frozen=True)
class ReadingTime:
    """When a session was read (`elapsed`), how many seconds after the previous reading, and its sighting."""

    at: float
    seconds: float
    sighting: Sighting


@dataclass(frozen=True)
class Raised:
    """A run's fence was raised to a generation."""

    at: float
    run: str
    generation: int


class Witness:
    """Violations: `hasty`, `robbed`, `superseded`, `unfenced`, `incomplete`, `overdone`, `wasted`, `missed`,
    `unasked`.

    Observations: `phases`: each run's phases and since when. `fences`: the raised fences. `beats`: when each
    session's heartbeat changed in the store, and its new value; `named`: the checkpoints that it names.
    `publishers`: the incarnations that published, by session. `published`: the checkpoints that uplinks have
    put into the store, and when; `retired`: those that they have deleted. `reading_times`: for each session,
    one list for each time in which somebody looked without a break. The store's listings are at most
    `hidden_seconds` late.
    """

    def __init__(
        self, clock: VirtualClock, ledger: SimulatedLedger, platforms: Mapping[str, SimulatedPlatform]
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._platforms = platforms
        self._readings: dict[str, list[Reading]] = defaultdict(list)
        self._launched_at: dict[str, float] = {}
        self.reading_times: dict[str, list[list[ReadingTime]]] = defaultdict(list)
        self.fences: list[Raised] = []
        self.beats: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.superseded: list[str] = []
        self.unfenced: list[str] = []
        self.incomplete: list[str] = []
        self.overdone: list[str] = []
        self.wasted: list[str] = []
        self.missed: list[str] = []
        self.unasked: list[str] = []
        self.published: dict[str, float] = {}
        self.named: dict[str, frozenset[str]] = defaultdict(frozenset)
        self.hidden_seconds = 0.0
        self.retired: set[str] = set()
        self._home: WatchedStore | None = None
        self._records: dict[str, RunRecord] = {}
        self.publishers: dict[str, set[str]] = defaultdict(set)
        self.hasty: list[str] = []
        self.robbed: list[str] = []
        self.phases: dict[str, list[tuple[float, Phase]]] = defaultdict(list)
        ledger.changed = self._changed

    def watchers(self) -> Watchers:
        """For a new controller, which has seen nothing yet."""
        self._readings.clear()
        self._restart()
        return Watchers(event=self._happened, reading=self._read)

    def _restart(self) -> None:
        for times in self.reading_times.values():
            times.append([])

    def _read(self, record: RunRecord, observation: Observation, _now: float) -> None:
        assert record.session is not None
        name, poll = record.session.name, record.session.traits.poll_seconds
        before, now = self._readings[name][-1:], self._clock.monotonic()
        seconds = min(now - before[0].at, 2.0 * poll) if before else 0.0
        if not self.reading_times[name]:
            self.reading_times[name].append([])
        self.reading_times[name][-1].append(ReadingTime(self._clock.elapsed(), seconds, observation.sighting))
        self._readings[name].append(Reading(now, observation))

    def _changed(self, record: RunRecord) -> None:
        self.phases[record.run].append((self._clock.elapsed(), record.phase))
        self._judge_close(self._records.get(record.run, record), record)
        self._records[record.run] = record
        session = record.session
        if record.fault and session is not None:  # nobody looks; a later reading starts anew
            self._readings.pop(session.name, None)
            self.reading_times[session.name].append([])
        if session is not None and session.launched_at is not None:
            self._launched_at.setdefault(session.name, self._clock.elapsed())

    def _happened(self, record: RunRecord, event: Event) -> None:
        session = record.session
        agreed = record.forgone or record.discard
        if isinstance(event, Ended) and not event.confirmed and session is not None and not agreed:
            self._judge(session)
        if isinstance(event, StopRequested) and session is not None and not agreed:
            self._judge_unasked(session, "stopped")
        if isinstance(event, CheckpointAccepted):
            self._judge_accepted(record.run, event.checkpoint.name)

    # --- Sessions given up ------------------------------------------------------------------------------

    def _judge(self, session: Session) -> None:
        """Records a session that was given up without a good reason. One of these is required: several
        readings without the session while the controller was up, over as long as a launch may stay unseen,
        and longer once it was seen; a heartbeat that stands still; or an exceeded limit (in a queue the
        platform's promised start, for a running session its session limit). Time in which the machine slept
        does not count."""
        readings, traits = self._readings[session.name], session.traits
        if readings and readings[-1].seen.result is not None:
            return  # as its agent reported
        poll, count, seconds = traits.poll_seconds, 0, 0.0
        for later, reading in zip([None, *reversed(readings)], reversed(readings), strict=False):
            if reading.seen.sighting is not Sighting.ABSENT:
                break
            count += 1
            seconds += 0.0 if later is None else min(later.at - reading.at, 2.0 * poll)
        silence = self._silence(readings, traits)
        silent = silence >= patience(traits)
        was_seen = session.began_at is not None or session.incarnation is not None
        unseen = max(traits.visibility_seconds, traits.absence_seconds if was_seen else 0.0)
        absent = count >= READINGS_MIN and seconds >= unseen
        if traits.uplink is Uplink.STORE and readings and _beat(readings[-1]) is not None:
            absent &= silent  # its heartbeat arrives independently of its platform
        waited, ran = self._ages(session)
        wall = traits.session_seconds
        pending = bool(readings) and readings[-1].seen.sighting is Sighting.PENDING
        over = wall is not None and ran is not None and ran > wall
        if ran is None or pending:  # a late answer: the session may run by now
            over |= waited > traits.pending_seconds_max
        if not (absent or silent or over):
            found = f"absent {count} times over {seconds:.0f} s, silent for {silence:.0f} s"
            age = f"waited {waited:.0f} s, " + ("and not started" if ran is None else f"ran {ran:.0f} s")
            self.hasty.append(f"{session.name} was given up ({session.message}): {found}, {age}")
        elif not (absent or pending or ran is None):
            self._judge_unasked(session, f"given up ({session.message})")

    def _judge_unasked(self, session: Session, what: str) -> None:
        """Records the end of a session that nobody can read, and that did not say last that it ships."""
        traits, readings = session.traits, self._readings[session.name]
        if traits.uplink is not Uplink.STORE or traits.readable_mid_run:
            return
        status = readings[-1].seen.status if readings else None
        unshipped = None if status is None else status.unshipped_seconds
        if unshipped is None or unshipped > UNSHIPPED_SECONDS_MAX:
            self.unasked.append(f"{session.name} was {what}, with unshipped work of {unshipped} seconds")

    def _ages(self, session: Session) -> tuple[float, float | None]:
        """How many seconds it truly waited for its start and has run since; None if it has not started."""
        now, launched = self._clock.elapsed(), self._launched_at[session.name]
        lifetimes = self._platforms[session.order.platform].history.lifetimes
        started = min((life.started_at for life in lifetimes if life.session == session.name), default=None)
        return (now - launched, None) if started is None else (started - launched, now - started)

    def _silence(self, readings: list[Reading], traits: Traits) -> float:
        """For how many seconds its heartbeat stood still over several readings. A session in a queue has no
        heartbeat, which proves nothing. A running session should have one."""
        last = readings[-1].seen if readings else None
        is_mute = last is not None and last.status is None
        ships = traits.uplink is Uplink.STORE
        if last is None or (is_mute and not (ships and last.sighting is Sighting.RUNNING)):
            return 0.0
        poll, seconds, count = traits.poll_seconds, 0.0, 0
        for before, after in zip(reversed(readings[:-1]), reversed(readings), strict=False):
            unseen = after.seen.sighting is Sighting.ABSENT and _beat(after) is None
            if not unseen and _beat(before) != _beat(after):
                break
            if is_mute and after.seen.sighting is not Sighting.RUNNING:
                break
            seconds, count = seconds + min(after.at - before.at, 2.0 * poll), count + 1
        return seconds if count >= READINGS_MIN else 0.0

    # --- The home store ---------------------------------------------------------------------------------

    def _judge_close(self, before: RunRecord, after: RunRecord) -> None:
        """A session that ships its own outbox must be fenced off before its outbox is no longer read."""
        session = before.session
        if before.phase is not Phase.COLLECTING or after.session is not None or session is None:
            return
        fence = max((each.generation for each in self.fences if each.run == before.run), default=0)
        if session.traits.uplink is not Uplink.STORE:
            return
        given_up = before.forgone or before.discard  # while the store refused to raise the fence, perhaps
        if fence <= session.generation and not given_up:
            self.unfenced.append(f"{session.name} was closed with the fence at {fence}")
        if not given_up:
            self._judge_what_was_left(after, session)

    def _judge_what_was_left(self, record: RunRecord, session: Session) -> None:
        """All is accepted that the run would go on from, that is complete, and that the last look could
        see: the store listed it by then, or the last heartbeat named it."""
        assert self._home is not None
        here = (record.run, session.generation + 1)
        fenced_at = min((each.at for each in self.fences if (each.run, each.generation) == here), default=0.0)
        best, named = newest(record.accepted), self.named[session.name]
        for ref in stored.names(self._home, record.run):
            own = (ref.generation, ref.incarnation) == (session.generation, session.incarnation)
            newer = best is None or ref.step > best.ref.step
            listed = self.published.get(ref.name, math.inf) + self.hidden_seconds < fenced_at
            shown = listed or ref.name in named
            if own and newer and shown and not stored.lacks(self._home, record.run, ref.name):
                self.missed.append(f"{ref.name} was there when {session.name} was closed without it")

    def watch(self, home: WatchedStore) -> None:
        self._home = home

    def _judge_accepted(self, run: str, name: str) -> None:
        """An accepted checkpoint is complete in the store, unless its uplink has deleted it since."""
        assert self._home is not None
        lacks = stored.lacks(self._home, run, name)
        if lacks and name not in self.retired:
            self.incomplete.append(f"{name} was accepted, but {lacks}")

    def retires(self, run: str, writer: CheckpointRef, key: str) -> None:
        """An uplink deletes an object. It may delete a checkpoint of its own lineage that is neither the
        newest accepted one nor among the newest two in the store; and blobs of that lineage."""
        assert self._home is not None
        _, _, kind, name, *_ = key.split("/")
        lineage = writer.name.partition("-")[2]
        if kind == "blobs" and name == lineage:
            return
        ref = CheckpointRef.parse(name)
        if kind != "checkpoints" or ref is None or not name.endswith(lineage):
            self.overdone.append(f"the uplink of {lineage} deleted {key}")
            return
        best = newest(self._ledger.latest(run).accepted)
        there = [each.name for each in stored.names(self._home, run) if each.name.endswith(lineage)]
        if best is not None and best.name == name:
            self.overdone.append(f"{name} was deleted by its uplink: it is the newest accepted one")
        if name in sorted(there)[-2:]:
            self.overdone.append(f"{name} was deleted by its uplink: it is among the newest in the store")
        self.retired.add(name)

    def shipped(self, key: str) -> None:
        """An uplink has put an object into the store."""
        _, _, kind, name, *_ = key.split("/")
        if kind == "checkpoints":
            self.published.setdefault(name, self._clock.elapsed())

    def swapped(self, key: str, value: bytes) -> None:
        """A register was written."""
        if not key.startswith("runs/"):
            return
        _, run, kind, *rest = key.split("/")
        if kind == "fence":
            self.fences.append(Raised(self._clock.elapsed(), run, json.loads(value)["generation"]))
        elif rest[-1] == "heartbeat":
            beats, count = self.beats[rest[0]], json.loads(value)["status"]["heartbeat"]
            self.named[rest[0]] = frozenset(each["name"] for each in json.loads(value)["published"])
            if not beats or beats[-1][1] != count:
                beats.append((self._clock.elapsed(), count))

    def deleted(self, key: str) -> None:
        """The checkpoint that the current session was ordered to resume from may not be deleted before the
        session ends, and nothing that is newer than the newest accepted one."""
        _, run, kind, name, *_ = key.split("/")
        record = self._ledger.latest(run)
        session = record.session
        ref, best = CheckpointRef.parse(name), newest(record.accepted)
        newer = ref is not None and (best is None or ref.step > best.ref.step)
        if kind == "checkpoints" and newer and name not in self.retired:
            self.wasted.append(f"{name} was deleted: it is newer than the newest accepted one")
        if kind == "checkpoints" and session is not None and session.order.resume == name:
            self.robbed.append(f"{name} was deleted while {session.name} goes on from it")


def _beat(reading: Reading) -> int | None:
    status = reading.seen.status
    return None if status is None else status.heartbeat


class WatchedRegisters(MemoryRegisters):
    """Registers that tell a witness every write."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        written = super().swap(key, value, version)
        self._witness.swapped(key, value)
        return written


class WatchedStore(MemoryStore):
    """A home store that tells a witness every deletion."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness
        self.registers = WatchedRegisters(witness)
        witness.watch(self)

    def delete(self, key: str) -> None:
        if self.stat(key) is not None:
            self._witness.deleted(key)
        super().delete(key)
