"""What a Colab account offers, by its units, what it may use, and the options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.core.accelerators import catalogue
from orchestrator.core.offer import NEVER, Offer, UntilKind, Uplink
from orchestrator.platforms.colab import checking, surveying
from orchestrator.platforms.colab.errand import UNKNOWN
from orchestrator.platforms.colab.memory import Memory
from orchestrator.platforms.colab.options import WORDS, ColabOptions
from orchestrator.platforms.colab.surveying import RATES, RETIRED
from orchestrator.platforms.colab.values import ACCELERATORS, CPU, Assignment, Reading, Units
from orchestrator.platforms.platform import Health

NOW = 1_795_000_000.0
HOUR = 3600.0
PAID = Units(
    balance=100.0, per_hour=0.0, assignments=0, gpus=("T4", "L4", "A100"), ineligible_gpus=("H100", "G4"),
    tpus=("V5E1",),
)  # fmt: skip
FREE = replace(PAID, balance=0.0, gpus=("T4",), tpus=())


def offered(units: Units = PAID, rates: dict[str, float] | None = None, **options: Any) -> dict[str, Offer]:
    found = surveying.offers("colab", ColabOptions(**options), units, rates or {}, NOW)
    return {each.accelerator: each for each in found}


# --- Words ------------------------------------------------------------------------------------------------


def test_every_accelerator_is_one_of_ours_and_one_of_the_command_lines() -> None:
    """Its command line takes any other word for an A100."""
    assert set(WORDS) <= set(catalogue)
    assert sorted(WORDS.values()) == sorted(ACCELERATORS)
    assert set(RATES) == set(ACCELERATORS)


@pytest.mark.parametrize("name", ["T4x2", "a100", "V100", "TPUv5e-8", "NONE", "G4", ""])
def test_an_accelerator_that_colab_lacks_is_refused_in_the_config(name: str) -> None:
    with pytest.raises(ValidationError, match="it has T4, L4, A100"):
        ColabOptions(accelerators=("T4", name))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"auth": "adc"}, "set adc_file"),
        ({"adc_file": "/a"}, "set adc_file"),
        ({"session_seconds": 60.0}, "not shorter than a session"),
        ({"python": "python3"}, "absolute path"),
        ({"uplink": False}, "True"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ColabOptions(**options)


# --- Offers -----------------------------------------------------------------------------------------------


def test_what_the_account_may_use_is_offered_and_the_rest_says_why() -> None:
    found = offered()
    open_ = {name for name, offer in found.items() if offer.unavailable is None}
    assert open_ == {"cpu", "T4", "L4", "A100", "TPUv5e-1"}
    closed = found["RTXPRO6000"].unavailable
    assert closed is not None
    assert closed.until.kind is UntilKind.HUMAN
    assert "no G4 now, but T4, L4, A100, V5E1" in closed.reason
    for name in RETIRED:
        retired = found[name].unavailable
        assert retired is not None
        assert retired.until == NEVER
    assert set(offered(accelerators=("cpu", "T4"))) == {"cpu", "T4"}


def test_where_colab_does_not_say_what_the_account_may_use_everything_is_tried() -> None:
    bare = replace(PAID, gpus=None, ineligible_gpus=None, tpus=None)
    assert {name for name, offer in offered(bare).items() if offer.unavailable is None} == set(WORDS)


def test_the_balance_is_the_quota_of_all_at_each_ones_rate() -> None:
    found = offered(rates={"T4": 1.25})
    t4, a100 = found["T4"].quota, found["A100"].quota
    assert t4 is not None
    assert a100 is not None
    assert t4.left_seconds == pytest.approx(80 * HOUR)
    assert a100.left_seconds == pytest.approx(100 / RATES["A100"] * HOUR)
    assert (t4.pool, t4.units_per_hour) == (a100.pool, 1.25)
    assert t4.taken(HOUR) == pytest.approx(1.25)


def test_a_machine_with_more_memory_has_a_rate_of_its_own() -> None:
    offer = offered(rates={"cpu": 9.0, f"{CPU}+": 0.5, CPU: 0.1}, high_mem=True)["cpu"]
    assert offer.quota is not None
    assert offer.quota.units_per_hour == 0.5
    assert offer.memory_gb == surveying.HIGH_MEMORY_GB


def test_sessions_ship_and_fetch_and_all_machines_share_the_slots() -> None:
    offers = [each for each in offered(slots=2).values() if each.accelerator in WORDS]
    assert {each.slots for each in offers} == {2}
    assert len({each.slot_pool for each in offers}) == 1
    traits = offers[0].traits
    assert traits.uplink is Uplink.STORE
    assert traits.fetches
    assert traits.durable_mid_run
    assert traits.readable_mid_run
    assert traits.metered
    assert not traits.owned


# --- Without units ----------------------------------------------------------------------------------------


def test_without_units_a_person_must_act_and_is_told_the_risk() -> None:
    for name in WORDS:
        closed = offered(FREE)[name].unavailable
        assert closed is not None
        assert closed.until.kind is UntilKind.HUMAN
        assert "no compute units" in closed.reason
        assert "may be ended at any time" in closed.reason
        assert any("free_tier: true" in each for each in closed.until.commands)


def test_the_free_tier_is_used_only_if_that_was_chosen() -> None:
    found = offered(FREE, free_tier=True)
    assert {name for name, offer in found.items() if offer.unavailable is None} == {"T4", "cpu"}
    assert found["T4"].quota is None  # Colab does not say


def test_the_free_tiers_own_units_are_its_quota() -> None:
    left = replace(FREE, free_left=4.0, free_refill_at=NOW + HOUR)
    quota = offered(left, {"T4": 2.0}, free_tier=True)["T4"].quota
    assert quota is not None
    assert (quota.left_seconds, quota.refresh_at) == (2 * HOUR, NOW + HOUR)


@pytest.mark.parametrize(("refill", "until"), [(HOUR, HOUR), (-HOUR, 6 * HOUR), (None, 6 * HOUR)])
def test_a_free_tier_that_is_used_up_is_waited_for(refill: float | None, until: float) -> None:
    at = None if refill is None else NOW + refill
    spent = replace(FREE, free_left=0.0, free_refill_at=at)
    closed = offered(spent, free_tier=True)["T4"].unavailable
    assert closed is not None
    assert (closed.until.kind, closed.until.at) == (UntilKind.TIME, NOW + until)


def test_units_that_are_suddenly_gone_are_read_again() -> None:
    assert surveying.is_surprising(PAID, FREE)
    assert not surveying.is_surprising(replace(PAID, balance=0.5), FREE)
    assert not surveying.is_surprising(PAID, PAID)
    assert not surveying.is_surprising(None, FREE)


# --- Rates ------------------------------------------------------------------------------------------------


def reading(*machines: Assignment, per_hour: float) -> Reading:
    return Reading(machines, units=replace(PAID, per_hour=per_hour, assignments=len(machines)))


def test_what_a_machine_costs_is_learned_while_it_runs_alone() -> None:
    t4 = Assignment("m1", "T4")
    assert surveying.measured(reading(t4, per_hour=1.2)) == ("T4", 1.2)
    assert surveying.measured(reading(Assignment("m1", "T4", high_mem=True), per_hour=1.5)) == ("T4+", 1.5)
    assert surveying.measured(reading(t4, Assignment("m2", "L4"), per_hour=3.0)) is None
    assert surveying.measured(reading(per_hour=1.2)) is None


@pytest.mark.parametrize("per_hour", [0.0, -1.0, 1e-9, 1e9, float("nan"), float("inf")])
def test_an_impossible_rate_is_not_learned(per_hour: float) -> None:
    assert surveying.measured(reading(Assignment("m1", "T4"), per_hour=per_hour)) is None


@pytest.mark.parametrize("text", ['{"T4": 0.0}', '{"T4": -2}', '{"T4": 1e-9}', '{"T4": NaN}', '{"T4'])
def test_an_impossible_rate_on_record_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "rates.json").write_text(f'{{"measured": {text}}}')
    assert Memory(tmp_path).rates() == {}


def test_a_machine_whose_accelerator_is_not_known_yet_is_the_one_that_was_ordered() -> None:
    assert not surveying.is_substituted(Assignment("m1", UNKNOWN), "T4")
    assert surveying.is_substituted(Assignment("m1", CPU), "T4")


def test_a_machine_that_nobody_knows_teaches_nothing() -> None:
    assert surveying.measured(reading(Assignment("m1", "B200"), per_hour=9.0)) is None


# --- Doctor -----------------------------------------------------------------------------------------------


def test_doctor_says_what_is_left_what_may_be_used_and_what_runs() -> None:
    running = reading(Assignment("m1", "T4"), per_hour=1.25)
    assert running.units is not None
    units, accelerators, machines = checking.findings(ColabOptions(), running.units, {"T4": 1.25}, running)
    assert units.text == "100.0 compute units, 1.25 an hour in use: 80.0 hours at this rate"
    assert "T4 (1.25 units an hour), L4 (about" in accelerators.text
    assert accelerators.advice == "not for this account now: H100, RTXPRO6000, TPUv6e-1"
    assert machines.text == "1 running (T4), your own notebooks included"
    assert {each.health for each in (units, accelerators, machines)} == {Health.OK}
    plain = reading(Assignment("m1", CPU), per_hour=0.1)
    assert checking.findings(ColabOptions(), PAID, {}, plain)[-1].text.startswith(
        "1 running (without an accelerator)"
    )


@pytest.mark.parametrize(("free_tier", "health"), [(False, Health.MISSING), (True, Health.WARNING)])
def test_doctor_warns_of_an_account_without_units(free_tier: bool, health: Health) -> None:
    units = replace(FREE, free_left=4.0, free_refill_at=NOW)
    found = checking.findings(ColabOptions(free_tier=free_tier), units, {}, Reading(()))[0]
    assert found.health is health
    assert "no compute units; the free tier has 4.0 left, more at 2026" in found.text
    assert "may be ended at any time" in found.advice
