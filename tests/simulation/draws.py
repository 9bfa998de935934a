"""The parts of a world, drawn from a seed: platforms with their faults, jobs, a store's bad days.

Knows no engine and plays nothing. Rates are drawn per kind of fault, so some platforms are well-behaved in
some ways.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from orchestrator.core.job import CheckpointPolicy, Claim, Job, Keep, Precision, Profile, Work
from orchestrator.core.offer import Uplink
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedOffer
from orchestrator.stores.faulty import FaultRates

HOUR = 3600.0
MICRO_BATCH = 8
SAVING_SECONDS_MAX = 400.0  # longer than two glitches in a row
ABSENCE_SECONDS = 2400.0  # longer than two partitions in a row


def draw_scenario(random: Random, number: int) -> Scenario:
    def rate(most: float) -> float:
        return random.choice((0.0, 0.0, most * random.random()))

    faults = Faults(
        request_lost=rate(0.1), reply_lost=rate(0.1), launch_started_but_failed=rate(0.3),
        double_start=rate(0.2), starved=rate(0.2), late_visible=rate(1.0), killed=rate(0.3),
        partitioned=rate(0.3), crash=rate(0.2), stall=rate(0.2), freeze=rate(0.2), stop_ignored=rate(0.3),
        stop_slow_seconds=rate(300.0), corrupt=rate(0.2), outbox_lost=rate(0.2), outages_per_hour=rate(1.0),
        denials_per_hour=rate(0.3), shortages_per_hour=rate(0.5),
    )  # fmt: skip
    accelerators = random.sample(("T4", "RTX3050", "P100", "cpu", "TPUv5e-1"), random.randint(1, 2))
    offers = tuple(
        SimulatedOffer(
            accelerator=accelerator,
            steps_per_second=random.uniform(0.5, 2.0),
            slots=random.randint(1, 2),
            session_seconds=random.choice((300.0, 600.0, 2400.0)),
            memory_gb=64.0,
            disk_gb=100.0,
            micro_batch_max=random.choice((None, None, 4, 2, 1)),
        )
        for accelerator in accelerators
    )
    quota = QuotaWindow(random.uniform(0.2, 0.6) * HOUR, 2 * HOUR) if random.random() < 0.5 else None
    seed = random.getrandbits(32)
    uplink = _uplink(random.random())
    if uplink is Uplink.STORE:
        faults = replace(faults, uplink_cut=Random(seed).choice((0.0, 0.3, 0.6)))
    scenario = Scenario(
        seed=seed, offers=offers, faults=faults, quota=quota, uplink=uplink,
        visibility_seconds=random.choice((5.0, 60.0, 60.0)), pending_seconds=random.choice((1.0, 60.0)),
        setup_seconds=20.0, save_seconds=5.0, checkpoint_seconds=random.choice((30.0, 100.0)),
        wall_margin_seconds=60.0, slack_seconds=120.0, poll_seconds=random.choice((10.0, 30.0)),
        can_stop=random.random() < 0.8, owned=number == 0,
    )  # fmt: skip
    return _drawn_apart(scenario, Random(scenario.seed))


def _drawn_apart(scenario: Scenario, random: Random) -> Scenario:
    """Features that platforms got later. They are drawn separately, so that the rest of a seed's world stays
    the same."""
    queued = _with_a_queue(scenario, random)
    read = replace(queued, collect_seconds=random.choice((10.0, 60.0, 300.0)))
    return _late_and_lying(_refusing(read, random), random)


def _with_a_queue(scenario: Scenario, random: Random) -> Scenario:
    """On some platforms sessions wait in a queue: often for longer than a session lasts, sometimes for longer
    than the platform promises."""
    if random.random() < 0.7:
        return scenario
    seconds = random.choice((900.0, 3600.0))
    promised = random.choice((1.5, 1.5, 0.6)) * seconds + scenario.pending_seconds
    return replace(scenario, queue_seconds=seconds, pending_seconds_max=promised)


def _refusing(scenario: Scenario, random: Random) -> Scenario:
    """On some platforms launches are refused for no good reason, or take effect late."""
    faults = replace(
        scenario.faults,
        refused=_rate(random, 0.2),
        refusals_per_hour=_rate(random, 0.3),
        late_effect=_rate(random, 0.15),
    )
    return replace(scenario, faults=faults)


def _late_and_lying(scenario: Scenario, random: Random) -> Scenario:
    """Without an uplink, work comes home at the end: late, in parts, or not before a person acts. Meanwhile
    the platform says that the session runs, that it is gone, or that it has ended."""
    if scenario.uplink is not Uplink.NONE:
        return scenario
    faults = replace(
        scenario.faults,
        running_on=_rate(random, 0.4),
        running_on_seconds=random.choice((60.0, 60.0, 1200.0)),
        late_output=_rate(random, 0.7),
        partial_output=_rate(random, 0.4),
        late_output_seconds=random.choice((300.0, 1500.0, 3000.0)),
        stuck_output=_rate(random, 0.1),
        partitioned=max(scenario.faults.partitioned, _rate(random, 0.5)),
        glitch=_rate(random, 0.4),
        glitch_seconds=150.0,
        wedged=_rate(random, 0.3),
    )
    return replace(
        scenario, faults=faults, absence_seconds=random.choice((0.0, ABSENCE_SECONDS, ABSENCE_SECONDS)),
        saving_seconds_max=SAVING_SECONDS_MAX, speaks=random.random() < 0.6,
    )  # fmt: skip


def _rate(random: Random, most: float) -> float:
    return random.choice((0.0, most))


def _uplink(drawn: float) -> Uplink:
    if drawn < 0.4:
        return Uplink.NONE
    return Uplink.SHARED if drawn < 0.75 else Uplink.STORE


def draw_job(random: Random, run: str) -> Job:
    claim = Claim((0.5, 2.0), 16, "any", "the simulation", "2026-11-20")
    profile = Profile(MICRO_BATCH, Precision.FP32, claim=claim)
    return replace(
        Job(
            name=run.split("-")[0],
            command=("train", "--steps", "{steps}", "--micro-batch", "{micro_batch}"),
            work=Work(total=random.choice((200, 600, 1500)), global_batch=16),
            profiles=(("default", profile),),
            bundle="0" * 64,
            seed=random.getrandbits(16),
        ),
        checkpoint=CheckpointPolicy(keep=Keep(last=random.randint(1, 3))),
        without_progress=random.choice((3, 6, 40)),
    )


def draw_rates(random: Random) -> FaultRates:
    """How often the home store fails."""
    full, hides = random.choice((0.0, 0.0, 0.05)), random.choice((0.0, 0.0, 0.1))
    return FaultRates(fails=0.03, loses_reply=0.03, tears=0.01, full=full, hides=hides, hidden_seconds=60.0)
