"""The router as tables: a job and offers in; the choice, and every rejection with its `until`, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.core.estimate import INTERVAL_SECONDS, SHIP_SECONDS, UPLOAD_FACTOR, kept_seconds
from orchestrator.core.event import Cooldown
from orchestrator.core.job import (
    Claim,
    CostPhase,
    Job,
    Needs,
    OfferPattern,
    Precision,
    Prefer,
    Profile,
    RouteWish,
    Rule,
    RuleEffect,
    When,
    Work,
)
from orchestrator.core.offer import (
    NEVER,
    UNDATED,
    Offer,
    Quota,
    Rejection,
    Route,
    Traits,
    Unavailable,
    Until,
    UntilKind,
    Uplink,
    until_human,
    until_start,
    until_time,
)
from orchestrator.core.route import Verdict, commands, opens_at, plan, route, verdict
from orchestrator.core.speed import Measurement
from orchestrator.uplink import driving
from orchestrator.uplink.pace import Pace

HOUR, DAY = 3600.0, 86400.0
NOW = 1_790_000_000.0
FP16, BF16, FP32 = Precision.FP16, Precision.BF16, Precision.FP32

CLAIM = Claim((10, 25), 64, "T4/P100", "platform comparison", "2025-10-21")
WORK = Work(
    50_000,
    64,
    group=8,
    parameters=80.3e6,
    flops_per_step=25.7e12,
    phases=(CostPhase(0, 17e12), CostPhase(15_000, 25.7e12)),
)
PROFILES = (
    ("T4", Profile(16, FP16, 12, CLAIM)),
    ("T4x2", Profile(16, FP16, 12, CLAIM)),
    ("RTX3050", Profile(8, FP16, 7)),
    ("TPUv5e-1", Profile(16, BF16)),
    ("cpu", Profile(8, FP32)),
)
GRAPHMER = Job("graphmer", ("train",), WORK, PROFILES)
# No FLOPs and no claims: estimates are guesses, and only measurements say how fast it is.
PLAIN = Job("plain", ("train",), Work(1000, 64, group=8), (("default", Profile(8, FP32)),))

HOME = Traits()
KAGGLE = Traits(
    session_seconds=12 * HOUR,
    wall_margin_seconds=600,
    uplink=Uplink.NONE,
    durable_mid_run=False,
    setup_seconds=240,
    owned=False,
    metered=True,
    internet=True,
)
COLAB = Traits(
    session_seconds=12 * HOUR,
    wall_margin_seconds=HOUR,
    uplink=Uplink.STORE,
    setup_seconds=300,
    owned=False,
    metered=True,
    human_start=True,
    internet=True,
)
WEEK = Quota(30 * HOUR, NOW + 3 * DAY, 7 * DAY, 30 * HOUR)


def home(accelerator: str = "T4", **changes: Any) -> Offer:
    return replace(Offer("home", accelerator, HOME), **changes)


def kaggle(accelerator: str = "T4", **changes: Any) -> Offer:
    return replace(Offer("kaggle", accelerator, KAGGLE, slots=2, quota=WEEK), **changes)


def colab(accelerator: str = "T4", **changes: Any) -> Offer:
    return replace(Offer("colab", accelerator, COLAB), **changes)


def wish(job: Job, **changes: Any) -> Job:
    return replace(job, route=replace(job.route, **changes))


def measured(samples: float, accelerator: str = "cpu", precision: Precision = FP32) -> Measurement:
    return Measurement(accelerator, precision, 8, samples, 3600.0, NOW)


def only(found: Route) -> Rejection:
    assert found.chosen is None
    (rejection,) = found.rejections
    return rejection


def names(found: Route) -> list[str]:
    """The platforms and accelerators in the router's order."""
    assert found.chosen is not None
    return [f"{c.offer.platform}/{c.offer.accelerator}" for c in (found.chosen, *found.others)]


# --- Every rejection, with its reason and its until ------------------------------------------------------


@dataclass(frozen=True)
class No:
    """A case whose one offer is rejected: what the reason must say, and until when."""

    name: str
    offer: Offer
    says: str
    until: Until | UntilKind
    job: Job = GRAPHMER
    asked: Mapping[str, Any] = field(default_factory=dict)


