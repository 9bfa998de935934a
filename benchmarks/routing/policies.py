"""The ways to choose where the queued runs of a month go: the product's, and those it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from benchmarks.routing.months import Decide, Month, Story
from benchmarks.routing.traces import KAGGLE
from orchestrator.core.calendar import Opening
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.offer import Route
from orchestrator.core.queueing import Waiting, lay_out
from orchestrator.core.route import ways

Pick = Callable[[Route], Route]


def _as_it_is(route: Route) -> Route:
    return route


def _in_order(pick: Pick) -> Decide:
    """The runs in the order of their submission, each judged alone, as before the queue was laid out: the
    quota that a session may use is its whole budget, and a refusal concerns only the run that was refused."""

    def choose(month: Month) -> float:
        month.survey()
        woken = math.inf
        for story in sorted(month.queued.values(), key=lambda s: (s.record.submitted_at, s.record.run)):
            if not month.market.has_room():
                break
            due = _decide(month, story, pick)
            woken = min(woken, due)
        return woken

    return choose


def planned() -> Decide:
    """The product's: the queue is laid out, and each run judged in the place that it leaves."""

    def choose(month: Month) -> float:
        month.survey()
        market, woken = month.market, math.inf
        if not market.has_room():
            return woken
        queue = [
            Waiting(s.record, ways(s.record, market.case(s.measured), month.now))
            for s in month.queued.values()
        ]
        others = len(queue)
        for place in lay_out(queue, market.calendar()):
            if not market.has_room():
                break
            others -= 1
            if place.start is None or place.start > month.now + 1.0:
                woken = min(woken, place.start or math.inf)
                continue
            story = month.stories[place.waiting.record.run]
            woken = min(woken, _decide(month, story, _as_it_is, place.openings, others))
        return woken

    return choose


def _decide(
    month: Month, story: Story, pick: Pick, openings: tuple[Opening, ...] = (), others: int = 0
) -> float:
    """Decides on one run, and launches. Returns when it is due again."""
    month.decisions += 1
    record = story.record
    case = month.market.case(story.measured, openings, others)
    route = month.market.judged(record, case)
    if route is None:
        return math.inf
    made = decide(record, Inputs(month.now, route=pick(route), case=case))
    story.record = made.record
    if made.record.session is None:
        return made.due_at if made.due_at else math.inf
    if month.launch(story, made.record):
        month.market.reserve(made.record.session)
        return math.inf
    pauses = [c for c in story.record.cooldowns if c.since == month.now and c.until is not None]
    if openings:
        for pause in pauses:
            month.market.refusals.add(pause)
        month.survey()
    return min(c.until for c in pauses if c.until is not None)


def landed() -> Decide:
    """The router before it planned. Its judgement is the product's own for a case without a layout, which is
    how journals of that version are judged again."""
    return _in_order(_as_it_is)


def greedy() -> Decide:
    """Each run on the fastest offer that is free."""

    def fastest(route: Route) -> Route:
        choices = [each for each in (route.chosen, *route.others) if each is not None]
        choices.sort(key=lambda each: -each.estimate.samples_per_second)
        return replace(route, chosen=choices[0], others=tuple(choices[1:])) if choices else route

    return _in_order(fastest)


def all_on_kaggle() -> Decide:
    """Each run on Kaggle, whatever else there is."""

    def on_kaggle(route: Route) -> Route:
        choices = [c for c in (route.chosen, *route.others) if c is not None and c.offer.platform == KAGGLE]
        kept = tuple(r for r in route.rejections if r.platform == KAGGLE)
        return replace(
            route, chosen=choices[0] if choices else None, others=tuple(choices[1:]), rejections=kept
        )

    return _in_order(on_kaggle)
