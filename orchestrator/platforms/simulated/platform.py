"""The platform protocol over modelled agents: what the verbs answer, and how they lie and fail.

Nothing here runs by itself: every verb first advances the world to the clock. Must never read the time
except through the clock that it was given, nor use random numbers except from its own seeded generators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import authenticate, decode
from orchestrator.core.offer import Offer, Quota, Unavailable, Uplink, until_time
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    NameTaken,
    NotFound,
    QuotaExhausted,
    Refused,
    Rejected,
    Transient,
)
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.simulated.agent import STATE_FILE, SimulatedAgent, State
from orchestrator.platforms.simulated.history import Discarded, History, Launch
from orchestrator.platforms.simulated.leaving import Leaving, draw_leaving
from orchestrator.platforms.simulated.meter import Meter
from orchestrator.platforms.simulated.outbox import PartialOutbox, SimulatedOutbox, SpokenOutbox
from orchestrator.platforms.simulated.scenario import (
    Faults,
    Intervals,
    Scenario,
    SimulatedOffer,
    draw_fate,
)
from orchestrator.platforms.simulated.uplink import SimulatedUplink, Uplinks
from orchestrator.session.layout import blob_path, manifest_path
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials


@dataclass
class _Session:
    """A session that the platform knows. `starved_at`: when it will end for lack of capacity."""

    order: Order | None = None
    base: State = field(default_factory=lambda: State(0, 0))
    launched_at: float | None = None
    visible_at: float = 0.0
    starved_at: float | None = None
    agents: list[SimulatedAgent] = field(default_factory=list)
    uplinks: list[SimulatedUplink] = field(default_factory=list)
    stopped: bool = False
    stop_ignored: bool = False
    outbox_lost: bool = False
    leaving: Leaving = field(default_factory=Leaving)
    discarded: bool = False

    @property
    def begun(self) -> list[SimulatedAgent]:
        return [agent for agent in self.agents if agent.began]

    def over(self, now: float) -> bool:
        """Whether nothing of it runs or ever will."""
        if self.starved_at is not None:
            return now >= self.starved_at
        return all(agent.ended_at is not None for agent in self.agents)

    @property
    def over_at(self) -> float:
        """When it ended; infinity if that is still to come."""
        if self.starved_at is not None:
            return self.starved_at
        return max(math.inf if agent.ended_at is None else agent.ended_at for agent in self.agents)

    def seems_over(self, now: float) -> bool:
        return any(a.fate.glitch_from <= now < a.fate.glitch_until for a in self.begun)

    def hidden(self, now: float) -> list[SimulatedAgent]:
        return [a for a in self.begun if a.fate.hidden_from <= now < a.fate.hidden_until]


class SimulatedPlatform:
    """A platform as described by `scenario`. `history` is the truth, for checkers. `calm()` ends all faults.

    Everything is in memory. `uplinks` creates the uplink of an agent if the scenario's `uplink` is STORE.
    """

    def __init__(self, name: str, scenario: Scenario, clock: Clock, uplinks: Uplinks | None = None) -> None:
        assert (uplinks is not None) or scenario.uplink is not Uplink.STORE, "nothing ships its outboxes"
        self._name = name
        self._uplinks = uplinks
        self.scenario = scenario
        self.faults = scenario.faults
        self.clock = clock
        self.history = History()
        self._sessions: dict[str, _Session] = {}
        self._offers = {offer.accelerator: offer for offer in scenario.offers}
        self._born = self._at = clock.elapsed()
        self._meter = Meter(scenario.quota, self._born)
        self._random = self._generator("calls")
        f = scenario.faults
        self._outages = self._intervals("outages", f.outages_per_hour, f.outage_seconds)
        self._denials = self._intervals("denials", f.denials_per_hour, f.denial_seconds)
        self._shortages = self._intervals("shortages", f.shortages_per_hour, f.shortage_seconds)
        self._refusals = self._intervals("refusals", f.refusals_per_hour, f.refusal_seconds)

    @property
    def name(self) -> str:
        return self._name

    def _generator(self, purpose: str) -> Random:
        return Random(f"{self.scenario.seed}/{self._name}/{purpose}")

    def _intervals(self, purpose: str, per_hour: float, seconds: float) -> Intervals:
        return Intervals(self._generator(purpose), per_hour, seconds, self._born)

    def calm(self) -> None:
        """From now on, nothing goes wrong. Dead sessions stay dead; hidden ones become visible."""
        self._advance()
        now = self._at
        self.faults = Faults()
        self._outages = self._denials = self._shortages = self._intervals("calm", 0.0, 1.0)
        self._refusals = self._intervals("calm", 0.0, 1.0)
        for session in self._sessions.values():
            session.stop_ignored = False
            session.visible_at = min(session.visible_at, now)
            for agent in session.agents:
                agent.fate = agent.fate.spent(now)

    # --- the world up to now ----------------------------------------------------------------------------

    def _advance(self) -> None:
        to = self.clock.elapsed()
        while True:
            agents = [a for s in self._sessions.values() for a in s.agents if a.ended_at is None]
            uplinks = [u for s in self._sessions.values() for u in s.uplinks if u.agent.ended_at is None]
            events = [*(agent.next_event() for agent in agents), *(each.next_event() for each in uplinks)]
            speed = self._quota_speed(agents)
            out_at = self._meter.next_event(self._at, speed + self.faults.quota_used_elsewhere)
            at = max(min([to, out_at, *events]), self._at)
            self._charge(at, speed)
            self._at = at
            for agent in agents:
                agent.advance(at)
            if self._meter.left(self._at) <= 0:
                for agent in agents:
                    if agent.running:
                        agent.kill(at, Outcome.QUOTA_EXHAUSTED, "the quota is used up")
                        agent.advance(at)
            for uplink in uplinks:
                uplink.advance(at)
            if at >= to:
                return

    def _quota_speed(self, agents: list[SimulatedAgent]) -> float:
        """What running sessions take of the quota in a second."""
        return sum(self._offers[agent.order.accelerator].quota_rate for agent in agents if agent.running)

    def _charge(self, to: float, speed: float) -> None:
        if self.scenario.quota is None:
            return
        seconds, window = to - self._at, self._meter.window(self._at)
        self._meter.take(self._at, (speed + self.faults.quota_used_elsewhere) * seconds)
        used = self.history.quota_used
        used[window] = used.get(window, 0.0) + speed * seconds

    def _unix(self, at: float) -> float:
        return self.clock.now() + at - self._at

    def _chance(self, rate: float) -> bool:
        return self._random.random() < rate

    # --- verbs ------------------------------------------------------------------------------------------

    @contextmanager
    def _verb(self, operation: str) -> Iterator[None]:
        """The faults that can happen around every verb. Adds the backend to raised errors."""
        self._advance()
        try:
            if self._denials.end(self._at) is not None:
                raise AccessDenied("the token was refused")
            if self._outages.end(self._at) is not None:
                raise Transient("503: the service is unavailable")
            if self._chance(self.faults.request_lost):
                raise Transient("the connection was reset")
            yield
            if self._chance(self.faults.reply_lost):
                raise Transient("the connection timed out while waiting for the reply")
        except BackendError as error:
            error.backend, error.operation = self._name, operation
            raise

    def survey(self) -> tuple[Offer, ...]:
        with self._verb("survey"):
            return tuple(map(self._offer, self._offers.values()))

    def _offer(self, offer: SimulatedOffer) -> Offer:
        quota, rule, unavailable = None, self.scenario.quota, None
        if rule is not None:
            refresh = self._unix(self._meter.refresh_at(self._at))
            left, allowed = (
                each / offer.quota_rate for each in (self._meter.left(self._at), rule.allowed_seconds)
            )
            quota = Quota(left, refresh, rule.window_seconds, allowed, units_per_hour=offer.units_per_hour)
            if quota.left_seconds <= 0:
                unavailable = Unavailable("the quota is used up", until_time(refresh))
        shortage = self._shortages.end(self._at)
        if shortage is not None:
            unavailable = Unavailable("no capacity", until_time(self._unix(shortage)))
        traits = self.scenario.traits(offer)
        return Offer(self._name, offer.accelerator, traits, offer.slots, quota, memory_gb=offer.memory_gb,
                     disk_gb=offer.disk_gb, unavailable=unavailable,
                     wait_seconds=self.scenario.queue_seconds / 2)  # fmt: skip

    def prepare(self, order: Order, materials: Materials) -> None:
        with self._verb("prepare"):
            if order.platform != self._name or order.accelerator not in self._offers:
                raise Rejected(f"no offer {order.accelerator!r} on {order.platform!r} here")
            session = self._sessions.setdefault(order.session, _Session())
            if session.launched_at is None:
                session.base = _resumed(order, materials.resume)
                session.order = order
            elif session.order != order:
                raise NameTaken(f"{order.session} was started with another order")

    def launch(self, order: Order) -> None:
        error: BackendError | None = None
        was = self._launched(order.session)
        try:
            with self._verb("launch"):
                self._launch(order)
        except BackendError as raised:
            error = raised
            raise
        finally:
            started = not was and self._launched(order.session)
            refused = isinstance(error, QuotaExhausted | Refused)
            self.history.launches.append(Launch(self._at, order.session, started, str(error or ""), refused))

    def _launched(self, name: str) -> bool:
        session = self._sessions.get(name)
        return session is not None and session.launched_at is not None

    def _launch(self, order: Order) -> None:
        session = self._sessions.get(order.session)
        if session is not None and session.launched_at is not None:
            return
        if session is None or session.order != order:
            raise Rejected(f"{order.session} is not prepared")
        if session.stopped:
            raise Rejected(f"{order.session} was stopped before it was launched")
        self._refuse(order)
        late = self.faults.late_effect > 0.0 and self._chance(self.faults.late_effect)
        self._start(session, order, late)
        if late or self._chance(self.faults.launch_started_but_failed):
            raise Transient("500: the session could not be started")

    def _refuse(self, order: Order) -> None:
        passing = self.faults.refused > 0.0 and self._chance(self.faults.refused)
        if passing or self._refusals.end(self._at) is not None:
            raise Refused("the sources are invalid")
        shortage = self._shortages.end(self._at)
        if shortage is not None:
            raise QuotaExhausted("no capacity", until=self._unix(shortage))
        if self._meter.left(self._at) <= 0:
            raise QuotaExhausted("the quota is used up", until=self._unix(self._meter.refresh_at(self._at)))
        mine = [s for s in self._sessions.values() if s.launched_at is not None and not s.over(self._at)]
        taken = sum(s.order is not None and s.order.accelerator == order.accelerator for s in mine)
        if taken >= self._offers[order.accelerator].slots:
            raise QuotaExhausted(f"all {taken} slots for {order.accelerator} are taken")

    def _start(self, session: _Session, order: Order, late: bool) -> None:
        faults, random = self.faults, self._generator(order.session)
        session.launched_at = self._at
        promised = self.scenario.visibility_seconds
        late = random.random() < faults.late_visible
        session.visible_at = self._at + random.random() * (3 * promised if late else promised)
        session.stop_ignored = random.random() < faults.stop_ignored
        session.outbox_lost = random.random() < faults.outbox_lost
        if self.scenario.shows_at_the_end:
            session.leaving = draw_leaving(faults, self._generator(f"{order.session} leaving"))
        if random.random() < faults.starved:
            session.starved_at = self._at + self.scenario.pending_seconds
            return
        start = self._at + random.random() * (self.scenario.queue_seconds + self.scenario.pending_seconds)
        start = max(start, session.visible_at) if late else start
        self._spawn(session, order, start, random)
        if random.random() < faults.double_start:
            self._spawn(session, order, start + random.random() * 60.0, random)

    def _spawn(self, session: _Session, order: Order, start: float, random: Random) -> None:
        agent = SimulatedAgent(order, self._offers[order.accelerator], self.scenario,
                               incarnation=f"{random.getrandbits(40):010x}", start=start,
                               wall=self.clock.now() - self._at, base=session.base, random=random,
                               lifetimes=self.history.lifetimes)  # fmt: skip
        agent.fate = draw_fate(self.faults, random, start, min(agent.horizon - start, 86400.0))
        session.agents.append(agent)
        if self._uplinks is not None and self.scenario.uplink is Uplink.STORE:
            local = SimulatedOutbox([agent], start)
            process = partial(self._uplinks, order, agent.incarnation, self._local(session, local))
            session.uplinks.append(SimulatedUplink(agent, local, process, self.scenario, random))

    def _local(self, session: _Session, outbox: SimulatedOutbox) -> Outbox:
        """What the process beside an agent finds in its outbox."""
        del session
        return outbox

    def live(self) -> None:
        """Advances the world to the clock, as every verb does."""
        self._advance()

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        with self._verb("observe"):
            return {name: self._sight(name) for name in names}

    def _visible(self, name: str) -> _Session | None:
        """The session, if the platform shows it now."""
        session = self._sessions.get(name)
        if session is None or session.launched_at is None or session.discarded:
            return None
        if self._at < session.visible_at or session.hidden(self._at):
            return None
        forgotten = any(agent.fate.forgotten and agent.fate.killed_at <= self._at for agent in session.begun)
        return None if forgotten and session.over(self._at) else session

    def _sight(self, name: str) -> Sight:
        session = self._visible(name)
        if session is None:
            return Sight(Sighting.ABSENT)
        over = session.over(self._at)
        if session.starved_at is not None and over:
            return Sight(Sighting.ENDED, ending=Outcome.NO_CAPACITY, detail="no capacity was found")
        if not session.begun:
            return Sight(Sighting.ENDED if over else Sighting.PENDING)
        sighting = self._shown(session)
        if sighting is Sighting.SAVING:
            return Sight(sighting, detail="its output is not there yet")
        if sighting is Sighting.RUNNING and self.scenario.shows_at_the_end:
            spoken = SpokenOutbox(session.begun, self._at) if self.scenario.speaks else None
            return Sight(sighting, spoken, partial=True)
        ending = next((agent.ending for agent in session.begun if agent.ending), None) if over else None
        detail = next((agent.detail for agent in session.begun if agent.ending), "") if over else ""
        outbox = None if self._unreadable(session) is not None else self._outbox(session)
        return Sight(sighting, outbox, ending, detail)

    def _shown(self, session: _Session) -> Sighting:
        """What it says of a session that has begun."""
        if session.over(self._at):
            return session.leaving.sighting(self._at - session.over_at)
        hides = self.scenario.shows_at_the_end and session.seems_over(self._at)
        return Sighting.SAVING if hides else Sighting.RUNNING

    def _unreadable(self, session: _Session) -> str | None:
        """Why the outbox cannot be read now, if so."""
        if self.scenario.uplink is Uplink.SHARED:
            return None
        if not self.scenario.shows_at_the_end:
            return "its outbox is in the store"
        if self._shown(session) is not Sighting.ENDED:
            return "the outbox can be read only once the session has ended"
        if session.outbox_lost or any(agent.ending for agent in session.begun):
            return "the session left nothing"
        return None

    def open(self, name: str) -> Outbox:
        self.history.collects.append((self.clock.elapsed(), name))
        with self._verb("collect"):
            session = self._sessions.get(name)
            if session is None or not session.begun or session.discarded:
                raise NotFound(f"no outbox of {name}")
            if self.scenario.shows_at_the_end and self._shown(session) is not Sighting.ENDED:
                raise Transient(f"{name} has not ended")
            unreadable = self._unreadable(session)
            if unreadable is not None or any(a.fate.outbox_hidden for a in session.hidden(self._at)):
                raise NotFound(unreadable or f"no outbox of {name}")
            return self._outbox(session)

    def _outbox(self, session: _Session) -> Outbox:
        """What its incarnations left, as one."""
        partial = session.over(self._at) and self._at - session.over_at < session.leaving.whole
        return (PartialOutbox if partial else SimulatedOutbox)(session.begun, self._at)

    def stop(self, name: str) -> StopReply:
        with self._verb("stop"):
            self.history.stops.append((self._at, name))
            session = self._sessions.setdefault(name, _Session())
            if session.launched_at is None:
                session.stopped = True
                return StopReply.ENDED
            if session.over(self._at):
                return StopReply.ENDED
            if self._at < session.visible_at or session.hidden(self._at):
                raise Transient(f"404: no session {name}")
            if not self.scenario.can_stop:
                return StopReply.IMPOSSIBLE
            if not session.stop_ignored:
                self._stop(session)
            return StopReply.REQUESTED

    def _stop(self, session: _Session) -> None:
        if session.stopped:
            return
        session.stopped = True
        heard_at = self._at + self._random.random() * self.faults.stop_slow_seconds
        if session.starved_at is not None:
            session.starved_at = min(session.starved_at, heard_at)
        for agent in session.agents:
            if agent.began:
                agent.stop(heard_at)
            else:
                agent.kill(heard_at, Outcome.STOPPED, "cancelled before it started")

    def discard(self, name: str) -> None:
        with self._verb("discard"):
            session = self._visible(name)
            if session is not None and (not session.over(self._at) or self._still_runs(session)):
                raise Rejected(f"{name} is still running")
            known = self._sessions.get(name)
            if known is not None:
                alive = known.launched_at is not None and not known.over(self._at)
                self.history.discards.append(Discarded(self._at, name, alive))
                known.discarded = True

    def _still_runs(self, session: _Session) -> bool:
        """Whether it still counts as running, although it is over."""
        return bool(session.begun) and self._shown(session) is Sighting.RUNNING

    # --- for tests --------------------------------------------------------------------------------------

    def complete_at(self, name: str) -> float:
        """When everything that a session leaves is there; infinity: not by itself, or it still runs."""
        session = self._sessions[name]
        nothing = session.outbox_lost or not session.begun or any(agent.ending for agent in session.begun)
        return math.inf if nothing else session.over_at + session.leaving.whole

    def corrupt(self, name: str) -> str:
        """Alters a blob of the newest checkpoint in a session's outbox; returns the checkpoint's name."""
        self._advance()
        agent = self._sessions[name].begun[0]
        newest = max(agent.checkpoints)
        sha256 = agent.checkpoints[newest].files[0].parts[0].sha256
        agent.blobs[sha256] = b"\0" + agent.blobs[sha256][1:]
        return newest


def configured(name: str, options: Scenario, folder: Path, clock: Clock) -> SimulatedPlatform:
    """The platform as the user configured it. Everything is in memory."""
    del folder
    return SimulatedPlatform(name, options, clock)


def _resumed(order: Order, resume: Path | None) -> State:
    """The state in the staged checkpoint, verified as by an agent; the initial state without one."""
    if order.resume is None:
        return State(0, 0)
    if resume is None:
        raise Rejected(f"the order resumes at {order.resume}, but the materials have no checkpoint")
    try:
        data = (resume / manifest_path(order.resume)).read_bytes()
        authenticate(order.resume, data, order.resume_sha256)
        manifest = decode(order.resume, data)
        for sha256 in manifest.blobs():
            if digest_file(resume / blob_path(sha256)) != sha256:
                raise CorruptCheckpoint(order.resume, f"staged blob {sha256[:12]}… is altered")
        [entry] = [entry for entry in manifest.files if entry.path == STATE_FILE]
        return State.decode((resume / blob_path(entry.parts[0].sha256)).read_bytes())
    except FileNotFoundError as error:
        raise CorruptCheckpoint(order.resume, f"{error.filename} is not staged") from error
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpoint(order.resume, f"it has no training state ({error})") from error