SHORT = replace(HOME, session_seconds=60.0, wall_margin_seconds=30.0, setup_seconds=30.0)
NIGHT = Rule(
    "no noise at night",
    RuleEffect.AVOID,
    OfferPattern(platforms=("home",)),
    When(hours_of_day=(22, 7)),
    "config",
)
HUMAN = until_human("kaggle auth login")
CLOSED = colab(unavailable=Unavailable("waiting for the notebook", until_start("open it")))
# 1,790,000,000 is 14:13:20 UTC; ten hours later it is 00:13:20.
MIDNIGHT = {"rules": (NIGHT,), "utc_offset_seconds": 10 * HOUR}
NOES = [
    No("unknown", home("t4"), "'t4' is neither in the catalogue nor in the config's `accelerators`", NEVER),
    No("retired", home("TPUv2-8"), "retired: Colab replaced it with TPUv5e-1", NEVER),
    No("no profile", home("A100"),
       "no profile for A100 and no default profile: add one under `A100`, `gpu` or `default`", NEVER),
    No("too small for its profiles", home("T4"), "its 15 GB are less than `gpu>=24GB` asks for: add one",
       NEVER, replace(PLAIN, profiles=tuple((f"gpu>={size}GB", Profile(8, FP32)) for size in (40, 24)))),
    No("platform", home(), "route.platforms allows only kaggle, colab", NEVER,
       wish(GRAPHMER, platforms=("kaggle", "colab"))),
    No("precision asked", home(), "route.precision asks for fp32, but the profile says fp16", NEVER,
       wish(GRAPHMER, precision=FP32)),
    No("not native", home(), "T4 has no native bf16, only fp16, fp32", NEVER,
       replace(GRAPHMER, profiles=(("T4", Profile(16, BF16)),))),
    No("indivisible", home("TPUv5e-8"), "no micro-batch up to 8 divides the global batch of 24 on "
       "8 devices in groups of 8", NEVER,
       replace(PLAIN, work=Work(10, 24, group=8))),
    No("memory", home(memory_gb=10.0), "needs 12 GB of memory per device, but T4 has 10", NEVER),
    No("memory of the job", home("cpu", memory_gb=4.0), "needs 6 GB of memory per device, but cpu has 4",
       NEVER,
       replace(PLAIN, needs=Needs(memory_gb=6))),
    No("disk", home(disk_gb=4.0), "needs 5 GB of disk, but only 4 are available", NEVER,
       replace(GRAPHMER, needs=Needs(disk_gb=5))),
    No("internet", home(), "needs internet access", NEVER, replace(GRAPHMER, needs=Needs(internet=True))),
    No("no images there", home(), "the job's code is in its image", NEVER,
       replace(GRAPHMER, needs=Needs(image=True))),
    No("no image given", home(traits=replace(HOME, custom_images=True, needs_image=True)),
       "the job names no image, and sessions there need one", NEVER, replace(GRAPHMER, image=None)),
    No("session too short", home(traits=SHORT),
       "a session of 30 s is too short for set-up (30 s), a step and a save (1 s)", NEVER),
    No("step too long", home("cpu", traits=replace(SHORT, setup_seconds=10.0)), "a step (2 min)", NEVER,
       wish(GRAPHMER, finish_within_seconds=1e12), {"done_steps": 20_000, "measurements": (measured(0.68),)}),
    No("beyond the horizon", home("cpu"),
       "would finish in 61 days, later than route.finish_within allows (30 days): "
       "50,000 steps at 0.00848 steps/s", NEVER),
    No("unavailable", home(unavailable=Unavailable("the box is off", until_time(NOW + 60))),
       "the box is off", until_time(NOW + 60)),
    No("unavailable, nobody knows until when", home(unavailable=Unavailable("busy", UNDATED)),
       "busy", UNDATED),
    No("access denied", kaggle(unavailable=Unavailable("no credentials", HUMAN)), "no credentials", HUMAN),
    No("secrets stay at home", kaggle(traits=replace(KAGGLE, secrets=False)), "lists secrets", NEVER,
       replace(GRAPHMER, secrets=("WANDB_API_KEY",))),
    No("cooling down", home(), "cooling down: no capacity", until_time(NOW + 90), asked={"cooldowns": (
        Cooldown("home", "T4", NOW + 90, "no capacity"), Cooldown("home", "T4", NOW + 30, "shorter"))}),
    No("cooling for good", home(), "given up for this run: out of memory", NEVER, asked={"cooldowns": (
        Cooldown("home", "T4", None, "out of memory"), Cooldown("home", "T4", NOW + 30, "shorter"))}),
    No("no slot", kaggle(), "no free slot: 2 of 2", UntilKind.SLOT, asked={"usage": {("kaggle", "T4"): 2}}),
    No("quota used up", kaggle(quota=replace(WEEK, left_seconds=0.0)), "0 s of quota left",
       until_time(NOW + 3 * DAY)),
    No("too little quota", kaggle(quota=replace(WEEK, left_seconds=1000.0)), "17 min of quota left, too",
       until_time(NOW + 3 * DAY)),
    No("quota, refresh unknown", kaggle(quota=Quota(0.0)), "it is not known when the quota is refreshed",
       UNDATED),
    No("a person must start it", CLOSED, "waiting for the notebook", until_start("open it")),
    No("required elsewhere", home(), "ruled out by the job rule 'only kaggle': require kaggle", NEVER,
       wish(GRAPHMER, rules=(Rule("only kaggle", RuleEffect.REQUIRE, OfferPattern(platforms=("kaggle",)),
                                  origin="job"),))),
    No("avoided at night", home(), "ruled out by the config rule 'no noise at night': avoid home",
       until_time(NOW + (7 * HOUR - 800)), asked=MIDNIGHT),
    No("a smoke test spends no quota", kaggle(), "'smoke runs spend no quota'", NEVER,
       replace(GRAPHMER, tags=("smoke",))),
    No("avoided by hours", home(), "'long ones elsewhere'", NEVER, asked={"rules": (
        Rule("long ones elsewhere", RuleEffect.AVOID, OfferPattern(owned=True),
             When(expected_hours=(10, None)), "config"),)}),
    No("avoided by quota", kaggle(), "'keep some quota'", until_time(NOW + 3 * DAY), asked={"rules": (
        Rule("keep some quota", RuleEffect.AVOID, OfferPattern(metered=True),
             When(quota_left_hours=(None, 40)), "config"),)}),
]  # fmt: skip


