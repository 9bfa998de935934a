"""What one Colab account offers now, computed from what was read before. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from orchestrator.core.accelerators import catalogue
from orchestrator.core.offer import NEVER, Offer, Quota, Traits, Unavailable, Uplink, until_human, until_time
from orchestrator.platforms.colab.errand import UNKNOWN
from orchestrator.platforms.colab.options import HOUR, WORDS, ColabOptions
from orchestrator.platforms.colab.values import CPU, Assignment, Reading, Units, is_rate

POOL = "units"
SIGNUP = "https://colab.research.google.com/signup"
FREE_TIER = (
    "sessions without compute units may be ended at any time, and whether Google allows them to be started "
    "from a command line is not known"
)
# Until they are measured. Too high rather than too low, so that no session outlives the units
# (docs/references/colab.md#units).
RATES: Mapping[str, float] = MappingProxyType(
    {CPU: 0.1, "T4": 2.0, "L4": 5.0, "G4": 10.0, "A100": 13.0, "H100": 20.0, "V5E1": 4.0, "V6E1": 6.0}
)
SURPRISING_UNITS = 1.0
AGAIN_SECONDS = 6 * HOUR  # if the free tier is used up and Colab does not say when there is more
RETIRED = ("TPUv2-8",)
DISK_GB = 60.0  # free on every kind of machine: docs/references/colab.md#machines
MEMORY_GB, HIGH_MEMORY_GB = 12.0, 50.0
PENDING_SECONDS_MAX = 900.0  # between the launch and the agent's start: there is no queue


def offers(
    name: str, options: ColabOptions, units: Units, rates: Mapping[str, float], now: float,
    used: Iterable[str] = (),
) -> tuple[Offer, ...]:  # fmt: skip
    """One offer per accelerator. `rates` are the measured ones, by `kind`. An accelerator that is `used` by a
    session is listed although the options no longer have it, because the session takes a slot and units.
    Whoever offers only some hears nothing of the retired ones."""
    retired = tuple(
        Offer(name, each, Traits(owned=False), unavailable=Unavailable(catalogue[each].retired or "", NEVER))
        for each in RETIRED
        if set(options.accelerators) == set(WORDS)
    )
    open_ = tuple(_offer(name, options, units, rates, each, now) for each in options.accelerators)
    rest = (each for each in used if each in WORDS and each not in options.accelerators)
    closed = Unavailable("it is not in the `accelerators` of this platform", NEVER)
    left = (replace(_offer(name, options, units, rates, each, now), unavailable=closed) for each in rest)
    return (*open_, *left, *retired)


def _offer(
    name: str, options: ColabOptions, units: Units, rates: Mapping[str, float], accelerator: str, now: float
) -> Offer:
    word = WORDS[accelerator]
    rate = rates.get(kind(word, options.high_mem), RATES[word])
    memory_gb = HIGH_MEMORY_GB if options.high_mem else MEMORY_GB
    return Offer(
        platform=name,
        accelerator=accelerator,
        traits=_traits(options),
        slots=options.slots,
        slot_pool="machines",
        quota=_quota(units, rate),
        memory_gb=memory_gb if word == CPU else None,
        threads=options.threads,
        disk_gb=DISK_GB,
        unavailable=_closed(options, units, word, now),
    )


def is_paid(units: Units) -> bool:
    return units.balance > 0.0


def _quota(units: Units, rate: float) -> Quota | None:
    """How long the units last on a machine of this rate. None: Colab does not say what the free tier has."""
    if is_paid(units):
        return Quota.of_units(units.balance, rate, pool=POOL)
    if units.free_left is None:
        return None
    return Quota.of_units(max(0.0, units.free_left), rate, pool=POOL, refresh_at=units.free_refill_at)


def _closed(options: ColabOptions, units: Units, word: str, now: float) -> Unavailable | None:
    """Why the account gets no such machine now. Where Colab does not say, it is asked for one."""
    if not is_paid(units):
        if not options.free_tier:
            return Unavailable(
                f"this account has no compute units; {FREE_TIER}",
                until_human(f"buy units at {SIGNUP}", "or set `free_tier: true` for this platform"),
            )
        if units.free_left is not None and units.free_left <= 0.0:
            refill = units.free_refill_at
            again = refill if refill is not None and refill > now else now + AGAIN_SECONDS
            return Unavailable("the free tier's units are used up", until_time(again))
    if not is_entitled(units, word):
        has = ", ".join((*(units.gpus or ()), *(units.tpus or ()))) or "nothing but a CPU"
        return Unavailable(
            f"Colab gives this account no {word} now, but {has}",
            until_human(f"buy units or another plan at {SIGNUP}"),
        )
    return None


def is_entitled(units: Units, word: str) -> bool:
    """Whether Colab lets the account ask for this machine, as far as it says."""
    if word == CPU:
        return True
    listed = units.tpus if word.startswith("V") else units.gpus
    return listed is None or word in listed


def is_surprising(before: Units | None, now: Units) -> bool:
    """Whether units that were there are suddenly gone: one wrong answer must not send runs away."""
    return before is not None and before.balance > SURPRISING_UNITS and not is_paid(now)


def kind(word: str, high_mem: bool) -> str:
    """How rates are filed."""
    return f"{word}+" if high_mem else word


def measured(reading: Reading) -> tuple[str, float] | None:
    """What one kind of machine costs in units per hour, where that can be told: Colab only says what all
    machines of the account cost together."""
    units = reading.units
    if units is None or len(reading.assignments) != 1 or units.assignments not in (0, 1):
        return None
    [machine] = reading.assignments
    if machine.accelerator not in RATES or not is_rate(units.per_hour):
        return None
    return kind(machine.accelerator, machine.high_mem), units.per_hour


def is_substituted(machine: Assignment, accelerator: str) -> bool:
    """Whether Colab gave another machine than was asked for, as it may do without an error
    (docs/references/colab.md#accelerators). One that is not known yet is not."""
    return machine.accelerator not in (WORDS[accelerator], UNKNOWN)


def _traits(options: ColabOptions) -> Traits:
    return Traits(
        session_seconds=options.session_seconds,
        wall_margin_seconds=options.wall_margin_seconds,
        slack_seconds=options.slack_seconds,
        uplink=Uplink.STORE,
        fetches=True,
        silence_seconds=options.uplink_silence_seconds,
        visibility_seconds=options.visibility_seconds,
        absence_seconds=options.absence_seconds,
        pending_seconds_max=PENDING_SECONDS_MAX,
        poll_seconds=options.poll_seconds,
        setup_seconds=options.setup_seconds,
        owned=False,
        metered=True,
        internet=True,
    )
