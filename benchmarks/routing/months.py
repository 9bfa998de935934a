"""Plays one month under one policy: the real market, router and `decide`, on platforms reduced to arithmetic.

A session sets up, trains at its true rate and saves every interval. It ends when it is done, at its budget,
or when the platform takes it away; then what it trained since the last save is lost. A platform that refuses
says so at once, and nothing is used. Every platform answers every survey at once and exactly.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.routing.traces import HORIZON, START, Arrival, Place, Trace
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.closing import cooldown
from orchestrator.core.estimate import interval_seconds, save_seconds
from orchestrator.core.event import TurnedAway
from orchestrator.core.lifecycle import Phase
from orchestrator.core.lifetimes import LIFETIMES_MAX, Lifetime, summed
from orchestrator.core.offer import Lifetimes, Offer, Traits
from orchestrator.core.profiles import profile_of
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.speed import MACHINE_SIGMA, Measurement
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import Surveyed

STALL_SECONDS = 0.3  # for which a training stands still at each save
INCARNATION = "aaaa"
TICK_SECONDS = 60.0  # a run that waits for a date is looked at so much later at most


@dataclass
class Spent:
    """Accelerator seconds by use; `best` is what the best interval would have left of all of them."""

    all: float = 0.0
    useful: float = 0.0
    best: float = 0.0


@dataclass
class Stay:
    """One session that runs, and how it will end."""

    place: Place
    start: float
    end: float
    samples: float  # that will be safe then
    lost: bool
    generation: int


@dataclass
class Story:
    """A run of the month, and what came of it."""

    arrival: Arrival
    record: RunRecord
    samples: float = 0.0
    began_at: float | None = None
    finished_at: float | None = None
    measured: tuple[Measurement, ...] = ()
    stay: Stay | None = None
    sessions: int = 0
    noise: Random = field(default_factory=Random)


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a month. Times in seconds."""

    finishes: tuple[float, ...]  # each run's, since it was submitted
    makespan: float
    waits: tuple[float, ...]  # until the first session
    spent: Spent
    expired: float  # seconds of quota that ended unused while runs waited that could have used them
    refreshed: float  # seconds of quota in all windows that ended before the month was over
    overspent: float
    sessions: int
    decisions: int
    unfinished: int


Decide = Callable[["Month"], float]