@pytest.mark.parametrize("no", NOES, ids=[no.name for no in NOES])
def test_rejections(no: No) -> None:
    rejection = only(route(no.job, [no.offer], now=NOW, **no.asked))
    assert no.says in rejection.reason
    if isinstance(no.until, UntilKind):
        assert rejection.until.kind is no.until
    else:
        assert rejection.until == no.until
    assert (rejection.platform, rejection.accelerator) == (no.offer.platform, no.offer.accelerator)


def test_what_could_change_is_told_before_what_never_fits() -> None:
    waits = kaggle("T4", slots=0)
    found = route(GRAPHMER, [kaggle("P100"), kaggle("RTX4090"), waits], now=NOW)
    assert [each.accelerator for each in found.rejections] == ["T4", "P100", "RTX4090"]


YESES: list[tuple[str, Job, Offer, dict[str, Any]]] = [
    ("cooldown over", GRAPHMER, home(), {"cooldowns": (Cooldown("home", "T4", NOW, "over"),)}),
    ("cooldown of another", GRAPHMER, home(), {"cooldowns": (Cooldown("home", "cpu", NOW + 9, "other"),)}),
    ("a slot is free", GRAPHMER, kaggle(), {"usage": {("kaggle", "T4"): 1}}),
    ("over the horizon, allowed", GRAPHMER, home("cpu"), {"allow_over_horizon": True}),
    ("a guess refuses nothing", replace(PLAIN, work=Work(10**9, 64)), home("cpu"), {}),
    ("a named platform may need a person", wish(GRAPHMER, platforms=("colab",)), colab(), {}),
    ("a stale survey's refresh is over", GRAPHMER,
     kaggle(quota=Quota(0.0, NOW - 60, 7 * DAY, 30 * HOUR)), {}),
    ("enough quota for what is left", GRAPHMER,
     kaggle(quota=replace(WEEK, left_seconds=1000.0)), {"done_steps": 49_990}),
    ("the rule sleeps by day", GRAPHMER, home(), {"rules": (NIGHT,)}),
    ("the job's word before a default", wish(replace(GRAPHMER, tags=("smoke",)), rules=(
        Rule("here", RuleEffect.REQUIRE, OfferPattern(platforms=("kaggle",)), origin="job"),)), kaggle(), {}),
    ("a rule replaces the default of its name", replace(GRAPHMER, tags=("smoke",)), kaggle(), {"rules": (
        Rule("smoke runs spend no quota", RuleEffect.AVOID, OfferPattern(platforms=("x",)),
             origin="config"),)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "job", "offer", "asked"), YESES, ids=[y[0] for y in YESES])
def test_what_does_not_reject(name: str, job: Job, offer: Offer, asked: dict[str, Any]) -> None:
    found = route(job, [offer], now=NOW, **asked)
    assert found.chosen is not None, (name, found.rejections)
    assert found.chosen.offer == offer


def test_thorough_tells_what_is_wrong_for_good_behind_what_is_wrong_now() -> None:
    busy = {("home", "cpu"): 1}
    assert only(route(GRAPHMER, [home("cpu")], now=NOW, usage=busy)).until.kind is UntilKind.SLOT
    assert only(route(GRAPHMER, [home("cpu")], now=NOW, usage=busy, thorough=True)).until == NEVER
    found = route(GRAPHMER, [home()], now=NOW, usage={("home", "T4"): 1}, thorough=True)
    assert only(found).until.kind is UntilKind.SLOT


# --- Micro-batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "caps", "expected"),
    [
        ("T4", {}, (16, 4, 1)),
        ("T4x2", {}, (16, 2, 2)),
        ("T4", {"T4": 12}, (8, 8, 1)),
        ("T4", {"T4": 8}, (8, 8, 1)),
        ("T4", {"T4x2": 8}, (16, 4, 1)),
        ("T4x2", {"T4x2": 15}, (8, 4, 2)),
    ],
)
def test_a_cap_leads_to_the_largest_valid_micro_batch(
    accelerator: str, caps: dict[str, int], expected: tuple[int, int, int]
) -> None:
    found = route(GRAPHMER, [home(accelerator)], now=NOW, micro_batch_caps=caps).chosen
    assert found is not None
    assert (found.micro_batch, found.accumulate, found.devices) == expected


