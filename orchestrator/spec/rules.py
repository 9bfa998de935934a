"""The routing rules of a job or config: `when` these hold, `require`, `avoid` or `prefer` those offers.

The one place that knows how a rule is written. Decides nothing about routes: `orchestrator.core.route` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from orchestrator.core.accelerator_words import unknown_accelerator
from orchestrator.core.job import OfferPattern, Rule, RuleEffect, When
from orchestrator.core.own_accelerators import NO_OWN, Own, row_named
from orchestrator.spec.document import Path, Problem, shown
from orchestrator.spec.fields import Amount, Flag, Name, Names, Section, Text, Words

_EFFECTS = tuple(effect.value for effect in RuleEffect)
Hour = Annotated[float, Field(ge=0, lt=24, description="an hour of the day, from 0 to below 24")]


_RANGE = "a mapping with at_least, at_most or both"
_PATTERN = "a mapping with platform, accelerator, owned or metered"


class RangeSection(Section):
    """`{at_least: …, at_most: …}`, with at least one of the two."""

    at_least: Amount | None = None
    at_most: Amount | None = None

    def pair(self) -> tuple[float | None, float | None]:
        return self.at_least, self.at_most


class WhenSection(Section):
    """The conditions of a rule, all of which must hold."""

    expected_hours: RangeSection | None = Field(default=None, description=_RANGE)
    parameters: RangeSection | None = Field(default=None, description=_RANGE)
    steps: RangeSection | None = Field(default=None, description=_RANGE)
    quota_left_hours: RangeSection | None = Field(default=None, description=_RANGE)
    hours_of_day: list[Hour] | None = Field(
        default=None, min_length=2, max_length=2, description="two local hours, from and to, such as [22, 6]"
    )
    tags: list[Name] = Field(default=[], description="a list of tags, all of which the job must have")

    def build(self) -> When:
        ranges = (self.expected_hours, self.parameters, self.steps, self.quota_left_hours)
        hours, parameters, steps, quota = (r.pair() if r is not None else None for r in ranges)
        day = (self.hours_of_day[0], self.hours_of_day[1]) if self.hours_of_day is not None else None
        return When(hours, parameters, steps, quota, day, tuple(self.tags))


class PatternSection(Section):
    """Which offers a rule applies to: everything given must match."""

    platform: Names | None = None
    accelerator: Words | None = None
    owned: Flag | None = None
    metered: Flag | None = None

    def build(self) -> OfferPattern:
        platforms, accelerators = tuple(self.platform or ()), tuple(self.accelerator or ())
        return OfferPattern(platforms, accelerators, self.owned, self.metered)


class RuleSection(Section):
    """One rule: exactly one of require, avoid and prefer. Without `when` it always applies."""

    name: Text | None = Field(default=None, max_length=100, description="a short text, shown by `why`")
    when: WhenSection | None = Field(default=None, description="a mapping of conditions")
    require: PatternSection | None = Field(default=None, description=_PATTERN)
    avoid: PatternSection | None = Field(default=None, description=_PATTERN)
    prefer: PatternSection | None = Field(default=None, description=_PATTERN)


Rules = list[RuleSection]


def build_rules(sections: list[RuleSection], origin: str) -> tuple[Rule, ...]:
    """Rules that `rule_problems` found nothing wrong with, as values; unnamed ones are named by number."""
    return tuple(_build(section, number, origin) for number, section in enumerate(sections, start=1))


def _build(section: RuleSection, number: int, origin: str) -> Rule:
    when = section.when.build() if section.when is not None else When()
    name = section.name or f"{origin} rule {number}"
    for effect in RuleEffect:
        pattern: PatternSection | None = getattr(section, effect.value)
        if pattern is not None:
            return Rule(name, effect, pattern.build(), when, origin)
    raise AssertionError("a rule without effect has been reported")


def rule_problems(rules: object, path: Path, own: Own = NO_OWN) -> Iterator[Problem]:
    """What is wrong with rules beyond the types of their values; reads the tree, so that nothing hides it."""
    for number, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, dict):
            yield from _rule_problems(rule, (*path, number), own)


def _rule_problems(rule: dict[str, object], path: Path, own: Own) -> Iterator[Problem]:
    given = [effect for effect in _EFFECTS if effect in rule]
    if len(given) != 1:
        told = " and ".join(given) or "none of them"
        yield Problem(path, f"given {told}; valid: exactly one of {', '.join(_EFFECTS)}")
    for effect in given:
        pattern = rule[effect]
        if isinstance(pattern, dict):
            yield from _pattern_problems(pattern, (*path, effect), own)
    when = rule.get("when")
    for key, value in when.items() if isinstance(when, dict) else ():
        if key in ("expected_hours", "parameters", "steps", "quota_left_hours") and isinstance(value, dict):
            yield from _range_problems(value, (*path, "when", key))


def _pattern_problems(pattern: dict[str, object], path: Path, own: Own) -> Iterator[Problem]:
    if not pattern:
        yield Problem(path, f"given nothing, which would match every offer; valid: {_PATTERN}")
    given = pattern.get("accelerator")
    for word in [given] if isinstance(given, str) else given if isinstance(given, list) else []:
        if isinstance(word, str) and row_named(word, own) is None:
            yield Problem(
                (*path, "accelerator"), unknown_accelerator(f"accelerator {shown(word)}", word, own=own)
            )


def _range_problems(value: dict[str, object], path: Path) -> Iterator[Problem]:
    low, high = value.get("at_least"), value.get("at_most")
    if "at_least" not in value and "at_most" not in value:
        yield Problem(path, f"given neither at_least nor at_most; valid: {_RANGE}")
    elif isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        yield Problem(path, f"given at_least {low} above at_most {high}; valid: at_least up to at_most")
