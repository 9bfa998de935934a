"""The routing rules: what the job, the user's config and the defaults require, avoid or prefer.

The job's rules come before the config's, and the config's before the defaults. Must never know how an
estimate is made, only its hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.job import Job, OfferPattern, Rule, RuleEffect, When
from orchestrator.core.offer import NEVER, UNDATED, Offer, Until, until_time

ORIGINS = ("job", "config", "default")
UNRANKED = len(ORIGINS)
HOME_TAGS = ("smoke", "debug")
LARGE_PARAMETERS = 500e6

DEFAULT_RULES: tuple[Rule, ...] = (
    *(
        Rule(f"{tag} runs spend no quota", RuleEffect.AVOID, OfferPattern(metered=True), When(tags=(tag,)))
        for tag in HOME_TAGS
    ),
    *(
        Rule(f"{tag} runs stay at home", RuleEffect.PREFER, OfferPattern(owned=True), When(tags=(tag,)))
        for tag in HOME_TAGS
    ),
    Rule(
        "very large models go to TPUs",
        RuleEffect.PREFER,
        OfferPattern(accelerators=("TPUv5e-1", "TPUv5e-8", "TPUv6e-1")),
        When(parameters=(LARGE_PARAMETERS, None)),
    ),
)


@dataclass(frozen=True)
class Ruling:
    """What the rules say about one offer: the rule that forbids it, or those that prefer it.

    `rank` is the position in ORIGINS of the first origin that prefers the offer; UNRANKED if none does.
    """

    forbidden: Rule | None = None
    preferred_by: tuple[str, ...] = ()
    rank: int = UNRANKED


INDIFFERENT = Ruling()


def in_force(
    job: Job, config: Iterable[Rule], *, now: float, utc_offset_seconds: float = 0.0
) -> tuple[Rule, ...]:
    """The rules that apply to this job now, in the order of ORIGINS. Some of them still depend on the offer.

    A rule replaces rules of the same name from later origins.
    """
    names: dict[str, str] = {}
    kept = []
    for rule in (*job.route.rules, *config, *DEFAULT_RULES):
        if names.setdefault(rule.name, rule.origin) == rule.origin and _holds(
            rule.when, job, now + utc_offset_seconds
        ):
            kept.append(rule)
    kept.sort(key=lambda rule: ORIGINS.index(rule.origin))
    return tuple(kept)


def consult(rules: Iterable[Rule], offer: Offer, expected_hours: float | None = None) -> Ruling:
    """What the rules say about an offer. Without `expected_hours`, rules that need them are skipped.

    If a rule prefers an offer, or requires its platform by name, rules of later origins cannot forbid it.
    """
    endorsed_by: str | None = None
    preferred: list[str] = []
    rank = UNRANKED
    for rule in rules:
        if not _holds_for(rule.when, offer, expected_hours):
            continue
        matches = matching(rule.offers, offer)
        if rule.effect is not RuleEffect.PREFER and matches == (rule.effect is RuleEffect.AVOID):
            if endorsed_by in (None, rule.origin):
                return Ruling(forbidden=rule)
        elif matches and (rule.effect is RuleEffect.PREFER or rule.offers.platforms):
            endorsed_by = endorsed_by or rule.origin
        if matches and rule.effect is RuleEffect.PREFER:
            preferred.append(rule.name)
            rank = min(rank, ORIGINS.index(rule.origin))
    return Ruling(None, tuple(preferred), rank) if preferred else INDIFFERENT


def asks_for_hours(rules: Iterable[Rule]) -> bool:
    """Whether any rule needs an estimate."""
    return any(rule.when.expected_hours is not None for rule in rules)


def objection_lasts(rule: Rule, offer: Offer, *, now: float, utc_offset_seconds: float = 0.0) -> Until:
    """Until when a rule forbids an offer: never ends if only a change of the job or config can end it."""
    if rule.when.hours_of_day is not None and rule.when.hours_of_day[0] != rule.when.hours_of_day[1]:
        hour = (now + utc_offset_seconds) / 3600 % 24
        return until_time(now + ((rule.when.hours_of_day[1] - hour) % 24) * 3600)
    if rule.when.quota_left_hours is not None and offer.quota is not None:
        refresh_at = offer.quota.refresh_at
        return UNDATED if refresh_at is None else until_time(refresh_at)
    return NEVER


def describe(rule: Rule) -> str:
    """One line about a rule, as `why` shows it."""
    pattern = rule.offers
    kinds = (("owned", pattern.owned), ("metered", pattern.metered))
    said = [*pattern.platforms, *pattern.accelerators]
    said += [word if value else f"not {word}" for word, value in kinds if value is not None]
    return f"{rule.origin} rule {rule.name!r}: {rule.effect.value} {', '.join(said) or 'any offer'}"


def matching(pattern: OfferPattern, offer: Offer) -> bool:
    """Whether a pattern matches an offer. An offer with a quota is metered, whatever its traits say."""
    metered = offer.traits.metered or offer.quota is not None
    return (
        (not pattern.platforms or offer.platform in pattern.platforms)
        and (not pattern.accelerators or offer.accelerator in pattern.accelerators)
        and pattern.owned in (None, offer.traits.owned)
        and pattern.metered in (None, metered)
    )


def _holds(when: When, job: Job, local_seconds: float) -> bool:
    if when.tags and not set(when.tags) <= set(job.tags):
        return False
    if when.hours_of_day is not None and not _within_day(when.hours_of_day, local_seconds):
        return False
    return _between(when.parameters, job.work.parameters) and _between(when.steps, job.work.total)


def _holds_for(when: When, offer: Offer, expected_hours: float | None) -> bool:
    left = float("inf") if offer.quota is None else offer.quota.left_seconds / 3600
    return _between(when.quota_left_hours, left) and _between(when.expected_hours, expected_hours)


def _between(limits: tuple[float | None, float | None] | None, value: float | None) -> bool:
    if limits is None:
        return True
    if value is None:
        return False
    low, high = limits
    return (low is None or value >= low) and (high is None or value <= high)


def _within_day(hours: tuple[float, float], local_seconds: float) -> bool:
    start, end = hours
    hour = local_seconds / 3600 % 24
    if start == end:
        return True
    return start <= hour < end if start < end else hour >= start or hour < end