def test_a_micro_batch_below_the_profiles_is_tried_whatever_its_memory() -> None:
    offer = home(memory_gb=10.0)
    assert route(GRAPHMER, [offer], now=NOW).chosen is None
    assert route(GRAPHMER, [offer], now=NOW, micro_batch_caps={"T4": 8}).chosen is not None


# --- The choice -----------------------------------------------------------------------------------------


def test_the_earliest_finish_wins() -> None:
    found = route(GRAPHMER, [home("RTX3050"), home("T4"), kaggle("T4x2")], now=NOW)
    assert names(found) == ["kaggle/T4x2", "home/T4", "home/RTX3050"]


def test_cheapest_spends_the_least_quota() -> None:
    offers = [kaggle("T4x2"), home("T4"), home("RTX3050")]
    found = route(wish(GRAPHMER, prefer=Prefer.CHEAPEST), offers, now=NOW)
    assert names(found) == ["home/T4", "home/RTX3050", "kaggle/T4x2"]


def test_what_needs_a_person_comes_last_even_if_faster() -> None:
    job = wish(GRAPHMER, platforms=("colab", "home"))
    found = route(job, [colab("T4x2"), home("RTX3050")], now=NOW)
    assert names(found) == ["home/RTX3050", "colab/T4x2"]


def prefer(platform: str, origin: str = "config") -> Rule:
    return Rule(
        f"{origin} likes {platform}", RuleEffect.PREFER, OfferPattern(platforms=(platform,)), origin=origin
    )


@pytest.mark.parametrize(
    ("samples", "chosen"), [(80.1, "slow"), (79.9, "fast"), (100.1, "slow"), (10.0, "fast")]
)
def test_a_preferred_offer_wins_within_a_quarter_of_the_best(samples: float, chosen: str) -> None:
    job = replace(PLAIN, profiles=(("T4", Profile(8, FP32)), ("L4", Profile(8, FP32))), work=Work(10**6, 64))
    rates = [measured(100.0, "L4"), measured(samples, "T4")] * 20
    offers = [Offer("fast", "L4", Traits()), Offer("slow", "T4", Traits())]
    found = route(job, offers, now=NOW, measurements=rates, rules=(prefer("slow"),))
    assert found.chosen is not None
    assert found.chosen.offer.platform == chosen
    assert any("slow" in rule for rule in found.rules)


def test_the_jobs_preference_goes_before_the_configs() -> None:
    offers = [Offer("a", "T4", Traits()), Offer("b", "T4", Traits())]
    job = wish(GRAPHMER, rules=(prefer("b", "job"),))
    found = route(job, offers, now=NOW, rules=(prefer("a"),))
    assert names(found) == ["b/T4", "a/T4"]
    assert found.chosen is not None
    assert found.chosen.preferred_by == ("job likes b",)


