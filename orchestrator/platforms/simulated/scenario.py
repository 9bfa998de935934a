"""The properties of a simulated platform and its faults: values, and intervals drawn from them.

Knows no session and no protocol. Every draw comes from its own seeded generator, so that the same seed, clock
and sequence of calls give the same world again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random

from orchestrator.core.offer import Traits, Uplink


@dataclass(frozen=True)
class Faults:
    """Rates are probabilities from 0 to 1: of a call, a launch, an incarnation, a session or a checkpoint."""

    request_lost: float = 0.0  # call: Transient, and nothing was done
    reply_lost: float = 0.0  # call: Transient, after it was done
    launch_started_but_failed: float = 0.0  # launch: as above, only for launches
    double_start: float = 0.0  # launch: a second incarnation of the same order, and both write
    starved: float = 0.0  # launch: accepted, pending, then ended for lack of capacity
    late_visible: float = 0.0  # launch: unseen for up to three times what the traits promise
    killed: float = 0.0  # incarnation: gone without a result; the platform reports or forgets it
    partitioned: float = 0.0  # incarnation: ABSENT for a while, but it still runs
    partition_seconds: float = 900.0  # at most
    crash: float = 0.0  # incarnation
    stall: float = 0.0  # incarnation: no more steps, until the agent notices
    freeze: float = 0.0  # incarnation: the agent's heart stops, the platform says "running"
    stop_ignored: float = 0.0  # session: stops are answered, but nothing happens
    stop_slow_seconds: float = 0.0  # stop: the longest delay until the agent gets it
    corrupt: float = 0.0  # checkpoint: a blob in the outbox is altered
    outbox_lost: float = 0.0  # session without uplink: its outbox never arrives
    running_on: float = 0.0  # session without uplink: it counts as running for a while after its end
    running_on_seconds: float = 60.0  # at most
    late_output: float = 0.0  # session without uplink: its output appears late
    partial_output: float = 0.0  # session without uplink: some of its output appears later than the rest
    late_output_seconds: float = 1200.0  # at most, for each of the two
    stuck_output: float = 0.0  # session without uplink: some or all of its output never appears by itself
    glitch: float = 0.0  # incarnation without uplink: it seems to have ended for a while, but it still runs
    glitch_seconds: float = 300.0  # at most
    wedged: float = 0.0  # incarnation: the agent's heart stops, and the session limit comes too late
    wedged_seconds: float = 3600.0  # at most
    late_effect: float = 0.0  # launch: Transient, and it takes effect later
    refused: float = 0.0  # launch: Refused, and nothing was started
    refusals_per_hour: float = 0.0  # every launch raises Refused
    refusal_seconds: float = 1800.0  # on average
    uplink_cut: float = 0.0  # incarnation: its uplink does not reach the store for a while
    uplink_cut_seconds: float = 1800.0  # at most
    uplink_dies: float = 0.0  # step of an uplink: its process dies right after it, and is started again
    outages_per_hour: float = 0.0  # every verb raises Transient
    outage_seconds: float = 300.0  # on average, as the two below
    denials_per_hour: float = 0.0  # every verb raises AccessDenied
    denial_seconds: float = 300.0
    shortages_per_hour: float = 0.0  # no capacity for any accelerator
    shortage_seconds: float = 1800.0
    quota_used_elsewhere: float = 0.0  # seconds of quota per second that somebody else uses


@dataclass(frozen=True)
class SimulatedOffer:
    """One accelerator. Above `micro_batch_max` it runs out of memory. `session_seconds` is the limit. With
    `units_per_hour` the platform's quota is a balance of units, and an hour here takes so many of them."""

    accelerator: str = "cpu"
    steps_per_second: float = 1.0
    slots: int = 1
    session_seconds: float | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    micro_batch_max: int | None = None
    units_per_hour: float = 0.0

    @property
    def quota_rate(self) -> float:
        """What a second takes of the quota."""
        return self.units_per_hour / 3600.0 if self.units_per_hour else 1.0


@dataclass(frozen=True)
class QuotaWindow:
    """Session seconds allowed in each window; units, if the offers have rates. The first window begins at the
    platform's creation."""

    allowed_seconds: float
    window_seconds: float