class Month:
    """The state that a policy looks at. It starts sessions with `launch`."""

    def __init__(self, trace: Trace, market: Market | None = None) -> None:
        self.trace = trace
        self.now = START
        self.market = market or Market(tuple(dict.fromkeys(offer.platform for offer in trace.offers)))
        self.offers = {(o.platform, o.accelerator): o for o in trace.offers}
        self.stories: dict[str, Story] = {}
        self.queued: dict[str, Story] = {}
        self.running: dict[str, Story] = {}
        self.spent = Spent()
        self.decisions = 0
        self._used = dict.fromkeys(trace.refresh_at, 0.0)  # of the window, in the pool's measure
        self._idle = dict.fromkeys(trace.refresh_at, 0.0)  # slot seconds in which runs waited instead
        self._counted_at = START
        self._refresh_at = dict(trace.refresh_at)
        self._expired = self._refreshed = self._overspent = 0.0
        self._lifetimes: dict[Place, list[Lifetime]] = {place: [] for place in self.offers}
        self._events: list[tuple[float, int, str, str]] = []
        self._count = 0

    # --- Playing ----------------------------------------------------------------------------------------

    def play(self, decide: Decide) -> Outcome:
        """`decide` looks at the month, launches, and returns when to be asked again at the latest."""
        for arrival in self.trace.arrivals:
            self._push(arrival.at, "arrives", arrival.job.name)
        for platform, at in self._refresh_at.items():
            self._push(at, "refreshes", platform)
        arrivals = {each.job.name: each for each in self.trace.arrivals}
        woken = math.inf
        while self._events and (self.queued or self.running or len(self.stories) < len(arrivals)):
            at = self._events[0][0]
            if at > START + HORIZON:
                break
            self._count_until(at)
            self.now = at
            while self._events and self._events[0][0] <= at:
                _, _, what, who = heapq.heappop(self._events)
                if what == "arrives":
                    self._arrives(arrivals[who])
                elif what == "ends":
                    self._ends(self.running[who])
                elif what == "refreshes":
                    self._refreshes(who)
            if not self.queued:
                continue
            if woken <= self.now:
                woken = math.inf
            wake = max(decide(self), self.now + TICK_SECONDS)
            if wake < woken and self.queued:
                woken = wake
                self._push(wake, "wakes", "")
        return self._outcome()

    def _push(self, at: float, what: str, who: str) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, who))

    def _arrives(self, arrival: Arrival) -> None:
        name = arrival.job.name
        story = Story(
            arrival, RunRecord(name, arrival.job, self.now), noise=Random(f"{self.trace.seed} {name}")
        )
        self.stories[name] = self.queued[name] = story

    # --- Quotas -----------------------------------------------------------------------------------------

    def surveyed(self) -> dict[str, tuple[Offer, ...]]:
        """The platforms' answers now."""
        found: dict[str, list[Offer]] = {}
        for offer in self.trace.offers:
            quota = offer.quota
            if quota is not None:
                assert quota.allowed_seconds is not None
                left = max(0.0, quota.allowed_seconds - quota.lasts(self._used[offer.platform]))
                quota = replace(quota, left_seconds=left, refresh_at=self._refresh_at[offer.platform])
            found.setdefault(offer.platform, []).append(replace(offer, quota=quota))
        return {platform: tuple(offers) for platform, offers in found.items()}

    def survey(self) -> None:
        """Gives the market the platforms' answers, and what our sessions use."""
        for platform, offers in self.surveyed().items():
            self.market.take(Surveyed(platform, offers), self.now)
        for place in self.market.losses.wanted:
            self.market.losses.learn(place, self._lifetimes[place])
        self.market.begin((story.record for story in self.running.values()), self.now)

    def _count_until(self, at: float) -> None:
        for story in self.running.values():
            assert story.stay is not None
            offer = self.offers[story.stay.place]
            if offer.quota is not None:
                seconds = at - max(self._counted_at, story.stay.start)
                self._used[offer.platform] += offer.quota.taken(seconds)
                over = offer.quota.lasts(self._used[offer.platform]) - (offer.quota.allowed_seconds or 0.0)
                self._overspent = max(self._overspent, over)
        for platform in self._used if self.queued else ():
            self._idle[platform] += self._free_slots(platform) * (at - self._counted_at)
        self._counted_at = at

    def _free_slots(self, platform: str) -> int:
        """The slots with a quota that would take a session now."""
        places = [place for place in self.offers if place[0] == platform]
        if all(self.trace.weather[place].refuses(self.now) for place in places):
            return 0
        taken = sum(s.stay is not None and s.stay.place[0] == platform for s in self.running.values())
        return max(0, self.offers[places[0]].slots - taken)

    def _refreshes(self, platform: str) -> None:
        offer = next(each for each in self.trace.offers if each.platform == platform)
        quota = offer.quota
        assert quota is not None
        assert quota.window_seconds is not None
        assert quota.allowed_seconds is not None
        left = quota.allowed_seconds - quota.lasts(self._used[platform])
        self._refreshed += quota.allowed_seconds
        self._expired += max(0.0, min(left, self._idle[platform]))
        self._used[platform] = self._idle[platform] = 0.0
        self._refresh_at[platform] += quota.window_seconds
        self._push(self._refresh_at[platform], "refreshes", platform)

    # --- Sessions ---------------------------------------------------------------------------------------

    def launch(self, story: Story, record: RunRecord) -> bool:
        """Starts the session that was just assigned to the record. False: the platform refuses it."""
        session = record.session
        assert session is not None
        order = session.order
        place = order.platform, order.accelerator
        weather = self.trace.weather[place]
        if weather.refuses(self.now):
            pause = cooldown(record, order, self.now, "no capacity")
            record = replace(record, phase=Phase.LAUNCHING)
            story.record = replace(
                apply(record, TurnedAway(self.now, "no capacity", pause)), phase=Phase.QUEUED
            )
            return False
        stay = self._stay(story, place, order.budget_seconds, record.generation)
        story.stay = stay
        story.sessions += 1
        story.began_at = self.now if story.began_at is None else story.began_at
        session = replace(session, launched_at=self.now, began_at=self.now, started_at=self.now)
        story.record = replace(record, session=session, phase=Phase.RUNNING)
        del self.queued[record.run]
        self.running[record.run] = story
        self._push(stay.end, "ends", record.run)
        return True

    def _stay(self, story: Story, place: Place, budget: float | None, generation: int) -> Stay:
        offer, rate = self.offers[place], story.arrival.rates[place[1]]
        rate *= math.exp(story.noise.gauss(0.0, MACHINE_SIGMA / 2))
        save = save_seconds(story.arrival.job, offer)
        setup = offer.traits.setup_seconds * story.noise.uniform(0.7, 1.3)
        interval = interval_seconds(story.arrival.job, replace(offer, lifetimes=self._lived(place)))
        slow = 1.0 + STALL_SECONDS / interval
        need = (story.arrival.samples - story.samples) / rate * slow
        longest = math.inf if budget is None else max(0.0, budget - setup - save)
        trained = min(need, longest)
        end = self.now + setup + trained + save
        lost_at = self.trace.weather[place].lost_after(self.now)
        if lost_at >= end:
            return Stay(place, self.now, end, trained / slow * rate, False, generation)
        safe = max(0.0, lost_at - self.now - setup - save)
        safe = min(trained, math.floor(safe / interval) * interval)
        return Stay(place, self.now, lost_at, safe / slow * rate, True, generation)

    def _lived(self, place: Place) -> Lifetimes | None:
        return summed(self._lifetimes[place][-LIFETIMES_MAX:], self.now)

    def _ends(self, story: Story) -> None:
        stay, record = story.stay, story.record
        assert stay is not None
        run = record.run
        offer, seconds = self.offers[stay.place], stay.end - stay.start
        del self.running[run]
        lived = Lifetime(self.now, seconds, stay.lost)
        self._lifetimes[stay.place].append(lived)
        self.market.losses.add(stay.place, lived)
        if offer.platform != "here" or offer.accelerator != "cpu":
            self.spent.all += seconds
            self.spent.useful += stay.samples / story.arrival.rates[stay.place[1]]
            self.spent.best += seconds * self._best(story, offer)
            if story.sessions == 1:  # which no run can do without
                self.spent.best -= offer.traits.setup_seconds + save_seconds(story.arrival.job, offer)
        story.samples += stay.samples
        work = story.arrival.job.work
        step = int(story.samples / work.global_batch + 1e-6)
        done = step >= work.total
        step = min(step, work.total)
        trained = max(0.0, seconds - offer.traits.setup_seconds)
        if trained > 60.0:
            rate = story.arrival.rates[stay.place[1]] * math.exp(story.noise.gauss(0.0, MACHINE_SIGMA / 2))
            profile = profile_of(story.arrival.job, Offer(*stay.place, Traits()))
            assert profile is not None
            measured = Measurement(stay.place[1], profile.precision, 8, rate, trained, self.now)
            story.measured = (*story.measured, measured)
        accepted = record.accepted
        if step > (accepted[-1].ref.step if accepted else 0):
            ref = CheckpointRef(step, record.generation, INCARNATION)
            accepted = (Accepted(ref, 1),)
            others = tuple(c for c in record.cooldowns if (c.platform, c.accelerator) != stay.place)
            record = replace(record, cooldowns=others)
        phase = Phase.DONE if done else Phase.QUEUED
        story.record = replace(record, session=None, phase=phase, accepted=accepted,
                               until=None, deferred=False)  # fmt: skip
        story.stay = None
        if done:
            story.finished_at = self.now
        else:
            self.queued[run] = story

    def _best(self, story: Story, offer: Offer) -> float:
        """The share of session time that the best interval leaves for training, in sessions of full length
        and at the true rate of losses: all but one set-up and save a session, and what losses and saves
        cost."""
        losses = self.trace.weather[offer.platform, offer.accelerator].losses
        every = (losses[-1] - START) / max(1, len(losses))
        setup, save = offer.traits.setup_seconds, save_seconds(story.arrival.job, offer)
        whole = offer.traits.session_seconds
        ends = 0.0 if whole is None else (setup + save) / (whole - offer.traits.wall_margin_seconds)
        return 1.0 - math.sqrt(2.0 * STALL_SECONDS / every) - (setup + save) / every - ends

    def _outcome(self) -> Outcome:
        stories = self.stories.values()
        ends = [s.finished_at if s.finished_at is not None else START + HORIZON for s in stories]
        finishes = tuple(end - s.record.submitted_at for end, s in zip(ends, stories, strict=True))
        waits = tuple((s.began_at or START + HORIZON) - s.record.submitted_at for s in stories)
        return Outcome(finishes, max(ends) - START, waits, self.spent, self._expired, self._refreshed,
                       self._overspent, sum(s.sessions for s in stories), self.decisions,
                       sum(s.finished_at is None for s in stories))  # fmt: skip