def test_a_smoke_test_stays_at_home_and_production_goes_where_it_is_done_first() -> None:
    offers = [home("T4"), kaggle("T4x2")]
    assert names(route(replace(GRAPHMER, tags=("production",)), offers, now=NOW))[0] == "kaggle/T4x2"
    assert names(route(replace(GRAPHMER, tags=("smoke",)), offers, now=NOW)) == ["home/T4"]


def test_a_very_large_model_prefers_a_tpu_not_much_slower() -> None:
    work = Work(100, 64, parameters=600e6)
    profiles = (("A100", Profile(8, BF16)), ("TPUv5e-1", Profile(8, BF16)))
    rates = [measured(100.0, "A100", BF16), measured(90.0, "TPUv5e-1", BF16)] * 5
    offers = [home("A100"), home("TPUv5e-1")]
    large = Job("large", ("train",), work, profiles)
    small = replace(large, work=replace(work, parameters=400e6))
    assert names(route(large, offers, now=NOW, measurements=rates))[0] == "home/TPUv5e-1"
    assert names(route(small, offers, now=NOW, measurements=rates))[0] == "home/A100"


# --- Estimates and plans --------------------------------------------------------------------------------


def test_one_t4_takes_the_hours_of_the_facts_in_two_sessions() -> None:
    # docs/references/training.md#claims: about 16 h, two 12-hour sessions, half a week's quota.
    found = route(GRAPHMER, [kaggle("T4")], now=NOW).chosen
    assert found is not None
    figures = found.estimate
    assert figures.sessions == 2
    assert figures.quota_seconds / HOUR == pytest.approx(16.4, rel=0.1)
    assert 15.5 < (figures.finish - NOW) / HOUR < 18.5
    assert figures.finish_low < figures.finish < figures.finish_high
    assert figures.expected_loss_seconds > 60
    assert "impossible" in figures.rate_source


def test_a_plan_walks_through_walls_and_quota_windows() -> None:
    job = wish(replace(GRAPHMER, work=replace(WORK, total=100_000)), finish_within_seconds=60 * DAY)
    offer = kaggle("T4", quota=replace(WEEK, left_seconds=20 * HOUR))
    found = route(job, [offer], now=NOW)
    hops = plan(job, found, now=NOW)
    assert found.chosen is not None
    assert [hop.why_it_ends for hop in hops] == ["session limit", "quota used up", "session limit", "done"]
    assert hops[0].start == NOW
    assert hops[2].start == NOW + 3 * DAY
    assert sum(hop.quota_seconds for hop in hops[:2]) <= 20 * HOUR
    assert [hop.from_step for hop in hops] == [0, *(hop.to_step for hop in hops[:-1])]
    assert hops[-1].to_step == 100_000
    assert hops[-1].end == pytest.approx(found.chosen.estimate.finish)
    assert sum(hop.quota_seconds for hop in hops) == pytest.approx(found.chosen.estimate.quota_seconds)


def test_a_plan_goes_on_from_the_steps_done() -> None:
    found = route(GRAPHMER, [home("T4")], now=NOW, done_steps=49_000)
    (hop,) = plan(GRAPHMER, found, now=NOW, done_steps=49_000)
    assert (hop.from_step, hop.to_step, hop.quota_seconds, hop.why_it_ends) == (49_000, 50_000, 0.0, "done")


def test_many_short_sessions_are_estimated_without_counting_each() -> None:
    traits = replace(HOME, session_seconds=60.0, setup_seconds=20.0)
    found = route(GRAPHMER, [home("T4", traits=traits)], now=NOW).chosen
    plain = route(GRAPHMER, [home("T4")], now=NOW).chosen
    assert found is not None
    assert plain is not None
    # 60 s sessions hold 39 s of training: set-up 20 s, save 1 s.
    ratio = (found.estimate.finish - NOW) / (plain.estimate.finish - NOW)
    assert ratio == pytest.approx(60 / 39, rel=0.02)
    assert found.estimate.sessions == pytest.approx((found.estimate.finish - NOW) / 60, abs=1.5)


