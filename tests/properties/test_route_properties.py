"""What holds for every job and all offers: no offer is dropped silently, and no limit is ignored."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.core.accelerators import catalogue
from orchestrator.core.estimate import expected_sessions, terms
from orchestrator.core.event import Cooldown
from orchestrator.core.job import (
    Claim,
    CostPhase,
    Job,
    Needs,
    OfferPattern,
    Precision,
    Profile,
    RouteWish,
    Rule,
    RuleEffect,
    When,
    Work,
)
from orchestrator.core.offer import Offer, Quota, Traits, Unavailable, UntilKind, until_human, until_time
from orchestrator.core.route import Verdict, plan, route, verdict
from orchestrator.core.speed import Measurement, rate, samples_for, seconds_for, step_after

NOW = 1_790_000_000.0
WEEK = 7 * 86400.0
NAMES = ["T4", "T4x2", "RTX3050", "TPUv2-8", "TPUv5e-8", "cpu", "nonsense"]
PLATFORMS = ["home", "kaggle", "colab"]

hours = st.floats(0, 60).map(lambda h: h * 3600)
claims = st.builds(
    lambda low, width: Claim((low, low * width), 64, "T4", "somebody", "2025"),
    st.floats(0.01, 1e3),
    st.floats(1, 3),
)
profiles = st.builds(
    Profile,
    st.sampled_from([1, 2, 8, 16, 48]),
    st.sampled_from(Precision),
    st.none() | st.floats(1, 40),
    st.none() | claims,
)


@st.composite
def works(draw: st.DrawFn) -> Work:
    total = draw(st.integers(1, 200_000))
    flops = draw(st.none() | st.floats(1e9, 1e14))
    starts = sorted(draw(st.sets(st.integers(1, total), max_size=3)))
    phases: tuple[CostPhase, ...] = ()
    if flops is not None and starts:
        phases = tuple(CostPhase(start, draw(st.floats(1e9, 1e14))) for start in (0, *starts))
    return Work(
        total,
        draw(st.sampled_from([16, 48, 64])),
        "steps",
        draw(st.sampled_from([1, 2, 8])),
        None,
        flops,
        phases,
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    table = draw(st.dictionaries(st.sampled_from([*NAMES, "default"]), profiles, max_size=6))
    wish = RouteWish(
        platforms=tuple(draw(st.sets(st.sampled_from(PLATFORMS), max_size=2))),
        finish_within_seconds=draw(st.sampled_from([3600.0, 30 * 86400.0, 1e15])),
    )
    needs = Needs(draw(st.floats(0, 20)), draw(st.floats(0, 20)), draw(st.booleans()))
    tags = tuple(draw(st.sets(st.sampled_from(["smoke", "production"]), max_size=1)))
    return Job("job", ("train",), draw(works()), tuple(table.items()), tags=tags, needs=needs, route=wish)


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    refresh = draw(st.none() | st.floats(-3600, WEEK).map(lambda s: NOW + s))
    return Quota(draw(hours), refresh, draw(st.none() | st.just(WEEK)), draw(st.none() | hours))


traits = st.builds(
    Traits,
    session_seconds=st.none() | st.floats(1, 12 * 3600),
    wall_margin_seconds=st.floats(0, 600),
    setup_seconds=st.floats(0, 600),
    durable_mid_run=st.booleans(),
    owned=st.booleans(),
    metered=st.booleans(),
    human_start=st.booleans(),
    internet=st.booleans(),
)
outages = st.sampled_from(
    [Unavailable("off", until_time(NOW + 60)), Unavailable("denied", until_human("log in"))]
)
offer_lists = st.lists(
    st.builds(
        Offer,
        st.sampled_from(PLATFORMS),
        st.sampled_from(NAMES),
        traits,
        st.integers(0, 2),
        st.none() | quotas(),
        memory_gb=st.none() | st.floats(1, 40),
        disk_gb=st.none() | st.floats(1, 40),
        unavailable=st.none() | outages,
    ),
    max_size=5,
    unique_by=lambda offer: (offer.platform, offer.accelerator),
)

# Jobs and offers that mostly fit each other, so that properties of choices have choices to look at.
FITTING = ["T4", "T4x2", "RTX3050", "cpu"]
modest = st.builds(Profile, st.sampled_from([8, 16]), st.just(Precision.FP32), st.none() | st.floats(1, 8))
fitting_jobs = st.builds(
    lambda work, default, table, within: Job(
        "job",
        ("train",),
        replace(work, global_batch=64),
        (("default", default), *table.items()),
        route=RouteWish(finish_within_seconds=within),
    ),
    works(),
    modest,
    st.dictionaries(st.sampled_from(FITTING), modest, max_size=2),
    st.sampled_from([30 * 86400.0, 1e15]),
)
fitting_offers = st.lists(
    st.builds(
        Offer,
        st.sampled_from(PLATFORMS),
        st.sampled_from(FITTING),
        st.builds(
            Traits,
            session_seconds=st.none() | st.floats(1800, 12 * 3600),
            wall_margin_seconds=st.floats(0, 600),
            setup_seconds=st.floats(0, 600),
            durable_mid_run=st.booleans(),
            owned=st.booleans(),
            human_start=st.booleans(),
        ),
        st.integers(1, 2),
        st.none() | quotas(),
        unavailable=st.none() | outages,
    ),
    min_size=2,
    max_size=5,
    unique_by=lambda offer: (offer.platform, offer.accelerator),
)

ranges = st.none() | st.tuples(st.none() | st.floats(0, 100), st.none() | st.floats(0, 100))
rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from(RuleEffect),
        st.builds(
            OfferPattern,
            st.sampled_from([(), ("home",), ("kaggle", "colab")]),
            st.sampled_from([(), ("T4",), ("cpu", "T4x2")]),
            st.sampled_from([None, True, False]),
            st.sampled_from([None, True, False]),
        ),
        st.builds(
            When,
            ranges,
            ranges,
            ranges,
            ranges,
            st.none() | st.tuples(st.floats(0, 23.9), st.floats(0, 23.9)),
        ),
        st.sampled_from(["config"]),
    ),
    max_size=2,
)
keys = st.tuples(st.sampled_from(PLATFORMS), st.sampled_from(NAMES))
questions = st.fixed_dictionaries(
    {
        "rules": rules,
        "measurements": st.lists(
            st.builds(
                Measurement,
                st.sampled_from(NAMES),
                st.sampled_from(Precision),
                st.sampled_from([8, 16]),
                st.floats(0.01, 1e5),
                st.floats(0, 1e4),
                st.floats(0, NOW),
                st.integers(0, 200_000),
            ),
            max_size=3,
        ),
        "usage": st.dictionaries(keys, st.integers(0, 2), max_size=3),
        "cooldowns": st.lists(
            st.builds(
                lambda key, until: Cooldown(key[0], key[1], until, "no capacity"),
                keys,
                st.none() | st.floats(-60, 60).map(lambda s: NOW + s),
            ),
            max_size=2,
        ),
        "micro_batch_caps": st.dictionaries(st.sampled_from(NAMES), st.integers(1, 16), max_size=2),
        "done_steps": st.integers(0, 100_000),
        "allow_over_horizon": st.booleans(),
        "thorough": st.booleans(),
    }
)


@given(jobs(), offer_lists, questions)
def test_every_offer_is_chosen_possible_or_rejected_with_a_reason(
    job: Job, offers: list[Offer], asked: dict[str, Any]
) -> None:
    found = route(job, offers, now=NOW, **asked)
    choices = [c for c in (found.chosen, *found.others) if c is not None]
    taken = [(c.offer.platform, c.offer.accelerator) for c in choices]
    refused = [(r.platform, r.accelerator) for r in found.rejections]
    assert sorted(taken + refused) == sorted((o.platform, o.accelerator) for o in offers)
    assert (found.chosen is None) == (not choices)
    assert (verdict(found) is Verdict.OK) == (found.chosen is not None)
    for rejection in found.rejections:
        assert rejection.reason
        assert rejection.until.at is None or rejection.until.kind is UntilKind.TIME
        assert rejection.until.at is None or rejection.until.at >= NOW


@given(fitting_jobs, fitting_offers, questions)
def test_a_choice_keeps_the_mathematics_and_all_limits(
    job: Job, offers: list[Offer], asked: dict[str, Any]
) -> None:
    found = route(job, offers, now=NOW, **asked)
    for choice in [c for c in (found.chosen, *found.others) if c is not None]:
        offer, figures = choice.offer, choice.estimate
        assert choice.micro_batch * choice.accumulate * choice.devices == job.work.global_batch
        assert choice.micro_batch % job.work.group == 0
        assert choice.micro_batch <= asked["micro_batch_caps"].get(offer.accelerator, choice.micro_batch)
        assert asked["usage"].get((offer.platform, offer.accelerator), 0) < offer.slots
        assert offer.unavailable is None
        assert NOW <= figures.finish < math.inf
        assert NOW <= figures.finish_low <= figures.finish * (1 + 1e-9)
        assert figures.finish <= figures.finish_high * (1 + 1e-9)
        assert figures.expected_loss_seconds >= 0
        assert (figures.quota_seconds > 0) <= (offer.quota is not None)


@given(fitting_jobs, fitting_offers, questions)
def test_relaxing_what_is_full_or_forbidden_never_rejects_the_chosen(
    job: Job, offers: list[Offer], asked: dict[str, Any]
) -> None:
    before = route(job, offers, now=NOW, **asked).chosen
    assume(before is not None)
    assert before is not None
    relaxed = [
        replace(offer, slots=offer.slots + 1, memory_gb=500.0, disk_gb=None, unavailable=None)
        for offer in offers
    ]
    asked = asked | {"usage": {}, "cooldowns": [], "allow_over_horizon": True}
    after = route(job, relaxed, now=NOW, **asked)
    refused = [(r.platform, r.accelerator) for r in after.rejections]
    assert (before.offer.platform, before.offer.accelerator) not in refused


@given(
    need=st.floats(1, 90 * 86400),
    left=hours,
    allowed=st.floats(1, 60).map(lambda h: h * 3600),
    refresh=st.floats(0, WEEK),
    wall=st.none() | st.floats(1800, 12 * 3600),
    setup=st.floats(0, 300),
)
def test_simulated_sessions_never_exceed_a_quota_window_or_the_wall(
    need: float, left: float, allowed: float, refresh: float, wall: float | None, setup: float
) -> None:
    job = Job("job", ("train",), Work(1, 1), ())
    quota = Quota(left, NOW + refresh, WEEK, allowed)
    offer = Offer("kaggle", "T4", Traits(session_seconds=wall, setup_seconds=setup), quota=quota)
    limits = terms(job, offer)
    found = []
    for each in expected_sessions(need, offer, limits, NOW):
        found.append(each)
        if len(found) == 60:
            break
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert all(wall is None or each.end - each.start <= wall + 1e-3 for each in found)
    assert all(each.productive > 0 for each in found)
    if found[-1].last:
        assert math.isclose(sum(each.productive for each in found), need)
    window_ends = [NOW + refresh + i * WEEK for i in range(60)]
    for i, end in enumerate(window_ends):
        start = -math.inf if i == 0 else window_ends[i - 1]
        used = sum(max(0.0, min(each.end, end) - max(each.start, start)) for each in found)
        assert used <= (left if i == 0 and refresh > 0 else allowed) + 1e-3


@given(fitting_jobs, fitting_offers, st.integers(0, 100_000))
def test_a_plan_is_the_estimate_told_hop_by_hop(job: Job, offers: list[Offer], done: int) -> None:
    done = min(done, job.work.total)
    found = route(job, offers, now=NOW, done_steps=done)
    hops = plan(job, found, now=NOW, done_steps=done, limit=64)
    assume(hops)
    assert found.chosen is not None
    assert hops[0].from_step == done
    assert all(hop.from_step <= hop.to_step <= job.work.total for hop in hops)
    assert all(a.to_step == b.from_step and a.end <= b.start for a, b in pairwise(hops))
    if hops[-1].why_it_ends == "done":
        assert hops[-1].to_step == job.work.total
        assert math.isclose(hops[-1].end, found.chosen.estimate.finish, rel_tol=1e-9)
        assert len(hops) == found.chosen.estimate.sessions


@given(
    works(),
    profiles,
    st.sampled_from(["T4", "RTX3050", "cpu"]),
    st.integers(0, 200_000),
    st.integers(0, 200_000),
)
def test_time_adds_up_over_steps_and_can_be_undone(
    work: Work, profile: Profile, name: str, a: int, b: int
) -> None:
    assume(profile.precision in catalogue[name].precisions)
    found = rate(work, profile, catalogue[name])
    assert 0 < found.low <= found.samples_per_second <= found.high
    assert found.bound is None or found.high <= found.bound
    middle, end = sorted((min(a, work.total), min(b, work.total)))
    whole = seconds_for(work, 0, end, found)
    assert math.isclose(
        seconds_for(work, 0, middle, found) + seconds_for(work, middle, end, found), whole, abs_tol=1e-9
    )
    assert samples_for(work, 0, end) >= samples_for(work, 0, middle)
    assert abs(step_after(work, 0, whole, found) - end) <= 1e-9 * end + 1
