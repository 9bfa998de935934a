"""A route in words: chosen, possible, rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.cli.output import Output
from orchestrator.client.routing import (
    JudgedClaim,
    losses_text,
    needs_torch,
    plan_text,
    profile_text,
    rate_is_known,
    until_text,
)
from orchestrator.core.job import Job
from orchestrator.core.offer import Choice, Rejection, Route, UntilKind
from orchestrator.core.wording import count_text, number_text, quota_text, span


def choice_text(choice: Choice, job: Job, *, sliced: bool | None = None) -> str:
    """`here/cpu: done in about 2 h (1 to 4 h), 3 sessions`. `sliced`: it sleeps between slices, which no
    estimate of an offer counts; by default if the job's schedule says so."""
    offer, figures = choice.offer, choice.estimate
    low, high = (span(end - figures.start) for end in (figures.finish_low, figures.finish_high))
    parts = [
        f"done in about {span(figures.finish - figures.start)} ({low} to {high})",
        count_text(figures.sessions, "session"),
    ]
    is_known = rate_is_known(choice, job)
    if sliced is None:
        sliced = job.schedule is not None and job.schedule.in_slices
    if sliced:
        about = f"about {span(figures.finish - figures.start)} ({low} to {high})"
        parts = [f"{about} of work in slices: `plan` counts the sleep between them"]
    if not is_known:
        parts = ["duration unknown until the first session measures its speed"]
    if profile := profile_text(choice, job):
        parts.append(profile)
    if offer.quota is not None and is_known:
        parts.append(quota_text(figures.quota_seconds, figures.quota_units))
    if offer.wait_seconds >= 1:
        parts.append(f"each waits about {span(offer.wait_seconds)} in the platform's queue")
    if figures.expected_loss_seconds >= 1:
        parts.append(f"about {span(figures.expected_loss_seconds)} of work lost when sessions end")
    parts += [f"preferred by {name!r}" for name in choice.preferred_by]
    if offer.traits.human_start:
        parts.append("a person has started its machine")
    builds = needs_torch(choice)
    text = f"{offer.platform}/{offer.accelerator}: {', '.join(parts)}"
    return text + (f"; needs {builds}" if builds else "")


def losses_fact(choice: Choice, job: Job) -> list[tuple[str, str]]:
    text = losses_text(choice, job)
    return [("losses", text)] if text else []


def plan_fact(route: Route, now: float) -> list[tuple[str, str]]:
    """What is expected of the run over all offers, if that is more than one session of the chosen one."""
    text = plan_text(route, now)
    return [("plan", text)] if text else []


def rate_text(choice: Choice, job: Job) -> str:
    """`13.2 steps/s: measured over 40 s of training`."""
    if not rate_is_known(choice, job):
        return choice.estimate.rate_source
    steps = choice.estimate.samples_per_second / job.work.global_batch
    return f"{number_text(steps)} steps/s: {choice.estimate.rate_source}"


def rejection_rows(rejections: Iterable[Rejection]) -> list[tuple[str, str, str]]:
    return [(f"{r.platform}/{r.accelerator}", until_text(r.until), r.reason) for r in rejections]


def starts(route: Route) -> tuple[str, ...]:
    """What a person can do so that a machine is there, without repeats."""
    if route.chosen is not None:
        return ()
    commands = (r.until.commands for r in route.rejections if r.until.kind is UntilKind.START)
    return tuple(dict.fromkeys(command for each in commands for command in each))


def show_rejections(out: Output, rejections: tuple[Rejection, ...]) -> None:
    if rejections:
        out.say()
        out.table(("REJECTED", "UNTIL", "WHY"), rejection_rows(rejections))


def claim_text(judged: JudgedClaim) -> str:
    """A claim in words, and whether it is plausible."""
    claim = judged.claim
    low, high = claim.steps_per_second
    text = f"{low:g} to {high:g} steps/s at batch {claim.batch} ({claim.source})"
    if judged.steps_per_second_max is None:
        return text
    allowed = number_text(judged.steps_per_second_max)
    return f"{text}: {judged.plausible}; the peak allows {allowed} steps/s at the job's batch"


def route_json(route: Route) -> Mapping[str, object]:
    return {
        "chosen": route.chosen,
        "others": route.others,
        "rejections": route.rejections,
        "rules": route.rules,
        "itinerary": route.itinerary,
    }