def test_a_session_that_is_not_durable_may_lose_more_and_so_finishes_later() -> None:
    lost = replace(KAGGLE, durable_mid_run=False)
    kept = replace(lost, durable_mid_run=True, owned=True)
    risky = route(GRAPHMER, [kaggle("T4", traits=lost)], now=NOW).chosen
    safe = route(GRAPHMER, [kaggle("T4", traits=kept)], now=NOW).chosen
    assert risky is not None
    assert safe is not None
    assert risky.estimate.expected_loss_seconds > 10 * safe.estimate.expected_loss_seconds
    assert risky.estimate.finish > safe.estimate.finish


def test_an_uplink_loses_minutes_and_not_half_a_session() -> None:
    """As many sessions are lost with it as without: their platform is the same."""
    alone = replace(KAGGLE, hands_over=True)
    shipped = replace(alone, uplink=Uplink.STORE, durable_mid_run=True)
    losses = {}
    for traits in (alone, shipped):
        found = route(GRAPHMER, [kaggle("T4", traits=traits)], now=NOW).chosen
        assert found is not None
        losses[traits.uplink] = found.estimate.expected_loss_seconds
    assert losses[Uplink.STORE] < losses[Uplink.NONE] / 10


def test_slow_uploads_make_a_loss_larger() -> None:
    offer = kaggle("T4", traits=replace(KAGGLE, uplink=Uplink.STORE, durable_mid_run=True))
    small = replace(GRAPHMER, work=replace(WORK, parameters=1e6))
    large = replace(GRAPHMER, work=replace(WORK, parameters=2e9))
    assert kept_seconds(small, offer) == INTERVAL_SECONDS + SHIP_SECONDS
    assert kept_seconds(large, offer) == pytest.approx(UPLOAD_FACTOR * 24e9 / 24e6 + SHIP_SECONDS)
    assert kept_seconds(large, home("T4")) == INTERVAL_SECONDS


def test_the_estimate_knows_how_an_uplink_holds_back() -> None:
    assert (Pace().ship, driving._UPLOAD_FACTOR) == (SHIP_SECONDS, UPLOAD_FACTOR)


def test_measuring_moves_the_estimate_and_narrows_its_error_bar() -> None:
    rates = [Measurement("T4", FP16, 16, 64.0, 600.0, NOW, step=0)]
    before = route(GRAPHMER, [home("T4")], now=NOW).chosen
    after = route(GRAPHMER, [home("T4")], now=NOW, measurements=rates).chosen
    assert before is not None
    assert after is not None
    widths = [c.estimate.finish_high - c.estimate.finish_low for c in (before, after)]
    assert widths[1] < widths[0] / 5
    # 1 step/s in the cheap phase: 15,000 s, then 35,000 steps at 25.7 / 17 s.
    assert after.estimate.finish - NOW == pytest.approx(15_000 + 35_000 * 25.7 / 17, rel=0.02)


# --- What a submit does with it -------------------------------------------------------------------------

NO_SLOT = {("kaggle", "T4"): 2}
EMPTY = kaggle(quota=replace(WEEK, left_seconds=0.0))
DENIED = Offer("modal", "T4", KAGGLE, unavailable=Unavailable("no credentials", HUMAN))


@pytest.mark.parametrize(
    ("offers", "usage", "expected"),
    [
        ([], {}, Verdict.NEVER),
        ([home("A100"), home("cpu")], {}, Verdict.NEVER),
        ([home("A100"), DENIED], {}, Verdict.HUMAN),
        ([home("A100"), DENIED, CLOSED], {}, Verdict.START),
        ([home("A100"), DENIED, CLOSED, EMPTY], {}, Verdict.TIME),
        ([CLOSED, kaggle()], NO_SLOT, Verdict.SLOT),
        ([home("A100"), CLOSED, home("T4")], {}, Verdict.OK),
        ([home("A100"), colab()], {}, Verdict.OK),
    ],
)
def test_verdicts(offers: Sequence[Offer], usage: dict[tuple[str, str], int], expected: Verdict) -> None:
    assert verdict(route(GRAPHMER, offers, now=NOW, usage=usage)) is expected


def test_the_answer_names_the_date_and_the_commands() -> None:
    found = route(GRAPHMER, [EMPTY, DENIED, home("A100")], now=NOW)
    assert opens_at(found) == NOW + 3 * DAY
    assert commands(found) == ("kaggle auth login",)
    assert opens_at(route(GRAPHMER, [home("A100")], now=NOW)) is None


def test_the_default_horizon_is_the_designs() -> None:
    assert RouteWish().finish_within_seconds == 30 * DAY