@dataclass(frozen=True)
class Scenario:
    """A platform without its faults. `uplink` is SHARED (the outbox is readable while a session runs), STORE
    (a process beside the agent ships it, every `uplink_seconds`) or NONE (readable only after its end, and a
    killed session leaves nothing). A session waits up to `queue_seconds` and `pending_seconds` for its start;
    offers state half of `queue_seconds`. `crash_at_step`: every session crashes there. `grace_seconds` after
    a stop, the platform kills a session that still runs. If a session `speaks`, its status is readable while
    it runs, even without an uplink. If it is not `readable_mid_run`, its outbox can be read only after its
    end, also if it ships; and a stop does not reach it, except through the store."""

    seed: int = 0
    offers: tuple[SimulatedOffer, ...] = (SimulatedOffer(),)
    faults: Faults = field(default_factory=Faults)
    quota: QuotaWindow | None = None
    uplink: Uplink = Uplink.SHARED
    visibility_seconds: float = 5.0
    absence_seconds: float = 0.0
    saving_seconds_max: float = 3600.0
    pending_seconds: float = 5.0
    queue_seconds: float = 0.0
    pending_seconds_max: float = 3600.0
    setup_seconds: float = 10.0
    save_seconds: float = 5.0
    checkpoint_seconds: float = 300.0
    heartbeat_seconds: float = 10.0
    uplink_seconds: float = 15.0
    stall_patience_seconds: float = 600.0
    grace_seconds: float = 60.0
    wall_margin_seconds: float = 0.0
    slack_seconds: float = 60.0
    poll_seconds: float = 2.0
    collect_seconds: float = 10.0
    can_stop: bool = True
    readable_mid_run: bool = True
    speaks: bool = False
    owned: bool = False
    internet: bool = True
    crash_at_step: int | None = None

    @property
    def shows_at_the_end(self) -> bool:
        """Whether a session's outbox can be read after its end, and not before."""
        return self.uplink is Uplink.NONE or not self.readable_mid_run

    def traits(self, offer: SimulatedOffer) -> Traits:
        return Traits(
            session_seconds=offer.session_seconds,
            wall_margin_seconds=self.wall_margin_seconds,
            slack_seconds=self.slack_seconds,
            uplink=self.uplink,
            durable_mid_run=self.uplink is not Uplink.NONE,
            readable_mid_run=self.readable_mid_run,
            hands_over=self.shows_at_the_end,
            visibility_seconds=self.visibility_seconds,
            absence_seconds=self.absence_seconds,
            saving_seconds_max=self.saving_seconds_max,
            pending_seconds_max=self.pending_seconds_max,
            poll_seconds=self.poll_seconds,
            collect_seconds=self.collect_seconds,
            silence_seconds=max(30.0, 5.0 * self.uplink_seconds * (self.uplink is Uplink.STORE)),
            setup_seconds=self.setup_seconds + self.pending_seconds,
            owned=self.owned,
            metered=self.quota is not None,
            internet=self.internet,
        )


@dataclass(frozen=True)
class Fate:
    """What will go wrong for one incarnation, drawn at its start. Times are clock.elapsed(); inf is never."""

    killed_at: float = math.inf
    forgotten: bool = False  # killed, and the platform has forgotten it
    hidden_from: float = math.inf
    hidden_until: float = math.inf
    outbox_hidden: bool = False
    glitch_from: float = math.inf
    glitch_until: float = math.inf
    wedged_seconds: float = 0.0
    crash_at: float = math.inf
    stall_at: float = math.inf
    freeze_at: float = math.inf
    corrupt: float = 0.0
    cut_from: float = math.inf
    cut_until: float = math.inf

    def spent(self, now: float) -> Fate:
        """The fate without everything that is still to come."""
        return Fate(
            killed_at=self.killed_at if self.killed_at <= now else math.inf,
            forgotten=self.forgotten,
            crash_at=self.crash_at if self.crash_at <= now else math.inf,
            stall_at=self.stall_at if self.stall_at <= now else math.inf,
            freeze_at=self.freeze_at if self.freeze_at <= now else math.inf,
            wedged_seconds=self.wedged_seconds if self.freeze_at <= now else 0.0,
            cut_from=self.cut_from,
            cut_until=min(self.cut_until, now),
        )


def draw_fate(faults: Faults, random: Random, start: float, horizon: float) -> Fate:
    """The fate of an incarnation that starts at `start` and would last about `horizon` seconds."""

    def moment(rate: float) -> float:
        at = start + random.random() * horizon
        return at if random.random() < rate else math.inf

    killed_at, forgotten = moment(faults.killed), random.random() < 0.5
    hidden_from, length = moment(faults.partitioned), random.uniform(0.1, 1.0) * faults.partition_seconds
    fate = Fate(
        killed_at=killed_at,
        forgotten=forgotten,
        hidden_from=hidden_from,
        hidden_until=hidden_from + length,
        outbox_hidden=random.random() < 0.5,
        crash_at=moment(faults.crash),
        stall_at=moment(faults.stall),
        freeze_at=moment(faults.freeze),
        corrupt=faults.corrupt,
    )
    if faults.glitch > 0.0:
        seems_over = moment(faults.glitch)
        fate = replace(fate, glitch_from=seems_over,
                       glitch_until=seems_over + random.random() * faults.glitch_seconds)  # fmt: skip
    if faults.wedged > 0.0 and (wedged_at := moment(faults.wedged)) < math.inf:
        fate = replace(fate, freeze_at=min(fate.freeze_at, wedged_at),
                       wedged_seconds=random.random() * faults.wedged_seconds)  # fmt: skip
    if faults.uplink_cut == 0.0:
        return fate
    cut_from, seconds = moment(faults.uplink_cut), random.random() * faults.uplink_cut_seconds
    if cut_from < math.inf and random.random() < 0.3:
        cut_from, seconds = start, faults.uplink_cut_seconds  # before its first message, and for long
    return replace(fate, cut_from=cut_from, cut_until=cut_from + seconds)


class Intervals:
    """Bad times of one kind: they come `per_hour` and last `seconds`, both on average."""

    def __init__(self, random: Random, per_hour: float, seconds: float, start: float) -> None:
        self._random = random
        self._pause = 3600.0 / per_hour if per_hour > 0 else math.inf
        self._length = seconds
        self._from = self._until = start
        self._next()

    def _next(self) -> None:
        if math.isinf(self._pause):
            self._from = self._until = math.inf
            return
        self._from = self._until + self._random.expovariate(1.0 / self._pause)
        self._until = self._from + self._random.expovariate(1.0 / self._length)

    def end(self, at: float) -> float | None:
        """When the bad time at `at` ends, or None in good times. `at` never decreases."""
        while at >= self._until:
            self._next()
        return self._until if at >= self._from else None
