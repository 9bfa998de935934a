"""Asks the platforms and the router on a user's behalf, and shows a route: chosen, possible, rejected.

Launches and writes nothing. Decides nothing: `core.route` does.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping

from orchestrator.cli.output import Output, count_text, number_text
from orchestrator.client.wiring import Wired
from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import Job
from orchestrator.core.offer import Choice, Rejection, Route, Until, UntilKind
from orchestrator.core.run import CLOSED_SECONDS, RunRecord
from orchestrator.core.speed import Measurement, rate
from orchestrator.core.wording import date, span
from orchestrator.engine.market import Market, Surveyed, survey
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import Platform

SURVEY_SECONDS = 30.0  # a platform that has not answered by then counts as one that gave no answer


def survey_all(wired: Wired) -> tuple[Surveyed, ...]:
    """Every configured platform's answer, asked side by side; one that hangs is left behind."""
    platforms = wired.platforms()
    answers: queue.SimpleQueue[Surveyed] = queue.SimpleQueue()

    def ask(name: str, platform: Platform) -> None:
        answers.put(survey(name, platform))

    for name, platform in platforms.items():
        threading.Thread(target=ask, args=(name, platform), daemon=True).start()
    found: dict[str, Surveyed] = {}
    end = wired.clock.monotonic() + SURVEY_SECONDS
    while len(found) < len(platforms):
        try:
            answer = answers.get(timeout=max(0.0, end - wired.clock.monotonic()))
        except queue.Empty:
            break
        found[answer.platform] = answer
    silent = f"no answer within {span(SURVEY_SECONDS)}"
    return tuple(found.get(name) or Surveyed(name, trouble=silent) for name in platforms)


def market(wired: Wired, ledger: Ledger | None) -> Market:
    """The offers as they stand now, less what our own sessions use of them."""
    now = wired.clock.now()
    found = wired.market()
    for answer in survey_all(wired):
        found.take(answer, now)
    if ledger is not None:
        found.remember(ledger.closed_since(now - CLOSED_SECONDS))
    found.begin(ledger.live() if ledger is not None else (), now)
    return found


def route_of(wired: Wired, ledger: Ledger | None, record: RunRecord) -> Route:
    """Where the run would go now, with everything that is wrong with every other offer."""
    route = market(wired, ledger).route(record, measured(ledger, record.job), thorough=True)
    assert route is not None, "every platform has answered, if only with an error"
    return route


def measured(ledger: Ledger | None, job: Job) -> tuple[Measurement, ...]:
    return ledger.measurements(job.name) if ledger is not None else ()


# --- In words -------------------------------------------------------------------------------------------


def choice_text(choice: Choice, job: Job) -> str:
    """`here/cpu: done in about 2 h (1 to 4 h), 3 sessions`."""
    offer, figures = choice.offer, choice.estimate
    low, high = (span(end - figures.start) for end in (figures.finish_low, figures.finish_high))
    parts = [
        f"done in about {span(figures.finish - figures.start)} ({low} to {high})",
        count_text(figures.sessions, "session"),
    ]
    if not rate_is_known(choice, job):
        parts = ["its speed is not known yet: the first session measures it"]
    if offer.quota is not None:
        parts.append(f"{span(figures.quota_seconds)} of quota")
    if offer.wait_seconds >= 1:
        parts.append(f"each waits about {span(offer.wait_seconds)} in the platform's queue")
    if figures.expected_loss_seconds >= 1:
        parts.append(f"{span(figures.expected_loss_seconds)} expected to be lost")
    parts += [f"preferred by {name!r}" for name in choice.preferred_by]
    if offer.traits.human_start:
        parts.append("a person must start each session")
    needs_torch = catalogue[offer.accelerator].needs_torch
    text = f"{offer.platform}/{offer.accelerator}: {', '.join(parts)}"
    return text + (f"; needs {needs_torch}" if needs_torch else "")


def rate_text(choice: Choice, job: Job) -> str:
    """`13.2 steps/s: measured over 40 s of training`."""
    if not rate_is_known(choice, job):
        return choice.estimate.rate_source
    steps = choice.estimate.samples_per_second / job.work.global_batch
    return f"{number_text(steps)} steps/s: {choice.estimate.rate_source}"


def rate_is_known(choice: Choice, job: Job) -> bool:
    """Whether the estimate rests on anything: a measurement, a claim or a bound."""
    profile = job.profile(choice.offer.accelerator)
    row = catalogue.get(choice.offer.accelerator)
    if profile is None or row is None:
        return True
    prior = rate(job.work, profile, row, (), micro_batch=choice.micro_batch)
    return prior.known or choice.estimate.rate_source != prior.source


def until_text(until: Until) -> str:
    match until.kind:
        case UntilKind.NEVER:
            return "for good"
        case UntilKind.SLOT:
            return "until a session of ours ends"
        case UntilKind.HUMAN:
            return "until a person acts"
        case UntilKind.TIME:
            return "for some time" if until.at is None else f"until {date(until.at)}"


def rejection_rows(rejections: tuple[Rejection, ...]) -> list[tuple[str, str, str]]:
    return [(f"{r.platform}/{r.accelerator}", until_text(r.until), r.reason) for r in rejections]


def show_rejections(out: Output, rejections: tuple[Rejection, ...]) -> None:
    if rejections:
        out.say()
        out.table(("REJECTED", "UNTIL", "WHY"), rejection_rows(rejections))


def claims(job: Job, measurements: tuple[Measurement, ...] = ()) -> Iterator[tuple[str, str]]:
    """(accelerator, what its claim is worth) for every profile that brings a claim."""
    for name, profile in job.profiles:
        row = catalogue.get(name)
        if profile.claim is None or row is None or profile.precision not in row.peak_flops:
            continue
        low, high = profile.claim.steps_per_second
        found = rate(job.work, profile, row, measurements, micro_batch=profile.micro_batch)
        text = f"{low:g} to {high:g} steps/s at batch {profile.claim.batch} ({profile.claim.source})"
        if found.claim is not None and found.bound is not None:
            allowed = found.bound / job.work.global_batch
            text += (
                f": {found.claim.value}; the peak allows {number_text(allowed)} steps/s at the job's batch"
            )
        yield name, text


def route_json(route: Route) -> Mapping[str, object]:
    return {
        "chosen": route.chosen,
        "others": route.others,
        "rejections": route.rejections,
        "rules": route.rules,
    }
